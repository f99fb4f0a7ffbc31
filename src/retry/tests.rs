use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{MAX_DELAY, RetryPolicy, Shape};
use crate::error::ErrorKind;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn mins(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

const NEVER: [u64; 0] = [];

/// All delays in whole seconds, with a random number of 0.5.
fn delays(policy: &RetryPolicy) -> Vec<u64> {
    (1..)
        .map_while(|attempt| policy.next(attempt, 0.5))
        .map(|delay| delay.as_secs())
        .collect()
}

fn from_json(text: &str) -> Result<RetryPolicy, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn the_longest_delay_occurs_in_the_sequence() {
    let minute = mins(1);
    let policies = [
        RetryPolicy::default(),
        RetryPolicy::ladder([mins(2), minute, mins(9)]).unwrap(),
        RetryPolicy::ladder([mins(2), minute, mins(9)])
            .unwrap()
            .attempts(3),
        RetryPolicy::exponential(minute, mins(30)).unwrap(),
        RetryPolicy::exponential(minute, mins(30))
            .unwrap()
            .attempts(3),
        RetryPolicy::linear(minute).unwrap(),
        RetryPolicy::linear_up_to(minute, mins(3)).unwrap(),
        RetryPolicy::fixed(minute).unwrap(),
        RetryPolicy::fixed(minute).unwrap().attempts(1),
        RetryPolicy::none(),
    ];
    for policy in policies {
        let delays = (1..).map_while(|attempt| policy.next(attempt, 1.0));
        assert_eq!(
            policy.longest(),
            delays.max().unwrap_or_default(),
            "{policy:?}"
        );
    }
    let for_ever = RetryPolicy::linear(minute).unwrap().attempts(u32::MAX);
    assert_eq!(for_ever.longest(), MAX_DELAY);
}

#[test]
fn named_ladders_have_their_rungs() {
    let day = [15, 180, 600, 1800, 1800, 3600, 7200, 21600, 54000];
    assert_eq!(delays(&RetryPolicy::day_ladder()), day);
    assert_eq!(delays(&RetryPolicy::default()), day);
    assert_eq!(
        delays(&RetryPolicy::eager_day_ladder()),
        [0, 0, 120, 600, 600, 3600, 7200, 21600, 54000]
    );
    assert_eq!(
        delays(&RetryPolicy::two_hour_ladder()),
        [180, 300, 420, 540, 660, 780, 900, 1020, 1140, 1260]
    );
    assert_eq!(
        "15s 3m 10m 30m 30m 1h 2h 6h 15h"
            .parse::<RetryPolicy>()
            .unwrap(),
        RetryPolicy::day_ladder()
    );
    for ladder in [
        RetryPolicy::day_ladder(),
        RetryPolicy::eager_day_ladder(),
        RetryPolicy::two_hour_ladder(),
    ] {
        assert_eq!(ladder.shape.check(), Ok(()));
    }
}

#[test]
fn a_ladder_ends_with_its_last_rung() {
    let ladder = RetryPolicy::ladder([Duration::ZERO, secs(5)]).unwrap();
    assert_eq!(delays(&ladder), [0, 5]);
    assert_eq!(ladder.max_attempts(), 3);
    assert_eq!(delays(&ladder.clone().attempts(10)), [0, 5]);
    assert_eq!(delays(&ladder.clone().attempts(2)), [0]);
    assert_eq!(delays(&ladder.clone().attempts(1)), NEVER);
    assert_eq!(delays(&ladder.attempts(0)), NEVER);
}

#[test]
fn computed_shapes() {
    let exponential = RetryPolicy::exponential(secs(2), secs(20)).unwrap();
    assert_eq!(delays(&exponential), [1, 2, 4, 8, 10, 10, 10, 10, 10]);
    let linear = RetryPolicy::linear(secs(10)).unwrap();
    assert_eq!(delays(&linear), [10, 20, 30, 40, 50, 60, 70, 80, 90]);
    let capped = RetryPolicy::linear_up_to(secs(10), secs(25)).unwrap();
    assert_eq!(delays(&capped.attempts(5)), [10, 20, 25, 25]);
    let fixed = RetryPolicy::fixed(secs(30)).unwrap().attempts(4);
    assert_eq!(delays(&fixed), [30, 30, 30]);
    assert_eq!(delays(&RetryPolicy::none()), NEVER);
    assert_eq!(delays(&RetryPolicy::none().attempts(9)), NEVER);
}

#[test]
fn huge_attempts_saturate() {
    let at = u32::MAX - 1;
    let tiny = RetryPolicy::exponential(Duration::from_nanos(1), MAX_DELAY).unwrap();
    let tiny = tiny.attempts(u32::MAX);
    assert_eq!(tiny.next(at, 1.0), Some(MAX_DELAY));
    assert_eq!(tiny.next(41, 1.0), Some(Duration::from_nanos(1 << 40)));
    let linear = RetryPolicy::linear(MAX_DELAY).unwrap().attempts(u32::MAX);
    assert_eq!(linear.next(at, 0.0), Some(MAX_DELAY));
    assert_eq!(linear.next(u32::MAX, 0.0), None);
    for random in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(tiny.next(at, random).is_some());
    }
}

