//! The known data, and the selection on the screen.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use keyfall::{Kind, Stats};
use keyfall_daemon::shapes::InstanceOut;

/// The number of latest starts that the lag is computed from.
const STARTS: usize = 512;

/// The number of failures that are kept.
const FAILURES: usize = 100;

/// The meaning of a key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    /// Sorts by the previous column; `Right` by the next one.
    Left,
    Right,
    /// The screen has another size.
    Resize,
}

/// The columns by which kinds can be sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Kind,
    Pending,
    Due,
    Overdue,
    Running,
    Dead,
    Scheduled,
    Claimed,
    Done,
    Failed,
    Lag,
}

impl Column {
    pub(super) const ALL: [Column; 11] = [
        Column::Kind,
        Column::Pending,
        Column::Due,
        Column::Overdue,
        Column::Running,
        Column::Dead,
        Column::Scheduled,
        Column::Claimed,
        Column::Done,
        Column::Failed,
        Column::Lag,
    ];

    fn place(self) -> usize {
        let place = Column::ALL.iter().position(|column| *column == self);
        place.expect("all are listed")
    }
}

/// The number of events per second, for each sort of event.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) scheduled: f64,
    pub(super) claimed: f64,
    pub(super) done: f64,
    pub(super) failed: f64,
    pub(super) buried: f64,
}

impl Rates {
    /// The rates between two looks. A counter that went back belongs to another data set, and
    /// counts as 0.
    pub(super) fn between(before: &Stats, after: &Stats, time: Duration) -> Self {
        let per_second = |count: u64| count as f64 / time.as_secs_f64().max(0.001);
        let rate =
            |count: fn(&Stats) -> u64| per_second(count(after).saturating_sub(count(before)));
        // Each claimed job is running, or its run has ended.
        let begun = |it: &Stats| {
            it.leased
                + it.done
                + it.failed
                + it.again
                + it.snoozed
                + it.returned
                + it.buried
                + it.lapsed
        };
        Rates {
            scheduled: rate(|it| it.accepted),
            claimed: rate(begun),
            done: rate(|it| it.done),
            failed: rate(|it| it.failed),
            buried: rate(|it| it.buried),
        }
    }

    fn add(&mut self, other: Rates) {
        self.scheduled += other.scheduled;
        self.claimed += other.claimed;
        self.done += other.done;
        self.failed += other.failed;
        self.buried += other.buried;
    }
}

/// One look at one kind.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub(super) kind: Kind,
    pub(super) stats: Stats,
    pub(super) at: SystemTime,
}

/// The results of one round.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The number of all kinds.
    pub(super) kinds: usize,
    /// The kinds that were read in this round.
    pub(super) looked: Vec<Looked>,
    /// Kinds that no longer exist.
    pub(super) gone: Vec<Kind>,
    /// The time at which the next job of these kinds falls due.
    pub(super) next_due: Vec<(Kind, Option<SystemTime>)>,
    pub(super) instances: Vec<Live>,
    /// Whether the token may not see the instances.
    pub(super) hides_instances: bool,
    pub(super) starts: Vec<(Kind, Duration)>,
    pub(super) failures: Vec<Failure>,
    /// The reason why the histories, the source of starts and failures, cannot be followed now.
    pub(super) closed: Option<String>,
    /// The error, if the round failed.
    pub(super) trouble: Option<String>,
    /// The servers that could not be read, while the others were.
    pub(super) unseen: Option<String>,
    pub(super) now: Option<SystemTime>,
}

/// A live instance.
#[derive(Debug, Clone)]
pub(super) struct Live {
    /// `host:process`
    pub(super) name: String,
    pub(super) started: SystemTime,
    pub(super) routes: Vec<String>,
    /// The number of routes that have no room.
    pub(super) full: usize,
    pub(super) hears_events: bool,
    pub(super) has_fallback: bool,
    /// Whether some of its routes adopt plain keys.
    pub(super) adopts: bool,
}

impl From<InstanceOut> for Live {
    fn from(one: InstanceOut) -> Self {
        Live {
            name: format!("{}:{}", one.host, one.pid),
            started: one.started.0,
            full: one.saturated.len(),
            routes: one.routes,
            hears_events: one.hears_events,
            has_fallback: one.has_fallback,
            adopts: !one.adopts.is_empty(),
        }
    }
}

/// An attempt that failed, or a job that died.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) at: SystemTime,
    pub(super) key: String,
    /// The number of the attempt; `None` for a job that died.
    pub(super) attempt: Option<u32>,
    pub(super) is_dead: bool,
    pub(super) error: String,
}

/// A kind as it is shown.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) stats: Stats,
    at: SystemTime,
    pub(super) rates: Option<Rates>,
    pub(super) next_due: Option<SystemTime>,
    starts: VecDeque<Duration>,
}

/// The lag of the last starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lag {
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    pub(super) longest: Duration,
}

/// All that is on the screen.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) server: String,
    pub(super) prefix: String,
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    pub(super) sort: Column,
    /// The number of rows above the first row on the screen.
    pub(super) above: usize,
    /// The number of rows that the screen has for kinds; `view` sets it.
    pub(super) room: usize,
    pub(super) kinds: usize,
    rows: BTreeMap<Kind, Row>,
    starts: VecDeque<Duration>,
    pub(super) instances: Vec<Live>,
    pub(super) hides_instances: bool,
    /// The latest first.
    pub(super) failures: VecDeque<Failure>,
    /// The reason why lag and failures are not updated.
    pub(super) closed: Option<String>,
    pub(super) trouble: Option<String>,
    pub(super) now: Option<SystemTime>,
}

