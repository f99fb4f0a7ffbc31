//! The changes of jobs as they happen: one line of JSON for each change, until one side ends the
//! stream.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use jiff::tz::TimeZone;
use keyfall::{Happening, JobKey, Tidings, What};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, LOOK, Scope};
use super::body::Pairs;
use super::feed::{Heard, Listener, News};
use super::history::HappeningOut;
use super::problem::Problem;
use super::tails::TailPermit;
use super::wire::{Time, UnseenOut};

/// The longest silence of a tail. Proxies close a connection that is silent for a minute.
const BEAT: Duration = Duration::from_secs(15);

/// The wait before the next read from a Redis that did not answer.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// The most changes of one write. Three times as many can be in memory: one part is being written,
/// one waits to be written, and one waits for its place in the channel.
pub(super) const TOGETHER: usize = 64;

/// The most past changes that a tail begins with.
const MOST_LAST: usize = 1000;

/// The past changes that a shared tail reads beyond the wanted ones, to know those which it also
/// hears of: they happen between the moment it begins to listen, and the end of its read.
const OVERLAP: usize = 200;

/// The time after which a shared tail hears of no change that it has read.
const SETTLED: Duration = Duration::from_secs(10);

/// The wanted changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TailIn {
    /// The prefix of the job keys; can be given several times. All jobs, if neither this nor `key`
    /// is given.
    #[param(example = json!(["app1:trans:notice:"]))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
    /// Only these jobs; can be given several times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<String>,
    /// Only these changes, such as `failed,buried`; can be given several times. Defaults to all
    /// changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub what: Vec<String>,
    /// Begins with this number of past changes of these jobs, from which `what` selects. Defaults
    /// to none.
    #[param(maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// The zone of the times in sentences, by its name in the IANA database, such as Europe/Berlin.
    /// Defaults to UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `true`: all shared tails of the daemon have one reader, so that further ones cost Redis
    /// nothing. A client that reads too slowly loses changes, and is told so by `skipped`. Defaults
    /// to `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// A line of a tail.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TailOut {
    /// A job or a kind was changed.
    Happened(Box<HappeningOut>),
    /// Changes of a kind were trimmed from its history before they could be read.
    Missed(MissedOut),
    /// The client of a shared tail read too slowly: changes before this line are missing.
    Skipped(SkippedOut),
    /// One of several servers is away. Its changes follow when it is back.
    Unseen(UnseenOut),
    /// Redis does not answer. The changes of this time follow when it answers again.
    Away(AwayOut),
    /// No change: the tail has begun, and reports changes from now on, or was silent for 15
    /// seconds.
    Alive(AliveOut),
    /// The tail has ended, for this reason. It is the last line.
    Ended(Problem),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MissedOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SkippedOut {
    /// By the clock of the daemon.
    pub at: Time,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AwayOut {
    /// The error of Redis.
    pub error: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AliveOut {
    /// By the clock of the daemon.
    pub at: Time,
}

/// The changes of jobs as they happen: one object a line, until the client closes the connection.
/// Each object has one field, whose name is its sort: `happened`, `missed`, `skipped`, `unseen`,
/// `away`, `alive` or `ended`.
///
/// The first line is `alive`, unless Redis is `away`; another `alive` follows after each 15 seconds
/// without a line. The tail reports all changes after the first `alive`. The changes of one kind
/// are in order. The stream ends with `ended` when the daemon stops, and when the token is revoked,
/// expires or loses the scope.
#[utoipa::path(get, path = "/v1/tail", operation_id = "follow_jobs", tag = "jobs", params(TailIn),
    responses((status = 200, description = "One of these objects a line",
        body = TailOut, content_type = "application/x-ndjson")))]
