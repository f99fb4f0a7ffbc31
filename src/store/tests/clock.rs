//! `lib/clock.lua`: the clock of Redis, as scripts read it.

use std::time::Duration;

use super::support::Bench;
use crate::store::lua::lua;

/// Seconds and microseconds are two numbers of Redis; the second has fewer digits at the begin of
/// each second.
#[tokio::test]
async fn scripts_read_the_clock_at_any_part_of_a_second() {
    let bench = Bench::new().await;
    let source = [
        lua!("lib/clock.lua"),
        "local before = redis.call('TIME')\n\
         local now, stamp = now_us()\n\
         local after = redis.call('TIME')\n\
         return {before[1], before[2], int(now), stamp, after[1], after[2]}",
    ]
    .concat();
    loop {
        let answer: Vec<String> = bench.ask(&["EVAL", &source, "0"]).await;
        let times: Vec<u64> = answer.iter().map(|text| text.parse().unwrap()).collect();
        let [before, before_us, now, stamp, after, after_us] = times[..] else {
            panic!("{times:?}");
        };
        assert_eq!(now, stamp);
        assert!(before * 1_000_000 + before_us <= now, "{times:?}");
        assert!(now <= after * 1_000_000 + after_us, "{times:?}");
        if before_us < 90_000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bench.balanced().await;
}
