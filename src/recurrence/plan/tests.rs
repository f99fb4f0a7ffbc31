use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

const BERLIN: &str = "Europe/Berlin";

fn at(text: &str) -> UnixMs {
    UnixMs(text.parse::<Timestamp>().unwrap().as_millisecond() as u64)
}

fn member(text: &str) -> WantedMember {
    WantedMember {
        offset: text.parse().unwrap(),
        name: None,
        payload: None,
    }
}

fn wish(anchor: Option<&str>, members: &[&str]) -> Wish {
    Wish {
        anchor: anchor.map(|it| (it.into(), Some(BERLIN.to_owned()))),
        members: (!members.is_empty()).then(|| members.iter().map(|it| member(it)).collect()),
        ..Wish::default()
    }
}

fn absent(_: &str) -> Stand {
    Stand::Absent
}

/// The times of some offsets.
fn times(anchor: &str, offsets: &[&str]) -> Vec<String> {
    let now = at("2026-01-01T00:00:00Z");
    let decision = decide(None, &wish(Some(anchor), offsets), now, absent).unwrap();
    let members = decision.plan.members.iter();
    members
        .map(|it| instant(UnixMs(it.named)).unwrap().to_string())
        .collect()
}

#[test]
fn offsets_of_days_are_on_the_wall_and_of_hours_exact() {
    // The clock goes forward on 29 March 2026.
    assert_eq!(
        times(
            "2026-03-30 18:00",
            &[
                "-3d 09:00",
                "-72h",
                "-1h",
                "-25h",
                "+0d 20:00",
                "+1d 10:00",
                "+2w 09:00"
            ]
        ),
        [
            "2026-03-27T08:00:00Z",
            "2026-03-27T16:00:00Z",
            "2026-03-30T15:00:00Z",
            "2026-03-29T15:00:00Z",
            "2026-03-30T18:00:00Z",
            "2026-03-31T08:00:00Z",
            "2026-04-13T07:00:00Z",
        ]
    );
    // The zone skips 02:30 on 29 March, and repeats it on 25 October.
    assert_eq!(
        times("2026-03-30 18:00", &["-1d 02:30"]),
        ["2026-03-29T01:00:00Z"]
    );
    assert_eq!(
        times("2026-10-26 18:00", &["-1d 02:30"]),
        ["2026-10-25T00:30:00Z"]
    );
    assert_eq!(
        times("2026-01-31 09:00", &["+1mo", "+1y"]),
        ["2026-02-28T08:00:00Z", "2027-01-31T08:00:00Z"]
    );
    assert_eq!(times("2026-03-30", &["+0d"]), ["2026-03-29T22:00:00Z"]);
}

#[test]
fn an_offset_is_written_as_it_is_read() {
    for (text, name, written) in [
        ("-3d 09:00", "-3d", "-3d 09:00"),
        (" - 3 days  9:00", "", ""),
        ("+ 2 weeks 10:00:30", "+2w", "+2w 10:00:30"),
        ("-90m", "-90m", "-90m"),
        ("-1h30m", "-1h30m", "-1h30m"),
        ("+1mo", "+1mo", "+1mo"),
        ("+0h", "+0d", "+0d"),
    ] {
        let Ok(offset) = text.parse::<Offset>() else {
            assert_eq!(name, "", "{text}");
            continue;
        };
        assert_eq!(
            (&*offset.name(), &*offset.to_string()),
            (name, written),
            "{text}"
        );
        assert_eq!(offset.to_string().parse::<Offset>().unwrap(), offset);
    }
}

#[test]
fn a_wrong_offset_is_named_with_the_rule_and_an_example() {
    for (text, rule) in [
        ("3d 09:00", "begin with `-`"),
        ("", "begin with `-`"),
        ("-", "write a number and its unit"),
        ("-3", "write a number and its unit"),
        ("--3d", "write one sign"),
        ("-3d 25:00", "hours and minutes"),
        ("-3d1h", "either days and more"),
        ("-1h 09:00", "only behind days"),
        ("-11y", "within 10 years"),
        ("+4000d", "within 10 years"),
    ] {
        let error = text.parse::<Offset>().unwrap_err().to_string();
        assert!(
            error.contains(rule) && error.contains("such as -3d 09:00"),
            "{text}: {error}"
        );
        assert!(error.contains(&format!("{text:?}")), "{text}: {error}");
    }
}

