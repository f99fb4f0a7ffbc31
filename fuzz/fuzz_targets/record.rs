//! Any bytes under a job in Redis are its record, or damage.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    keyfall::internals::read_record(bytes);
});
