//! A text is a pattern or is refused; two of them clash or not. Neither panics.
#![no_main]

use keyfall::Router;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|patterns: (&str, &str)| {
    let (first, second) = patterns;
    let router: Router = Router::new();
    if let Ok(router) = router.try_route(first, async || {}) {
        let _ = router.try_route(second, async || {});
    }
});
