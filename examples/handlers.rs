//! Handlers with state and arguments of all sorts, and their tests without Redis.
//!
//! When a trial is about to end, the user is reminded by mail; when it ends, the account is
//! closed. It needs a Redis, at `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and ends
//! when both have happened.
//!
//! ```sh
//! cargo run --example handlers
//! ```
//!
//! The tests at the end of this file need no Redis:
//!
//! ```sh
//! cargo test --example handlers
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::{
    Client, FromJob, FromRef, Handler, Headers, Job, JobState, Json, Rejection, RetryPolicy,
    Router, Segments, State, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// What the handlers need; each takes its part.
#[derive(Clone, Default)]
struct App {
    accounts: Accounts,
    mailer: Mailer,
}

/// Stands for a database: accounts by user.
type Accounts = Arc<Mutex<HashMap<u64, Account>>>;

#[derive(Clone)]
struct Account {
    email: String,
    paid: bool,
}

/// Stands for a mail service.
#[derive(Clone, Default)]
struct Mailer {
    is_down: bool,
    sent: Arc<Mutex<Vec<String>>>,
}

/// The payload of a reminder.
#[derive(Serialize, Deserialize)]
struct Reminder {
    days_left: u32,
}

fn routes() -> Router<App> {
    Router::new()
        .route(
            "app1:trial:remind:{user}",
            remind.retry(RetryPolicy::day_ladder().attempts(3)),
        )
        .route("app1:trial:end:{user}", end)
}

async fn remind(
    account: Account,
    Json(reminder): Json<Reminder>,
    headers: Headers,
    State(mailer): State<Mailer>,
) -> io::Result<()> {
    if account.paid {
        return Ok(());
    }
    let text = match headers.get("language") {
        Some("de") => format!("noch {} Tage", reminder.days_left),
        _ => format!("{} days left", reminder.days_left),
    };
    // A mail that cannot be sent is an error, and so is tried again.
    mailer.send(&account.email, &text).await
}

async fn end(Segments(user): Segments<u64>, State(accounts): State<Accounts>) {
    let mut accounts = accounts.lock().unwrap();
    if accounts.get(&user).is_some_and(|account| !account.paid) {
        accounts.remove(&user);
        println!("account {user} is closed");
    }
}

impl FromRef<App> for Accounts {
    fn from_ref(app: &App) -> Self {
        app.accounts.clone()
    }
}

impl FromRef<App> for Mailer {
    fn from_ref(app: &App) -> Self {
        app.mailer.clone()
    }
}

/// The account that a job is about, as an argument of its handler.
impl FromJob<App> for Account {
    async fn from_job(job: &Job, app: &App) -> Result<Self, Rejection> {
        let Segments(user) = Segments::<u64>::from_job(job, app).await?;
        let account = app.accounts.lock().unwrap().get(&user).cloned();
        account.ok_or_else(|| Rejection::bury(format!("there is no account {user}")))
    }
}

impl Mailer {
    async fn send(&self, to: &str, text: &str) -> io::Result<()> {
        if self.is_down {
            return Err(io::Error::other("the mail service does not answer"));
        }
        println!("to {to}: {text}");
        self.sent.lock().unwrap().push(text.to_owned());
        Ok(())
    }
}

impl App {
    fn with_account(user: u64, paid: bool) -> Self {
        let app = App::default();
        let email = "ada@example.com".to_owned();
        let account = Account { email, paid };
        app.accounts.lock().unwrap().insert(user, account);
        app
    }
}

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let jobs = routes().with_state(App::with_account(7, false));
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), jobs).run_until(async { _ = stopped.await });
    let demo = async {
        client
            .schedule("app1:trial:remind:7", &Reminder { days_left: 3 })
            .header("language", "en")
            .after(Duration::from_millis(200))
            .await?;
        client
            .schedule("app1:trial:end:7", "")
            .after(Duration::from_millis(800))
            .await?;
        until_ended(&client, "app1:trial:remind:7").await?;
        until_ended(&client, "app1:trial:end:7").await?;
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}

async fn until_ended(client: &Client, key: &str) -> keyfall::Result<()> {
    while let Some(job) = client.get(key).await? {
        if job.state() == JobState::Dead {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keyfall::Outcome;
    use keyfall::testing::{self, Rehearsal};

    use super::*;

    const KEY: &str = "app1:trial:remind:7";

    /// How the reminder of user 7 ends.
    async fn outcome(app: &App, payload: &str) -> Option<Outcome> {
        let job = Job::sample(KEY)
            .raw_payload(payload.to_owned())
            .header("language", "de")
            .build();
        routes().with_state(app.clone()).call(job).await
    }

    #[tokio::test]
    async fn a_reminder_speaks_the_language_of_the_user() {
        let app = App::with_account(7, false);
        let done = outcome(&app, r#"{ "days_left": 3 }"#).await;
        assert_eq!(done, Some(Outcome::Done));
        assert_eq!(*app.mailer.sent.lock().unwrap(), ["noch 3 Tage"]);
    }

    #[tokio::test]
    async fn whoever_has_paid_is_not_reminded() {
        let app = App::with_account(7, true);
        let done = outcome(&app, r#"{ "days_left": 3 }"#).await;
        assert_eq!(done, Some(Outcome::Done));
        assert!(app.mailer.sent.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_cannot_be_mended_by_trying_again_is_buried() {
        let gone = outcome(&App::default(), r#"{ "days_left": 3 }"#).await;
        assert_eq!(gone, Some(Outcome::bury("there is no account 7")));

        let app = App::with_account(7, false);
        let odd = outcome(&app, r#"{ "days_left": "three" }"#).await;
        assert!(matches!(odd, Some(Outcome::Bury { .. })), "{odd:?}");
    }

    #[tokio::test]
    async fn without_mail_service_a_reminder_is_tried_three_times() {
        let mut app = App::with_account(7, false);
        app.mailer.is_down = true;
        let mut rehearsal = Rehearsal::new(routes().with_state(app));
        rehearsal.schedule(KEY, &Reminder { days_left: 3 });
        // Of a day, by a clock that only moves when it is told to.
        let runs = rehearsal.advance(Duration::from_secs(24 * 3600)).await;
        assert_eq!(runs.len(), 3);
        let job = rehearsal.job(KEY).unwrap();
        assert_eq!(job.state(), testing::JobState::Dead);
        assert_eq!(job.last_error(), Some("the mail service does not answer"));
    }
}
