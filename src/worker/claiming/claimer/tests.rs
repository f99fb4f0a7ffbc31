//! Tests of the claimer: the calls that it sends, and what it does with the answers.

use std::sync::atomic::AtomicBool;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::super::inbox::LedgerInbox;
use super::*;
use crate::client::SettleTerms;
use crate::error::{Error, ErrorKind};
use crate::handler::Pull;
use crate::hooks::{HookFunctions, Hooks};
use crate::key::Kind;
use crate::moment::Moment;
use crate::names::Names;
use crate::retry::RetryPolicy;
use crate::router::Router;
use crate::settings::{LinkSettings, WorkerSettings};
use crate::store::{Alive, Claimed, Store};
use crate::time::{UnixMs, UnixUs};
use crate::worker::description::describe;
use crate::worker::finding::balancer::Balancer;
use crate::worker::finding::pacer::Pacer;
use crate::worker::finding::reconciler::Reconciler;
use crate::worker::finding::timer::PreciseTimer;
use crate::worker::notice::Notices;
use crate::worker::readiness::{Readiness, ReadinessByServer};
use crate::worker::running::leases::Leases;
use crate::worker::running::limits::Limits;
use crate::worker::server_monitor::MonitorContext;
use crate::{Handler, MissingKey};

const KIND: &str = "app1:trans:notice";
const LEASE: LeaseLength = LeaseLength(Duration::from_secs(60));

/// A claimer whose Redis is away.
struct Setting {
    claimer: Claimer,
    flights: FuturesUnordered<Flight>,
}

impl Setting {
    /// The claimer of a worker with these routes that runs so many jobs at a time.
    fn new(router: Router, total: usize) -> Self {
        let link = LinkSettings::default();
        let store = Store::new("redis://127.0.0.1:1", Names::new("keyfall"), &link).unwrap();
        let routes = Arc::new(router.finish().unwrap());
        let terms = SettleTerms::at_once(Default::default());
        let served_ledgers = Arc::new(ServedLedgers::new(store.clone(), routes.clone(), terms));
        let description = describe(&routes, total);
        let instances = Arc::new(PeerTable::new(&description, 1).unwrap());
        let slots = Slots::new(&Limits::new(total), &routes);
        let inbox = Arc::new(ClaimInbox::default());
        let balancer = Balancer::new(store.clone(), instances.clone());
        let monitors = ServerMonitors::new(&MonitorContext {
            store,
            routes: routes.clone(),
            served_ledgers: served_ledgers.clone(),
            instances: instances.clone(),
            description,
            slots: slots.clone(),
            heard_at: Arc::new(ReadinessByServer::new(Readiness::default(), 1, false)),
            payload_limit: 1024,
        });
        let pacer = Pacer::new(
            served_ledgers.clone(),
            instances.clone(),
            monitors.clone(),
            inbox.clone(),
            PreciseTimer::new().unwrap(),
        );
        let reconciler = Reconciler::new(
            served_ledgers.clone(),
            instances.clone(),
            inbox.clone(),
            (pacer, balancer),
            monitors.clone(),
            LEASE.renewal(),
        );
        let runner = Arc::new(Runner {
            handle: Handle::current(),
            routes,
            leases: Leases::new(LEASE),
            reconciler,
            monitors: monitors.clone(),
            settings: WorkerSettings::default(),
            default_policy: RetryPolicy::default(),
            notices: Notices::default(),
            hooks: Hooks::new(HookFunctions::default(), Duration::from_secs(1)),
            stopping: AtomicBool::new(false),
        });
        let subscribers = LeaseSubscribers::default();
        let claimer = Claimer::new(
            served_ledgers,
            instances,
            inbox,
            monitors,
            slots,
            runner,
            &subscribers,
        );
        Setting {
            claimer,
            flights: FuturesUnordered::new(),
        }
    }

    /// With one route for each of these kinds.
    fn of_kinds(kinds: &[&str], total: usize) -> Self {
        let route = |router: Router, kind: &&str| router.route(&format!("{kind}:*"), async || {});
        Setting::new(kinds.iter().fold(Router::new(), route), total)
    }

    fn served(&self, kind: &str) -> Arc<ServedLedger> {
        self.claimer.served_ledgers.shards(kind)[0].clone()
    }

    /// Has it know that more jobs of this kind are due.
    fn fall_behind(&self, kind: &str) {
        self.claimer.inbox.fall_behind(&self.served(kind));
    }

    fn is_behind(&self, kind: &str) -> bool {
        let inbox = &self.claimer.inbox;
        inbox.with(&self.served(kind), |ledger_inbox| ledger_inbox.behind)
    }

