//! Three series of reminders: the dunning steps of an invoice, a booking, and a subscription.
//!
//! Each series is relative to a date. The invoice is paid, and its steps are cancelled; the guest
//! comes a day later, and the reminders move; the subscription ends with a charge. It needs a Redis,
//! at `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and ends when one reminder has come.
//!
//! ```sh
//! cargo run --example series
//! ```

use std::time::{Duration, SystemTime};

use keyfall::{
    Client, Job, Json, Member, MemberFate, MemberState, QuietHours, Router, SeriesChange, State,
    Worker,
};
use tokio::sync::mpsc;

const ZONE: &str = "Europe/Berlin";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Three steps after the due date of an invoice, each with its own letter, and none on a Sunday.
async fn bill(client: &Client, invoice: u64) -> keyfall::Result<()> {
    let quiet = QuietHours::on(&["SUN"])?;
    let changed = client
        .series(format!("app1:invoice:dun:{invoice}"))
        .anchor(SystemTime::now() + 14 * DAY, ZONE)
        .at([
            Member::new("+3d 09:00").payload(&"a friendly reminder"),
            Member::new("+10d 09:00").payload(&"the first dunning letter"),
            Member::new("+21d 09:00").payload(&"the last dunning letter"),
        ])
        .quiet(quiet)
        .await?;
    told("invoice", invoice, &changed);
    Ok(())
}

/// All steps that have not begun are cancelled in one call.
async fn pay(client: &Client, invoice: u64) -> keyfall::Result<()> {
    let series = client.series(format!("app1:invoice:dun:{invoice}"));
    if let Some(changed) = series.cancel().await? {
        told("paid invoice", invoice, &changed);
    }
    Ok(())
}

/// What lies in the past is left out.
async fn book(client: &Client, booking: u64, arrival: SystemTime) -> keyfall::Result<()> {
    let changed = client
        .series(format!("app1:booking:remind:{booking}"))
        .anchor(arrival, ZONE)
        .at(["-15d 09:00", "-3d 09:00", "-1h", "+1d 10:00"])
        .payload(&"your stay")
        .await?;
    told("booking", booking, &changed);
    Ok(())
}

/// The reminder that has come for the old date does not come again.
async fn postpone(client: &Client, booking: u64, arrival: SystemTime) -> keyfall::Result<()> {
    let series = client.series(format!("app1:booking:remind:{booking}"));
    let changed = series.move_to(arrival).await?;
    told("moved booking", booking, &changed);
    Ok(())
}

/// Two reminders and the charge itself, which is a job like the others.
async fn subscribe(client: &Client, subscription: u64) -> keyfall::Result<()> {
    let series = client.series(format!("app1:subscription:renew:{subscription}"));
    let changed = series
        .anchor(SystemTime::now() + 30 * DAY, ZONE)
        .at([
            Member::new("-14d 09:00").payload(&"renews in two weeks"),
            Member::new("-1d 09:00").payload(&"renews tomorrow"),
            Member::new("+0d").named("charge").payload(&"charge"),
        ])
        .await?;
    told("subscription", subscription, &changed);
    Ok(())
}

/// Prints what became of each member.
fn told(what: &str, number: u64, changed: &SeriesChange) {
    for member in &changed.members {
        let fate = match &member.fate {
            MemberFate::Created(_) => "is scheduled".to_owned(),
            MemberFate::Moved(_) => "is moved".to_owned(),
            MemberFate::Cancelled => "is cancelled".to_owned(),
            MemberFate::LeftOut(why) => format!("is left out: {why}"),
            MemberFate::Ended => "has run already".to_owned(),
            other => format!("{other:?}"),
        };
        println!("{what} {number}, {}: {fate}", member.offset);
    }
}

async fn remind(job: Job, Json(text): Json<String>, State(sent): State<mpsc::Sender<String>>) {
    println!("{}: {text}", job.key().id());
    sent.send(job.key().to_string()).await.ok();
}

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let (sent, mut reminders) = mpsc::channel(8);
    let routes = Router::new()
        .route("app1:invoice:dun:{id}", remind)
        .route("app1:booking:remind:{id}", remind)
        .route("app1:subscription:renew:{id}", remind)
        .with_state(sent);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });
    let demo = async {
        bill(&client, 7).await?;
        pay(&client, 7).await?;
        // The guest arrives in an hour: the reminder of the last hour comes now.
        let arrival = SystemTime::now() + HOUR + Duration::from_millis(500);
        book(&client, 42, arrival).await?;
        reminders.recv().await;
        // Its run ends a moment after its handler.
        let booking = || client.series("app1:booking:remind:42");
        while let Some(view) = booking().view().await?
            && view.members[2].state != MemberState::Ended
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        postpone(&client, 42, arrival + DAY).await?;
        subscribe(&client, 5).await?;
        for series in ["booking:remind:42", "subscription:renew:5"] {
            client.series(format!("app1:{series}")).cancel().await?;
        }
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}
