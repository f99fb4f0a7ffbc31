//! Random sequences of steps. The weights make most steps find a job, and let each call meet each
//! state in one run of the test.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::operations::{
    Amendment, CLIENTS, Condition, DEBOUNCE, HOUR, Holder, IDS, Id, Limit, Limits, MOMENT, Next,
    Operation, Page, Payload, Placement, SeriesJob, Step, Verb, When, Which,
};

/// The most steps of a sequence.
const STEPS: usize = 80;

pub(super) fn sequences() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..STEPS)
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        30 => (client.clone(), operation()).prop_map(|(client, call)| Step::Call(client, call)),
        10 => client.clone().prop_map(Step::Repeat),
        2 => (client.clone(), operation()).prop_map(|(client, call)| Step::Lost(client, call)),
        2 => (client, 1..4_usize).prop_map(|(client, calls)| Step::Late(client, calls)),
        1 => id().prop_map(Step::Seize),
        1 => id().prop_map(Step::Lose),
        2 => Just(Step::Raze),
        1 => Just(Step::Listed),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![24 => producing(), 38 => working(), 10 => burying(), 8 => reading()]
}

fn producing() -> impl Strategy<Value = Operation> {
    let change = prop_oneof![
        2 => (id(), when(), Just("postponed")),
        1 => (id(), Just(When::After(0)), Just("fired")),
    ];
    prop_oneof![
        16 => some(placement()).prop_map(Operation::Schedule),
        3 => some(change).prop_map(Operation::Reschedule),
        2 => some((id(), payload())).prop_map(Operation::Update),
        3 => some(amendment()).prop_map(Operation::Amend),
        4 => some(series()).prop_map(Operation::Plan),
        2 => some((id(), condition())).prop_map(Operation::Cancel),
    ]
}

fn working() -> impl Strategy<Value = Operation> {
    let again = select(&["failed", "again", "snoozed", "returned"][..]);
    let verb = prop_oneof![
        1 => Just(Verb::Done),
        1 => Just(Verb::Skip),
        2 => (instant(), header(), again).prop_map(|(when, header, step)| {
            Verb::Later(when, header, step)
        }),
        5 => header().prop_map(Verb::Bury),
    ];
    prop_oneof![
        12 => (vec(id(), 0..3), select(&[3, 2, 1, 0][..]), lease())
            .prop_map(|(ids, fill, lease)| Operation::Claim { ids, fill, lease }),
        5 => (some(id()), lease()).prop_map(|(ids, lease)| Operation::Reclaim { ids, lease }),
        3 => (some((id(), holder())), lease(), any::<bool>())
            .prop_map(|(leases, lease, longer)| Operation::Renew { leases, lease, longer }),
        9 => (some((id(), holder(), verb, next())), limits())
            .prop_map(|(ends, limits)| Operation::Settle { ends, limits }),
        3 => (select(vec![0, HOUR]), 0..3_usize, [0..3_usize, 0..3_usize])
            .prop_map(|(overdue, limit, skip)| Operation::Sweep { overdue, limit, skip }),
        1 => Just(Operation::Pause),
        4 => Just(Operation::Resume),
        3 => limit().prop_map(Operation::Limit),
        1 => select(vec![1, 2 * HOUR]).prop_map(Operation::Hold),
        2 => any::<bool>().prop_map(Operation::Admit),
    ]
}

/// A rate whose starts come back within a test, or within an hour, and few leases.
fn limit() -> impl Strategy<Value = Limit> {
    let gap = select(vec![0, 300, 1_000 * HOUR]);
    (gap, 1..4_u64, 0..3_usize, 1..9_u64).prop_map(|(gap, burst, most, set)| Limit {
        gap,
        burst,
        most,
        set,
    })
}

/// The callers of the script name the time of the next occurrence as one instant.
fn next() -> impl Strategy<Value = Next> {
    let when = select(vec![When::Past, When::Ahead(2 * HOUR)]);
    let header = select(vec![
        r#"{"recur":{"rule":{"every":"1h"},"n":2,"at":1,"due":1},"v":2}"#,
        r#"{"recur":{"rule":{"every":"1h"},"n":3,"at":1,"due":1},"v":2,"order":2}"#,
    ]);
    prop_oneof![
        3 => Just(Next::Unknown),
        1 => Just(Next::Nothing),
        3 => (when, header).prop_map(|(when, header)| Next::At(when, header)),
    ]
}

fn burying() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => some((id(), which(), instant())).prop_map(Operation::Requeue),
        2 => some((id(), which())).prop_map(Operation::Discard),
        1 => limits().prop_map(Operation::Trim),
    ]
}

fn reading() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => id().prop_map(Operation::Get),
        4 => page().prop_map(Operation::List),
        2 => (id(), 1..4_usize, prop::option::of(which()))
            .prop_map(|(id, limit, which)| Operation::Letters(id, limit, which)),
        1 => Just(Operation::Stats),
        1 => any::<bool>().prop_map(Operation::Audit),
    ]
}

