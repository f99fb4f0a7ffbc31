use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;

const BERLIN: &str = "Europe/Berlin";

fn zone(name: &str) -> Zone {
    Zone::named(name).unwrap()
}

/// The instant of a time on the wall in Berlin.
fn berlin(text: &str) -> UnixMs {
    let wall: DateTime = text.parse().unwrap();
    let time = wall.to_zoned(TimeZone::get(BERLIN).unwrap()).unwrap();
    unix(time.timestamp()).unwrap()
}

fn quiet(text: &str) -> QuietHours {
    serde_json::from_str(text).unwrap()
}

/// The due time on the wall in Berlin; or the reason why there is none.
fn settled(quiet: &QuietHours, due: &str, now: &str) -> String {
    match quiet.settle(berlin(due), berlin(now), &zone(BERLIN)) {
        Quieted::Same => "same".to_owned(),
        Quieted::Out(why) => why,
        Quieted::Moved(shift) => {
            assert_eq!(shift.from, berlin(due).0);
            let time: Timestamp = instant(UnixMs(shift.to)).unwrap();
            let wall = time.to_zoned(TimeZone::get(BERLIN).unwrap());
            format!("{} by {}", wall.strftime("%m-%d %H:%M"), shift.why)
        }
    }
}

#[test]
fn due_times_leave_quiet_hours_in_the_direction_that_was_asked_for() {
    let early = "2026-12-01 00:00";
    for (quiet_hours, due, found) in [
        (r#""22:00-08:00""#, "2026-12-07 21:59", "same"),
        (r#""22:00-08:00""#, "2026-12-07 08:00", "same"),
        (
            r#""22:00-08:00""#,
            "2026-12-07 22:00",
            "12-08 08:00 by quiet hours 22:00-08:00",
        ),
        (
            r#""22:00-08:00""#,
            "2026-12-07 03:00",
            "12-07 08:00 by quiet hours 22:00-08:00",
        ),
        (
            r#""12:00-14:00""#,
            "2026-12-07 13:00",
            "12-07 14:00 by quiet hours 12:00-14:00",
        ),
        (
            r#"{"hours": "22:00-08:00", "instead": "earlier"}"#,
            "2026-12-07 03:00",
            "12-06 22:00 by quiet hours 22:00-08:00",
        ),
        (
            r#"{"hours": "22:00-08:00", "instead": "skip"}"#,
            "2026-12-07 03:00",
            "quiet hours 22:00-08:00",
        ),
        // Saturday, Sunday and the hours around them are one span.
        (
            r#"{"hours": "22:00-08:00", "days": ["SAT", "SUN"]}"#,
            "2026-12-11 23:00",
            "12-14 08:00 by quiet hours 22:00-08:00",
        ),
        (
            r#"{"hours": "22:00-08:00", "days": ["SAT", "SUN"], "instead": "earlier"}"#,
            "2026-12-13 12:00",
            "12-11 22:00 by quiet day SUN",
        ),
        (
            r#"{"days": ["sun"]}"#,
            "2026-12-13 12:00",
            "12-14 00:00 by quiet day SUN",
        ),
        (
            r#"{"holidays": ["2026-12-25", "2026-12-26"], "days": ["SUN"]}"#,
            "2026-12-25 09:00",
            "12-28 00:00 by holiday 2026-12-25",
        ),
    ] {
        assert_eq!(
            settled(&quiet(quiet_hours), due, early),
            found,
            "{quiet_hours} {due}"
        );
    }
    // A time that has passed already is no earlier time.
    let earlier = quiet(r#"{"hours": "22:00-08:00", "instead": "earlier"}"#);
    assert_eq!(
        settled(&earlier, "2026-12-07 03:00", "2026-12-06 23:00"),
        "12-07 08:00 by quiet hours 22:00-08:00"
    );
    assert_eq!(settled(&earlier, "2026-12-07 22:00", early), "same");
}

/// In Berlin the clock shows 02:00 to 03:00 twice on 25 October 2026.
#[test]
fn an_end_in_a_repeated_hour_is_behind_the_due_time() {
    let zone = zone(BERLIN);
    let quiet = quiet(r#""22:00-02:30""#);
    let midnight = berlin("2026-10-25 00:00").0;
    let minute = |number: u64| UnixMs(midnight + number * 60_000);
    for (due, to) in [(60, 150), (135, 150), (195, 210)] {
        let Quieted::Moved(shift) = quiet.settle(minute(due), minute(due), &zone) else {
            panic!("{due} is quiet");
        };
        assert_eq!(UnixMs(shift.to), minute(to), "{due}");
    }
    // 02:30 for the first time, and for the second.
    for end in [150, 210] {
        assert_eq!(quiet.settle(minute(end), minute(end), &zone), Quieted::Same);
    }
}

#[test]
fn the_own_zone_of_quiet_hours_counts() {
    let tokyo = quiet(r#"{"hours": "22:00-08:00", "zone": "Asia/Tokyo"}"#);
    // 14:00 in Berlin is 22:00 in Tokyo.
    assert_eq!(
        settled(&tokyo, "2026-12-07 14:00", "2026-12-01 00:00"),
        "12-08 00:00 by quiet hours 22:00-08:00"
    );
    assert_eq!(
        settled(&tokyo, "2026-12-07 23:00", "2026-12-01 00:00"),
        "12-08 00:00 by quiet hours 22:00-08:00"
    );
    assert_eq!(
        settled(&tokyo, "2026-12-07 00:00", "2026-12-01 00:00"),
        "same"
    );
}

#[test]
fn wrong_quiet_hours_name_the_field_and_the_remedy() {
    for (text, hint) in [
        (r#""22-""#, "such as 22:00-08:00"),
        (r#""08:00-08:00""#, "two different times"),
        (r#"{"days": ["Monday"]}"#, "write MON"),
        (r#"{"holidays": ["25.12."]}"#, "write it as 2026-12-25"),
        (r#"{"zone": "UTC"}"#, "neither `hours` nor"),
        (
            r#"{"hours": "22:00-08:00", "zone": "Nowhere"}"#,
            "does not know",
        ),
        (
            r#"{"days": ["MON","TUE","WED","THU","FRI","SAT","SUN"]}"#,
            "leave one out",
        ),
        (r#"{"hour": "22:00-08:00"}"#, "unknown field"),
    ] {
        let error = serde_json::from_str::<QuietHours>(text)
            .unwrap_err()
            .to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

fn any_quiet() -> impl Strategy<Value = QuietHours> {
    let time = || (0..24_u8, proptest::sample::select(vec![0, 15, 30, 59_u8]));
    let hours = proptest::option::of((time(), time()));
    let days = proptest::sample::subsequence(vec!["MON", "WED", "SAT", "SUN"], 0..=4);
    let holidays =
        proptest::sample::subsequence(vec!["2026-03-28", "2026-03-30", "2026-10-24"], 0..=3);
    let instead = proptest::sample::select(vec!["later", "earlier", "skip"]);
    (hours, days, holidays, instead).prop_filter_map(
        "some are no quiet hours",
        |(hours, days, holidays, instead)| {
            let mut table =
                serde_json::json!({"days": days, "holidays": holidays, "instead": instead});
            if let Some(((hour, minute), (last_hour, last_minute))) = hours {
                let hours = format!("{hour:02}:{minute:02}-{last_hour:02}:{last_minute:02}");
                table["hours"] = hours.into();
            }
            serde_json::from_value(table).ok()
        },
    )
}

proptest! {
    /// Around both changes of the clock.
    #[test]
    fn a_settled_time_is_not_quiet_and_stays_where_it_is(
        quiet in any_quiet(),
        begin in proptest::sample::select(vec!["2026-03-26 00:00", "2026-10-21 00:00"]),
        minutes in 0..10_000_u64,
    ) {
        let due = UnixMs(berlin(begin).0 + minutes * 60_000);
        let (now, zone) = (UnixMs(0), zone(BERLIN));
        match quiet.settle(due, now, &zone) {
            Quieted::Same => {}
            Quieted::Out(_) => prop_assert_eq!(quiet.instead, Instead::Skip),
            Quieted::Moved(shift) => {
                let to = UnixMs(shift.to);
                prop_assert_eq!(to > due, quiet.instead == Instead::Later);
                prop_assert_eq!(quiet.settle(to, now, &zone), Quieted::Same);
            }
        }
        let text = serde_json::to_string(&quiet).unwrap();
        prop_assert_eq!(serde_json::from_str::<QuietHours>(&text).unwrap(), quiet);
    }
}
