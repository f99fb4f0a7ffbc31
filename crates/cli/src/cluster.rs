//! `keyfall cluster`: repairs that only a Redis Cluster needs.

use anyhow::bail;
use keyfall::{MendedSlots, StrayState};
use serde::Serialize;

use super::connect::{Remedy, Server};
use super::out::{self, Form};
use super::stop::Stop;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Look for keys on nodes that do not serve their slots; with --yes, bring them to the right
    /// nodes
    #[command(
        after_help = "Examples:\n  keyfall cluster mend\n  keyfall cluster mend --yes\n  keyfall cluster mend --yes --give-up app1:trans:notice/0\n\nIt may be stopped at any time; the same command goes on. Exit codes: 0 every key is on the right node,\n1 a key is not; others as in `keyfall --help`"
    )]
    Mend(Mend),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Mend {
    /// Move the keys
    #[arg(long)]
    yes: bool,

    /// Only look, which is the behaviour without `--yes`
    #[arg(long = "dry-run", hide = true, conflicts_with = "yes")]
    _dry_run: bool,

    /// Delete outdated copies of ledgers that are complete on the nodes that serve them
    #[arg(long, requires = "yes")]
    drop: bool,

    /// Join parts of a ledger that is complete on the node that serves it: for a ledger that began
    /// anew without them
    #[arg(long, requires = "yes", conflicts_with = "drop")]
    join: bool,

    /// Go on without the missing keys of this ledger, app:module:biz/shard, if no node has them
    #[arg(long, value_name = "LEDGER", requires = "yes")]
    give_up: Vec<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// A slot, as JSON.
#[derive(Serialize)]
struct Slot<'a> {
    slot: u16,
    holder: &'a str,
    owner: Option<&'a str>,
    keys: usize,
    ledgers: &'a [String],
    state: &'static str,
}

/// A ledger of which a part is missing, as JSON.
#[derive(Serialize)]
struct Torn<'a> {
    ledger: &'a str,
    slot: u16,
    missing: &'a str,
}

#[derive(Serialize)]
struct MendedOut<'a> {
    slots: Vec<Slot<'a>>,
    torn: Vec<Torn<'a>>,
    left: &'a [String],
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let Command::Mend(Mend {
        yes,
        drop,
        join,
        give_up,
        form,
        server,
        ..
    }) = command;
    let Some(client) = server.client(Remedy::Cluster).await? else {
        bail!(Stop::wrong(
            "keys are moved within Redis, which a daemon does not offer: name the cluster by \
             --redis-url instead of --api"
        ));
    };
    let mut mend = client.mend_slots();
    if yes {
        mend = mend.confirmed();
    }
    if drop {
        mend = mend.dropping();
    }
    if join {
        mend = mend.joining();
    }
    let mended = give_up
        .into_iter()
        .fold(mend, |mend, it| mend.give_up(it))
        .await?;
    match form.json {
        true => out::json(&told(&mended))?,
        false => show(&mended)?,
    }
    if mended.is_whole() {
        return Ok(());
    }
    bail!(match (yes, mended.torn.first()) {
        (false, _) => "nothing was moved: add `--yes` to move the keys".to_owned(),
        (true, Some(torn)) => format!(
            "no node that answers has the rest of {0}: start the node that has it, or go on \
             without it by `--give-up {0}`",
            torn.ledger
        ),
        (true, None) => {
            "some ledgers are still in parts: see above, and `--drop` and `--join`".to_owned()
        }
    })
}

fn told(mended: &MendedSlots) -> MendedOut<'_> {
    let slots = mended.slots.iter().map(|it| Slot {
        slot: it.slot,
        holder: &it.holder,
        owner: it.owner.as_deref(),
        keys: it.keys,
        ledgers: &it.ledgers,
        state: word(&it.state),
    });
    let torn = mended.torn.iter().map(|it| Torn {
        ledger: &it.ledger,
        slot: it.slot,
        missing: &it.missing,
    });
    MendedOut {
        slots: slots.collect(),
        torn: torn.collect(),
        left: &mended.left,
    }
}

fn show(mended: &MendedSlots) -> anyhow::Result<()> {
    if mended.slots.is_empty() && mended.is_whole() {
        return Ok(out::line("every key is on the node that serves its slot")?);
    }
    if !mended.slots.is_empty() {
        let rows = mended.slots.iter().map(|it| {
            [
                it.slot.to_string(),
                it.holder.clone(),
                it.owner.clone().unwrap_or_else(|| "nobody".into()),
                it.keys.to_string(),
                it.ledgers.join(" "),
                word(&it.state).to_owned(),
            ]
        });
        let titles = [">slot", "is on", "belongs to", ">keys", "ledgers", "state"];
        out::table(titles, rows)?;
    }
    for it in &mended.torn {
        out::line(format!(
            "{} (slot {}) lacks {}",
            it.ledger, it.slot, it.missing
        ))?;
    }
    for why in &mended.left {
        out::line(why)?;
    }
    Ok(())
}

fn word(state: &StrayState) -> &'static str {
    match state {
        StrayState::Found => "found",
        StrayState::UnderWay => "on its way",
        StrayState::Together => "together",
        _ => "left",
    }
}
