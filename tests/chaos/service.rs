//! The calls of a producer: straight to Redis, through a daemon, or as the clients of a classic
//! delay queue make them.

use std::sync::Arc;
use std::time::Duration;

use keyfall::{Cancelled, Client, Error, ErrorKind, Placed, Rescheduled, Updated};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::classic::ClassicClient;
use crate::daemons::{Daemons, Lost};
use crate::journal::Answer;
use crate::order::Order;

/// The target of a producer's calls.
pub(crate) enum Service {
    Redis(Client),
    Daemons(Desk),
    /// Calls that such clients do not have, and every other delete, go straight to Redis.
    Classic(ClassicClient, Client),
}

/// Collects calls into batches.
pub(crate) struct Desk {
    calls: mpsc::UnboundedSender<BatchedCall>,
    daemons: Arc<Daemons>,
}

/// A line of a batch, and the caller that waits for its answer.
type BatchedCall = (Value, oneshot::Sender<Result<(StatusCode, Value), Lost>>);

/// How long a batch collects calls, and how many it takes.
const GATHER: Duration = Duration::from_millis(50);
const TOGETHER: usize = 1000;

impl Service {
    /// The delay that a job gets when this one is asked for.
    pub(crate) fn rounded(&self, delay: Duration) -> Duration {
        match self {
            // Such clients count in seconds.
            Service::Classic(..) => Duration::from_secs(delay.as_secs_f64().round() as u64),
            Service::Redis(_) | Service::Daemons(_) => delay,
        }
    }

    pub(crate) async fn schedule(
        &self,
        key: &str,
        order: &Order,
        delay: Duration,
    ) -> Result<Answer, Answer> {
        let client = match self {
            Service::Redis(client) => client,
            Service::Daemons(desk) => {
                let job = json!({"payload": order, "after": written(delay)});
                return desk.ask(key, "schedule", job).await;
            }
            Service::Classic(classic, _) => {
                return classic.push(key, order, self.rounded(delay)).await;
            }
        };
        let mut call = client.schedule(key, order).after(delay);
        if let Some(attempts) = order.plan.attempts() {
            call = call.attempts(attempts);
        }
        if let Some(timeout) = order.plan.timeout() {
            call = call.timeout(timeout);
        }
        Ok(match call.await?.placed {
            Placed::Replaced => Answer::Replaced,
            Placed::Succeeds => Answer::Follows,
            _ => Answer::Done,
        })
    }

    pub(crate) async fn cancel(&self, key: &str) -> Result<Answer, Answer> {
        match self {
            Service::Classic(classic, _) if rand::random() => classic.delete(key).await,
            Service::Redis(client) | Service::Classic(_, client) => {
                Ok(match client.cancel(key).await? {
                    Cancelled::Cancelled => Answer::Cancelled,
                    Cancelled::Running => Answer::Running,
                    Cancelled::Absent => Answer::Absent,
                })
            }
            Service::Daemons(desk) => desk.ask(key, "cancel", json!({})).await,
        }
    }

    pub(crate) async fn postpone(&self, key: &str, delay: Duration) -> Result<Answer, Answer> {
        match self {
            Service::Redis(client) | Service::Classic(_, client) => {
                Ok(moved(client.reschedule(key).after(delay).await?))
            }
            Service::Daemons(desk) => {
                let when = json!({"after": written(delay)});
                desk.ask(key, "postpone", when).await
            }
        }
    }

    pub(crate) async fn fire_now(&self, key: &str) -> Result<Answer, Answer> {
        match self {
            Service::Redis(client) | Service::Classic(_, client) => {
                Ok(moved(client.fire_now(key).await?))
            }
            Service::Daemons(desk) => desk.ask(key, "fire", json!({})).await,
        }
    }

