//! `list.lua`: the jobs in one state, page by page.

use std::time::Duration;

use super::support::{Bench, HOUR, State, after, at, soon};
use crate::record::Record;
use crate::settings::BATCH;
use crate::store::{Placement, Slice, Sought, Verb};
use crate::time::UnixMs;

use State::*;

impl Bench {
    async fn list(&self, sought: &Sought) -> Slice {
        self.ledger.list(sought, soon()).await.unwrap()
    }

    /// The members of all pages; `between` is called after each page.
    pub(super) async fn pages(
        &self,
        mut sought: Sought,
        mut between: impl AsyncFnMut(&Slice),
    ) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let slice = self.list(&sought).await;
            assert!(slice.items.len() <= sought.limit);
            all.extend(slice.items.iter().map(|seen| seen.member.clone()));
            assert!(all.len() < 10_000, "the pages have no end");
            between(&slice).await;
            match slice.next {
                Some(next) => sought.after = Some(next),
                None => return all,
            }
        }
    }

    /// Schedules these jobs for one instant, and returns it.
    async fn crowd(&self, ids: &[String]) -> u64 {
        let due = self.now().await + 3_600_000;
        for ids in ids.chunks(BATCH) {
            let place = |id: &String| self.placement(id, at(due));
            self.place(&ids.iter().map(place).collect::<Vec<Placement>>())
                .await;
        }
        due
    }

    /// The ids of the pending jobs in the order of Redis.
    async fn in_order(&self) -> Vec<String> {
        self.ask(&["ZRANGE", &self.names().due, "0", "-1"]).await
    }
}

fn page_of(limit: usize) -> Sought {
    Sought {
        limit,
        ..Sought::all_of("pending", "")
    }
}

#[tokio::test]
async fn each_state_lists_its_own_jobs() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let stored = bench.snapshot().await;
    for (state, mut found) in [
        ("pending", vec![Pending, Due, Retrying]),
        (
            "running",
            vec![Leased, LeasedNext, CancelledRun, CancelledRunNext],
        ),
        (
            "lapsed",
            vec![Lapsed, LapsedNext, LapsedCancelled, LapsedCancelledNext],
        ),
        ("dead", vec![Dead]),
    ] {
        let sought = Sought {
            records: true,
            ..Sought::all_of(state, "")
        };
        let slice = bench.list(&sought).await;
        assert_eq!(slice.next, None);
        for seen in &slice.items {
            let id = seen.member.split(':').next().unwrap();
            let at = found.iter().position(|state| state.id() == id).unwrap();
            found.remove(at);
            let record = Record::parse(seen.record.clone()).unwrap();
            assert_eq!(&record.payload[..], id.as_bytes());
            let (_, token) = jobs.iter().find(|(one, _)| one == id).unwrap();
            let leased = matches!(state, "running" | "lapsed");
            assert_eq!(seen.lease.starts_with(&format!("{token} ")), leased, "{id}");
            assert_eq!(seen.successor.is_empty(), !id.ends_with("Next"), "{id}");
            let score = match state {
                "pending" => bench.due(id).await,
                "dead" => bench.score(&bench.names().dead, &seen.member).await,
                _ => Some(bench.deadline(id).await),
            };
            assert_eq!(Some(seen.score.0), score);
        }
        assert_eq!(found, [], "{state}");
        let scores: Vec<UnixMs> = slice.items.iter().map(|seen| seen.score).collect();
        assert!(scores.is_sorted());
    }
    assert_eq!(
        bench.list(&Sought::all_of("leased", "")).await.items.len(),
        8
    );
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn pages_of_many_jobs_of_one_instant_list_each_once_in_the_order_of_bytes() {
    let bench = Bench::new().await;
    // A locale would order these ids otherwise.
    let mut ids: Vec<String> = (0..600).map(|i| format!("{i}")).collect();
    ids.extend(["a", "B", "b", "A", "é", "e", "_", "-", "a-b", "aB", "~"].map(String::from));
    bench.crowd(&ids).await;
    let ordered = bench.in_order().await;
    assert_eq!(bench.pages(page_of(7), async |_| {}).await, ordered);
    let down = Sought {
        down: true,
        ..page_of(50)
    };
    let mut reversed = bench.pages(down, async |_| {}).await;
    reversed.reverse();
    assert_eq!(reversed, ordered);
    bench.balanced().await;
}

