//! Durable calls: the replicas and disks that must have the write of a command before its answer.

use keyfall_daemon::shapes::{DurableIn, ReachedOut};

#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct Durably {
    /// Wait for a moment until this number of replicas has the write, and print how many have it
    #[arg(long, value_name = "N")]
    durable: Option<u32>,

    /// Also wait until the write is on disk: on the disk of the primary, and of as many replicas
    #[arg(long)]
    fsynced: bool,
}

impl Durably {
    pub(crate) fn asked(self) -> DurableIn {
        DurableIn {
            durable: self.durable,
            fsynced: self.fsynced,
        }
    }

    /// The reached goals, as the end of a sentence.
    pub(crate) fn told(self, reached: Option<ReachedOut>) -> String {
        let Some(reached) = reached else {
            return String::new();
        };
        let count = |count: u32| match count {
            1 => "1 replica".to_owned(),
            count => format!("{count} replicas"),
        };
        let but = if reached.met { "; " } else { "; only " };
        let mut told = format!("{but}{} had it in time", count(reached.replicas));
        if self.fsynced {
            told += match reached.on_disk {
                Some(true) => ", and it was on the disk of the primary",
                Some(false) => ", and it was not on the disk of the primary",
                None => ", and this server does not report its disk",
            };
            if let Some(disks) = reached.replicas_on_disk {
                told += &format!(", and on the disks of {}", count(disks));
            }
        }
        told
    }
}
