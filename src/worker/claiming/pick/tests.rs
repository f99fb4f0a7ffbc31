//! Tests of the pick: the jobs that the next call to a ledger claims.

use super::*;
use crate::client::SettleTerms;
use crate::names::Names;
use crate::router::Router;
use crate::settings::LinkSettings;
use crate::store::{Alive, Store};
use crate::worker::description::describe;
use crate::worker::running::limits::Limits;
use crate::worker::served::ServedLedgers;
use crate::{Handler, MissingKey};

const KIND: &str = "app1:trans:notice";

/// One ledger with its routes, on a Redis that is never called.
struct Setting {
    served: Arc<ServedLedger>,
    routes: Arc<Routes>,
    instances: PeerTable,
    slots: Arc<Slots>,
    ledger_inbox: LedgerInbox,
    search: RouteSearch,
}

impl Setting {
    /// A worker with these routes that runs so many jobs at a time.
    fn new(router: Router, total: usize) -> Self {
        let link = LinkSettings::default();
        let store = Store::new("redis://127.0.0.1:1", Names::new("keyfall"), &link).unwrap();
        let routes = Arc::new(router.finish().unwrap());
        let terms = SettleTerms::at_once(Default::default());
        let served_ledgers = ServedLedgers::new(store, routes.clone(), terms);
        Setting {
            served: served_ledgers.shards(KIND)[0].clone(),
            instances: PeerTable::new(&describe(&routes, 256), 1).unwrap(),
            slots: Slots::new(&Limits::new(total), &routes),
            routes,
            ledger_inbox: LedgerInbox::default(),
            search: RouteSearch::default(),
        }
    }

    /// The routes `busy*`, with a limit of its own, and `free*`.
    fn mixed(busy: usize, total: usize) -> Self {
        let router = Router::new()
            .route(
                &format!("{KIND}:{{id:busy.*}}"),
                (async || {}).concurrency(busy),
            )
            .route(&format!("{KIND}:{{id:free.*}}"), async || {});
        Setting::new(router, total)
    }

    fn whole(total: usize) -> Self {
        Setting::new(
            Router::new().route(&format!("{KIND}:*"), async || {}),
            total,
        )
    }

    fn hear(&mut self, ids: &[&str]) {
        for id in ids {
            self.ledger_inbox
                .heard
                .push_back(((*id).to_owned(), Source::Event));
        }
    }

    fn heard(&self) -> Vec<&str> {
        self.ledger_inbox
            .heard
            .iter()
            .map(|(id, _)| &**id)
            .collect()
    }

    /// The next call, while so many ledgers wait for slots.
    fn next(&mut self, waiting: usize) -> Option<ClaimCall> {
        let means = ClaimContext {
            slots: &self.slots,
            routes: &self.routes,
            instances: &self.instances,
            lease: LeaseLength(Duration::from_secs(60)),
        };
        next(
            &mut self.ledger_inbox,
            &mut self.search,
            &self.served,
            means,
            waiting,
        )
    }

    /// The jobs that are left to other instances.
    fn excess(&mut self) -> Vec<String> {
        excess(
            &mut self.ledger_inbox,
            &self.served,
            &self.slots,
            &self.instances,
        )
    }

    /// Takes in a page of due jobs.
    fn found(&mut self, due: Vec<String>) {
        let means = ClaimContext {
            slots: &self.slots,
            routes: &self.routes,
            instances: &self.instances,
            lease: LeaseLength(Duration::from_secs(60)),
        };
        self.search
            .found(&mut self.ledger_inbox, due, &self.served, means);
    }

    fn next_page(&mut self) -> Option<usize> {
        let kind = self.served.ledger.kind();
        self.search.next_page(&self.ledger_inbox, &self.slots, kind)
    }
}

/// The named jobs of a claim of due jobs, and how many more it takes.
fn due(call: &Option<ClaimCall>) -> (Vec<&str>, usize) {
    match call {
        Some(ClaimCall::Due { named, fill, .. }) => {
            (named.iter().map(|item| &*item.id).collect(), fill.len())
        }
        _ => panic!("it claims no due jobs"),
    }
}

fn page(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("busy{number}")).collect()
}