#[tokio::test]
async fn changes_between_pages_hide_and_repeat_no_job() {
    for down in [false, true] {
        let bench = Bench::new().await;
        let ids: Vec<String> = (100..400).map(|i| format!("{i}")).collect();
        let due = bench.crowd(&ids).await;
        let mut count = 0;
        let sought = Sought {
            down,
            ..page_of(10)
        };
        let listed = bench
            .pages(sought, async |slice| {
                // Cancels the job at the end of the page, and another one before it.
                for at in [0, slice.items.len() - 1] {
                    let id = &slice.items[at].member;
                    bench.cancel(id).await;
                }
                count += 1;
                // The new job belongs to a page that was read already, in either order.
                let (first, last) = (format!("0{count}"), format!("9{count}"));
                let behind = if down { last } else { first };
                bench.schedule(&behind, at(due)).await;
            })
            .await;
        let mut sorted = listed;
        sorted.sort_unstable();
        assert_eq!(sorted, ids);
        bench.balanced().await;
    }
}

#[tokio::test]
async fn each_call_looks_at_a_bounded_number_of_names_for_a_prefix() {
    let bench = Bench::new().await;
    let mut ids: Vec<String> = (0..2500).map(|i| format!("other-{i}")).collect();
    ids.extend(["mine", "mine-1", "zmine", "min"].map(String::from));
    bench.crowd(&ids).await;
    let mut looked = Vec::new();
    let sought = Sought::all_of("pending", "mine");
    let found = bench
        .pages(sought, async |slice| looked.push(slice.looked))
        .await;
    assert_eq!(found, ["mine", "mine-1"]);
    assert_eq!(looked, [1024, 1024, 456]);
    bench.balanced().await;
}

#[tokio::test]
async fn jobs_after_the_limit_are_not_listed() {
    let bench = Bench::new().await;
    let now = bench.now().await + 100_000;
    for n in 0..5 {
        bench.schedule(&format!("{n}"), at(now + n)).await;
    }
    let sought = Sought {
        until: UnixMs(now + 2),
        ..page_of(2)
    };
    assert_eq!(bench.pages(sought, async |_| {}).await, ["0", "1", "2"]);
    bench.balanced().await;
}

#[tokio::test]
async fn large_records_come_in_short_pages() {
    let bench = Bench::new().await;
    let payload = vec![b'x'; 1024 * 1024];
    for n in 0..40 {
        let item = bench.carrying(&format!("{n:02}"), after(HOUR), &payload);
        bench.place(&[item]).await;
    }
    let sought = Sought {
        records: true,
        ..page_of(256)
    };
    let mut sizes = Vec::new();
    let listed = bench
        .pages(sought, async |slice| sizes.push(slice.items.len()))
        .await;
    assert_eq!(listed.len(), 40);
    assert!(sizes.iter().all(|size| *size <= 20), "{sizes:?}");
    assert!(listed.is_sorted());
    bench.balanced().await;
}

#[tokio::test]
async fn missing_parts_are_listed_as_empty() {
    let bench = Bench::new().await;
    bench.bring("bare", Due).await;
    let token = bench.bring("run", Leased).await;
    let n = bench.names();
    let lease = bench.lease("run").await.unwrap();
    let _: u64 = bench.ask(&["HDEL", &n.shadow, "bare"]).await;
    let _: u64 = bench.ask(&["HDEL", &n.lease, "run"]).await;
    for state in ["pending", "running"] {
        let sought = Sought {
            records: true,
            ..Sought::all_of(state, "")
        };
        let slice = bench.list(&sought).await;
        let seen = &slice.items[0];
        assert!(seen.lease.is_empty());
        assert_eq!(seen.record.is_empty(), state == "pending");
    }
    let _: u64 = bench.ask(&["HSET", &n.lease, "run", &lease]).await;
    bench.settle("run", &token, Verb::Done).await;
    bench.claim(&["bare"], 0).await;
    let lease = bench.lease("bare").await.unwrap();
    let token = lease.split(' ').next().unwrap();
    bench.settle("bare", token, Verb::Done).await;
    bench.balanced().await;
}

#[tokio::test]
async fn an_empty_ledger_gives_an_empty_page() {
    let bench = Bench::new().await;
    for down in [false, true] {
        for state in ["pending", "leased", "running", "lapsed", "dead"] {
            for after in [None, Some(("5".into(), "x".into()))] {
                let sought = Sought {
                    down,
                    after,
                    ..Sought::all_of(state, "")
                };
                let slice = bench.list(&sought).await;
                assert!(slice.items.is_empty() && slice.next.is_none());
            }
        }
    }
    assert_eq!(
        bench.ledger.extent("pending", soon()).await.unwrap(),
        (0, UnixMs(0))
    );
    bench.schedule("one", after(Duration::ZERO)).await;
    let (size, _) = bench.ledger.extent("pending", soon()).await.unwrap();
    assert_eq!(size, 1);
    bench.balanced().await;
}
