//! Jobs that a handler hands over to another program, which ends them.

use std::time::Duration;

use keyfall::{Handler, Job, Lease, Outcome, Router, Settled, State};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::runs::PATIENCE;
use super::site::Site;
use super::workers::STEADY;

type Out = UnboundedSender<(Lease, u32)>;

async fn pass_on(job: Job, State(out): State<Out>) -> Outcome {
    out.send((job.lease().clone(), job.attempt())).unwrap();
    Outcome::HandedOver
}

async fn next(leases: &mut UnboundedReceiver<(Lease, u32)>) -> (Lease, u32) {
    timeout(PATIENCE, leases.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_holder_of_the_lease_ends_the_job() {
    let site = Site::new("handed").await;
    let (out, mut leases) = unbounded_channel();
    let route = Handler::<(Job, State<Out>), Out>::lease(pass_on, STEADY);
    let worker = site.serve(Router::new().route(&site.pattern(), route).with_state(out));
    let key = site.key("1");
    site.client.schedule(&key, &7).await.unwrap();
    let (lease, attempt) = next(&mut leases).await;
    assert_eq!((lease.key().as_str(), attempt), (&*key, 1));
    let failed = Outcome::retry_after(Duration::ZERO, "not today");
    let settled = site.client.settle(&lease, failed).await.unwrap();
    assert!(matches!(settled, Settled::Pending(_)), "{settled:?}");
    let (lease, attempt) = next(&mut leases).await;
    assert_eq!(attempt, 2);
    // Handing a job over does not end its lease.
    let error = site.client.settle(&lease, Outcome::HandedOver).await;
    assert!(error.unwrap_err().to_string().contains("ends no lease"));
    let settled = site.client.settle(&lease, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Done);
    // The worker does not wait for holders of leases.
    site.client.schedule(&key, &7).await.unwrap();
    let (lease, _) = next(&mut leases).await;
    worker.stop().await;
    assert_eq!(site.stats().await.leased, 1);
    let settled = site.client.settle(&lease, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Done);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_unsettled_lease_lapses_and_counts_as_an_attempt() {
    let site = Site::new("handed-lapse").await;
    let (out, mut leases) = unbounded_channel();
    let route = Handler::<(Job, State<Out>), Out>::lease(pass_on, STEADY);
    let worker = site.serve(Router::new().route(&site.pattern(), route).with_state(out));
    site.client.schedule(site.key("1"), &7).await.unwrap();
    let (old, _) = next(&mut leases).await;
    site.lapse(1).await;
    site.sweep().await;
    let (new, attempt) = next(&mut leases).await;
    assert_eq!(attempt, 2);
    let settled = site.client.settle(&old, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Taken);
    let settled = site.client.settle(&new, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Done);
    worker.stop().await;
    site.assert_balanced().await;
}
