//! Series: jobs relative to a date.

use std::time::{Duration, SystemTime};

use keyfall::{
    ErrorKind, Instead, JobState, KeptJob, Member, MemberFate, MemberState, NewJob, Outcome, Past,
    Placed, QuietHours, RetryPolicy, Router, Rule, SeriesChange,
};

use crate::runs::{Gate, eventually, ids, recorder};
use crate::site::{HOUR, Site, ms};

const DAY: Duration = Duration::from_secs(24 * 3600);
const ZONE: &str = "Europe/Berlin";

fn fates(changed: &SeriesChange) -> Vec<&'static str> {
    let word = |fate: &MemberFate| match fate {
        MemberFate::Created(_) => "created",
        MemberFate::Moved(_) => "moved",
        MemberFate::Unchanged(_) => "unchanged",
        MemberFate::Cancelled => "cancelled",
        MemberFate::LeftOut(_) => "left out",
        MemberFate::Running => "running",
        MemberFate::Retrying => "retrying",
        _ => "ended",
    };
    changed.members.iter().map(|it| word(&it.fate)).collect()
}

async fn states(site: &Site, key: &str) -> Vec<MemberState> {
    let view = site.client.series(key).view().await.unwrap().unwrap();
    view.members.into_iter().map(|it| it.state).collect()
}

/// The numbers of all calls that a ledger remembers, together.
async fn calls(site: &Site) -> u64 {
    let key = format!("keyfall:{{{}/0}}:calls", site.kind());
    let all: Vec<(String, String)> = site.command(&["HGETALL", &key]).await;
    let lanes = all.iter().filter(|(lane, _)| lane.len() == 24);
    let number = |(_, value): &(String, String)| {
        let number = value.split(' ').next().unwrap();
        number.parse::<u64>().unwrap()
    };
    lanes.map(number).sum()
}

