//! Tests of rules: their texts, their times across changes of the clock, and what follows a run.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;
use crate::time::UnixMs;

fn rule(table: &str) -> Rule {
    // Stored, so that rules of past years are read.
    let table: serde_json::Value = serde_json::from_str(table).unwrap();
    Rule::from_table(&table).unwrap_or_else(|error| panic!("{error}: {table}"))
}

fn refused(table: &str) -> String {
    match serde_json::from_str::<Rule>(table) {
        Ok(rule) => panic!("{table} is read as {rule}"),
        Err(error) => error.to_string(),
    }
}

/// The next times of a rule after a time in UTC, on the wall of its zone with the offset.
fn times(rule: &Rule, after: &str, most: usize) -> Vec<String> {
    let after: Timestamp = after.parse().unwrap();
    let zone = TimeZone::get(rule.zone_name()).unwrap();
    let times = rule.upcoming(SystemTime::from(after), most).into_iter();
    let shown = times.map(|time| {
        let time = Timestamp::try_from(time).unwrap().to_zoned(zone.clone());
        time.strftime("%m-%d %H:%M:%S%:z").to_string()
    });
    shown.collect()
}

#[test]
fn a_rule_of_the_wall_clock_follows_the_changes_of_its_zone() {
    let berlin = |cron: &str, more: &str| {
        rule(&format!(
            r#"{{"cron": "{cron}", "zone": "Europe/Berlin"{more}}}"#
        ))
    };
    // The clock goes from 2:00 to 3:00 on 29 March 2026, and from 3:00 to 2:00 on 25 October.
    let spring = "2026-03-28T12:00:00Z";
    let autumn = "2026-10-24T12:00:00Z";
    for (cron, more, after, expected) in [
        (
            "30 2 * * *",
            "",
            spring,
            vec!["03-29 03:00:00+02:00", "03-30 02:30:00+02:00"],
        ),
        (
            "30 2 * * *",
            r#", "gap": "skip""#,
            spring,
            vec!["03-30 02:30:00+02:00", "03-31 02:30:00+02:00"],
        ),
        (
            // Both times of the list are due: the first when the gap ends.
            "30 2,14 * * *",
            "",
            spring,
            vec![
                "03-28 14:30:00+01:00",
                "03-29 03:00:00+02:00",
                "03-29 14:30:00+02:00",
            ],
        ),
        (
            "30 2,14 * * *",
            "",
            autumn,
            vec![
                "10-24 14:30:00+02:00",
                "10-25 02:30:00+02:00",
                "10-25 14:30:00+01:00",
            ],
        ),
        (
            "30 2 * * *",
            r#", "overlap": "both""#,
            autumn,
            vec![
                "10-25 02:30:00+02:00",
                "10-25 02:30:00+01:00",
                "10-26 02:30:00+01:00",
            ],
        ),
        (
            // It follows the time that passes.
            "30 * * * *",
            "",
            "2026-10-24T23:45:00Z",
            vec![
                "10-25 02:30:00+02:00",
                "10-25 02:30:00+01:00",
                "10-25 03:30:00+01:00",
            ],
        ),
        (
            "*/30 * * * *",
            "",
            "2026-03-29T00:15:00Z",
            vec![
                "03-29 01:30:00+01:00",
                "03-29 03:00:00+02:00",
                "03-29 03:30:00+02:00",
            ],
        ),
        (
            // Several times in the gap are one run.
            "0,30 2 * * *",
            "",
            spring,
            vec!["03-29 03:00:00+02:00", "03-30 02:00:00+02:00"],
        ),
    ] {
        let rule = berlin(cron, more);
        assert_eq!(
            times(&rule, after, expected.len()),
            expected,
            "{cron} {more}"
        );
    }
}