pub(super) async fn tail(caller: Caller, pairs: Pairs) -> Result<Response, Problem> {
    let wanted = TailRequest::of(TailIn::of(pairs)?)?;
    let api = caller.may_with_each(Scope::Read, &wanted.reach)?;
    let place = match wanted.is_shared {
        true => api.shared_tails.take(caller.who())?,
        false => api.tails.take(caller.who())?,
    };
    let mut tail = match wanted.is_shared {
        true => api.client.tail().last(wanted.last + OVERLAP),
        false => {
            let what = wanted.what.iter().copied();
            api.client.tail().last(wanted.last).only(what)
        }
    };
    for prefix in &wanted.reach {
        tail = tail.prefix(prefix).map_err(Problem::of_prefix)?;
    }
    let stopping = api.stopping.clone();
    let (tell, told) = mpsc::channel(1);
    let reach = wanted.reach.clone();
    let reader = AbortOnDropHandle::new(match wanted.is_shared {
        true => {
            let listener = api.feed.listen(&api.client);
            tokio::spawn(read_shared(listener, tail, wanted, tell))
        }
        false => tokio::spawn(read(tail, wanted, tell)),
    });
    let has_token = caller.token().is_some();
    let may = move || caller.may_with_each(Scope::Read, &reach).map(drop);
    let open = OpenTail {
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
        let is_over = lines.last().is_none_or(Line::is_last);
        Some((written(&lines), Some(open).filter(|_| !is_over)))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-store"),
        // Without this header, nginx would keep the lines until there are enough of them.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

impl TailOut {
    fn alive() -> Self {
        let at = Time(SystemTime::now());
        TailOut::Alive(AliveOut { at })
    }

    fn away(error: &str) -> Self {
        let error = error.to_owned();
        TailOut::Away(AwayOut { error })
    }
}

/// A line, or the same as it was written for other tails.
#[derive(Debug)]
enum Line {
    New(TailOut),
    Written(Bytes),
}

impl Line {
    /// Whether the tail ends with it.
    fn is_last(&self) -> bool {
        matches!(self, Line::New(TailOut::Ended(_)))
    }

    fn write(&self, text: &mut Vec<u8>) {
        match self {
            Line::Written(line) => text.extend_from_slice(line),
            Line::New(line) => {
                serde_json::to_writer(&mut *text, line).expect("texts and numbers are JSON");
                text.push(b'\n');
            }
        }
    }
}

impl From<TailOut> for Line {
    fn from(line: TailOut) -> Self {
        Line::New(line)
    }
}

fn written(lines: &[Line]) -> Result<Bytes, Infallible> {
    let mut text = Vec::new();
    for line in lines {
        line.write(&mut text);
    }
    Ok(text.into())
}

/// The wanted changes, checked.
struct TailRequest {
    /// The prefixes of all jobs that the tail can report; all jobs, if it is empty.
    reach: Vec<String>,
    keys: HashSet<JobKey>,
    what: Vec<What>,
    last: usize,
    zone: TimeZone,
    is_shared: bool,
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
                            "{value:?} is not a number from 0 to {MOST_LAST}: write the number of \
                             changes that the tail begins with"
                        );
                        Problem::invalid("last", rule)
                    })?);
                }
                "shared" => {
                    wanted.shared = value.parse().map_err(|_| {
                        let rule = format!("{value:?} is not `true` or `false`: write one of them");
                        Problem::invalid("shared", rule)
                    })?;
                }
                _ => {
                    let known = "`prefix`, `key`, `what`, `last`, `zone` and `shared`";
                    return Err(Problem::unknown_parameter(&name, known));
                }
            }
        }
        Ok(wanted)
    }
}

impl TailRequest {
    fn of(wanted: TailIn) -> Result<Self, Problem> {
        let words = wanted.what.iter().flat_map(|words| words.split(','));
        let what = words.map(What::parse).collect::<Result<_, _>>();
        let keys = wanted.key.iter().map(|key| JobKey::parse(key));
        let keys: HashSet<JobKey> = keys.collect::<Result<_, _>>()?;
        let zone = match &wanted.zone {
            Some(name) => super::history::zone(name)?,
            None => TimeZone::UTC,
        };
        // Named jobs decide alone, whatever the prefixes select.
        let reach = match keys.is_empty() {
            true => wanted.prefix,
            false => wanted.key,
        };
        Ok(TailRequest {
            reach,
            keys,
            what: what.map_err(|error| Problem::from(error).field("what"))?,
            last: wanted.last.unwrap_or(0),
            zone,
            is_shared: wanted.shared,
        })
    }

    /// The line for this news of all jobs, if the client wants it.
    fn line_of_all(&self, news: &News) -> Option<Line> {
        match &news.tidings {
            Tidings::Happened(it) => {
                let is_wanted = self.follows(it.what) && self.reaches(it) && self.names(it);
                is_wanted.then(|| {
                    let line = news.line(&self.zone, || {
                        let mut text = Vec::new();
                        Line::New(self.happened(it)).write(&mut text);
                        text.into()
                    });
                    Line::Written(line)
                })
            }
            Tidings::Missed(kind) if !self.reaches_into(&format!("{kind}:")) => None,
            other => self.line(other.clone()).map(Line::New),
        }
    }