#[tokio::test]
async fn a_series_is_made_moved_and_cancelled_as_a_whole() {
    let site = Site::new("series").await;
    let key = site.key(42);
    let arrival = SystemTime::now() + 20 * DAY;
    let offsets = ["-15d 09:00", "-3d 09:00", "-1h", "+1d 10:00"];
    let made = site.client.series(&key).anchor(arrival, ZONE).at(offsets);
    let made = made.payload(&"booking").header("guest", "7").await.unwrap();
    assert_eq!(fates(&made), ["created"; 4]);
    let keys: Vec<_> = made.members.iter().map(|it| it.key.id()).collect();
    assert_eq!(keys, ["42~-15d", "42~-3d", "42~-1h", "42~+1d"]);
    let member = site.view(&site.key("42~-1h")).await;
    assert_eq!(&member.payload()[..], b"\"booking\"");
    assert_eq!(member.headers().get("guest"), Some("7"));
    let due = |of: SystemTime| of - HOUR;
    let millis = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    assert!(millis(member.due()).abs_diff(millis(due(arrival))) <= 1);

    // The same again changes nothing, and is no call.
    let before = calls(&site).await;
    let same = site.client.series(&key).anchor(arrival, ZONE).at(offsets);
    assert_eq!(fates(&same.await.unwrap()), ["unchanged"; 4]);
    assert_eq!(calls(&site).await, before);

    let preview = site.client.series(&key).move_to(arrival + DAY).preview();
    assert_eq!(fates(&preview.await.unwrap()), ["moved"; 4]);
    assert_eq!(site.view(&site.key("42~-1h")).await.due(), member.due());
    let moved = site
        .client
        .series(&key)
        .move_to(arrival + DAY)
        .await
        .unwrap();
    assert_eq!(fates(&moved), ["moved"; 4]);
    assert_eq!(calls(&site).await, before + 1);
    let member = site.view(&site.key("42~-1h")).await;
    assert!(millis(member.due()).abs_diff(millis(due(arrival + DAY))) <= 1);
    assert_eq!(member.headers().get("guest"), Some("7"));

    // Other members: one is new, one has a payload of its own, two are gone.
    let other = [
        Member::new("-3d 09:00"),
        Member::new("-1h").payload(&"one hour"),
        Member::new("-3d 18:00").named("evening"),
    ];
    let changed = site.client.series(&key).at(other).await.unwrap();
    assert_eq!(
        fates(&changed),
        [
            "unchanged",
            "unchanged",
            "created",
            "cancelled",
            "cancelled"
        ]
    );
    let member = site.view(&site.key("42~-1h")).await;
    assert_eq!(&member.payload()[..], b"\"one hour\"");
    assert_eq!(
        &site.view(&site.key("42~evening")).await.payload()[..],
        b"\"booking\""
    );
    assert_eq!(states(&site, &key).await, vec![MemberState::Planned; 3]);

    let cancelled = site.client.series(&key).cancel().await.unwrap().unwrap();
    assert_eq!(fates(&cancelled), ["cancelled"; 3]);
    assert!(site.client.series(&key).cancel().await.unwrap().is_none());
    assert!(site.client.series(&key).view().await.unwrap().is_none());
    assert_eq!(site.all_ended().await.cancelled, 6);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_move_of_64_members_is_one_call() {
    let site = Site::new("series-64").await;
    let key = site.key("big");
    let anchor = SystemTime::now() + 100 * DAY;
    let offsets: Vec<String> = (1..=64).map(|day| format!("-{day}d 09:00")).collect();
    let series = || site.client.series(&key);
    series().anchor(anchor, ZONE).at(offsets).await.unwrap();
    let before = calls(&site).await;
    let moved = series().move_to(anchor + DAY).await.unwrap();
    assert_eq!(fates(&moved), ["moved"; 64]);
    assert_eq!(calls(&site).await, before + 1);
    series().cancel().await.unwrap();
    assert_eq!(calls(&site).await, before + 2);
    site.all_ended().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_has_begun_stays_as_it_is_and_does_not_run_again_unless_asked() {
    let site = Site::new("series-begun").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let key = site.key("a");
    let anchor = SystemTime::now() + HOUR + ms(300);
    let series = || site.client.series(&key);
    let offsets = ["-1h", "+1h"];
    series().anchor(anchor, ZONE).at(offsets).await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    assert_eq!(runs.next().await.key().id(), "a~-1h");
    let moved = series().move_to(anchor + DAY).await.unwrap();
    assert_eq!(fates(&moved), ["running", "moved"]);
    let cancelled = series().preview().await.unwrap();
    assert_eq!(fates(&cancelled), ["running", "unchanged"]);
    gate.open();
    let has_ended = async || {
        let states = states(&site, &key).await;
        (states == [MemberState::Ended, MemberState::Planned]).then_some(())
    };
    eventually("the end of the run", has_ended).await;
    let moved = series().move_to(anchor + 2 * DAY).await.unwrap();
    assert_eq!(fates(&moved), ["ended", "moved"]);
    let again = series().again().await.unwrap();
    assert_eq!(fates(&again), ["created", "unchanged"]);
    runs.assert_no_more();
    assert_eq!(
        fates(&series().cancel().await.unwrap().unwrap()),
        ["cancelled"; 2]
    );
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn members_have_retries_and_letters_of_their_own() {
    let site = Site::new("series-dies").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let failing = log.then(|_| Outcome::retry("no"));
    let worker = site.serve(Router::new().route(&site.pattern(), failing));
    let series = || site.client.series(&key);
    let now = SystemTime::now();
    let retry = RetryPolicy::fixed(HOUR).unwrap().attempts(2);
    let made = series().anchor(now - HOUR, ZONE).at(["-1h", "+1d"]);
    let made = made.past(Past::Run).retry(retry).await.unwrap();
    assert_eq!(fates(&made), ["created", "created"]);
    let member = site.key("a~-1h");
    runs.next().await;
    site.reaches(&member, JobState::Retrying).await;
    let moved = series().move_to(now).await.unwrap();
    assert_eq!(fates(&moved), ["retrying", "moved"]);
    site.client.fire_now(&member).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2);
    site.reaches(&member, JobState::Dead).await;
    let states = states(&site, &key).await;
    assert_eq!(states, [MemberState::Dead(1), MemberState::Planned]);
    series().cancel().await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_plan_ends_without_a_handler_and_a_backup_keeps_it() {
    let site = Site::new("series-plan").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let series = || site.client.series(&key);
    let anchor = SystemTime::now() + DAY;
    series().anchor(anchor, ZONE).at(["-1h"]).await.unwrap();
    let plan = site.view(&key).await;
    assert_eq!(plan.series_plan().unwrap()["zone"], ZONE);
    let kept = KeptJob::from(&plan);
    site.client.cancel(&key).await.unwrap();
    assert!(series().view().await.unwrap().is_none());
    site.client.restore(kept).await.unwrap();
    assert_eq!(states(&site, &key).await, [MemberState::Planned]);

    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for id in ["a~-1h", "a"] {
        site.client.fire_now(site.key(id)).await.unwrap();
    }
    let stats = site.all_ended().await;
    assert_eq!(stats.done, 2);
    worker.stop().await;
    assert_eq!(ids(&runs.rest()), ["a~-1h"]);
    site.assert_balanced().await;
}

#[tokio::test]
async fn wrong_series_are_refused_and_store_nothing() {
    let site = Site::new("series-wrong").await;
    let (key, single) = (site.key("a"), site.key("single"));
    site.client.schedule(&single, "").after(HOUR).await.unwrap();
    let anchor = SystemTime::now() + DAY;
    let series = |key: &str| site.client.series(key);
    for (call, kind, hint) in [
        (
            series(&key).at(["-1h"]),
            ErrorKind::InvalidRule,
            "`anchor` is missing",
        ),
        (
            series(&key).anchor(anchor, ZONE),
            ErrorKind::InvalidRule,
            "`at` is missing",
        ),
        (
            series(&key).anchor(anchor, "Mars").at(["-1h"]),
            ErrorKind::InvalidRule,
            "does not know",
        ),
        (
            series(&key).anchor(anchor, ZONE).at(["1h"]),
            ErrorKind::InvalidRule,
            "\"1h\", which is no offset: begin with",
        ),
        (
            series(&single).anchor(anchor, ZONE).at(["-1h"]),
            ErrorKind::InvalidRule,
            "is no series",
        ),
        (
            series(&key).anchor(anchor, ZONE).at(["-1h"]).attempts(0),
            ErrorKind::InvalidSetting,
            "`attempts` is 0",
        ),
        (
            series(&key).anchor(anchor, ZONE).at(["-1h"]).keep(ms(1)),
            ErrorKind::InvalidSetting,
            "`keep`",
        ),
    ] {
        let error = call.await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!(site.stats().await.pending, 1);
    site.client.cancel(&single).await.unwrap();
}

/// Quiet hours around this very moment, in UTC.
fn quiet_now() -> QuietHours {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let hour = now.unwrap().as_secs() / 3600 % 24;
    let hours = format!("{:02}:00-{:02}:00", (hour + 23) % 24, (hour + 3) % 24);
    QuietHours::hours(&hours).unwrap()
}

#[tokio::test]
async fn single_and_recurring_jobs_leave_quiet_hours_and_say_why() {
    let site = Site::new("series-quiet").await;
    let now = SystemTime::now();
    let later = site.key("later");
    let scheduled = site.client.schedule(&later, "").quiet(quiet_now());
    let due = scheduled.await.unwrap().due;
    assert!(due > now + HOUR, "{due:?}");
    let view = site.view(&later).await;
    let (from, why) = view.shift().unwrap();
    assert!(
        from >= now - HOUR && why.starts_with("quiet hours "),
        "{why}"
    );
    let story = site.client.story(&later).await.unwrap();
    let waits: Vec<_> = story
        .waits
        .iter()
        .map(|it| it.sentence(|_| String::new()))
        .collect();
    assert!(waits[0].contains("moved from : quiet hours"), "{waits:?}");
    // A job that is moved by hand has no such reason.
    site.client.reschedule(&later).after(HOUR).await.unwrap();
    assert_eq!(site.view(&later).await.shift(), None);

    let skip = || quiet_now().instead(Instead::Skip);
    let skipped = site.client.schedule(site.key("skip"), "").quiet(skip());
    assert_eq!(skipped.await.unwrap().placed, Placed::LeftOut);
    let many = [
        NewJob::new(site.key("skip"), "").quiet(skip()),
        NewJob::new(site.key("outside"), "")
            .after(5 * HOUR)
            .quiet(skip()),
    ];
    let answers = site.client.schedule_many(many).await;
    assert!(answers[0].as_ref().unwrap().is_none());
    assert!(answers[1].as_ref().unwrap().is_some());

    let rule = Rule::every(Duration::from_secs(60)).unwrap();
    let recurring = site.key("recurring");
    let job = site
        .client
        .schedule(&recurring, "")
        .recurring(rule.clone().quiet(quiet_now()));
    assert!(job.await.unwrap().due > now + HOUR);
    assert!(site.view(&recurring).await.shift().is_some());
    let job = site
        .client
        .schedule(&recurring, "")
        .recurring(rule)
        .quiet(skip());
    assert!(job.await.unwrap().due > now + HOUR);
    let view = site.view(&recurring).await;
    assert_eq!(view.shift(), None, "the rule names no such time");
    assert_eq!(view.occurrence().unwrap().skipped, 0);
    for id in ["later", "outside", "recurring"] {
        site.client.cancel(site.key(id)).await.unwrap();
    }
    site.assert_balanced().await;
}
