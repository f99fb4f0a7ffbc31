//! Tasks of Celery, which keeps tasks with an `eta` like others: in the lists of the queue, one for
//! each priority, until a worker holds them in `unacked`. The import only reads them.

use anyhow::bail;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Naming, Pending};
use crate::import::entry::Entry;
use crate::import::zset::connect;
use crate::import::{Batch, Fault, LEFT_READY, Read};
use crate::stop::Stop;

/// The approximate number of tasks of one read.
const TASKS: u64 = 500;

/// Behind the name of the queue stands the priority, unless it is the lowest.
const PRIORITIES: [&str; 4] = ["", "\x06\x163", "\x06\x166", "\x06\x169"];

pub(in crate::import) struct Celery {
    redis: MultiplexedConnection,
    queue: String,
    lists: Vec<String>,
    unacked: String,
    naming: Naming,
    /// The next list, and the place in it; behind the lists, the cursor of `unacked`.
    list: usize,
    from: u64,
    /// The number of tasks at the start of the import.
    pub(in crate::import) size: u64,
}

#[derive(Deserialize)]
struct Message {
    body: String,
    #[serde(rename = "content-type")]
    content_type: String,
    headers: Headers,
    properties: Properties,
}

#[derive(Deserialize)]
struct Headers {
    id: String,
    task: String,
    eta: Option<String>,
}

#[derive(Deserialize)]
struct Properties {
    body_encoding: String,
}

/// What else is to happen with a task.
#[derive(Deserialize)]
struct Embedded {
    chain: Option<Vec<serde::de::IgnoredAny>>,
    chord: Option<serde::de::IgnoredAny>,
    callbacks: Option<Vec<serde::de::IgnoredAny>>,
}

impl Celery {
    pub(in crate::import) async fn open(
        source: &redis::Client,
        prefix: &str,
        queue: String,
        naming: Naming,
        after: Option<&str>,
    ) -> anyhow::Result<Self> {
        let place = after.unwrap_or("0:0").split_once(':');
        let place = place.and_then(|(list, from)| Some((list.parse().ok()?, from.parse().ok()?)));
        let Some((list, from)) = place else {
            bail!(Stop::wrong(
                "`--cursor` is not a place: use one that such an import printed"
            ));
        };
        let mut redis = connect(source).await?;
        let lists = PRIORITIES.map(|priority| format!("{prefix}{queue}{priority}"));
        let unacked = format!("{prefix}unacked");
        let mut size = super::number(&mut redis, "HLEN", &unacked).await?;
        for list in &lists {
            size += super::number(&mut redis, "LLEN", list).await?;
        }
        if size == 0 {
            bail!(Stop::absent(format!(
                "there is no task in the queue {queue}"
            )));
        }
        Ok(Celery {
            redis,
            queue,
            lists: lists.into(),
            unacked,
            naming,
            list,
            from,
            size,
        })
    }

    /// Producers push tasks in front of the place, which repeats some, and workers take them at the
    /// end: none is left out.
    pub(in crate::import) async fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let mut jobs = Vec::new();
        let size;
        if let Some(list) = self.lists.get(self.list) {
            let last = self.from + TASKS - 1;
            let range = redis::cmd("LRANGE")
                .arg(list)
                .arg(self.from)
                .arg(last)
                .to_owned();
            let tasks: Vec<Vec<u8>> = range.query_async(&mut self.redis).await?;
            size = tasks.len();
            for (number, task) in tasks.iter().enumerate() {
                let place = format!("the task {} of {}", self.from + number as u64, self.queue);
                jobs.push(self.read(place, task));
            }
            self.from += TASKS;
            if size == 0 {
                (self.list, self.from) = (self.list + 1, 0);
            }
        } else if self.list == self.lists.len() {
            let scan = redis::cmd("HSCAN")
                .arg(&self.unacked)
                .arg(self.from)
                .arg("COUNT")
                .arg(TASKS)
                .to_owned();
            let (next, taken): (u64, Vec<(String, Vec<u8>)>) =
                scan.query_async(&mut self.redis).await?;
            size = taken.len();
            for (tag, kept) in taken {
                // The message, its exchange, and its routing key, which by default is its queue.
                let place = format!("the task {tag} of a worker");
                match serde_json::from_slice::<(&RawValue, String, String)>(&kept) {
                    Ok((message, _, key)) if key == self.queue => {
                        jobs.push(self.read(place, message.get().as_bytes()));
                    }
                    Ok((_, _, key)) => jobs.push(Read {
                        place,
                        job: Err(Fault::LeftOut(format!(
                            "are held by a worker, with the routing key {key}: if it belongs to this \
                             queue, start the worker, and stop it with SIGTERM"
                        ))),
                    }),
                    Err(error) => jobs.push(Read {
                        place,
                        job: Err(error.to_string().into()),
                    }),
                }
            }
            self.from = next;
            if next == 0 {
                self.list += 1;
            }
        } else {
            return Ok(None);
        }
        Ok(Some(Batch {
            jobs,
            after: format!("{}:{}", self.list, self.from),
            size,
        }))
    }

    fn read(&self, place: String, task: &[u8]) -> Read {
        let job = entry(&self.naming, task);
        Read { place, job }
    }
}

fn entry(naming: &Naming, task: &[u8]) -> Result<Entry, Fault> {
    let message: Message = serde_json::from_slice(task)
        .map_err(|error| format!("it is not a message of Celery 4 or later: {error}"))?;
    let Headers { id, task, eta } = message.headers;
    let Some(eta) = eta else {
        return Err(Fault::LeftOut(LEFT_READY.to_owned()));
    };
    let form = (&*message.content_type, &*message.properties.body_encoding);
    if form != ("application/json", "base64") {
        let (form, _) = form;
        return Err(Fault::Invalid(format!(
            "{id} is written as {form}, and only JSON can be read: schedule this task anew"
        )));
    }
    let due: Timestamp = eta
        .parse()
        .map_err(|error| format!("the `eta` of {id}, {eta}, is not a time with a zone: {error}"))?;
    let body = STANDARD.decode(&message.body).map_err(|e| e.to_string())?;
    let (args, kwargs, more): (&RawValue, &RawValue, Embedded) = serde_json::from_slice(&body)
        .map_err(|error| format!("the arguments of {id} cannot be read: {error}"))?;
    let calls = more.callbacks.is_some_and(|calls| !calls.is_empty());
    if calls || more.chord.is_some() || more.chain.is_some_and(|tasks| !tasks.is_empty()) {
        let reason = "have a chain, a chord or callbacks: other tasks wait for them";
        return Err(Fault::LeftOut(reason.to_owned()));
    }
    let payload = format!(r#"{{"args":{args},"kwargs":{kwargs}}}"#);
    naming.entry(&Pending {
        id: &id,
        name: &task,
        due: due.into(),
        payload: payload.as_bytes(),
    })
}
