//! Each page shows what is there, and each form changes it.

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Person, encoded};
use crate::http::{Daemon, own_redis};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

async fn start(app: &str) -> (Site, Daemon, Person) {
    let site = Site::new(app).await;
    let daemon = Daemon::start(&site);
    let person = Person::at(format!("{}/ui/", daemon.url));
    (site, daemon, person)
}

async fn schedule(daemon: &Daemon, key: &str, job: Value) {
    let request = daemon.request("PUT", &format!("/v1/jobs/{}", encoded(key)));
    let answer = request.json(&job).send().await.unwrap();
    assert!(answer.status().is_success(), "{key}");
}

async fn job(daemon: &Daemon, key: &str) -> Value {
    daemon.get(&format!("/v1/jobs/{}", encoded(key))).await
}

/// The year after this one, in which times are to come and not too far.
fn next_year() -> u32 {
    let this = jiff::Timestamp::now().strftime("%Y").to_string();
    this.parse::<u32>().unwrap() + 1
}

#[tokio::test]
async fn the_overview_shows_kinds_and_leads_to_their_jobs() {
    let (site, daemon, person) = start("web-overview").await;
    schedule(&daemon, &site.key(1), json!({"after": "1h"})).await;
    let overview = person.look(&format!("?prefix={}%3A", site.app)).await;
    assert!(overview.contains(&site.kind()));
    let link = format!(
        "href=\"jobs?q={}%3A\"",
        encoded(&site.kind()).replace("%2D", "-")
    );
    assert!(overview.contains(&link), "{link}\n{overview}");
    // The folder of all links.
    let folder = person.get("").await;
    assert_eq!(folder.status, 200);
    let bare = Person::at(format!("{}/ui", daemon.url)).get("").await;
    assert_eq!((bare.status, &*bare.location), (303, "ui/"));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_search_finds_jobs_by_name_prefix_state_and_condition() {
    let (site, daemon, person) = start("web-search").await;
    for id in 0..60 {
        schedule(
            &daemon,
            &site.key(format!("{id:02}")),
            json!({"after": "1h"}),
        )
        .await;
    }
    let odd = site.key("odd/%2e\"<b>\"ü?&#");
    schedule(&daemon, &odd, json!({"after": "3h"})).await;

    let kind = format!("jobs?q={}%3A", site.kind());
    let first = person.look(&kind).await;
    assert!(first.contains("exactly 61 jobs"), "{first}");
    assert_eq!(first.matches("<th scope=\"row\">").count(), 50);
    let next = first.split("rel=\"next\" href=\"").nth(1).unwrap();
    let next = next.split('"').next().unwrap().replace("&#38;", "&");
    let second = person.look(&next).await;
    assert_eq!(second.matches("<th scope=\"row\">").count(), 11);

    let exact = person
        .look(&format!(
            "jobs?q={}",
            encoded(&format!("\"{}\"", odd.replace('"', "\"\"")))
        ))
        .await;
    assert!(exact.contains("The job of this name"), "{exact}");
    let link = exact.split("href=\"job?key=").nth(1).unwrap();
    let link = format!("job?key={}", link.split('"').next().unwrap());
    let found = person.look(&link).await;
    assert!(
        found.contains("odd/%2e&#34;&#60;b&#62;&#34;ü?&#38;#"),
        "{found}"
    );

    let soon = encoded(&format!("{}: due:<2h", site.kind()));
    let soon = person.look(&format!("jobs?q={soon}")).await;
    assert!(!soon.contains("odd"), "{soon}");
    let dead = encoded(&format!("{}: state:dead", site.kind()));
    let dead = person.look(&format!("jobs?q={dead}")).await;
    assert!(dead.contains("No job matches"), "{dead}");
    let wrong = person.get("jobs?q=state:gone").await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.body.contains("pending, retrying, held, running"),
        "{}",
        wrong.body
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_search_by_time_goes_on_through_kinds_without_a_match() {
    let (site, _daemon, person) = start("web-kinds").await;
    // One call of the API looks at 16 of them.
    for number in 0..159 {
        let key = format!("{}:many:k{number:03}:1", site.app);
        site.client.schedule(&key, "").after(HOUR).await.unwrap();
    }
    let last = format!("{}:many:last:1", site.app);
    let job = site.client.schedule(&last, "").after(3 * HOUR);
    job.await.unwrap();
    let search = encoded(&format!("{}: due:>2h", site.app));
    let mut page = format!("jobs?q={search}");
    // A page looks further for some time: how many pages that takes depends on the machine.
    let found = async {
        loop {
            let shown = person.look(&page).await;
            if shown.contains(&last) {
                return;
            }
            let next = shown.split("rel=\"next\" href=\"").nth(1).unwrap();
            page = next.split('"').next().unwrap().replace("&#38;", "&");
        }
    };
    timeout(PATIENCE, found).await.expect("the job is found");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_is_shown_fired_postponed_edited_and_cancelled() {
    let (site, daemon, person) = start("web-job").await;
    let key = site.key("1");
    let payload = json!({"payload": {"id": 9_007_199_254_740_993_u64}, "after": "1h", "headers": {"for": "x"}});
    schedule(&daemon, &key, payload).await;
    let page = format!("job?key={}", encoded(&key));
    let shown = person.look(&page).await;
    for part in ["9007199254740993", "Scheduled", "Its time", "keyfall why "] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let form = |act: &'static str| vec![("key", &*key), ("do", act)];

    let mut postpone = form("postpone");
    let year = next_year();
    let at = format!("{year}-06-01T18:00");
    postpone.push(("at", &at));
    let shown = person.act("job", &postpone).await;
    assert!(shown.contains("another due time"), "{shown}");
    assert_eq!(
        job(&daemon, &key).await["due"],
        format!("{year}-06-01T18:00:00.000Z")
    );

    let mut edit = form("payload");
    edit.extend([("form", "json"), ("payload", "{\"a\":\r\n1.50}")]);
    person.act("job", &edit).await;
    let file = person.get(&format!("payload?key={}", encoded(&key))).await;
    assert_eq!(file.body, "{\"a\":\n1.50}");

    person.act("job", &form("fire")).await;
    let jobs = daemon.pull(1, "30s").await;
    assert_eq!(jobs[0]["key"], key);
    let failed = json!({"error": "it broke", "bury": true});
    assert_eq!(daemon.settle("fail", &jobs[0], failed).await, "buried");
    let dead = person.look(&page).await;
    assert!(
        dead.contains("it broke") && dead.contains("value=\"requeue\""),
        "{dead}"
    );
    let letter = job(&daemon, &key).await["letter"].to_string();
    let mut requeue = form("requeue");
    requeue.push(("letter", &letter));
    person.act("job", &requeue).await;

    let asked = person.look(&format!("{page}&ask=cancel")).await;
    assert!(asked.contains("Cancel this job?"), "{asked}");
    let shown = person.act("job", &form("cancel")).await;
    assert!(shown.contains("The job was cancelled."), "{shown}");
    assert!(shown.contains("Gone"), "{shown}");
    let again = person.post("job", &form("cancel")).await;
    assert_eq!(again.status, 404);
    assert!(
        again.body.contains("There is no such job"),
        "{}",
        again.body
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn kinds_are_paused_and_resumed_after_a_look() {
    let (site, daemon, person) = start("web-pauses").await;
    schedule(&daemon, &site.key(1), json!({"after": "1h"})).await;
    let prefix = format!("{}:", site.app);
    let asked = person
        .look(&format!("pauses?ask=pause&prefix={}", encoded(&prefix)))
        .await;
    assert!(
        asked.contains("This pauses 1 kind") && asked.contains(&site.kind()),
        "{asked}"
    );
    let paused = |paused: bool| {
        let (daemon, kind) = (&daemon, site.kind());
        eventually("the pause", async move || {
            let seen = daemon.get(&format!("/v1/kinds/{kind}")).await;
            (seen["paused"] == paused).then_some(())
        })
    };
    paused(false).await;
    let shown = person
        .act("pauses", &[("do", "pause"), ("prefix", &prefix)])
        .await;
    assert!(shown.contains("The kinds are paused."), "{shown}");
    paused(true).await;
    let overview = person.look(&format!("?prefix={}", encoded(&prefix))).await;
    assert!(overview.contains("paused"), "{overview}");
    person
        .act("pauses", &[("do", "resume"), ("prefix", &prefix)])
        .await;
    paused(false).await;
    let nothing = person
        .post("pauses", &[("do", "pause"), ("prefix", "")])
        .await;
    assert_eq!(nothing.status, 400);
    site.assert_balanced().await;
}

#[tokio::test]
async fn workers_and_the_doctor_are_shown() {
    let (site, daemon, person) = start("web-workers").await;
    let name = format!(":{}</span>", daemon.process.child.id());
    let pattern = format!("{}:*:*:*", site.app);
    // Somebody paces its ledger.
    let job = site.client.schedule(site.key(1), "").after(HOUR);
    job.await.unwrap();
    eventually("the daemon is a worker", async || {
        let workers = person.look("workers").await;
        let parts = [&*name, &*pattern, "stands by for"];
        parts
            .iter()
            .all(|part| workers.contains(part))
            .then_some(())
    })
    .await;
    let workers = person.look("workers").await;
    for part in ["id=\"places\"", "Servers"] {
        assert!(workers.contains(part), "{part}\n{workers}");
    }
    let doctor = person.look("doctor").await;
    assert!(doctor.contains("<code>notify-flags</code>"), "{doctor}");
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_doctor_repairs_a_setting_at_the_press_of_a_button() {
    let (_redis, site) = own_redis("web-doctor").await;
    let daemon = Daemon::start(&site);
    let person = Person::at(format!("{}/ui/", daemon.url));
    let limit = "client-output-buffer-limit";
    let () = site
        .command(&["CONFIG", "SET", limit, "pubsub 33554432 8388608 60"])
        .await;
    let button = "name=\"fix\" value=\"pubsub-buffer\"";
    let doctor = person.look("doctor").await;
    assert!(doctor.contains(button), "{doctor}");
    let done = person.act("doctor", &[("fix", "pubsub-buffer")]).await;
    assert!(done.contains("pubsub-buffer is repaired"), "{done}");
    assert!(!done.contains(button), "{done}");
    let set: Vec<String> = site.command(&["CONFIG", "GET", limit]).await;
    assert!(set[1].contains("pubsub 268435456 134217728 60"), "{set:?}");
    let log = person.look("actions").await;
    assert!(log.contains("Changed settings of Redis"), "{log}");
    assert!(log.contains("pubsub-buffer: raised to"), "{log}");
    let wrong = person.post("doctor", &[("fix", "nothing")]).await;
    assert_eq!(wrong.status, 400);
}

#[tokio::test]
async fn the_live_page_begins_with_the_past_and_goes_on() {
    let (site, daemon, person) = start("web-live").await;
    schedule(&daemon, &site.key("early"), json!({"after": "1h"})).await;
    let live = person.look(&format!("live?prefix={}%3A", site.app)).await;
    assert!(live.contains(&site.key("early")), "{live}");
    let stream = live.split("sse-connect=\"").nth(1).unwrap();
    let stream = stream.split('"').next().unwrap().replace("&#38;", "&");
    let request = person.http.get(format!("{}{stream}", person.base));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut parts = answer.bytes_stream();
    schedule(&daemon, &site.key("late"), json!({"after": "1h"})).await;
    let mut seen = String::new();
    let row = async {
        while !seen.contains(&site.key("late")) {
            let part = parts.next().await.expect("the stream goes on").unwrap();
            seen.push_str(&String::from_utf8_lossy(&part));
        }
    };
    timeout(PATIENCE, row).await.expect("the row comes");
    assert!(seen.contains("event: row\n"), "{seen}");
    assert!(
        !seen.contains(&site.key("early")),
        "the page has it already: {seen}"
    );
    let only = person
        .look(&format!("live?prefix={}%3A&only=failed", site.app))
        .await;
    assert!(!only.contains(&site.key("early")), "{only}");
    site.assert_balanced().await;
}
