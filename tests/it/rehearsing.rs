//! The client of a rehearsal answers as the client of a Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::testing::{ManualClock, Rehearsal};
use keyfall::{Client, Handler, Job, NewJob, Outcome, RetryPolicy, Router, Rule, State};

use crate::runs::eventually;
use crate::site::{HOUR, Site};

const IDS: [&str; 3] = ["x", "y", "z"];

/// Random numbers, the same in each run of a test.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// The word that an answer begins with: its times differ.
fn word(answer: impl std::fmt::Debug) -> String {
    let text = format!("{answer:?}");
    let end = text.find([' ', '{', '(']).unwrap_or(text.len());
    text[..end].to_owned()
}

/// Makes one call, and returns its answer without times.
async fn call(client: &Client, key: String, dice: &mut Dice) -> String {
    let later = HOUR * u32::try_from(1 + dice.roll(5)).unwrap();
    let hourly = Rule::every(HOUR).unwrap();
    let payload = dice.roll(100);
    let job = || client.schedule(&key, &payload).after(later);
    let (which, answer) = match dice.roll(14) {
        0 | 1 => ("schedule", word(job().await.unwrap().placed)),
        2 => ("if absent", word(job().if_absent().await.unwrap())),
        3 => ("if present", word(job().if_present().await.unwrap())),
        4 => ("cancel", word(client.cancel(&key).await.unwrap())),
        5 => {
            let moved = client.reschedule(&key).after(later).await.unwrap();
            ("reschedule", word(moved))
        }
        6 => {
            let updated = client.update_payload(&key, &payload).await.unwrap();
            ("update", word(updated))
        }
        7 => ("rule", word(job().recurring(hourly).await.unwrap().placed)),
        8 => {
            let rule = Rule::cron("0 9 * * *").unwrap();
            ("change", outcome(client.change_rule(&key, &rule).await))
        }
        9 => ("pause", outcome(client.pause_rule(&key).await)),
        10 => ("resume", outcome(client.resume_rule(&key).await)),
        11 => {
            let order = dice.roll(4);
            ("ordered", word(job().ordered(order).await.unwrap()))
        }
        12 => {
            let below = dice.roll(4);
            let cancelled = client.cancel_outdated(&key, below).await.unwrap();
            ("outdated", word(cancelled))
        }
        _ => {
            let jobs = [&key, &key].map(|key| NewJob::new(key, &payload).after(later));
            let [first, second] = jobs;
            let answers = client.schedule_many([first, second.if_absent()]).await;
            let placed = answers
                .into_iter()
                .map(|it| it.unwrap().map(|it| it.placed));
            ("many", format!("{:?}", Vec::from_iter(placed)))
        }
    };
    let view = client.get(&key).await.unwrap();
    let view = view.map(|job| {
        let steps: Vec<_> = job.steps().iter().map(|step| step.what.clone()).collect();
        let number = job
            .occurrence()
            .map(|it| (it.number, it.paused_since.is_some()));
        let payload = String::from_utf8(job.payload().to_vec()).unwrap();
        (
            job.state(),
            steps,
            number,
            payload,
            job.order(),
            job.attempts(),
        )
    });
    let id = key.rsplit(':').next().unwrap();
    format!("{which} {id}: {answer}; {view:?}")
}

fn outcome<T: std::fmt::Debug>(answer: keyfall::Result<T>) -> String {
    match answer {
        Ok(answer) => word(answer),
        Err(error) => word(error.kind()),
    }
}

/// Makes calls on a few jobs, and returns their answers.
async fn calls(client: &Client, site: &Site, dice: &mut Dice, count: usize) -> Vec<String> {
    let mut answers = Vec::new();
    for _ in 0..count {
        let id = IDS[usize::try_from(dice.roll(3)).unwrap()];
        answers.push(call(client, site.key(id), dice).await);
    }
    answers
}

#[tokio::test]
async fn calls_between_runs_have_the_same_answers() {
    let site = Site::new("rehearsed").await;
    let memory = ManualClock::new().client();
    for seed in 0..8 {
        let real = calls(&site.client, &site, &mut Dice(seed), 60).await;
        let rehearsed = calls(&memory, &site, &mut Dice(seed), 60).await;
        for (step, (real, rehearsed)) in real.iter().zip(&rehearsed).enumerate() {
            assert_eq!(real, rehearsed, "step {step} of seed {seed}");
        }
    }
}

/// What a handler needs that calls its client during its run.
#[derive(Clone)]
struct During {
    client: Client,
    told: Arc<Mutex<Vec<String>>>,
}

async fn during(job: Job, State(it): State<During>) -> Outcome {
    let seed: u64 = job.key().id()[1..].parse().unwrap();
    let mut dice = Dice(seed);
    for _ in 0..12 {
        let answer = call(&it.client, job.key().to_string(), &mut dice).await;
        it.told.lock().unwrap().push(answer);
    }
    match dice.roll(3) {
        0 => Outcome::Done,
        1 => Outcome::retry("no"),
        _ => Outcome::bury("never"),
    }
}

/// The answers of the calls of a handler, and the state of its job after the run.
async fn told_during(site: &Site, client: &Client, seed: u64, app: Router<During>) -> Vec<String> {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let state = During {
        client: client.clone(),
        told: told.clone(),
    };
    let key = site.key(format!("s{seed}"));
    client.schedule(&key, &0).await.unwrap();
    let app = app.with_state(state);
    let is_over = async || {
        let job = client.get(&key).await.unwrap();
        let running = job
            .as_ref()
            .is_some_and(|job| job.state() == keyfall::JobState::Running);
        (told.lock().unwrap().len() == 12 && !running).then_some(job)
    };
    let job = if client.ping().await.is_ok() {
        let worker = site.serve(app);
        let job = eventually("the run is over", is_over).await;
        worker.stop().await;
        job
    } else {
        let mut rehearsal = Rehearsal::with_client(app, client);
        assert_eq!(rehearsal.advance(Duration::ZERO).await.len(), 1);
        is_over().await.expect("the run is over")
    };
    let mut told = told.lock().unwrap().clone();
    told.push(format!(
        "{:?}",
        job.map(|job| (job.state(), job.attempts()))
    ));
    told
}

#[tokio::test]
async fn calls_of_a_handler_on_its_own_job_have_the_same_answers() {
    let site = Site::new("rehearsed-runs").await;
    let memory = ManualClock::new().client();
    let retry = RetryPolicy::fixed(HOUR).unwrap();
    for seed in 0..48 {
        let app = || Router::new().route(&site.pattern(), during.retry(retry.clone()));
        let real = told_during(&site, &site.client, seed, app()).await;
        let rehearsed = told_during(&site, &memory, seed, app()).await;
        for (step, (real, rehearsed)) in real.iter().zip(&rehearsed).enumerate() {
            assert_eq!(real, rehearsed, "step {step} of seed {seed}");
        }
    }
}