#[test]
fn written_forms() {
    let ladder = from_json(r#"{"ladder": ["15s", "1h 30m", "2 days", "0"], "attempts": 3}"#);
    let ladder = ladder.unwrap();
    assert_eq!(delays(&ladder), [15, 5400]);
    assert_eq!(
        serde_json::to_string(&ladder).unwrap(),
        r#"{"ladder":["15s","1h30m","48h","0s"],"attempts":3}"#
    );
    assert_eq!(
        from_json(r#""15s, 3m""#),
        from_json(r#"{"ladder": "15s 3m"}"#)
    );
    assert_eq!(from_json(r#""none""#), Ok(RetryPolicy::none()));
    assert_eq!(
        from_json(r#"{"exponential": {"base": "1s", "cap": "1h"}, "attempts": 20}"#),
        Ok(RetryPolicy::exponential(secs(1), mins(60))
            .unwrap()
            .attempts(20))
    );
    assert_eq!(
        from_json(r#"{"linear": {"step": "1m", "cap": "10m"}}"#),
        Ok(RetryPolicy::linear_up_to(mins(1), mins(10)).unwrap())
    );
    assert_eq!(
        from_json(r#"{"fixed": "30s"}"#),
        Ok(RetryPolicy::fixed(secs(30)).unwrap())
    );
}

#[test]
fn faults_name_part_rule_and_remedy() {
    let ladder = |text: &str| {
        let error = text.parse::<RetryPolicy>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
        error.to_string()
    };
    assert!(ladder("").contains("no rung: add at least one"));
    assert!(ladder("15s -3m").starts_with("rung 2, \"-3m\", is negative"));
    assert!(ladder("15s 15").starts_with("rung 2, \"15\", is not a duration: write a number"));
    assert!(ladder("5s 87673h").starts_with("rung 2 of the ladder is 315622800 s"));
    assert!(ladder(&"1s ".repeat(65)).contains("more than 64 rungs"));
    assert!("1s ".repeat(64).parse::<RetryPolicy>().is_ok());
    assert!("3653d".parse::<RetryPolicy>().is_ok());

    let fault = |text: &str| from_json(text).unwrap_err();
    assert!(fault(r#"{"ladder": []}"#).contains("no rung"));
    assert!(fault(r#"{"ladder": [15]}"#).contains("a ladder is a list of durations"));
    assert!(fault(r#"{"ladder": "none", "attempts": 0}"#).contains("`attempts` is 0"));
    assert!(fault(r#"{"fixed": "1s", "ladder": ["1s"]}"#).contains("exactly one shape"));
    assert!(fault(r#"{"attempts": 3}"#).contains("exactly one shape"));
    assert!(fault(r#"{"rungs": ["1s"]}"#).contains("unknown field `rungs`"));
    assert!(fault(r#"{"exponential": {"base": "1h", "cap": "1s"}}"#).contains("cap of the policy"));
    assert!(fault(r#"{"exponential": {"base": "0", "cap": "1s"}}"#).contains("use `fixed`"));
    assert!(fault(r#"{"linear": {"step": "0s"}}"#).contains("use `fixed`"));
    assert!(fault("7").contains("a retry policy: a ladder such as"));
}

fn any_delay() -> impl Strategy<Value = Duration> {
    (0..=MAX_DELAY.as_nanos()).prop_map(|nanos| Duration::from_nanos(nanos as u64))
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let pair = || (any_delay(), any_delay()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let shape = prop_oneof![
        prop::collection::vec(any_delay(), 1..=64).prop_map(RetryPolicy::ladder),
        pair().prop_map(|(base, cap)| RetryPolicy::exponential(base, cap)),
        pair().prop_map(|(step, cap)| RetryPolicy::linear_up_to(step, cap)),
        any_delay().prop_map(RetryPolicy::linear),
        any_delay().prop_map(RetryPolicy::fixed),
        Just(()).prop_map(|()| Ok(RetryPolicy::none())),
    ];
    let shape = shape.prop_filter_map("a base or step of zero", |policy| policy.ok());
    (shape, any::<Option<u32>>()).prop_map(|(policy, limit)| match limit {
        Some(limit) => policy.attempts(limit),
        None => policy,
    })
}

/// The words between backticks in an error.
fn quoted(error: &str) -> BTreeSet<String> {
    error
        .split('`')
        .skip(1)
        .step_by(2)
        .map(Into::into)
        .collect()
}

#[test]
fn every_shape_is_named_in_an_error_and_drawn() {
    let mut shapes = quoted(&from_json(r#"{"unknown": 1}"#).unwrap_err());
    shapes.retain(|field| field != "unknown" && field != "attempts");
    assert_eq!(
        quoted(&from_json("{}").unwrap_err()),
        shapes,
        "the error for a table without a shape, in src/retry/written.rs, names every shape"
    );
    let mut runner = TestRunner::deterministic();
    let mut drawn = BTreeSet::new();
    for _ in 0..200 {
        let policy = any_policy().new_tree(&mut runner).unwrap().current();
        if let serde_json::Value::Object(table) = serde_json::to_value(policy).unwrap() {
            drawn.extend(table.into_iter().map(|(field, _)| field));
        }
    }
    drawn.remove("attempts");
    assert_eq!(drawn, shapes, "`any_policy` draws every shape");
    for shape in shapes {
        assert!(
            include_str!("../../docs/daemon.md").contains(&format!("\n| `{shape} = ")),
            "docs/daemon.md has no row for {shape} in its table of shapes"
        );
    }
}

proptest! {
    #[test]
    fn a_delay_stays_in_its_bounds(policy in any_policy(), attempt: u32, random: f64) {
        match policy.next(attempt, random) {
            None => prop_assert!(attempt >= policy.max_attempts()),
            Some(delay) => {
                prop_assert!(attempt < policy.max_attempts());
                prop_assert!(delay <= MAX_DELAY);
            }
        }
    }

    #[test]
    fn jitter_is_below_its_window(base in 1_u64..1 << 40, attempt in 1_u32..200, random in 0.0..1.0) {
        let cap = secs(86_400);
        let policy = RetryPolicy::exponential(Duration::from_nanos(base), cap.max(Duration::from_nanos(base)));
        let Shape::Exponential { base, cap } = policy.as_ref().unwrap().shape.clone() else { unreachable!() };
        let window = base.as_secs_f64() * 2_f64.powi(attempt as i32 - 1);
        let delay = policy.unwrap().attempts(u32::MAX).next(attempt, random).unwrap();
        prop_assert!(delay <= cap);
        prop_assert!((delay.as_secs_f64() - window.min(cap.as_secs_f64()) * random).abs() < 1e-3);
    }

    #[test]
    fn a_written_policy_is_read_back(policy in any_policy()) {
        let text = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<RetryPolicy>(&text).unwrap(), policy);
    }

    #[test]
    fn parsing_never_panics(
        text: String,
        dense in "[-+0-9.,:hmsdwyPTμuno ]{0,40}",
        table in r#"[{}\[\]":, a-z0-9-]{0,60}"#,
    ) {
        for text in [&text, &dense] {
            if let Ok(policy) = text.parse::<RetryPolicy>() {
                prop_assert_eq!(policy.shape.check(), Ok(()), "{}", text);
            }
            let _ = from_json(&serde_json::to_string(text).unwrap());
            for table in [
                format!(r#"{{"ladder": {table}}}"#),
                format!(r#"{{"fixed": "{table}"}}"#),
                format!(r#"{{"linear": {{"step": "{dense}", "cap": {table}}}}}"#),
                format!(r#"{{"exponential": {{"base": "{dense}", "cap": "{dense}"}}, "attempts": 0{table}}}"#),
            ] {
                let _ = from_json(&table);
            }
        }
    }

    #[test]
    fn a_rung_that_is_no_duration_is_named(
        rungs in prop::collection::vec("[1-9][0-9]?(ms|s|m|h)", 1..9),
        at: prop::sample::Index,
        wrong in "[a-z]{1,9}[0-9]|[0-9]{1,9}|-[1-9]s",
    ) {
        let at = at.index(rungs.len());
        let mut rungs = rungs;
        prop_assume!(wrong != "0");
        rungs[at] = wrong;
        let fault = rungs.join(" ").parse::<RetryPolicy>().unwrap_err();
        prop_assert_eq!(fault.kind(), ErrorKind::InvalidPolicy);
        let named = format!("rung {}, {:?}, is ", at + 1, rungs[at]);
        prop_assert!(fault.to_string().starts_with(&named), "{}", fault);
        let table = serde_json::json!({ "ladder": rungs }).to_string();
        prop_assert!(from_json(&table).unwrap_err().starts_with(&named));
    }
}