    fn heard(&self, kind: &str) -> Vec<(String, Source)> {
        let heard = |ledger_inbox: &mut LedgerInbox| ledger_inbox.heard.clone().into();
        self.claimer.inbox.with(&self.served(kind), heard)
    }

    /// Jobs that a claim names, each with a slot.
    fn named(&self, jobs: &[(&str, Source)]) -> Vec<ClaimItem> {
        let kind = Kind::parse(KIND).unwrap();
        let slots = self.claimer.slots.reserve(0, &kind, jobs.len());
        let named = jobs
            .iter()
            .zip(slots)
            .map(|((id, source), slot)| ClaimItem {
                id: (*id).to_owned(),
                source: *source,
                slot,
            });
        named.collect()
    }

    /// Takes in these answers about the named jobs.
    fn answered(&self, jobs: &[(&str, Source, Word)]) {
        self.claimed(jobs, &[]);
    }

    /// The same, with the jobs that the claim got.
    fn claimed(&self, jobs: &[(&str, Source, Word)], got: &[&str]) {
        let named: Vec<_> = jobs.iter().map(|(id, source, _)| (*id, *source)).collect();
        let answers = jobs.iter().map(|(.., answer)| Answered::of(*answer));
        let reply = ClaimReply {
            now: UnixUs(1),
            sent: Moment::now(),
            paused: false,
            answers: answers.collect(),
            jobs: got.iter().map(|id| claimed(id)).collect(),
        };
        let (served, named) = (self.served(KIND), self.named(&named));
        self.claimer
            .claimed(&served, named, Vec::new(), 0, LEASE, reply);
    }

    /// Takes in that a claim of these jobs failed.
    fn failed(&mut self, jobs: &[(&str, Source)]) {
        let landing = ClaimResult::Claim {
            named: self.named(jobs),
            fill: Vec::new(),
            lease: LEASE,
            said: 0,
            reply: Err(away()),
        };
        self.claimer.land(&self.served(KIND), landing);
    }

    /// Sends what has to be sent; returns how many calls are under way.
    fn step(&mut self) -> usize {
        self.claimer.step(&self.flights);
        self.flights.len()
    }

    /// The plain keys that are to be looked at.
    fn planned(&self) -> Vec<String> {
        let served = self.served(KIND);
        self.claimer
            .monitors
            .of(&served)
            .adopter
            .take_planned(&served)
    }
}

fn claimed(id: &str) -> Claimed {
    Claimed {
        id: id.to_owned(),
        token: "lane-1".into(),
        claims: 1,
        fence: 1,
        due: UnixMs(1),
        cancelled: false,
        record: b"{\"v\":1}\n".to_vec(),
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "no Redis is there")
}

/// A route that adopts plain keys.
fn adopting() -> Router {
    Router::new().route(&format!("{KIND}:*"), (async || {}).adopt(MissingKey::Run))
}

#[test]
fn a_claim_that_comes_a_little_too_early_is_repeated() {
    assert_eq!(wait_of(0), Some(Duration::from_millis(1)));
    assert_eq!(wait_of(1), Some(Duration::from_millis(2)));
    let longest = u64::try_from(LONGEST_SLEEP.as_millis()).unwrap();
    assert_eq!(wait_of(longest - 1), Some(LONGEST_SLEEP));
    assert_eq!(wait_of(longest), None);
}

#[tokio::test]
async fn a_job_that_is_due_soon_is_heard_of_again() {
    let it = Setting::of_kinds(&[KIND], 8);
    it.answered(&[
        ("leased", Source::Event, Word::Leased),
        ("later", Source::Event, Word::Early(60_000)),
        ("soon", Source::Pacer, Word::Early(0)),
    ]);
    let heard = timeout(Duration::from_secs(10), it.claimer.inbox.changed());
    heard.await.expect("nobody claims the job again");
    assert_eq!(it.heard(KIND), [("soon".to_owned(), Source::Pacer)]);
}

#[tokio::test]
async fn the_key_of_a_job_that_is_not_due_is_looked_at_if_it_expired() {
    let mut it = Setting::new(adopting(), 8);
    it.answered(&[
        ("touched", Source::Pacer, Word::Early(60_000)),
        ("expired", Source::Event, Word::Early(60_000)),
    ]);
    assert_eq!(it.planned(), ["expired"]);
    // Without an answer, the key may have expired too soon.
    it.failed(&[("overdue", Source::Reconciler), ("unknown", Source::Event)]);
    assert_eq!(it.planned(), ["unknown"]);
}

