//! Alert settings, for all routes and for one.

use super::*;
use crate::config::{Alerts, RouteAlerts, destinations};

fn kind(text: &str) -> Option<keyfall::Kind> {
    Some(keyfall::Kind::parse(text).unwrap())
}

#[test]
fn a_route_overrides_the_alerts_and_none_switches_them_off() {
    let text = r#"
[alerts]
on_dead = "ops:alerts:dead"
late_after = "5s"
on_late = "ops:alerts:late"
[[route]]
pattern = "a:b:usual:*"
target = "pull"
[[route]]
pattern = "a:b:own:*"
target = "pull"
on_dead = "ops:pager:a"
late_after = "1m"
[[route]]
pattern = "a:b:quiet:*"
target = "pull"
on_dead = "none"
on_late = "none"
[[route]]
pattern = "ops:alerts:*:*"
target = "pull"
"#;
    let config = read(text).unwrap();
    let of = |place: usize| config.routes[place].alerts.or(&config.alerts);
    let usual = Alerts {
        on_dead: kind("ops:alerts:dead"),
        late_after: Some(Duration::from_secs(5)),
        on_late: kind("ops:alerts:late"),
    };
    assert_eq!(of(0), usual);
    assert_eq!(RouteAlerts::default().or(&config.alerts), usual);
    assert_eq!(of(1).on_dead, kind("ops:pager:a"));
    assert_eq!(of(1).late_after, Some(Duration::from_secs(60)));
    assert_eq!(of(1).on_late, usual.on_late);
    assert_eq!(of(2), Alerts::default());
    let known = destinations(&config.alerts, config.routes.iter().map(|it| &it.alerts));
    let known: Vec<&str> = known.iter().map(keyfall::Kind::as_str).collect();
    assert_eq!(known, ["ops:alerts:dead", "ops:alerts:late", "ops:pager:a"]);
    // Only the worker judges lateness.
    let router = format!("{:?}", config.router(&Pull::new()));
    assert_eq!(
        router.matches("late_after: Some(5s)").count(),
        2,
        "{router}"
    );
    assert_eq!(
        router.matches("late_after: Some(60s)").count(),
        1,
        "{router}"
    );
    assert_eq!(router.matches("late_after: None").count(), 1, "{router}");
}

#[test]
fn flags_and_the_environment_set_alerts_for_all_routes() {
    let flags = [("alerts-on-dead", "ops:alerts:dead")];
    let config = read_with("", &[("KEYFALL_ALERTS_ON_LATE", "none")], &flags).unwrap();
    let all = RouteAlerts::default().or(&config.alerts);
    assert_eq!((all.on_dead, all.on_late), (kind("ops:alerts:dead"), None));
}

#[test]
fn alerts_without_a_destination_or_an_event_or_in_a_circle_are_faults() {
    let text = r#"
[alerts]
on_dead = "ops:alerts"
[[route]]
pattern = "a:b:c1:*"
target = "pull"
late_after = "5s"
[[route]]
pattern = "a:b:c2:*"
target = "pull"
on_late = "ops:alerts:late"
[[route]]
pattern = "ops:alerts:late:*"
target = "pull"
on_dead = "ops:pager:a"
[[route]]
pattern = "a:b:c3:*"
target = "pull"
on_late = "ops:*:late"
late_after = "0s"
"#;
    let expected = [
        "k.toml:3:11: alerts.on_dead: \"ops:alerts\" is not a kind; write three segments",
        "k.toml:19:11: route.on_late: \"ops:*:late\" is not a kind",
        "k.toml:20:14: route.late_after: it is zero",
        "k.toml:7:14: route.late_after: it has no effect without `on_late`; write",
        "k.toml:11:11: route.on_late: it has no effect without `late_after`",
        "k.toml:15:11: route.on_dead: its jobs are alerts themselves",
    ];
    let mut faults = faults(text);
    faults.sort();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\n{expected}");
    }
    let wrong = "[alerts]\nlate_after = 5\non_late = \"ops:alerts:late\"\n[[route]]\n\
                 pattern = \"a:b:c:*\"\ntarget = \"pull\"\non_late = \"ops:alerts:c\"\n";
    let faults = self::faults(wrong);
    assert_eq!(
        faults.len(),
        1,
        "what cannot be is not missing: {faults:#?}"
    );
    assert!(faults[0].starts_with("k.toml:2:14: alerts.late_after: this is a number"));
    let alone = |setting: &str| self::faults(&format!("[alerts]\n{setting}\n")).concat();
    let late_after = alone("late_after = \"5s\"");
    assert!(
        late_after.contains("alerts.late_after: it has no effect"),
        "{late_after}"
    );
    let on_late = alone("on_late = \"ops:alerts:late\"");
    assert!(
        on_late.contains("alerts.on_late: it has no effect"),
        "{on_late}"
    );
}