#[tokio::test]
async fn the_jobs_that_were_heard_of_are_claimed_as_far_as_there_are_slots() {
    let mut it = Setting::whole(3);
    assert!(it.next(1).is_none(), "nothing is due");
    it.hear(&["a", "b", "c", "d"]);
    let first = it.next(1);
    assert_eq!(due(&first), (vec!["a", "b", "c"], 0));
    assert_eq!((it.heard(), it.ledger_inbox.behind), (vec!["d"], false));
    // No slot is left: the oldest are taken as soon as there is one.
    assert!(it.next(1).is_none());
    assert!(it.heard().is_empty() && it.ledger_inbox.behind);
    drop(first);
    assert_eq!(due(&it.next(1)), (vec![], 3));
}

#[tokio::test]
async fn a_ledger_that_is_behind_takes_the_oldest_with_its_share_of_the_slots() {
    let mut it = Setting::whole(10);
    it.hear(&["a"]);
    it.ledger_inbox.behind = true;
    for (waiting, share) in [(1, 10), (2, 5), (3, 4), (20, 1)] {
        assert_eq!(due(&it.next(waiting)), (vec![], share), "{waiting} wait");
        assert!(it.heard().is_empty() && it.ledger_inbox.behind);
    }
    let mut it = Setting::whole(10 * BATCH);
    it.ledger_inbox.behind = true;
    assert_eq!(due(&it.next(1)).1, BATCH);
}

#[tokio::test]
async fn lapsed_jobs_come_first_and_the_rest_waits() {
    let mut it = Setting::mixed(1, 10);
    it.hear(&["free1"]);
    let lapsed = ["busy1", "other", "busy2", "free2"].map(str::to_owned);
    it.ledger_inbox.lapsed = lapsed.into();
    match it.next(1) {
        Some(ClaimCall::Lapsed { named, .. }) => {
            let ids: Vec<_> = named.iter().map(|item| &*item.id).collect();
            assert_eq!(ids, ["busy1", "free2"]);
        }
        _ => panic!("it takes nothing over"),
    }
    assert_eq!(it.ledger_inbox.lapsed, ["busy2"], "its route has no slot");
    assert_eq!(it.heard(), ["free1"]);
}

#[tokio::test]
async fn jobs_of_a_busy_route_do_not_hide_the_others() {
    let mut it = Setting::mixed(1, 10);
    it.hear(&["busy1", "other", "busy2", "free1"]);
    let call = it.next(1);
    assert_eq!(due(&call), (vec!["busy1", "free1"], 0));
    assert!(it.heard().is_empty() && it.ledger_inbox.behind);
    // A look for the jobs that were left.
    assert!(matches!(it.next(1), Some(ClaimCall::Look { skip: 0 })));
    assert!(it.search.is_under_way());
    it.found(["busy2", "other", "free2"].map(str::to_owned).into());
    assert_eq!(it.heard(), ["free2"]);
    assert!(!it.search.is_under_way() && it.ledger_inbox.behind);
    let more = it.next(1);
    assert_eq!(due(&more), (vec!["free2"], 0));
    assert!(it.next(1).is_none(), "the busy route has no slot yet");
    drop(call);
    assert!(matches!(it.next(1), Some(ClaimCall::Look { skip: 0 })));
}

#[tokio::test]
async fn a_search_that_meets_no_busy_route_ends_the_backlog() {
    let mut it = Setting::mixed(1, 10);
    it.ledger_inbox.behind = true;
    assert!(matches!(it.next(1), Some(ClaimCall::Look { skip: 0 })));
    it.found(vec!["free1".to_owned(), "other".to_owned()]);
    assert!(!it.ledger_inbox.behind);
    assert_eq!(due(&it.next(1)), (vec!["free1"], 0));
    assert!(it.next(1).is_none());
}

#[tokio::test]
async fn without_a_slot_nothing_is_searched_for() {
    let mut it = Setting::mixed(1, 1);
    let all = it.slots.reserve(1, it.served.ledger.kind(), 1);
    it.ledger_inbox.behind = true;
    assert!(it.next(1).is_none());
    drop(all);
    assert!(it.next(1).is_some());
}

