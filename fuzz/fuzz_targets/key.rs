//! A text is a job key, and reads the same when it is written, or it is refused.
#![no_main]

use keyfall::JobKey;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(key) = JobKey::parse(text) {
        assert_eq!(key.as_str(), text);
        assert_eq!(text.split(':').count(), 4);
    }
});
