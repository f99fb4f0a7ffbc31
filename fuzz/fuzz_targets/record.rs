//! Whatever stands in Redis under a job is its record, or damage.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    keyfall::internals::read_record(bytes);
});