#[tokio::test]
async fn a_job_whose_event_was_heard_but_which_is_absent_raises_a_doubt() {
    for (source, answer, is_doubted) in [
        (Source::Event, Word::Absent, true),
        (Source::Reconciler, Word::Absent, false),
        (Source::Event, Word::Leased, false),
        (Source::Event, Word::Early(60_000), false),
    ] {
        let it = Setting::of_kinds(&[KIND], 8);
        it.answered(&[("1", source, answer)]);
        let freshness = it.claimer.served_ledgers.freshness();
        assert_eq!(freshness.is_doubted(), is_doubted, "{source:?} {answer:?}");
    }
}

/// A claim of a limited kind takes the oldest jobs, whichever it has named.
#[tokio::test]
async fn a_job_that_is_claimed_instead_of_a_named_one_gets_its_slot() {
    for answer in [Word::Held, Word::Leased, Word::Absent] {
        let it = Setting::of_kinds(&[KIND], 8);
        it.claimed(
            &[
                ("gone", Source::Event, answer),
                ("named", Source::Event, Word::Claimed),
            ],
            &["other", "named"],
        );
        let kind = Kind::parse(KIND).unwrap();
        assert_eq!(it.claimer.slots.free(0, &kind), 6, "both run: {answer:?}");
    }
}

/// The answer to a repeated claim names its jobs alone.
#[tokio::test]
async fn a_job_of_a_repeated_claim_gets_the_slot_of_a_named_one() {
    let it = Setting::of_kinds(&[KIND], 8);
    let served = it.served(KIND);
    let named = ["held", "named"].map(|id| ClaimItem {
        id: id.to_owned(),
        source: Source::Event,
        slot: it
            .claimer
            .slots
            .reserve(0, served.ledger.kind(), 1)
            .remove(0),
    });
    let reply = ClaimReply {
        now: UnixUs(1),
        sent: Moment::now(),
        paused: false,
        answers: Vec::new(),
        jobs: vec![claimed("other"), claimed("named")],
    };
    it.claimer
        .claimed(&served, named.into(), Vec::new(), 0, LEASE, reply);
    assert_eq!(
        it.claimer.slots.free(0, served.ledger.kind()),
        6,
        "both run"
    );
}

/// Large jobs: fewer than there are slots for, and others may still be due.
#[tokio::test]
async fn after_a_full_reply_a_ledger_is_still_behind() {
    for (bytes, is_behind) in [(1024, false), (REPLY_BYTES, true)] {
        let it = Setting::of_kinds(&[KIND], 8);
        it.fall_behind(KIND);
        let served = it.served(KIND);
        let said = it.claimer.inbox.with(&served, |inbox| inbox.said);
        let fill = it.claimer.slots.reserve(0, served.ledger.kind(), 2);
        let mut large = claimed("large");
        large.record.resize(large.record.len() + bytes, b'x');
        let reply = ClaimReply {
            now: UnixUs(1),
            sent: Moment::now(),
            paused: false,
            answers: Vec::new(),
            jobs: vec![large],
        };
        it.claimer
            .claimed(&served, Vec::new(), fill, said, LEASE, reply);
        assert_eq!(it.is_behind(KIND), is_behind, "{bytes} bytes");
        // A claim that was sent before it, and found no more.
        let inbox = &it.claimer.inbox;
        inbox.with(&served, |ledger_inbox| ledger_inbox.caught_up(said));
        assert_eq!(it.is_behind(KIND), is_behind, "{bytes} bytes");
    }
}

#[tokio::test]
async fn after_a_fault_a_ledger_is_left_alone() {
    let mut it = Setting::of_kinds(&[KIND], 8);
    it.fall_behind(KIND);
    it.failed(&[("1", Source::Event)]);
    assert!(!it.is_behind(KIND));
    it.fall_behind(KIND);
    let found = Err(away());
    let served = it.served(KIND);
    it.claimer.land(&served, ClaimResult::Look { found });
    assert!(!it.is_behind(KIND));
}

#[tokio::test]
async fn a_client_that_waits_has_its_kinds_searched() {
    let others = ["app1:trans:pushed", "app1:other:pulled"];
    let router = Router::new()
        .route("app1:trans:pulled:*", Pull::new())
        .route("app1:trans:pushed:*", async || {})
        .route("app1:other:pulled:*", Pull::new());
    let it = Setting::new(router, 8);
    let wanted = ["app1:other:none", "app1:trans:"].map(|text| Prefix::parse(text).unwrap());
    it.claimer.hear(&LeaseEvent::Waits(Arc::new(wanted)));
    assert!(it.is_behind("app1:trans:pulled"));
    for other in others {
        assert!(!it.is_behind(other), "{other}");
    }
}