#[test]
fn changes_of_half_an_hour_within_an_hour_at_midnight_and_of_a_day_are_followed() {
    for (zone, cron, after, expected) in [
        // Half an hour, in the southern hemisphere.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-02T20:00:00Z",
            vec!["10-04 02:30:00+11:00", "10-05 02:15:00+11:00"],
        ),
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "2026-04-03T20:00:00Z",
            vec!["04-05 01:45:00+11:00", "04-06 01:45:00+10:30"],
        ),
        (
            "Australia/Lord_Howe",
            "27-33 */3 * * *",
            "2034-09-30T15:49:34Z",
            vec!["10-01 03:27:00+11:00", "10-01 03:28:00+11:00"],
        ),
        // The second 01:40.
        (
            "Australia/Lord_Howe",
            "40 * * * *",
            "2030-04-06T14:50:29Z",
            vec!["04-07 01:40:00+10:30", "04-07 02:40:00+10:30"],
        ),
        // An hour, at a quarter to three.
        (
            "Pacific/Chatham",
            "55 */3 * * *",
            "2015-09-26T13:00:00Z",
            vec!["09-27 03:55:00+13:45", "09-27 06:55:00+13:45"],
        ),
        (
            "Pacific/Chatham",
            "2,44 */2 * * *",
            "2015-09-26T14:03:28Z",
            vec!["09-27 04:02:00+13:45", "09-27 04:44:00+13:45"],
        ),
        // From midnight to one.
        (
            "America/Havana",
            "0 0 * * *",
            "2026-03-07T12:00:00Z",
            vec!["03-08 01:00:00-04:00", "03-09 00:00:00-04:00"],
        ),
        // 30 December 2011 never was.
        (
            "Pacific/Apia",
            "0 9 * * *",
            "2011-12-29T12:00:00Z",
            vec![
                "12-29 09:00:00-10:00",
                "12-31 00:00:00+14:00",
                "12-31 09:00:00+14:00",
            ],
        ),
    ] {
        let rule = rule(&format!(r#"{{"cron": "{cron}", "zone": "{zone}"}}"#));
        assert_eq!(times(&rule, after, expected.len()), expected, "{zone}");
    }
}

#[test]
fn a_search_that_begins_between_two_equal_times_does_not_repeat_the_first() {
    let rule = rule(r#"{"cron": "30 2 * * *", "zone": "Europe/Berlin"}"#);
    // 2:15 for the second time.
    let next = times(&rule, "2026-10-25T01:15:00Z", 1);
    assert_eq!(next, ["10-26 02:30:00+01:00"]);
    // The very moment at which a gap ends has had its run.
    let next = times(&rule, "2026-03-29T01:00:00Z", 1);
    assert_eq!(next, ["03-30 02:30:00+02:00"]);
}

#[test]
fn intervals_are_counted_from_their_start() {
    let exact = rule(r#"{"every": "90m"}"#);
    let expected = ["01-01 01:30:00+00:00", "01-01 03:00:00+00:00"];
    assert_eq!(times(&exact, "1970-01-01T00:00:00Z", 2), expected);
    let from = rule(r#"{"every": "90m", "from": "2026-12-01T00:10:00Z"}"#);
    let expected = ["12-01 00:10:00+00:00", "12-01 01:40:00+00:00"];
    assert_eq!(times(&from, "2026-11-01T00:00:00Z", 2), expected);
    // 09:00 on the wall, in summer and in winter.
    let weeks = rule(
        r#"{"every": "2 weeks", "from": "2026-10-12 09:00", "zone": "Europe/Berlin", "runs": 3}"#,
    );
    let expected = [
        "10-12 09:00:00+02:00",
        "10-26 09:00:00+01:00",
        "11-09 09:00:00+01:00",
    ];
    assert_eq!(times(&weeks, "2026-10-01T00:00:00Z", 9), expected);
    // No drift at the ends of months.
    let months = rule(r#"{"every": "1 month", "from": "2026-01-31 12:00"}"#);
    let expected = [
        "01-31 12:00:00+00:00",
        "02-28 12:00:00+00:00",
        "03-31 12:00:00+00:00",
        "04-30 12:00:00+00:00",
    ];
    assert_eq!(times(&months, "2026-01-01T00:00:00Z", 4), expected);
    let later = times(&months, "2034-06-15T00:00:00Z", 1);
    assert_eq!(later, ["06-30 12:00:00+00:00"]);
}

#[test]
fn an_interval_of_the_calendar_goes_on_for_centuries() {
    for (every, from, after, expected) in [
        (
            "1 day",
            "1970-01-01 09:00",
            "2026-11-29T20:00:00Z",
            "11-30 09:00",
        ),
        (
            "1 day",
            "1900-01-01 09:00",
            "2199-05-01T20:00:00Z",
            "05-02 09:00",
        ),
        (
            "2 days",
            "1970-01-01 09:00",
            "2026-11-29T20:00:00Z",
            "12-01 09:00",
        ),
        (
            "1 week",
            "1970-01-01 09:00",
            "2026-11-29T20:00:00Z",
            "12-03 09:00",
        ),
        (
            "1 month",
            "1970-02-28 09:00",
            "2026-11-29T20:00:00Z",
            "12-28 09:00",
        ),
        (
            "1 month",
            "1970-01-31 09:00",
            "2026-11-29T20:00:00Z",
            "11-30 09:00",
        ),
        (
            "3 months",
            "1900-02-01 09:00",
            "2199-05-01T20:00:00Z",
            "08-01 09:00",
        ),
        (
            "1 year",
            "1972-02-29 09:00",
            "2026-11-29T20:00:00Z",
            "02-28 09:00",
        ),
    ] {
        let zone = "America/New_York";
        let text = format!(r#"{{"every": "{every}", "from": "{from}", "zone": "{zone}"}}"#);
        let found = times(&rule(&text), after, 1);
        assert!(
            found[0].starts_with(expected),
            "{text} after {after}: {found:?}"
        );
    }
}

#[test]
fn a_rule_that_cannot_be_is_refused_with_the_remedy() {
    for (table, fault) in [
        (r#""0 0 30 2 *""#, "names no time in the next 100 years"),
        (r#""0 9 * *""#, "is not a cron expression"),
        (r#""@reboot""#, "is not a cron expression"),
        (r#""every 500ms""#, "must be from 1 s to 10 years"),
        (r#""every 0""#, "is not an interval"),
        (r#""every -5m""#, "is not an interval"),
        (r#""every 2 weeks""#, "add `from`"),
        (
            r#"{"every": "1 day 2h", "from": "2026-01-01 00:00"}"#,
            "whole days",
        ),
        (r#"{"cron": "0 9 * * *", "every": "1h"}"#, "exactly one of"),
        (r#"{"zone": "UTC"}"#, "exactly one of"),
        (
            r#"{"cron": "0 9 * * *", "zone": "Europe/Berln"}"#,
            "this machine does not know",
        ),
        (
            r#"{"cron": "0 9 * * *", "until": "2020-01-01T00:00:00Z"}"#,
            "has passed",
        ),
        (
            r#"{"cron": "0 9 * * *", "from": "tomorrow"}"#,
            "which is no time",
        ),
        (r#"{"cron": "0 9 * * *", "runs": 0}"#, "`runs` is 0"),
        (
            r#"{"cron": "0 9 * * *", "jitter": "2 days"}"#,
            "the limit is a day",
        ),
        (
            r#"{"cron": "0 9 * * *", "busy": "wait"}"#,
            r#"write "skip" or "queue one""#,
        ),
        (
            r#"{"cron": "0 9 * * *", "zome": "UTC"}"#,
            "unknown field `zome`",
        ),
        (
            r#"{"after_end": "10"}"#,
            "`after_end`, \"10\", is not a duration",
        ),
    ] {
        let message = refused(table);
        assert!(message.contains(fault), "{table}: {message}");
    }
    let long = format!("{} 9 * * *", vec!["0"; 400].join(","));
    assert!(refused(&format!("{long:?}")).contains("the limit is 512"));
}

#[test]
fn a_rule_is_read_back_as_it_was_written_and_said_in_words() {
    for (table, words) in [
        (
            r#"{"cron":"30 9 * * MON-FRI","zone":"Europe/Berlin","jitter":"30s"}"#,
            "At 09:30, on Monday, Tuesday, Wednesday, Thursday, and Friday, in Europe/Berlin, up to 30s later at random",
        ),
        (
            r#"{"every":"2 weeks","zone":"Europe/Berlin","from":"2099-12-07T08:00:00Z","runs":10}"#,
            "Every 2 weeks, in Europe/Berlin, from 2099-12-07 09:00:00, 10 times",
        ),
        (
            r#"{"cron":"0 9 LW * *"}"#,
            "At 09:00, on the last weekday of the month, in UTC",
        ),
        (
            r#"{"after_end":"10m","busy":"replace"}"#,
            "10m after the end of each run; a run ends at the next time",
        ),
    ] {
        let rule: Rule = serde_json::from_str(table).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), table);
        assert_eq!(rule.to_string(), words);
    }
}

const HOUR: u64 = 3_600_000;

/// The occurrence that follows one whose run ended `ended` ms after its time.
fn next(rule: &Rule, first: &Recurring, due: u64, ended: u64) -> Option<Recurring> {
    let _ = rule;
    first.next(RunEnd {
        now: UnixMs(ended),
        claimed: UnixMs(due),
        due: UnixMs(due),
        random: 0.5,
    })
}

#[test]
fn the_next_time_follows_the_end_of_a_run() {
    for (busy, ended, at, skipped) in [
        // In time.
        ("skip", HOUR + 5, 2 * HOUR, 0),
        ("queue one", HOUR + 5, 2 * HOUR, 0),
        // Two more times passed.
        ("skip", 3 * HOUR + 5, 4 * HOUR, 2),
        ("queue one", 3 * HOUR + 5, 3 * HOUR, 1),
        // A clock that was set back.
        ("skip", HOUR - 9, 2 * HOUR, 0),
    ] {
        let rule = rule(&format!(r#"{{"every": "1h", "busy": "{busy}"}}"#));
        let first = Recurring::first(&rule, UnixMs(1), 0.0).unwrap();
        assert_eq!(first.due(), UnixMs(HOUR));
        let next = next(&rule, &first, HOUR, ended).unwrap();
        assert_eq!(
            (next.at(), next.view().skipped),
            (UnixMs(at), skipped),
            "{busy} {ended}"
        );
        assert_eq!(next.view().number, 2);
    }
}

#[test]
fn a_run_before_its_time_does_not_move_the_rule() {
    let rule = rule(r#"{"every": "1h"}"#);
    let first = Recurring::first(&rule, UnixMs(1), 0.0).unwrap();
    let fired = next(&rule, &first, 1000, 2000).unwrap();
    assert_eq!((fired.at(), fired.view().number), (UnixMs(HOUR), 2));
    // Nor one that counts from the end of the run before.
    let pause = self::rule(r#"{"after_end": "1h"}"#);
    let first = Recurring::first(&pause, UnixMs(0), 0.0).unwrap();
    let fired = next(&pause, &first, 1000, 2000).unwrap();
    assert_eq!((fired.at(), fired.view().number), (UnixMs(HOUR), 2));
    let first = Recurring::first(&rule, UnixMs(1), 0.0).unwrap();
    // It took until after its time, which is left out.
    let slow = next(&rule, &first, 1000, HOUR + 2000).unwrap();
    assert_eq!((slow.at(), slow.view().skipped), (UnixMs(2 * HOUR), 1));
}

#[test]
fn a_rule_ends_with_its_runs_and_its_time() {
    let twice = rule(r#"{"every": "1h", "runs": 2}"#);
    let first = Recurring::first(&twice, UnixMs(1), 0.0).unwrap();
    let second = next(&twice, &first, HOUR, HOUR + 1).unwrap();
    assert_eq!(next(&twice, &second, 2 * HOUR, 2 * HOUR + 1), None);
    let until = rule(r#"{"every": "1h", "until": "1970-01-01T01:30:00Z"}"#);
    let first = Recurring::first(&until, UnixMs(1), 0.0).unwrap();
    assert_eq!(next(&until, &first, HOUR, HOUR + 1), None);
}

#[test]
fn a_pause_is_counted_from_the_end_of_the_run() {
    let rule = rule(r#"{"after_end": "10m", "jitter": "1m"}"#);
    let first = Recurring::first(&rule, UnixMs(1000), 0.0).unwrap();
    assert_eq!(first.due(), UnixMs(601_000));
    let next = next(&rule, &first, 601_000, 700_000).unwrap();
    assert_eq!(
        (next.at(), next.due()),
        (UnixMs(1_300_000), UnixMs(1_330_000))
    );
}

#[test]
fn a_restored_run_that_quiet_hours_moved_to_an_earlier_time_is_not_repeated() {
    let quiet =
        r#"{"cron": "0 23 * * *", "quiet": {"hours": "22:00-08:00", "instead": "earlier"}}"#;
    let rule = rule(quiet);
    let first = Recurring::first(&rule, UnixMs(0), 0.0).unwrap();
    assert_eq!(
        (first.at(), first.due()),
        (UnixMs(23 * HOUR), UnixMs(22 * HOUR))
    );
    // As a backup has it.
    let restored = Recurring::from(first.view());
    assert_eq!(restored, first);
    let second = next(&rule, &restored, 22 * HOUR, 22 * HOUR + 1).unwrap();
    assert_eq!(second.at(), UnixMs(47 * HOUR));
}

#[test]
fn an_occurrence_whose_zone_is_unknown_here_is_left_to_others() {
    let rule = rule(r#"{"every": "1h"}"#);
    let known = Recurring::first(&rule, UnixMs(1), 0.0).unwrap();
    let mut table = serde_json::to_value(&known).unwrap();
    table["rule"]["zone"] = "Mars/Olympus".into();
    let first: Recurring = serde_json::from_value(table).unwrap();
    let end = |now| RunEnd {
        now: UnixMs(now),
        claimed: UnixMs(now),
        due: UnixMs(HOUR),
        random: 0.0,
    };
    let open = first.next(end(HOUR)).unwrap();
    assert!(open.is_open() && open.due() == UnixMs(HOUR + 30_000));
    assert_eq!(open.view().number, 2);
    let again = open.resolved(end(2 * HOUR)).unwrap();
    assert_eq!((again.is_open(), again.view().number), (true, 2));
    let mut table = serde_json::to_value(&again).unwrap();
    table["rule"]["zone"] = "UTC".into();
    let open: Recurring = serde_json::from_value(table).unwrap();
    let resolved = open.resolved(end(2 * HOUR)).unwrap();
    assert_eq!(
        (resolved.at(), resolved.view().number),
        (UnixMs(3 * HOUR), 2)
    );
}

#[test]
fn an_occurrence_without_a_time_makes_up_for_no_times() {
    for rest in [r#""missed": "all""#, r#""busy": "queue one""#] {
        let rule = rule(&format!(
            r#"{{"every": "1h", {rest}, "until": "1970-01-01T02:30:00Z"}}"#
        ));
        let mut open = Recurring::first(&rule, UnixMs(1), 0.0).unwrap();
        open.at = 0;
        let end = |now| RunEnd {
            now: UnixMs(now),
            claimed: UnixMs(now),
            due: open.due(),
            random: 0.0,
        };
        let next = open.next(end(HOUR + 60_000)).unwrap();
        assert_eq!((next.at(), next.skipped), (UnixMs(2 * HOUR), 0), "{rest}");
        assert_eq!(open.resolved(end(3 * HOUR)), None);
        assert_eq!(open.next(end(3 * HOUR)), None, "{rest}");
    }
}

#[test]
fn a_rule_of_seconds_is_counted_after_a_day_without_workers() {
    let rule = rule(r#"{"cron": "* * * * * *", "busy": "queue one"}"#);
    let first = Recurring::first(&rule, UnixMs(0), 0.0).unwrap();
    let day = 24 * HOUR;
    let next = next(&rule, &first, 1000, day + 500).unwrap();
    assert_eq!(next.at(), UnixMs(day));
}

#[test]
fn jitter_stays_within_its_limit() {
    let rule = Rule::every(Duration::from_secs(3600)).unwrap();
    let rule = rule.jitter(Duration::from_secs(60)).unwrap();
    let first = Recurring::first(&rule, UnixMs(1), 0.999).unwrap();
    assert!(first.due() > UnixMs(HOUR) && first.due() < UnixMs(HOUR + 60_000));
}

/// Compares with the triples of `scripts/cron-triples.py`; `make cron-check`.
#[test]
#[ignore = "needs the triples of another program"]
fn cron_agrees_with_cronsim() {
    let file = std::env::var("KEYFALL_CRON_TRIPLES").expect("run `make cron-check`");
    let triples = std::fs::read_to_string(file).unwrap();
    let (mut count, mut differ) = (0, Vec::new());
    for line in triples.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [cron, zone, after, expected] = fields[..] else {
            panic!("{line:?}");
        };
        let rule = rule(&format!(r#"{{"cron": "{cron}", "zone": "{zone}"}}"#));
        let after = Timestamp::from_second(after.parse().unwrap()).unwrap();
        let expected = Timestamp::from_second(expected.parse().unwrap()).unwrap();
        let found = rule.next(after);
        if found != Some(expected) {
            let zone = TimeZone::get(zone).unwrap();
            let wall = |time: Timestamp| time.to_zoned(zone.clone()).to_string();
            let found = found.map(wall);
            let (after, expected) = (wall(after), wall(expected));
            differ.push(format!(
                "{cron} after {after}: {found:?}, and not {expected}"
            ));
        }
        count += 1;
    }
    let shown = differ
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        differ.is_empty(),
        "{} of {count} differ:\n{shown}",
        differ.len()
    );
    println!("{count} triples agree");
}

#[test]
fn a_paused_rule_has_no_time_until_it_is_resumed() {
    let daily = rule(r#"{"cron": "0 9 * * *", "runs": 3}"#);
    let at = |text: &str| UnixMs::from_system(text.parse::<Timestamp>().unwrap().into()).unwrap();
    let first = Recurring::first(&daily, at("2026-12-01T08:00:00Z"), 0.0).unwrap();
    let paused = first.paused(at("2026-12-01T08:30:00Z")).unwrap();
    assert!(paused.due() > at("2100-01-01T00:00:00Z"));
    assert_eq!(
        paused.paused(at("2026-12-02T08:30:00Z")),
        None,
        "it is paused already"
    );
    // A run that is fired meanwhile leaves the rule paused, and counts.
    let fired = paused.next(RunEnd {
        now: at("2026-12-01T08:40:00Z"),
        claimed: at("2026-12-01T08:39:00Z"),
        due: at("2026-12-01T08:39:00Z"),
        random: 0.0,
    });
    let fired = fired.unwrap();
    assert_eq!((fired.n, fired.due()), (2, paused.due()));
    let later = paused.next(RunEnd {
        now: at("2026-12-05T12:00:00Z"),
        claimed: at("2026-12-05T12:00:00Z"),
        due: at("2026-12-05T12:00:00Z"),
        random: 0.0,
    });
    assert_eq!(later.unwrap().due(), paused.due(), "its time has passed");
    let resumed = fired.resumed(at("2026-12-09T12:00:00Z"), 0.0).unwrap();
    assert_eq!((resumed.n, resumed.due()), (2, at("2026-12-10T09:00:00Z")));
    assert_eq!(resumed.skipped, 0);
    assert!(!resumed.is_paused());
    // During the last run there is nothing to pause.
    let last = resumed.following().following();
    assert_eq!(last.paused(at("2026-12-10T09:00:00Z")), None);
}

#[test]
fn another_rule_keeps_the_numbers() {
    let at = |text: &str| UnixMs::from_system(text.parse::<Timestamp>().unwrap().into()).unwrap();
    let now = at("2026-12-01T08:00:00Z");
    let first = Recurring::first(&rule(r#"{"cron": "0 9 * * *"}"#), now, 0.0).unwrap();
    let fifth = Recurring { n: 5, ..first };
    let hourly = rule(r#"{"every": "1h"}"#);
    assert!(!fifth.has_rule(&hourly));
    let changed = fifth
        .by_rule(&hourly, at("2026-12-01T08:30:00Z"), 0.0)
        .unwrap();
    assert!(changed.has_rule(&hourly));
    assert_eq!((changed.n, changed.due()), (5, at("2026-12-01T09:00:00Z")));
    let paused = fifth.paused(now).unwrap();
    let changed = paused.by_rule(&hourly, now, 0.0).unwrap();
    assert_eq!((changed.is_paused(), changed.due()), (true, paused.due()));
    assert_eq!(
        fifth.by_rule(&rule(r#"{"every": "1h", "runs": 4}"#), now, 0.0),
        None
    );
    let past = rule(r#"{"every": "1h", "until": "2026-11-01T00:00:00Z"}"#);
    assert_eq!(fifth.by_rule(&past, now, 0.0), None);
}

#[test]
fn a_run_that_begins_after_the_next_time_is_a_catch_up() {
    let table = serde_json::json!({"cron": "0 9 * * *"});
    let at = |text: &str| SystemTime::from(text.parse::<Timestamp>().unwrap());
    let due = at("2026-12-01T09:00:00Z");
    let occurrence = Occurrence::new(table, 1, due).unwrap();
    let job = |lag| {
        let sample = crate::Job::sample("app1:digest:daily:42").due(due).lag(lag);
        sample.occurrence(occurrence.clone()).build()
    };
    let day = Duration::from_secs(24 * 3600);
    assert!(!job(Duration::ZERO).is_catch_up());
    assert!(!job(day - Duration::from_millis(1)).is_catch_up());
    assert!(job(day).is_catch_up());
    assert!(
        !crate::Job::sample("app1:digest:daily:42")
            .lag(day)
            .build()
            .is_catch_up()
    );
}

#[test]
fn a_template_gets_the_time_and_the_number_of_its_occurrence() {
    let table = r#"{"cron": "0 9 * * *", "zone": "Europe/Berlin", "template": true}"#;
    let now = UnixMs::from_system("2026-12-06T12:00:00Z".parse::<Timestamp>().unwrap().into());
    let first = Recurring::first(&rule(table), now.unwrap(), 0.0).unwrap();
    let third = Recurring { n: 3, ..first };
    for (stored, filled) in [
        ("", ""),
        ("no braces", "no braces"),
        (
            r#"{"day": "{{scheduled_for %Y-%m-%d}}", "run": {{number}}}"#,
            r#"{"day": "2026-12-07", "run": 3}"#,
        ),
        ("{{ scheduled_for }}", "2026-12-07T09:00:00+01:00"),
        ("{{scheduled_for %H:%M}}{{number}}", "09:003"),
        // Braces of another sense stay.
        ("{{{number}}}", "{{{number}}}"),
        ("{{other}} {{", "{{other}} {{"),
        ("{{scheduled_for %\"}}", "{{scheduled_for %\"}}"),
        ("}}{{number", "}}{{number"),
    ] {
        let payload = third.payload(&bytes::Bytes::from_static(stored.as_bytes()));
        assert_eq!(std::str::from_utf8(&payload).unwrap(), filled);
    }
    let binary = bytes::Bytes::from_static(b"\xff{{number}}\0");
    assert_eq!(&third.payload(&binary)[..], b"\xff3\0");
    let plain = rule(r#"{"cron": "0 9 * * *"}"#);
    let plain = Recurring::first(&plain, now.unwrap(), 0.0).unwrap();
    assert_eq!(
        &plain.payload(&binary)[..],
        &binary[..],
        "it is no template"
    );
}

#[test]
fn a_template_with_an_unknown_placeholder_is_refused() {
    let rule = rule(r#"{"every": "1h", "template": true}"#);
    for payload in [
        "",
        "{\"a\": 1}",
        "{{number}} {{scheduled_for %F}}",
        "{{ {{ {{",
    ] {
        rule.check_template(payload.as_bytes()).unwrap();
    }
    for payload in ["{{time}}", "{{number 3}}", "{{scheduled_for %}}", "{{}}"] {
        let error = rule.check_template(payload.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRule);
        assert!(
            error
                .to_string()
                .contains("is no placeholder: write `{{number}}`"),
            "{error}"
        );
    }
    let plain = Rule::every(Duration::from_secs(3600)).unwrap();
    plain.check_template(b"{{time}}").unwrap();
    let text = r#"{"every":"1h","template":true}"#;
    assert_eq!(serde_json::to_string(&plain.template()).unwrap(), text);
}

#[test]
fn missed_times_are_made_up_for_as_the_rule_says() {
    // Due at 1:00, claimed at 5:30, ended at 5:31; or another pair of minutes.
    let after = |missed: &str, claimed: u64, ended: u64| {
        let rule = rule(&format!(r#"{{"every": "1h", "missed": "{missed}"}}"#));
        let first = Recurring::first(&rule, UnixMs(HOUR - 1), 0.0).unwrap();
        let next = first.next(RunEnd {
            now: UnixMs(ended * 60_000),
            claimed: UnixMs(claimed * 60_000),
            due: UnixMs(HOUR),
            random: 0.0,
        });
        let next = next.unwrap();
        (next.at().0 / 60_000, next.view().skipped)
    };
    for (missed, claimed, ended, expected) in [
        ("one", 330, 331, (360, 4)),
        ("skip", 330, 331, (360, 4)),
        ("spread 10m", 330, 331, (360, 4)),
        ("all", 330, 331, (120, 0)),
        ("all 2", 330, 331, (240, 2)),
        ("all 4", 330, 331, (120, 0)),
        // Nothing was missed: what passes during a run is another matter.
        ("all", 60, 61, (120, 0)),
        ("all", 60, 190, (240, 2)),
        // Both: the missed times come first.
        ("all 1", 130, 190, (120, 0)),
    ] {
        assert_eq!(
            after(missed, claimed, ended),
            expected,
            "{missed} {claimed} {ended}"
        );
    }
}

#[test]
fn a_choice_for_missed_times_is_read_as_it_is_written() {
    for text in ["skip", "all 10", "spread 10m"] {
        let rule = rule(&format!(r#"{{"every":"1h","missed":"{text}"}}"#));
        assert_eq!(rule.to_value()["missed"], text);
    }
    assert_eq!(
        rule(r#"{"every":"1h","missed":"one"}"#)
            .to_value()
            .get("missed"),
        None
    );
    let all = rule(r#"{"every":"1h","missed":"all"}"#);
    assert_eq!(all.to_value()["missed"], "all 100");
    assert!(
        all.to_string()
            .ends_with("up to 100 missed times are made up for"),
        "{all}"
    );
    for (missed, fault) in [
        (
            "none",
            r#"write "one", "skip", "all", "all 10" or "spread 10m""#,
        ),
        ("all 0", "1 to 1000"),
        ("all 1001", "1 to 1000"),
        ("all -1", "write"),
        ("spread 2d", "from 1 s to 1 day"),
    ] {
        let text = format!(r#"{{"every":"1h","missed":"{missed}"}}"#);
        let error = serde_json::from_str::<Rule>(&text).unwrap_err().to_string();
        assert!(error.contains(fault), "{missed}: {error}");
    }
}
