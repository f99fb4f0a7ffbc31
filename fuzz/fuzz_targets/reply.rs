//! Any reply of a server is the answer of a script, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    keyfall::internals::read_reply(bytes);
});