    fn follows(&self, what: What) -> bool {
        self.what.is_empty() || self.what.contains(&what)
    }

    fn reaches(&self, it: &Happening) -> bool {
        if self.reach.is_empty() {
            return true;
        }
        let key = it.key().map(|key| key.to_string());
        let text = key.unwrap_or_else(|| format!("{}:", it.kind));
        self.reach.iter().any(|prefix| text.starts_with(prefix))
    }

    /// Whether it is about one of the named jobs, if any is named.
    fn names(&self, it: &Happening) -> bool {
        self.keys.is_empty() || it.key().is_some_and(|key| self.keys.contains(&key))
    }

    fn happened(&self, it: &Happening) -> TailOut {
        TailOut::Happened(HappeningOut::new(it, &self.zone).into())
    }

    /// Whether some of the jobs that begin so are wanted.
    fn reaches_into(&self, kind: &str) -> bool {
        let covers = |prefix: &String| kind.starts_with(&**prefix) || prefix.starts_with(kind);
        self.reach.is_empty() || self.reach.iter().any(covers)
    }

    /// The line for this news, if the client wants it.
    fn line(&self, news: Tidings) -> Option<TailOut> {
        Some(match news {
            Tidings::Happened(it) if self.names(&it) => self.happened(&it),
            Tidings::Missed(kind) => TailOut::Missed(MissedOut {
                kind: kind.to_string(),
            }),
            Tidings::Unseen(one) => TailOut::Unseen(UnseenOut {
                server: one.server,
                error: one.error,
                // The shards may be of kinds that the caller cannot see.
                shards: Vec::new(),
            }),
            _ => return None,
        })
    }
}

/// Reads the histories, as fast as the lines are taken. A read is never given up half-way: it goes on
/// at the server.
async fn read(mut tail: keyfall::Tail, wanted: TailRequest, tell: mpsc::Sender<Vec<Line>>) {
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
        let lines: Vec<Line> = lines.into_iter().map(Line::from).collect();
        let is_over = lines.last().is_some_and(Line::is_last);
        if lines.is_empty() {
            // Other tasks get a turn while many unwanted changes are read.
            tokio::task::yield_now().await;
        } else if tell.send(lines).await.is_err() || is_over {
            return;
        }
    }
}