    pub(crate) async fn update(&self, key: &str, order: &Order) -> Result<Answer, Answer> {
        match self {
            Service::Redis(client) | Service::Classic(_, client) => {
                Ok(match client.update_payload(key, order).await? {
                    Updated::Running => Answer::Running,
                    Updated::Absent => Answer::Absent,
                    _ => Answer::Done,
                })
            }
            Service::Daemons(desk) => {
                let payload = json!({"payload": order});
                desk.ask(key, "payload", payload).await
            }
        }
    }
}

fn moved(answer: Rescheduled) -> Answer {
    match answer {
        Rescheduled::Running => Answer::Running,
        Rescheduled::Absent => Answer::Absent,
        _ => Answer::Done,
    }
}

fn written(delay: Duration) -> String {
    format!("{}ms", delay.as_millis())
}

impl Desk {
    /// A desk for calls to these daemons.
    pub(crate) fn new(daemons: Daemons) -> Self {
        let (calls, asked) = mpsc::unbounded_channel();
        let daemons = Arc::new(daemons);
        tokio::spawn(gather(daemons.clone(), asked));
        Desk { calls, daemons }
    }

    /// Makes a call on one job, `what` in a batch and below its path, and interprets its answer.
    /// One of ten calls goes by itself, the others with simultaneous ones.
    async fn ask(&self, key: &str, what: &'static str, body: Value) -> Result<Answer, Answer> {
        let (status, answer) = if rand::random_bool(0.1) {
            let path = |below: &str| format!("/v1/jobs/{key}{below}");
            let (method, path) = match what {
                "schedule" => (Method::PUT, path("")),
                "cancel" => (Method::DELETE, path("")),
                "payload" => (Method::PUT, path("/payload")),
                "fire" => (Method::POST, path("/fire")),
                _ => (Method::POST, path("/postpone")),
            };
            self.daemons.call(method, &path, &body).await?
        } else {
            let mut call = body;
            (call["call"], call["key"]) = (what.into(), key.into());
            let (tell, told) = oneshot::channel();
            self.calls.send((call, tell)).expect("it is gathered");
            told.await.expect("each is answered")?
        };
        if status.is_success() {
            return Ok(
                match (answer["placed"].as_str(), answer["running"].as_bool()) {
                    (Some("replaced"), _) => Answer::Replaced,
                    (Some("succeeds"), _) => Answer::Follows,
                    (_, Some(true)) => Answer::Running,
                    (_, Some(false)) => Answer::Cancelled,
                    // The change of the payload of a running job.
                    _ if status == StatusCode::ACCEPTED => Answer::Running,
                    _ => Answer::Done,
                },
            );
        }
        let told = format!("{status}: {answer}");
        Err(match answer["code"].as_str() {
            Some("job_absent") => Answer::Absent,
            Some("job_running") => Answer::Running,
            Some("outcome_unknown") => Answer::Unknown(told),
            _ if answer["retryable"] == true => Answer::Refused(told),
            _ => Answer::Failed(told),
        })
    }
}

/// Sends the collected calls as one batch, again and again.
async fn gather(daemons: Arc<Daemons>, mut asked: mpsc::UnboundedReceiver<BatchedCall>) {
    let mut some = Vec::new();
    while asked.recv_many(&mut some, TOGETHER).await > 0 {
        let (calls, tell): (Vec<Value>, Vec<_>) = some.drain(..).unzip();
        let daemons = daemons.clone();
        tokio::spawn(async move {
            let answered = daemons.batch(&calls).await;
            for (place, tell) in tell.into_iter().enumerate() {
                let answer = match &answered {
                    Ok(answers) => answers
                        .get(place)
                        .cloned()
                        .ok_or_else(|| Lost::Unknown("the daemon stopped before this line".into())),
                    Err(lost) => Err(lost.clone()),
                };
                // The story of the call waits for the answer.
                let _ = tell.send(answer);
            }
        });
        sleep(GATHER).await;
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        let told = format!("{error:?}");
        match error.kind() {
            ErrorKind::OutcomeUnknown => Answer::Unknown(told),
            _ if error.is_retryable() => Answer::Refused(told),
            _ => Answer::Failed(told),
        }
    }
}