#[tokio::test]
async fn a_claim_has_leases_of_one_length_and_no_more_jobs_than_a_call() {
    let short = (async || {}).lease(Duration::from_secs(5));
    let router = Router::new()
        .route(&format!("{KIND}:{{id:short.*}}"), short)
        .route(&format!("{KIND}:{{id:long.*}}"), async || {});
    let mut it = Setting::new(router, 10 * BATCH);
    it.hear(&["long1", "short1", "long2", "short2"]);
    let first = it.next(1);
    assert_eq!(due(&first), (vec!["long1", "long2"], 0));
    assert_eq!(it.heard(), ["short1", "short2"], "in their order");
    let Some(ClaimCall::Due { lease, .. }) = it.next(1) else {
        panic!("the others are claimed next");
    };
    assert_eq!(lease.0, Duration::from_secs(5));
    let many: Vec<String> = (0..=BATCH).map(|number| format!("long{number}")).collect();
    it.hear(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(due(&it.next(1)).0.len(), BATCH);
    assert_eq!(it.heard().len(), 1);
    let lapsed = many.iter().cloned();
    it.ledger_inbox.lapsed = lapsed.collect();
    let Some(ClaimCall::Lapsed { named, .. }) = it.next(1) else {
        panic!("lapsed jobs come first");
    };
    assert_eq!((named.len(), it.ledger_inbox.lapsed.len()), (BATCH, 1));
}

#[tokio::test]
async fn a_search_goes_on_behind_a_full_page_and_ends_with_another() {
    let mut it = Setting::mixed(1, 1);
    let _all = it.slots.reserve(0, it.served.ledger.kind(), 1);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    it.found(page(BATCH));
    assert_eq!(it.next_page(), Some(BATCH));
    it.found(page(BATCH - 1));
    assert_eq!(it.next_page(), None);
    assert!(it.ledger_inbox.behind, "the jobs wait for a slot");
}

#[tokio::test]
async fn a_search_for_free_slots_ends_when_they_are_taken() {
    let mut it = Setting::mixed(2, 10);
    let busy = it.slots.reserve(0, it.served.ledger.kind(), 2);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    it.found(page(1));
    assert_eq!(it.next_page(), None, "no starved route has a slot");
    drop(busy);
    assert_eq!(it.next_page(), Some(0));
    let busy = it.slots.reserve(0, it.served.ledger.kind(), 2);
    it.found(page(BATCH));
    assert_eq!(it.next_page(), None, "the slots are taken");
    drop(busy);
    assert_eq!(it.next_page(), Some(0), "from the start");
}

#[tokio::test]
async fn a_search_passes_over_jobs_without_a_slot_or_a_route() {
    let mut it = Setting::mixed(1, 3);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    let other = (3..BATCH).map(|number| format!("other{number}"));
    let ours = ["free1", "busy1", "free2"].map(str::to_owned);
    it.found(ours.into_iter().chain(other).collect());
    assert_eq!(it.heard(), ["free1", "busy1", "free2"]);
    assert_eq!(it.next_page(), Some(BATCH - 3), "the others stay due");
    it.ledger_inbox.heard.clear();
    // Each job that is taken out needs a slot of its own.
    it.found(
        ["free1", "busy1", "busy2", "free2", "free3", "free4"]
            .map(str::to_owned)
            .into(),
    );
    assert_eq!(it.heard(), ["free1", "busy1", "free2", "free3"]);
}

#[tokio::test]
async fn a_whole_search_needs_news_and_a_pause() {
    let mut it = Setting::mixed(1, 10);
    let _busy = it.slots.reserve(0, it.served.ledger.kind(), 1);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    it.found(page(1));
    assert_eq!(it.next_page(), None, "nothing has changed");
    let began = |it: &mut Setting, ago| {
        let (at, _) = it.search.began.as_mut().unwrap();
        *at = Instant::now().checked_sub(ago).unwrap();
    };
    began(&mut it, WHOLE_SEARCH);
    assert_eq!(it.next_page(), None, "there is no news");
    began(&mut it, Duration::ZERO);
    it.ledger_inbox.said += 1;
    assert_eq!(it.next_page(), None, "it has just searched");
    began(&mut it, WHOLE_SEARCH);
    assert_eq!(it.next_page(), Some(0), "a job without a slot hides others");
    it.found(vec!["free1".to_owned()]);
    assert_eq!(it.heard(), ["free1"]);
    assert!(!it.ledger_inbox.behind, "no more jobs wait");
}

#[tokio::test]
async fn a_whole_search_goes_to_the_end_whatever_is_heard_meanwhile() {
    let mut it = Setting::mixed(1, 10);
    let _busy = it.slots.reserve(0, it.served.ledger.kind(), 1);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    it.found(page(BATCH));
    it.search.began.as_mut().unwrap().0 = Instant::now().checked_sub(WHOLE_SEARCH).unwrap();
    it.ledger_inbox.said += 1;
    assert_eq!(it.next_page(), Some(BATCH));
    it.found(Vec::new());
    assert!(it.ledger_inbox.behind, "jobs were heard of since");
    assert_eq!(it.next_page(), Some(0), "the next search");
}

#[tokio::test]
async fn a_job_without_a_slot_keeps_a_search_that_has_passed_it_from_ending_the_backlog() {
    let mut it = Setting::mixed(1, 10);
    let busy = it.slots.reserve(0, it.served.ledger.kind(), 1);
    it.ledger_inbox.behind = true;
    assert_eq!(it.next_page(), Some(0));
    it.found((0..BATCH).map(|number| format!("other{number}")).collect());
    it.hear(&["busy1"]);
    assert!(matches!(it.next(1), Some(ClaimCall::Look { skip: BATCH })));
    it.found(Vec::new());
    assert!(it.ledger_inbox.behind);
    drop(busy);
    assert_eq!(it.next_page(), Some(0), "its route has a slot");
}

#[tokio::test]
async fn a_job_that_falls_due_behind_the_look_of_a_claim_is_claimed_next() {
    let mut it = Setting::whole(1);
    it.ledger_inbox.behind = true;
    let Some(ClaimCall::Due { fill, said, .. }) = it.next(1) else {
        panic!("it takes the oldest");
    };
    it.hear(&["1"]);
    assert!(it.next(1).is_none(), "there is no slot");
    drop(fill);
    it.ledger_inbox.caught_up(said);
    assert!(it.ledger_inbox.behind);
    assert_eq!(due(&it.next(1)), (vec![], 1));
}

#[tokio::test]
async fn lapsed_jobs_that_wait_for_a_slot_are_no_backlog() {
    let mut it = Setting::whole(1);
    let slot = it.slots.reserve(0, it.served.ledger.kind(), 1);
    it.ledger_inbox.lapsed.push_back("a".to_owned());
    assert!(it.next(1).is_none());
    assert!(!it.ledger_inbox.behind, "no job is known to be due");
    drop(slot);
    assert!(matches!(it.next(1), Some(ClaimCall::Lapsed { .. })));
    assert!(it.next(1).is_none());
}

/// Makes a second instance known, and begins the turn of this one.
fn take_turns(it: &Setting) {
    let other = describe(&it.routes, 256);
    let takes = Arc::new(other.takes().unwrap());
    let alive = [it.instances.id(), "other"].map(|id| Alive {
        id: id.to_owned(),
        age: Duration::ZERO,
        room: "1h".into(),
    });
    let takes = HashMap::from([("other".to_owned(), takes)]);
    it.instances.meet(0, &alive, &takes);
    it.instances.turn_begins(&it.served, it.instances.id());
}

#[tokio::test]
async fn an_instance_without_a_slot_leaves_the_jobs_of_its_turn_to_others() {
    let mut it = Setting::whole(16);
    take_turns(&it);
    it.hear(&["a", "b"]);
    assert!(
        it.excess().is_empty() && it.heard() == ["a", "b"],
        "it has slots"
    );
    let all = it.slots.reserve(0, it.served.ledger.kind(), 16);
    it.ledger_inbox.behind = true;
    assert!(it.excess().is_empty(), "with a backlog nobody has room");
    it.ledger_inbox.behind = false;
    it.instances.turn_begins(&it.served, "other");
    assert!(it.excess().is_empty(), "its turn is over");
    it.instances.turn_begins(&it.served, it.instances.id());
    let by_pacer = ("c".to_owned(), Source::Pacer);
    it.ledger_inbox.heard.push_back(by_pacer);
    assert_eq!(it.excess(), ["a", "b"]);
    assert_eq!(
        it.heard(),
        ["c"],
        "another instance has left it to this one"
    );
    drop(all);
}

#[tokio::test]
async fn an_instance_without_a_slot_keeps_the_events_of_plain_keys() {
    let adopted = (async || {}).adopt(MissingKey::Run);
    let mut it = Setting::new(Router::new().route(&format!("{KIND}:*"), adopted), 16);
    take_turns(&it);
    let _all = it.slots.reserve(0, it.served.ledger.kind(), 16);
    it.hear(&["a"]);
    assert!(it.excess().is_empty());
    assert_eq!(it.heard(), ["a"]);
}