/// Reads the past changes from the histories, and hears of the further ones.
async fn read_shared(
    mut listener: Listener,
    mut past: keyfall::Tail,
    wanted: TailRequest,
    tell: mpsc::Sender<Vec<Line>>,
) {
    let Some(read) = begin_shared(&mut listener, &mut past, &tell).await else {
        return;
    };
    // Its connection is not needed any longer.
    drop(past);
    let mut lines = vec![Line::New(TailOut::alive())];
    let last = &read[read.len().saturating_sub(wanted.last)..];
    let last = last.iter().filter(|news| match news {
        Tidings::Happened(it) => wanted.follows(it.what),
        _ => true,
    });
    let last = last.filter_map(|news| wanted.line(news.clone()));
    lines.extend(last.map(Line::New));
    let settled = Instant::now() + SETTLED;
    let mut known = read;
    let mut is_away = false;
    loop {
        if !lines.is_empty() && tell.send(std::mem::take(&mut lines)).await.is_err() {
            return;
        }
        let mut heard = listener.news.recv().await;
        if Instant::now() > settled {
            known = Vec::new();
        }
        loop {
            match heard {
                Ok(heard) => match &*heard {
                    Heard::News(news) => {
                        is_away = false;
                        match known.iter().position(|one| *one == news.tidings) {
                            Some(at) => drop(known.swap_remove(at)),
                            None => lines.extend(wanted.line_of_all(news)),
                        }
                    }
                    Heard::Away(error) if !std::mem::replace(&mut is_away, true) => {
                        lines.push(TailOut::away(error).into());
                    }
                    Heard::Away(_) => {}
                },
                Err(RecvError::Lagged(_)) => {
                    let at = Time(SystemTime::now());
                    lines.push(TailOut::Skipped(SkippedOut { at }).into());
                }
                // The client asks again, and then gets the error.
                Err(RecvError::Closed) => {
                    lines.push(TailOut::Ended(Problem::stopping()).into());
                    let _ = tell.send(lines).await;
                    return;
                }
            }
            if lines.len() >= TOGETHER {
                break;
            }
            heard = match listener.news.try_recv() {
                Ok(heard) => Ok(heard),
                Err(TryRecvError::Lagged(by)) => Err(RecvError::Lagged(by)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
    }
}

/// Waits until the feed reports changes, and then reads the past ones. `None` if the tail has
/// ended.
async fn begin_shared(
    listener: &mut Listener,
    past: &mut keyfall::Tail,
    tell: &mpsc::Sender<Vec<Line>>,
) -> Option<Vec<Tidings>> {
    let mut is_away = false;
    loop {
        let error = tokio::select! {
            // If the feed ends before it begins, the read of the past finds the reason.
            _ = listener.begun.wait_for(|has_begun| *has_begun) => break,
            heard = listener.news.recv() => match heard.as_deref() {
                Ok(Heard::Away(error)) => error.clone(),
                Ok(Heard::News(_)) | Err(_) => break,
            },
        };
        if !std::mem::replace(&mut is_away, true) {
            tell.send(vec![TailOut::away(&error).into()]).await.ok()?;
        }
    }
    loop {
        let error = match past.begin().await {
            Ok(()) => return Some(std::iter::from_fn(|| past.ready()).collect()),
            Err(error) => error,
        };
        if !error.is_retryable() {
            let line = TailOut::Ended(error.into());
            tell.send(vec![line.into()]).await.ok()?;
            return None;
        }
        if !std::mem::replace(&mut is_away, true) {
            let line = TailOut::away(&error.to_string());
            tell.send(vec![line.into()]).await.ok()?;
        }
        sleep(AGAIN).await;
    }
}

/// A tail that a client reads.
struct OpenTail<M> {
    told: mpsc::Receiver<Vec<Line>>,
    stopping: CancellationToken,
    /// Checks that the caller still has the right; `None` if there is no token that can be revoked.
    may: Option<M>,
    /// The time of the next check of the right. A token ends by the clock or by its file, which is
    /// only read at a check: there is no event to wait for.
    looks: Instant,
    /// The time at which the next line is due, with or without changes.
    beats: Instant,
    _reader: Option<AbortOnDropHandle<()>>,
    _place: Option<TailPermit>,
}

impl<M: Fn() -> Result<(), Problem>> OpenTail<M> {
    /// The next lines, at least one.
    async fn next(&mut self) -> Vec<Line> {
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return vec![TailOut::Ended(Problem::stopping()).into()],
                () = sleep_until(self.looks), if self.may.is_some() => {
                    self.looks = Instant::now() + LOOK;
                    if let Some(Err(problem)) = self.may.as_ref().map(|may| may()) {
                        return vec![TailOut::Ended(problem.broken_off()).into()];
                    }
                }
                () = sleep_until(self.beats) => {
                    self.beats = Instant::now() + BEAT;
                    return vec![TailOut::alive().into()];
                }
                lines = self.told.recv() => {
                    self.beats = Instant::now() + BEAT;
                    return lines.unwrap_or_else(|| vec![TailOut::Ended(Problem::stopping()).into()]);
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
    ) -> (mpsc::Sender<Vec<Line>>, CancellationToken, OpenTail<M>) {
        let (tell, told) = mpsc::channel(1);
        let stopping = CancellationToken::new();
        let open = OpenTail {
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
        let away = vec![TailOut::Away(AwayOut { error }).into()];
        sleep(Duration::from_secs(10)).await;
        tell.send(away).await.unwrap();
        assert!(matches!(
            open.next().await[..],
            [Line::New(TailOut::Away(_))]
        ));
        let silent = Instant::now();
        assert!(matches!(
            open.next().await[..],
            [Line::New(TailOut::Alive(_))]
        ));
        assert_eq!(silent.elapsed().as_secs(), BEAT.as_secs());
        stopping.cancel();
        let ended = open.next().await;
        assert!(matches!(&ended[..], [Line::New(TailOut::Ended(why))] if why.code == "stopping"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tail_ends_within_a_second_when_the_caller_may_no_more() {
        let (_tell, _stopping, mut open) = open(Some(|| Err(Problem::unauthorized("revoked"))));
        let begun = Instant::now();
        let ended = open.next().await;
        assert!(
            matches!(&ended[..], [Line::New(TailOut::Ended(why))] if why.code == "unauthorized")
        );
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
            tell.send(vec![TailOut::Away(AwayOut { error }).into()])
                .await
                .unwrap();
        });
        assert!(matches!(lines[..], [Line::New(TailOut::Away(_))]));
        // The tail falls asleep, and wakes when the sender does.
        assert!(wakings.get() <= 4, "{}", wakings.get());
    }
}
