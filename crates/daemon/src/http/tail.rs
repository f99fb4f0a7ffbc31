//! What is done to jobs, as it happens: one line of JSON for each change, until one side ends it.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use jiff::tz::TimeZone;
use keyfall::{JobKey, Tidings, What};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, LOOK, Scope};
use super::body::Pairs;
use super::history::HappeningOut;
use super::problem::Problem;
use super::tails::Place;
use super::wire::{Time, UnseenOut};

/// How long a tail is silent at the most. Proxies close what is silent for a minute.
const BEAT: Duration = Duration::from_secs(15);

/// How long to wait until a Redis is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// How many changes travel together at the most. Three times as many are in memory: some are written,
/// some wait for that, and some wait for a place among these.
const TOGETHER: usize = 64;

/// How many changes a tail begins with at the most.
const MOST_LAST: usize = 1000;

/// Which changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TailIn {
    /// What the keys of the jobs begin with; can be given several times. All jobs, if neither this
    /// nor `key` is given.
    #[param(example = json!(["app1:trans:notice:"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
    /// Only these jobs; can be given several times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<String>,
    /// Only these changes, such as `failed,buried`; can be given several times. All, if it is not
    /// given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub what: Vec<String>,
    /// Begins with the last so many changes of these jobs, whatever `what` selects of them. Defaults
    /// to none.
    #[param(maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// The zone in which sentences name times: one of the IANA database, such as Europe/Berlin.
    /// Defaults to UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A line of a tail: one of these.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TailOut {
    /// Something was done to a job, or to a kind.
    Happened(Box<HappeningOut>),
    /// Changes of a kind were trimmed from its history before they could be read.
    Missed(MissedOut),
    /// One of several servers is away. What happens there is told when it is there again.
    Unseen(UnseenOut),
    /// Redis does not answer. What happens meanwhile is told when it answers again.
    Away(AwayOut),
    /// Nothing: the tail has begun, and tells what happens from now on, or was silent for 15 seconds.
    Alive(AliveOut),
    /// The tail has ended, and why. It is the last line.
    Ended(Problem),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MissedOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AwayOut {
    /// What is wrong.
    pub error: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AliveOut {
    /// By the clock of the daemon.
    pub at: Time,
}

/// What is done to jobs, as it happens: one object a line, until the client closes the connection.
/// Each has one field, which says what it is: `happened`, `missed`, `unseen`, `away`, `alive` or
/// `ended`.
///
/// The first line is `alive`, unless Redis is `away`, and so is one after each 15 seconds in which
/// nothing happened. What is done after the first `alive` is told. What comes of one kind is in
/// order. The stream ends with `ended` when the daemon stops, and when the token is revoked, expires
/// or loses the scope.
#[utoipa::path(get, path = "/v1/tail", operation_id = "follow_jobs", tag = "jobs", params(TailIn),
    responses((status = 200, description = "One of these a line",
        body = TailOut, content_type = "application/x-ndjson")))]
pub(super) async fn tail(caller: Caller, pairs: Pairs) -> Result<Response, Problem> {
    let wanted = Wanted::of(TailIn::of(pairs)?)?;
    let api = caller.may_with_each(Scope::Read, &wanted.reach)?;
    let place = api.tails.take(caller.who())?;
    let what = wanted.what.iter().copied();
    let mut tail = api.client.tail().last(wanted.last).only(what);
    for prefix in &wanted.reach {
        tail = tail.prefix(prefix).map_err(Problem::of_prefix)?;
    }
    let stopping = api.stopping.clone();
    let (tell, told) = mpsc::channel(1);
    let reach = wanted.reach.clone();
    let reader = AbortOnDropHandle::new(tokio::spawn(read(tail, wanted, tell)));
    let has_token = caller.token().is_some();
    let may = move || caller.may_with_each(Scope::Read, &reach).map(drop);
    let open = Open {
        told,
        stopping,
        may: has_token.then_some(may),
        looks: Instant::now() + LOOK,
        beats: Instant::now() + BEAT,
        _reader: Some(reader),
        _place: Some(place),
    };
    let lines = stream::unfold(Some(open), async |open| {
        let mut open = open?;
        let lines = open.next().await;
        let is_over = matches!(lines.last(), None | Some(TailOut::Ended(_)));
        Some((written(&lines), Some(open).filter(|_| !is_over)))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-store"),
        // Or nginx would keep the lines until there are enough of them.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

impl TailOut {
    fn alive() -> Self {
        let at = Time(SystemTime::now());
        TailOut::Alive(AliveOut { at })
    }
}

fn written(lines: &[TailOut]) -> Result<Bytes, Infallible> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line).expect("texts and numbers are JSON");
        text.push(b'\n');
    }
    Ok(text.into())
}

