//! Parts between two steps of a mending, or among many other keys, do not count as lost.

use keyfall::doctor::Severity;

use super::{PARTS, Torn};
use crate::runs::{eventually, recorder};
use crate::topology::clusters::ledger_of;

impl Torn {
    /// Brings the keys of node 1 to the owner, like a mending that is interrupted before it joins
    /// anything: copied, and deleted at the source, some parts a step further than others.
    async fn put_aside(&self) {
        let (slot, owner) = (self.slot, &self.them.nodes[3]);
        let import = format!("CLUSTER SETSLOT {slot} IMPORTING {}", owner.id);
        let _: () = self.them.nodes[1].ask(&import).await;
        self.them.hand_keys_over(slot, 1, 3).await;
        for (number, part) in PARTS.iter().enumerate() {
            let state = ["copied", "moved"][number % 2];
            let aside = self.name(&format!("mending:{state}:{part}"));
            let rename = format!("RENAME {} {aside}", self.name(part));
            let _: () = owner.ask(&rename).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_kept_aside_does_not_begin_anew() {
    let mut torn = Torn::new("torn-aside", 5).await;
    torn.tear(&PARTS).await;
    torn.put_aside().await;
    let client = torn.impatient().await;
    let schedule = async || client.schedule(torn.key("more"), "").await;
    torn.refuses(&["mending:"], schedule).await;
    let cancel = async || client.cancel(torn.key(0)).await;
    torn.refuses(&["mending:"], cancel).await;
    torn.refuses(&["mending:"], async || client.get(torn.key(0)).await)
        .await;
    assert_eq!(torn.keys_on(3).await, 13, "nothing has begun anew");

    let ledger = format!("{}/0", torn.kind);
    let diagnosis = eventually("all nodes are looked at", async || {
        torn.client.diagnose().only(["slots-whole"]).await.ok()
    });
    let diagnosis = diagnosis.await;
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.severity, Severity::Error, "{finding}");
    assert!(finding.found.contains("13 keys"), "{finding}");
    let remedy = finding.remedy.as_ref().unwrap();
    assert!(remedy.contains("keyfall cluster mend --yes"), "{finding}");
    assert!(!remedy.contains("--give-up"), "{finding}");

    let found = torn.client.mend_slots().give_up(&ledger).await.unwrap();
    assert!(!found.is_whole() && found.slots.is_empty(), "{found:?}");
    assert!(found.left[0].contains(&ledger), "{found:?}");
    assert_eq!(
        found.torn[0].ledger, ledger,
        "it is there, and not given up"
    );

    let mended = torn.client.mend_slots().confirmed().await.unwrap();
    assert!(mended.is_whole(), "{mended:?}");
    let (log, mut runs) = recorder();
    let worker = torn.serve(&log);
    runs.take(5).await;
    torn.all_done(5).await;
    worker.stop().await;
    let diagnosis = eventually("all nodes are looked at", async || {
        torn.client.diagnose().only(["slots-whole"]).await.ok()
    });
    let diagnosis = diagnosis.await;
    assert_eq!(diagnosis.worst(), Severity::Ok, "{diagnosis:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misplaced_ledger_is_found_among_many_keys_of_its_slot() {
    const OTHERS: u64 = 10_100;
    let mut torn = Torn::new("torn-crowd", 2).await;
    torn.tear(&PARTS).await;
    // Servers list the newest keys of a slot first, or the keys with the smallest names.
    let name = format!("a:{}:", ledger_of(&torn.kind));
    // A command is split at blanks, so this text has none.
    let fill = format!("for\ti=1,{OTHERS}\tdo\tredis.call('SET',KEYS[1]..i,'')\tend");
    let _: redis::Value = torn.ask_for(1, &format!("EVAL {fill} 1 {name}")).await;
    assert_eq!(torn.keys_on(1).await, OTHERS + PARTS.len() as u64);
    let client = torn.impatient().await;
    let schedule = async || client.schedule(torn.key("more"), "").await;
    torn.refuses(&[&torn.address(1)], schedule).await;
    assert_eq!(torn.keys_on(3).await, 0, "nothing has begun anew");
}
