//! Properties of records: any content comes back as it was written, and no damage panics.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

/// Values of fields that a later version may write: any JSON, with numbers that fit into 64 bits.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn policy() -> impl Strategy<Value = RetryPolicy> {
    let rungs = vec(0..1_000_000_u64, 1..9);
    rungs.prop_map(|rungs| {
        RetryPolicy::ladder(rungs.into_iter().map(Duration::from_millis)).unwrap()
    })
}

fn header() -> impl Strategy<Value = Header> {
    let terms = (
        proptest::option::of(policy()),
        any::<Option<u32>>(),
        any::<Option<u64>>(),
    );
    let terms = terms.prop_map(|(retry, max_attempts, timeout_ms)| Terms {
        max_lateness: None,
        retry,
        max_attempts,
        timeout_ms,
    });
    // These names are in capitals, so none is a field of this version.
    let other = btree_map("[A-Z\n\"é]{1,8}", json(), 0..4);
    let headers = btree_map(any::<String>(), any::<String>(), 0..3);
    let texts = any::<(Option<String>, Option<String>)>();
    let numbers = (any::<u32>(), 0..1000_u32, any::<Option<u64>>());
    (numbers, texts, headers, terms, other).prop_map(
        |((attempts, us, order), (error, before), headers, terms, other)| Header {
            recur: None,
            v: FIRST,
            us,
            attempts,
            error: error.clone(),
            put_off: error,
            adopted: None,
            unusable: None,
            series: None,
            shift: None,
            headers: headers.into(),
            before,
            order,
            terms,
            other: other.into_iter().collect(),
        },
    )
}

/// A record as the scripts compose it.
fn composed(line: &str, accepted: u64, steps: &[(String, u64)], payload: &[u8]) -> Vec<u8> {
    let steps: String = steps
        .iter()
        .map(|(what, at)| format!(" {what}@{at}"))
        .collect();
    [format!("{line}\n{accepted}{steps}\n").as_bytes(), payload].concat()
}

fn steps() -> impl Strategy<Value = Vec<(String, u64)>> {
    vec(("[a-z]{1,9}", any::<u64>()), 0..9)
}

proptest! {
    #[test]
    fn a_stored_record_is_read_back(
        header in header(),
        accepted: u64,
        steps in steps(),
        payload: Vec<u8>,
    ) {
        let line = header.to_line();
        prop_assert!(!line.contains('\n'), "a header is one line");
        let stored = composed(&line, accepted, &steps, &payload);
        let record = Record::parse(stored).unwrap();
        prop_assert_eq!(&record.header, &header);
        prop_assert_eq!(record.header.to_line(), line);
        prop_assert_eq!(record.accepted, UnixMs(accepted));
        prop_assert_eq!(record.payload, payload);
        let back = record.steps.into_iter().map(|step| (step.what, step.at));
        let steps = steps.into_iter().map(|(what, at)| (what, UnixMs(at).to_system()));
        prop_assert_eq!(back.collect::<Vec<_>>(), steps.collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_begins_anew_keeps_unknown_fields(header in header()) {
        let line = header.untried().to_line();
        let anew = Header::parse(line.as_bytes()).unwrap();
        let expected = Header { attempts: 0, error: None, put_off: None, before: None, ..header };
        prop_assert_eq!(anew, expected);
    }

    #[test]
    fn parsing_never_panics(bytes: Vec<u8>, lines in "[\\PC\n@ {}\":0-9v]{0,80}") {
        for bytes in [bytes, lines.into_bytes()] {
            if let Err(fault) = Record::parse(bytes.clone()) {
                prop_assert_eq!(fault == RecordFault::Missing, bytes.is_empty());
                prop_assert!(fault.to_string().contains("record of this job"), "{}", fault);
            }
        }
    }

    #[test]
    fn a_damaged_record_is_read_or_refused(
        header in header(),
        steps in steps(),
        payload: Vec<u8>,
        at: prop::sample::Index,
        byte: u8,
        cut: bool,
    ) {
        let mut stored = composed(&header.to_line(), 1, &steps, &payload);
        let at = at.index(stored.len());
        if cut {
            stored.truncate(at);
        } else {
            stored[at] = byte;
        }
        let _ = Record::parse(stored);
    }

    #[test]
    fn a_newer_version_is_known_by_its_number(version in VERSION + 1.., field in json()) {
        let line = serde_json::json!({ "attempts": field, "v": version }).to_string();
        let stored = composed(&line, 1, &[], b"");
        prop_assert_eq!(Record::parse(stored).unwrap_err(), RecordFault::Newer(version));
    }

    #[test]
    fn a_fault_names_the_part_of_the_record(header in header(), word in "[^ \n@]{1,9}") {
        let line = header.to_line();
        let fault = |stored: String| Record::parse(stored.into_bytes()).unwrap_err().to_string();
        let steps = fault(format!("{line}\n1 {word}\n"));
        prop_assert!(steps.ends_with("is damaged: its steps do not parse"), "{}", steps);
        let headless = fault(format!("{line} {word}"));
        prop_assert!(headless.ends_with("is damaged: it has no header"), "{}", headless);
    }
}