#[test]
fn a_wish_that_is_not_valid_is_refused() {
    let now = at("2026-01-01T00:00:00Z");
    let anchor = Some("2026-06-01 09:00");
    let many: Vec<String> = (1..=65).map(|it| format!("-{it}d")).collect();
    let many: Vec<&str> = many.iter().map(|it| &**it).collect();
    for (wish, hint) in [
        (
            wish(anchor, &["-3d 09:00", "-3d 18:00"]),
            "give one of them a `name`",
        ),
        (wish(anchor, &many), "1 to 64"),
        (wish(None, &["-3d"]), "`anchor` is missing"),
        (wish(anchor, &[]), "`at` is missing"),
        (wish(Some("tomorrow"), &["-3d"]), "`anchor` is \"tomorrow\""),
        (wish(Some("2037-01-01"), &["+1d"]), "10 years ahead"),
    ] {
        let error = decide(None, &wish, now, absent).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
    let mut named = wish(anchor, &["-3d 09:00", "-3d 18:00"]);
    named.members.as_mut().unwrap()[1].name = Some("evening".to_owned());
    assert!(decide(None, &named, now, absent).is_ok());
    named.members.as_mut().unwrap()[1].name = Some("a~b".to_owned());
    assert!(decide(None, &named, now, absent).is_err());
}

#[test]
fn a_move_leaves_what_has_begun_and_follows_the_rule_for_the_past() {
    let now = at("2026-06-10T00:00:00Z");
    let all = ["-20d", "-9d", "-8d", "-7d", "-1d", "+1d"];
    let first = wish(Some("2026-06-20 12:00"), &all);
    let begun = at("2026-05-01T00:00:00Z");
    let before = decide(None, &first, begun, absent).unwrap().plan;
    let stand = |name: &str| match name {
        "-20d" | "-2d" => Stand::Absent,
        "-9d" => Stand::Running,
        "-8d" => Stand::Retrying,
        _ => Stand::Fresh,
    };
    let moved = wish(Some("2026-06-15 12:00"), &[]);
    let fates = |wish: &Wish| -> Vec<(Deed, MemberFate)> {
        let decision = decide(Some(&before), wish, now, stand).unwrap();
        let verdicts = decision.verdicts.into_iter();
        verdicts.map(|it| (it.deed, it.fate)).collect()
    };
    let due = |text: &str| at(text);
    let put = |text: &str| {
        (
            Deed::Put(due(text)),
            MemberFate::Moved(due(text).to_system()),
        )
    };
    let begun = [
        (Deed::Leave, MemberFate::Running),
        (Deed::Leave, MemberFate::Retrying),
    ];
    let passed = MemberFate::LeftOut("its time had passed".to_owned());
    let expected = [
        vec![(Deed::Leave, MemberFate::Ended)],
        begun.to_vec(),
        vec![(Deed::Remove, passed.clone())],
        vec![put("2026-06-14T10:00:00Z"), put("2026-06-16T10:00:00Z")],
    ];
    assert_eq!(fates(&moved), expected.concat());
    let run = Wish {
        past: Some(Past::Run),
        ..moved.clone()
    };
    assert_eq!(
        fates(&run)[3],
        (Deed::Put(now), MemberFate::Moved(now.to_system()))
    );
    let again = Wish {
        is_again: true,
        ..wish(Some("2026-07-20 12:00"), &[])
    };
    let time = due("2026-06-30T10:00:00Z");
    assert_eq!(
        fates(&again)[0],
        (Deed::Put(time), MemberFate::Created(time.to_system()))
    );
    // Other offsets: what is not named any more is cancelled.
    let other = wish(None, &["-1d", "-2d"]);
    let expected = [
        (
            Deed::Leave,
            MemberFate::Unchanged(due("2026-06-19T10:00:00Z").to_system()),
        ),
        (
            Deed::Put(due("2026-06-18T10:00:00Z")),
            MemberFate::Created(due("2026-06-18T10:00:00Z").to_system()),
        ),
        (Deed::Leave, MemberFate::Ended),
        (Deed::Leave, MemberFate::Running),
        (Deed::Remove, MemberFate::Cancelled),
        (Deed::Remove, MemberFate::Cancelled),
        (Deed::Remove, MemberFate::Cancelled),
    ];
    assert_eq!(fates(&other), expected);
}

#[test]
fn members_leave_the_quiet_hours_of_their_zone() {
    let now = at("2026-06-01T00:00:00Z");
    let mut asked = wish(Some("2026-06-20 02:00"), &["-1d", "-14h", "-2d 23:30"]);
    asked.quiet = Some(Some("22:00-08:00".parse().unwrap()));
    let members = decide(None, &asked, now, absent).unwrap().plan.members;
    let due: Vec<_> = members
        .iter()
        .map(|it| instant(UnixMs(it.due())).unwrap().to_string())
        .collect();
    assert_eq!(
        due,
        [
            "2026-06-19T06:00:00Z",
            "2026-06-19T10:00:00Z",
            "2026-06-19T06:00:00Z"
        ]
    );
    let why = members[0].shift.as_ref().map(|it| &*it.why);
    assert_eq!(why, Some("quiet hours 22:00-08:00"));
    let skip: QuietHours =
        serde_json::from_str(r#"{"hours": "22:00-08:00", "instead": "skip"}"#).unwrap();
    asked.quiet = Some(Some(skip));
    let verdicts = decide(None, &asked, now, absent).unwrap().verdicts;
    assert_eq!(
        verdicts[0].fate,
        MemberFate::LeftOut("quiet hours 22:00-08:00".to_owned())
    );
}

#[test]
fn a_plan_is_kept_for_a_while_after_its_last_member_and_survives_its_text() {
    let now = at("2026-06-01T00:00:00Z");
    let mut asked = wish(Some("2026-06-20 12:00"), &["-1d", "+1d"]);
    asked.quiet = Some(Some("22:00-08:00".parse().unwrap()));
    asked.past = Some(Past::Run);
    let plan = decide(None, &asked, now, absent).unwrap().plan;
    assert_eq!(plan.ends(now), at("2026-07-21T10:00:00Z"));
    assert_eq!(
        plan.ends(at("2026-09-01T00:00:00Z")),
        at("2026-10-01T00:00:00Z")
    );
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

/// A small ledger of the jobs of one series.
#[derive(Debug, Default)]
struct Jobs {
    /// Each job that is there: where it stands, and its due time.
    there: BTreeMap<String, (Stand, UnixMs)>,
    /// The times for which each member ran.
    ran: BTreeMap<String, Vec<u64>>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Days after now, and which of the offsets.
    Change {
        anchor: Option<i64>,
        offsets: Option<Vec<&'static str>>,
        past: Past,
        is_again: bool,
    },
    /// Hours pass; what falls due begins.
    Pass(u64),
    /// What runs fails, and is tried again.
    Fail,
    /// What runs ends.
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let offsets = vec!["-9d 09:00", "-3d 09:00", "-1d", "-1h", "+1d 10:00", "+3d"];
    let some = proptest::sample::subsequence(offsets, 1..=6);
    let past = proptest::sample::select(vec![Past::Skip, Past::Run]);
    let change = (
        proptest::option::of(-3..12_i64),
        proptest::option::of(some),
        past,
        prop::bool::weighted(0.2),
    );
    prop_oneof![
        3 => change.prop_map(|(anchor, offsets, past, is_again)| Step::Change { anchor, offsets, past, is_again }),
        3 => (1..100_u64).prop_map(Step::Pass),
        1 => Just(Step::Fail),
        2 => Just(Step::End),
    ]
}

proptest! {
    /// Whatever happens, the jobs and the plan agree; what has begun stays as it is; and nothing
    /// runs twice without being asked to.
    #[test]
    fn jobs_and_plan_agree_after_any_changes(steps in prop::collection::vec(step(), 1..30)) {
        let mut now = at("2026-03-20T10:00:00Z");
        let mut plan: Option<Plan> = None;
        let mut jobs = Jobs::default();
        for step in steps {
            match step {
                Step::Pass(hours) => {
                    now = UnixMs(now.0 + hours * 3_600_000);
                    for (name, (stand, due)) in &mut jobs.there {
                        if *due <= now && *stand != Stand::Running {
                            if *stand == Stand::Fresh {
                                let planned = plan.as_ref().and_then(|it| it.member(name));
                                let named = planned.expect("it is in the plan").named;
                                jobs.ran.entry(name.clone()).or_default().push(named);
                            }
                            *stand = Stand::Running;
                        }
                    }
                }
                Step::Fail => {
                    for (stand, due) in jobs.there.values_mut().filter(|it| it.0 == Stand::Running) {
                        (*stand, *due) = (Stand::Retrying, UnixMs(now.0 + 60_000));
                    }
                }
                Step::End => jobs.there.retain(|_, it| it.0 != Stand::Running),
                Step::Change { anchor, offsets, past, is_again } => {
                    let time = anchor.map(|days| UnixMs(now.0.saturating_add_signed(days * 86_400_000)));
                    let wish = Wish {
                        anchor: time.map(|it| (it.to_system().into(), Some(BERLIN.to_owned()))),
                        members: offsets.map(|it| it.into_iter().map(member).collect()),
                        past: Some(past),
                        is_again,
                        ..Wish::default()
                    };
                    let stand = |name: &str| jobs.there.get(name).map_or(Stand::Absent, |it| it.0);
                    let Ok(decision) = decide(plan.as_ref(), &wish, now, stand) else {
                        prop_assert!(plan.is_none(), "a series that exists needs nothing");
                        continue;
                    };
                    let before = jobs.there.clone();
                    for verdict in &decision.verdicts {
                        let name = &verdict.name;
                        match verdict.deed {
                            Deed::Leave => {}
                            Deed::Remove => drop(jobs.there.remove(name)),
                            Deed::Put(due) => drop(jobs.there.insert(name.clone(), (Stand::Fresh, due))),
                        }
                        let was = before.get(name).map(|it| it.0);
                        // What has begun is not moved; a retry may only be cancelled.
                        if was == Some(Stand::Running) {
                            prop_assert_eq!(&verdict.deed, &Deed::Leave);
                        }
                        if was == Some(Stand::Retrying) {
                            prop_assert!(!matches!(verdict.deed, Deed::Put(_)));
                        }
                        // What has ended does not run again unless asked.
                        let old = plan.as_ref().and_then(|it| it.member(name));
                        let has_ended = was.is_none() && old.is_some_and(|it| it.out.is_none());
                        if has_ended && !is_again {
                            prop_assert_eq!(&verdict.deed, &Deed::Leave);
                        }
                    }
                    for planned in &decision.plan.members {
                        let name = planned.own_name();
                        match (jobs.there.get(&name), &planned.out) {
                            (Some((Stand::Fresh, due)), out) => {
                                prop_assert_eq!(out, &None);
                                prop_assert_eq!(due.0, planned.due(), "{}", name);
                            }
                            (Some(_), out) => prop_assert_eq!(out, &None),
                            (None, _) => {}
                        }
                        if past == Past::Skip && planned.out.is_some() {
                            prop_assert!(planned.named <= now.0);
                        }
                    }
                    // No job waits for its first attempt that the plan does not have.
                    for (name, (stand, _)) in &jobs.there {
                        let is_planned = decision.plan.member(name).is_some();
                        prop_assert!(is_planned || *stand != Stand::Fresh, "{}", name);
                    }
                    // The same wish again changes nothing, but what is to run again.
                    if !is_again {
                        let stand = |name: &str| jobs.there.get(name).map_or(Stand::Absent, |it| it.0);
                        let same = decide(Some(&decision.plan), &wish, now, stand).unwrap();
                        prop_assert!(same.verdicts.iter().all(|it| it.deed == Deed::Leave));
                        prop_assert_eq!(&same.plan, &decision.plan);
                    }
                    plan = Some(decision.plan);
                }
            }
        }
    }
}