impl Board {
    pub(super) fn new(server: String, prefix: &str, interval: Duration) -> Self {
        Board {
            server,
            prefix: prefix.to_owned(),
            interval,
            is_paused: false,
            sort: Column::Claimed,
            above: 0,
            room: 0,
            kinds: 0,
            rows: BTreeMap::new(),
            starts: VecDeque::new(),
            instances: Vec::new(),
            hides_instances: false,
            failures: VecDeque::new(),
            closed: None,
            trouble: None,
            now: None,
        }
    }

    /// Takes the results of a round, unless the view is paused.
    pub(super) fn take(&mut self, seen: Seen) {
        if self.is_paused {
            return;
        }
        self.trouble = seen.trouble;
        self.now = seen.now;
        if self.trouble.is_some() {
            return;
        }
        self.trouble = seen.unseen;
        self.kinds = seen.kinds;
        self.instances = seen.instances;
        self.hides_instances = seen.hides_instances;
        self.closed = seen.closed;
        for kind in &seen.gone {
            self.rows.remove(kind);
        }
        for looked in seen.looked {
            self.look(looked);
        }
        for (kind, due) in seen.next_due {
            if let Some(row) = self.rows.get_mut(&kind) {
                row.next_due = due;
            }
        }
        for (kind, lag) in seen.starts {
            if let Some(row) = self.rows.get_mut(&kind) {
                remember(&mut row.starts, lag);
            }
            remember(&mut self.starts, lag);
        }
        for failure in seen.failures {
            self.failures.push_front(failure);
        }
        self.failures.truncate(FAILURES);
    }

    fn look(&mut self, looked: Looked) {
        let Looked { kind, stats, at } = looked;
        let row = self.rows.entry(kind.clone()).or_insert_with(|| Row {
            kind,
            stats: stats.clone(),
            at,
            rates: None,
            next_due: None,
            starts: VecDeque::new(),
        });
        // No rate if the clock was set back.
        if let Ok(time) = at.duration_since(row.at)
            && !time.is_zero()
        {
            row.rates = Some(Rates::between(&row.stats, &stats, time));
        }
        (row.stats, row.at) = (stats, at);
    }

    pub(super) fn press(&mut self, key: Key) {
        let turn = |by: usize| {
            let place = (self.sort.place() + by) % Column::ALL.len();
            Column::ALL[place]
        };
        match key {
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Up => self.above = self.above.saturating_sub(1),
            Key::Down => self.above += 1,
            Key::PageUp => self.above = self.above.saturating_sub(self.room.max(1)),
            Key::PageDown => self.above += self.room.max(1),
            Key::Home => self.above = 0,
            Key::Left => self.sort = turn(Column::ALL.len() - 1),
            Key::Right => self.sort = turn(1),
            Key::Quit | Key::Resize => {}
        }
        let most = self.rows.len().saturating_sub(self.room);
        self.above = self.above.min(most);
    }

    /// The kinds, with the largest value of the sort column first.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        let rate = |row: &Row, of: fn(&Rates) -> f64| row.rates.as_ref().map_or(0.0, of);
        let most = |row: &Row| match self.sort {
            Column::Kind => 0.0,
            Column::Pending => row.stats.pending as f64,
            Column::Due => row.stats.overdue as f64,
            Column::Overdue => row.stats.overdue_for.as_secs_f64(),
            Column::Running => row.stats.leased as f64,
            Column::Dead => row.stats.dead as f64,
            Column::Scheduled => rate(row, |it| it.scheduled),
            Column::Claimed => rate(row, |it| it.claimed),
            Column::Done => rate(row, |it| it.done),
            Column::Failed => rate(row, |it| it.failed),
            Column::Lag => row.lag().map_or(0.0, |lag| lag.p99.as_secs_f64()),
        };
        // The sort is stable: equal kinds stay in the order of their names.
        rows.sort_by(|one, two| most(two).total_cmp(&most(one)));
        rows
    }

    /// The kinds that are on the screen.
    pub(super) fn shown(&self) -> Vec<Kind> {
        let rows = self.rows().into_iter().skip(self.above).take(self.room);
        rows.map(|row| row.kind.clone()).collect()
    }

    /// The sums over all kinds, as of the last look at each.
    pub(super) fn total(&self) -> (Stats, Rates) {
        let (mut all, mut rates) = (Stats::default(), Rates::default());
        for row in self.rows.values() {
            all.pending += row.stats.pending;
            all.overdue += row.stats.overdue;
            all.overdue_for = all.overdue_for.max(row.stats.overdue_for);
            all.leased += row.stats.leased;
            all.dead += row.stats.dead;
            rates.add(row.rates.unwrap_or_default());
        }
        (all, rates)
    }

    pub(super) fn lag(&self) -> Option<Lag> {
        lag(&self.starts)
    }

    /// The number of kinds that have been read at least once.
    pub(super) fn known(&self) -> usize {
        self.rows.len()
    }

    /// The time at which the next job of the kinds on the screen falls due.
    pub(super) fn next_due(&self) -> Option<SystemTime> {
        self.rows.values().filter_map(|row| row.next_due).min()
    }
}

impl Row {
    pub(super) fn lag(&self) -> Option<Lag> {
        lag(&self.starts)
    }
}

fn remember(starts: &mut VecDeque<Duration>, lag: Duration) {
    if starts.len() == STARTS {
        starts.pop_front();
    }
    starts.push_back(lag);
}

fn lag(starts: &VecDeque<Duration>) -> Option<Lag> {
    let mut sorted: Vec<Duration> = starts.iter().copied().collect();
    sorted.sort_unstable();
    let longest = *sorted.last()?;
    let at = |share: usize| sorted[(sorted.len() - 1) * share / 100];
    Some(Lag {
        p50: at(50),
        p99: at(99),
        longest,
    })
}