/// What a tail is about, checked.
struct Wanted {
    /// What the keys of all jobs begin with that it can tell of; all jobs, if it is empty.
    reach: Vec<String>,
    keys: HashSet<JobKey>,
    what: Vec<What>,
    last: usize,
    zone: TimeZone,
}

impl TailIn {
    fn of(Pairs(pairs): Pairs) -> Result<Self, Problem> {
        let mut wanted = TailIn::default();
        for (name, value) in pairs {
            match &*name {
                "prefix" => wanted.prefix.push(value),
                "key" => wanted.key.push(value),
                "what" => wanted.what.push(value),
                "zone" => wanted.zone = Some(value),
                "last" => {
                    let last = value.parse().ok().filter(|last| *last <= MOST_LAST);
                    wanted.last = Some(last.ok_or_else(|| {
                        let rule = format!(
                            "{value:?} is no number from 0 to {MOST_LAST}: write how many changes \
                             the tail begins with"
                        );
                        Problem::invalid("last", rule)
                    })?);
                }
                _ => {
                    let known = "`prefix`, `key`, `what`, `last` and `zone`";
                    return Err(Problem::unknown_parameter(&name, known));
                }
            }
        }
        Ok(wanted)
    }
}

impl Wanted {
    fn of(wanted: TailIn) -> Result<Self, Problem> {
        let words = wanted.what.iter().flat_map(|words| words.split(','));
        let what = words.map(What::parse).collect::<Result<_, _>>();
        let keys = wanted.key.iter().map(|key| JobKey::parse(key));
        let keys: HashSet<JobKey> = keys.collect::<Result<_, _>>()?;
        let zone = match &wanted.zone {
            Some(name) => super::history::zone(name)?,
            None => TimeZone::UTC,
        };
        // Those that are named decide, whatever begins as the prefixes say.
        let reach = match keys.is_empty() {
            true => wanted.prefix,
            false => wanted.key,
        };
        Ok(Wanted {
            reach,
            keys,
            what: what.map_err(|error| Problem::from(error).field("what"))?,
            last: wanted.last.unwrap_or(0),
            zone,
        })
    }

    /// The line that tells of it, if it is wanted.
    fn line(&self, news: Tidings) -> Option<TailOut> {
        Some(match news {
            Tidings::Happened(it) => {
                let is_wanted =
                    self.keys.is_empty() || it.key().is_some_and(|key| self.keys.contains(&key));
                let out = is_wanted.then(|| HappeningOut::new(&it, &self.zone))?;
                TailOut::Happened(out.into())
            }
            Tidings::Missed(kind) => TailOut::Missed(MissedOut {
                kind: kind.to_string(),
            }),
            Tidings::Unseen(one) => TailOut::Unseen(UnseenOut {
                server: one.server,
                error: one.error,
                // They may be of kinds that the caller cannot see.
                shards: Vec::new(),
            }),
            _ => return None,
        })
    }
}

/// Reads the histories, as fast as the lines are taken. A read is never given up half-way: it goes on
/// at the server.
async fn read(mut tail: keyfall::Tail, wanted: Wanted, tell: mpsc::Sender<Vec<TailOut>>) {
    let (mut has_begun, mut is_away) = (false, false);
    loop {
        let mut lines = Vec::new();
        let first = match has_begun {
            true => tail.next().await.map(Some),
            false => tail.begin().await.map(|()| None),
        };
        match first {
            Ok(first) => {
                is_away = false;
                if !std::mem::replace(&mut has_begun, true) {
                    lines.push(TailOut::alive());
                }
                lines.extend(first.and_then(|news| wanted.line(news)));
                let more = std::iter::from_fn(|| tail.ready()).take(TOGETHER - 1);
                lines.extend(more.filter_map(|news| wanted.line(news)));
            }
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut is_away, true) {
                    let error = error.to_string();
                    lines.push(TailOut::Away(AwayOut { error }));
                } else {
                    sleep(AGAIN).await;
                }
            }
            Err(error) => lines.push(TailOut::Ended(error.into())),
        }
        let is_over = matches!(lines.last(), Some(TailOut::Ended(_)));
        if lines.is_empty() {
            // Others have a turn, too, where much happens that nobody wants to know.
            tokio::task::yield_now().await;
        } else if tell.send(lines).await.is_err() || is_over {
            return;
        }
    }
}