fn placement() -> impl Strategy<Value = Placement> {
    let mode = select(
        &[
            "set", "set", "set", "ordered", "ordered", "absent", "present", DEBOUNCE,
        ][..],
    );
    (id(), mode, instant(), header(), payload()).prop_map(|(id, mode, when, header, payload)| {
        Placement {
            id,
            mode,
            when,
            header: if header.is_empty() {
                r#"{"v":1}"#
            } else {
                header
            },
            payload,
        }
    })
}

fn amendment() -> impl Strategy<Value = Amendment> {
    let is_seen = prop::bool::weighted(0.8);
    let payload = prop::option::of(payload());
    let header = header().prop_filter("every record has a header", |it| !it.is_empty());
    (id(), is_seen, instant(), header, payload).prop_map(|(id, is_seen, when, header, payload)| {
        Amendment {
            id,
            is_seen,
            when,
            header,
            payload,
        }
    })
}

fn series() -> impl Strategy<Value = Vec<SeriesJob>> {
    let header = header().prop_filter("every record has a header", |it| !it.is_empty());
    let put = (instant(), header, prop::option::of(payload()));
    let put = prop::option::weighted(0.8, put);
    let job = (prop::bool::weighted(0.9), put);
    let ids = prop::sample::subsequence(IDS.to_vec(), 1..=3);
    (ids, vec(job, 3)).prop_map(|(ids, jobs)| {
        let jobs = ids.into_iter().zip(jobs);
        jobs.map(|(id, (is_seen, put))| SeriesJob { id, is_seen, put })
            .collect()
    })
}

fn page() -> impl Strategy<Value = Page> {
    let state = select(vec!["pending", "leased", "running", "lapsed", "dead"]);
    let until = select(vec![
        When::Ahead(0),
        When::Ahead(2 * HOUR),
        When::Ahead(9 * HOUR),
    ]);
    let bounds = (1..4_usize, 1..5_usize);
    let of_id = select(vec!["", "", "a", "ab", "z"]);
    (state, any::<bool>(), bounds, any::<bool>(), until, of_id).prop_map(
        |(state, down, (limit, looks), records, until, of_id)| Page {
            state,
            down,
            limit,
            looks,
            records,
            until,
            of_id,
        },
    )
}

fn id() -> impl Strategy<Value = Id> {
    select(&IDS[..])
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        3 => instant(),
        1 => select(vec![When::By(0), When::By(HOUR)]),
    ]
}

fn instant() -> impl Strategy<Value = When> {
    prop_oneof![
        9 => Just(When::After(0)),
        1 => Just(When::Past),
        1 => Just(When::After(HOUR)),
        1 => Just(When::Ahead(2 * HOUR)),
    ]
}

/// The length of a lease, which either outlasts the sequence or lapses before the next step.
fn lease() -> impl Strategy<Value = u64> {
    select(&[HOUR, MOMENT, MOMENT][..])
}

fn holder() -> impl Strategy<Value = Holder> {
    prop_oneof![
        8 => Just(Holder::Owner),
        2 => (0..2_usize).prop_map(Holder::Former),
        1 => Just(Holder::Nobody),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        3 => Just(Which::Latest(0)),
        3 => Just(Which::Latest(1)),
        1 => Just(Which::Missing),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let count = select(&[1000, 1000, 1000, 1000, 1, 0][..]);
    let age = prop_oneof![9 => Just(HOUR), 1 => Just(0)];
    (count, age).prop_map(|(count, age)| Limits { count, age })
}

fn header() -> impl Strategy<Value = &'static str> {
    select(vec![
        "",
        r#"{"v":1}"#,
        r#"{"v":1,"attempts":2,"error":"no"}"#,
        r#"{"v":1,"order":2}"#,
        r#"{"v":1,"order":3,"attempts":1}"#,
        r#"{"v":1,"headers":{"order":"7"}}"#,
        r#"{"recur":{"rule":{"every":"1h"},"n":1,"at":1,"due":1},"v":2}"#,
        r#"{"v":1,"headers":{"recur":"7"}}"#,
    ])
}

/// No order number, or one among the numbers that headers have.
fn condition() -> impl Strategy<Value = Condition> {
    let seen = prop::bool::weighted(0.8).prop_map(Condition::Seen);
    let below = select(vec![1, 3, 9]).prop_map(Condition::OrderBelow);
    prop_oneof![2 => Just(Condition::Always), 3 => below, 2 => seen]
}

fn payload() -> impl Strategy<Value = Payload> {
    let payloads: Vec<Payload> = vec![b"", b"7", b"two\nlines\n", b"\0\xff"];
    select(payloads)
}

fn some<T: fmt::Debug>(item: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    vec(item, 1..4)
}