#[tokio::test]
async fn ledgers_with_work_and_room_share_the_slots() {
    let (one, other, busy) = ("app1:it:one", "app1:it:other", "app1:it:busy");
    let setting = || {
        let router = Router::new()
            .route(&format!("{one}:*"), async || {})
            .route(&format!("{other}:*"), async || {})
            .route(&format!("{busy}:*"), (async || {}).concurrency(1));
        let it = Setting::new(router, 17);
        let served = it.served(busy);
        let slots = &it.claimer.slots;
        let taken = slots.reserve(served.routes[0], served.ledger.kind(), 1);
        assert_eq!(taken.len(), 1);
        (it, taken)
    };
    // One ledger alone takes all slots at once: the other has no work, and the third no room.
    let (mut it, _taken) = setting();
    it.fall_behind(one);
    it.fall_behind(busy);
    assert_eq!(it.step(), 1);
    let served = it.served(one);
    let free = |it: &Setting| {
        it.claimer
            .slots
            .free(served.routes[0], served.ledger.kind())
    };
    assert_eq!(free(&it), 0);
    // Of two, each takes its share, and then of the rest.
    let (mut it, _taken) = setting();
    it.fall_behind(one);
    it.fall_behind(other);
    assert_eq!(it.step(), 2 * CLAIMS);
}

#[tokio::test]
async fn each_step_serves_each_ledger() {
    let kinds = ["app1:it:one", "app1:it:other", "app1:it:third"];
    for turn in 0..6 {
        let mut it = Setting::of_kinds(&kinds, 100);
        it.claimer.turn = turn;
        for kind in kinds {
            it.fall_behind(kind);
        }
        assert_eq!(it.step(), kinds.len() * CLAIMS, "turn {turn}");
    }
}

#[tokio::test]
async fn the_state_of_a_ledger_that_is_not_served_any_more_is_dropped() {
    let kinds = ["app1:it:one", "app1:it:other", "app1:it:third"];
    let mut it = Setting::of_kinds(&kinds, 8);
    kinds.iter().for_each(|kind| it.fall_behind(kind));
    it.step();
    let all = it.claimer.served_ledgers.all();
    it.claimer.forget_ended_ledgers(&all);
    assert_eq!(it.claimer.states.len(), 3);
    it.claimer.forget_ended_ledgers(&all[1..]);
    let mut left: Vec<usize> = it.claimer.states.into_keys().collect();
    left.sort_unstable();
    assert_eq!(left, [all[1].index, all[2].index]);
}

#[tokio::test]
async fn an_instance_whose_turn_it_is_keeps_no_job_without_a_slot() {
    let mut it = Setting::of_kinds(&[KIND], 16);
    let (served, instances) = (it.served(KIND), it.claimer.instances.clone());
    let description = describe(it.claimer.served_ledgers.routes(), 16);
    let takes = Arc::new(description.takes().unwrap());
    let alive = [instances.id(), "other"].map(|id| Alive {
        id: id.to_owned(),
        age: Duration::ZERO,
        room: "1h".into(),
    });
    instances.meet(0, &alive, &HashMap::from([("other".to_owned(), takes)]));
    instances.turn_begins(&served, instances.id());
    let _all = it.claimer.slots.reserve(0, served.ledger.kind(), 16);
    let inbox = it.claimer.inbox.clone();
    inbox.hear(&served, "1".to_owned(), Source::Event);
    assert_eq!(it.step(), 0);
    // Another instance has to claim it, and this one does not wait for a slot to do so.
    assert!(it.heard(KIND).is_empty() && !it.is_behind(KIND));
}

#[tokio::test]
async fn a_look_at_the_due_jobs_is_tried_for_a_while() {
    let router = Router::new()
        .route(&format!("{KIND}:{{id:a.*}}"), async || {})
        .route(&format!("{KIND}:{{id:b.*}}"), async || {});
    let mut it = Setting::new(router, 8);
    it.fall_behind(KIND);
    assert_eq!(it.step(), 1);
    let began = Instant::now();
    let (_, landing) = it.flights.next().await.unwrap();
    assert!(matches!(landing, ClaimResult::Look { found: Err(_) }));
    // The pauses between the tries grow, and the last one would end after the deadline.
    let tried = began.elapsed();
    assert!(tried >= LONGEST_SLEEP / 3, "given up after {tried:?}");
}
