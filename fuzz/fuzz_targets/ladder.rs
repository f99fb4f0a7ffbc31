//! A text is a retry policy, and has a delay for each attempt, or it is refused.
#![no_main]

use keyfall::RetryPolicy;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(policy) = text.parse::<RetryPolicy>() {
        assert_eq!(policy.clone(), policy);
        assert!(policy.max_attempts() > 0, "{policy:?}");
    }
});
