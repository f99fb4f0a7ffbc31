//! The keys of jobs that have a name and an id in another system.

use std::str::FromStr;

use keyfall::Kind;
use keyfall_daemon::classic::Names;
use keyfall_daemon::shapes::Time;

use super::Pending;
use crate::import::Fault;
use crate::import::entry::Entry;

/// The kind for the jobs of one name, or for all others.
#[derive(Debug, Clone)]
pub(in crate::import) struct Renamed {
    name: Option<String>,
    kind: Kind,
}

/// The kinds for the jobs of all names.
pub(in crate::import) struct Naming(pub(in crate::import) Vec<Renamed>);

impl Naming {
    /// The header that keeps the name: one kind can stand for several.
    const NAME: &str = "job-name";

    pub(super) fn entry(&self, job: &Pending<'_>) -> Result<Entry, Fault> {
        let Naming(all) = self;
        let named = |name: Option<&str>| all.iter().find(|it| it.name.as_deref() == name);
        let renamed = named(Some(job.name)).or_else(|| named(None));
        let Renamed { kind, .. } = renamed.ok_or_else(|| {
            let name = job.name.escape_debug();
            Fault::LeftOut(format!(
                "have the name {name}, for which `--as` gives no kind"
            ))
        })?;
        let key = Names::key(kind, job.id).map_err(|error| error.to_string())?;
        let entry = Entry::new(key, Time(job.due), job.payload);
        Ok(entry.header(Self::NAME, job.name.to_owned()))
    }
}

impl FromStr for Renamed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, kind) = match text.rsplit_once('=') {
            Some((name, kind)) => (Some(name.to_owned()), kind),
            None => (None, text),
        };
        let kind = Kind::parse(kind).map_err(|error| error.to_string())?;
        Ok(Renamed { name, kind })
    }
}
