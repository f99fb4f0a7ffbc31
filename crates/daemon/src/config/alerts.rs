//! Alerts: their kinds, and the events that cause them.

use std::collections::BTreeSet;
use std::time::Duration;

use keyfall::Kind;

use super::fault::{Faults, Origin, Wrong};
use super::file::Entry;
use super::rules::longer_than_zero;
use super::settings::AlertsSection;
use super::value::{Form, Value, cut};

/// The kind of the jobs that alerts become; `None` switches off a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination(pub Option<Kind>);

impl Value for Destination {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "KIND";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Kind::parse(text) {
            Ok(kind) => Ok(Destination(Some(kind))),
            Err(_) if text == "none" => Ok(Destination(None)),
            Err(_) => Err(Wrong::new(
                format_args!("{} is not a kind", cut(text)),
                "write three segments of ASCII letters, digits, `_`, `-` and `.`, such as \
                 ops:alerts:dead, or none",
            )),
        }
    }
}

/// The alert settings of one route; `None` for a setting that is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteAlerts {
    pub on_dead: Option<Destination>,
    pub late_after: Option<Duration>,
    pub on_late: Option<Destination>,
}

impl RouteAlerts {
    pub(super) fn read(entry: &Entry<'_>, faults: &mut Faults) -> Self {
        RouteAlerts {
            on_dead: entry.value("on_dead", &[], faults),
            late_after: entry.value("late_after", &[longer_than_zero], faults),
            on_late: entry.value("on_late", &[], faults),
        }
    }

    /// Fills absent settings from the settings for all routes.
    pub fn or(&self, all: &AlertsSection) -> Alerts {
        let kind = |own: &Option<Destination>, all: &Option<Destination>| {
            let said = own.as_ref().or(all.as_ref());
            said.and_then(|said| said.0.clone())
        };
        let on_late = kind(&self.on_late, &all.on_late);
        let late_after = self.late_after.or(all.late_after);
        Alerts {
            on_dead: kind(&self.on_dead, &all.on_dead),
            late_after: late_after.filter(|_| on_late.is_some()),
            on_late,
        }
    }
}

/// The alert settings that hold for the jobs of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alerts {
    pub on_dead: Option<Kind>,
    pub late_after: Option<Duration>,
    pub on_late: Option<Kind>,
}

/// A route's pattern, its alert settings, and its place in the file.
pub(super) type GivenAlerts<'a> = (&'a str, &'a RouteAlerts, &'a Entry<'a>);

/// The kinds that alerts go to.
pub fn destinations<'a>(
    all: &'a AlertsSection,
    routes: impl Iterator<Item = &'a RouteAlerts>,
) -> BTreeSet<Kind> {
    let of_routes = routes.flat_map(|route| [&route.on_dead, &route.on_late]);
    let said = [&all.on_dead, &all.on_late].into_iter().chain(of_routes);
    said.flatten().filter_map(|said| said.0.clone()).collect()
}

/// Reports contradictions. `all_at` has the place of each setting for all routes. A setting that
/// cannot be read is a fault of its own, and does not count as missing.
pub(super) fn check(
    all: &AlertsSection,
    all_at: impl Fn(&str) -> Origin,
    routes: &[GivenAlerts<'_>],
    faults: &mut Faults,
) {
    let known = destinations(all, routes.iter().map(|(_, alerts, _)| *alerts));
    let late_after_for_all = all.late_after.is_some() || faults.is_about("alerts.late_after");
    let on_late_for_all = all.on_late.is_some() || faults.is_about("alerts.on_late");
    for (pattern, alerts, entry) in routes {
        let own = [("on_dead", &alerts.on_dead), ("on_late", &alerts.on_late)];
        for (field, said) in own {
            let kind = pattern.rsplit_once(':').map(|(kind, _)| kind);
            let is_known = known.iter().any(|known| Some(known.as_str()) == kind);
            if is_known && matches!(said, Some(Destination(Some(_)))) {
                let wrong = Wrong::new(
                    "its jobs are alerts themselves, and alerts of alerts could go round for ever",
                    "leave it out: a job that is an alert has none",
                );
                entry.fault(field, wrong, faults);
            }
        }
        if alerts.late_after.is_some() && entry.raw("on_late").is_none() && !on_late_for_all {
            entry.fault("late_after", for_nobody("on_late", "here or "), faults);
        }
        let is_for_somebody = matches!(alerts.on_late, Some(Destination(Some(_))));
        if is_for_somebody && entry.raw("late_after").is_none() && !late_after_for_all {
            entry.fault("on_late", of_nothing("late_after"), faults);
        }
    }
    let by_a_route = |name: &str| routes.iter().any(|(_, _, entry)| entry.raw(name).is_some());
    if all.late_after.is_some() && !on_late_for_all && !by_a_route("on_late") {
        let wrong = for_nobody("on_late", "");
        faults.add(all_at("late_after"), "alerts.late_after", wrong);
    }
    if matches!(all.on_late, Some(Destination(Some(_))))
        && !late_after_for_all
        && !by_a_route("late_after")
    {
        faults.add(
            all_at("on_late"),
            "alerts.on_late",
            of_nothing("late_after"),
        );
    }
}

fn for_nobody(missing: &str, here: &str) -> Wrong {
    Wrong::new(
        format_args!("it has no effect without `{missing}`"),
        format_args!("write `{missing} = \"ops:alerts:late\"` {here}below [alerts]"),
    )
}

fn of_nothing(missing: &str) -> Wrong {
    Wrong::new(
        format_args!("it has no effect without `{missing}`"),
        format_args!("write `{missing} = \"5s\"` beside it or below [alerts]"),
    )
}
