//! Calls of scripts without a store and without triggers, as on a cluster, where triggers are in
//! other slots than the ledger.

use std::sync::LazyLock;

use regex::Regex;

use super::{Bench, soon};
use crate::names::LedgerNames;
use crate::store::ledger::script::{self, Script};
use crate::store::{Answered, Lane};

/// The keys that the header of a script lists: number, name, and rendered key.
pub(in crate::store::tests) fn keys_in_header(text: &str) -> Vec<(String, String, String)> {
    static LINE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^-- (?:KEYS|    ) +(\d+…?) (\w+) +([^, ]+)").unwrap());
    let list = text.lines().skip_while(|line| !line.starts_with("-- KEYS"));
    let list = list.take_while(|line| !line.starts_with("-- ARGV"));
    list.filter_map(|text| {
        let (_, found) = LINE.captures(text)?.extract::<3>();
        let [number, name, rendered] = found.map(Into::into);
        Some((number, name, rendered))
    })
    .collect()
}

/// The rendered key for the name that a header gives it.
pub(in crate::store::tests) fn key_called<'a>(names: &'a LedgerNames, name: &str) -> &'a str {
    match name {
        "due" => &names.due,
        "shadow" => &names.shadow,
        "leased" => &names.leased,
        "lease" => &names.lease,
        "next" => &names.next,
        "dead" => &names.dead,
        "grave" => &names.grave,
        "stats" => &names.stats,
        "calls" => &names.calls,
        "lanes" => &names.lanes,
        "history" => &names.history,
        "adopted" => &names.adopted,
        "leaving" => &names.leaving,
        "minutes" => &names.minutes,
        "quarters" => &names.quarters,
        // These keys belong to no ledger.
        "instances" => "keyfall:instances",
        "kinds" => "keyfall:kinds",
        other => panic!("no ledger has a key {other:?}"),
    }
}

impl Bench {
    /// The keys that a script takes before the triggers.
    pub(in crate::store::tests) fn keys_of(&self, script: &Script) -> Vec<&str> {
        let all = script::all();
        let (_, text) = all
            .iter()
            .find(|(other, _)| other.name == script.name)
            .unwrap();
        let listed = keys_in_header(text).into_iter();
        let fixed = listed.filter(|(_, name, _)| name != "trigger");
        fixed
            .map(|(_, name, _)| key_called(self.names(), &name))
            .collect()
    }

    /// Calls a script with numbered calls. `args` follow lane, number, caller and place.
    pub(in crate::store::tests) async fn by_hand(
        &self,
        script: &'static Script,
        lane: &mut Lane,
        args: &[&str],
    ) -> Vec<Answered> {
        let mut cmd = self
            .ledger
            .call(script, &self.keys_of(script), [].into_iter());
        if script.is_addressed() {
            self.ledger.address(&mut cmd, lane);
        } else {
            crate::store::ledger::number(&mut cmd, lane);
        }
        cmd.arg(args);
        let mut called = self.ledger.eval(script, &cmd, soon()).await.unwrap();
        called.reply.answers().unwrap()
    }
}