/// A tail that somebody reads.
struct Open<M> {
    told: mpsc::Receiver<Vec<TailOut>>,
    stopping: CancellationToken,
    /// Whether the caller still may; nothing where no token can be revoked.
    may: Option<M>,
    /// When that is looked at again. A token ends by the clock as well as by its file, which is read
    /// when somebody looks: there is no event to wait for.
    looks: Instant,
    /// When the next line is due, whatever happens.
    beats: Instant,
    _reader: Option<AbortOnDropHandle<()>>,
    _place: Option<Place>,
}

impl<M: Fn() -> Result<(), Problem>> Open<M> {
    /// The next lines, at least one.
    async fn next(&mut self) -> Vec<TailOut> {
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return vec![TailOut::Ended(Problem::stopping())],
                () = sleep_until(self.looks), if self.may.is_some() => {
                    self.looks = Instant::now() + LOOK;
                    if let Some(Err(problem)) = self.may.as_ref().map(|may| may()) {
                        return vec![TailOut::Ended(problem.broken_off())];
                    }
                }
                () = sleep_until(self.beats) => {
                    self.beats = Instant::now() + BEAT;
                    return vec![TailOut::alive()];
                }
                lines = self.told.recv() => {
                    self.beats = Instant::now() + BEAT;
                    return lines.unwrap_or_else(|| vec![TailOut::Ended(Problem::stopping())]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open<M: Fn() -> Result<(), Problem>>(
        may: Option<M>,
    ) -> (mpsc::Sender<Vec<TailOut>>, CancellationToken, Open<M>) {
        let (tell, told) = mpsc::channel(1);
        let stopping = CancellationToken::new();
        let open = Open {
            told,
            stopping: stopping.clone(),
            may,
            looks: Instant::now() + LOOK,
            beats: Instant::now() + BEAT,
            _reader: None,
            _place: None,
        };
        (tell, stopping, open)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tail_is_never_silent_for_long_and_ends_when_it_is_to_stop() {
        let (tell, stopping, mut open) = open(Some(|| Ok(())));
        let error = "it does not answer".to_owned();
        let away = vec![TailOut::Away(AwayOut { error })];
        sleep(Duration::from_secs(10)).await;
        tell.send(away).await.unwrap();
        assert!(matches!(open.next().await[..], [TailOut::Away(_)]));
        let silent = Instant::now();
        assert!(matches!(open.next().await[..], [TailOut::Alive(_)]));
        assert_eq!(silent.elapsed().as_secs(), BEAT.as_secs());
        stopping.cancel();
        let ended = open.next().await;
        assert!(matches!(&ended[..], [TailOut::Ended(why)] if why.code == "stopping"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tail_ends_within_a_second_when_the_caller_may_no_more() {
        let (_tell, _stopping, mut open) = open(Some(|| Err(Problem::unauthorized("revoked"))));
        let begun = Instant::now();
        let ended = open.next().await;
        assert!(matches!(&ended[..], [TailOut::Ended(why)] if why.code == "unauthorized"));
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
    #[tokio::test(start_paused = true)]
    async fn a_tail_without_a_token_sleeps_until_something_comes() {
        let (tell, _stopping, mut open) = open(None::<fn() -> Result<(), Problem>>);
        let wakings = std::cell::Cell::new(0);
        let mut next = std::pin::pin!(open.next());
        let counted = std::future::poll_fn(|context| {
            wakings.set(wakings.get() + 1);
            next.as_mut().poll(context)
        });
        let (lines, ()) = tokio::join!(counted, async {
            sleep(BEAT / 2).await;
            let error = "it does not answer".to_owned();
            tell.send(vec![TailOut::Away(AwayOut { error })])
                .await
                .unwrap();
        });
        assert!(matches!(lines[..], [TailOut::Away(_)]));
        // It falls asleep, and wakes when the sender does.
        assert!(wakings.get() <= 4, "{}", wakings.get());
    }
}
