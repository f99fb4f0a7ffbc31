//! The ranges of values.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::fault::Wrong;
use super::value::Bytes;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Checks a value, and returns its fault.
pub(super) type Rule<T> = fn(&T) -> Result<(), Wrong>;

/// The range of a lease; the library has the same.
pub(super) fn lease(lease: &Duration) -> Result<(), Wrong> {
    within(lease, Duration::from_secs(1)..=DAY, "from 1s to 1d")
}

/// The range of a wait for another party.
pub(super) fn wait(wait: &Duration) -> Result<(), Wrong> {
    within(wait, Duration::from_millis(1)..=HOUR, "from 1ms to 1h")
}

/// The range of a wait at the end; zero is allowed.
pub(super) fn up_to_a_day(wait: &Duration) -> Result<(), Wrong> {
    within(wait, Duration::ZERO..=DAY, "up to 1d")
}

pub(super) fn longer_than_zero(duration: &Duration) -> Result<(), Wrong> {
    if duration.is_zero() {
        return Err(Wrong::new("it is zero", "write a longer time"));
    }
    Ok(())
}

/// The same for an optional value.
pub(super) fn if_any(duration: &Option<Duration>) -> Result<(), Wrong> {
    duration.as_ref().map_or(Ok(()), longer_than_zero)
}

/// At most the largest value in Redis, which is the library's range for payloads.
pub(super) fn size(size: &Bytes) -> Result<(), Wrong> {
    within(size, Bytes(1)..=Bytes(256 << 20), "from 1B to 256MiB")
}

pub(super) fn at_least_one<T: PartialEq + From<u8>>(number: &T) -> Result<(), Wrong> {
    if *number == T::from(0) {
        return Err(Wrong::new("it is 0", "write 1 or more"));
    }
    Ok(())
}

/// The number of ledgers of a kind; the library has the same range.
pub(super) fn shards(shards: &Option<usize>) -> Result<(), Wrong> {
    let most = usize::from(keyfall::MAX_SHARDS);
    within(&shards.unwrap_or(1), 1..=most, "from 1 to 256")
}

#[expect(clippy::ptr_arg, reason = "a rule looks at the value as it is kept")]
pub(super) fn not_empty(text: &String) -> Result<(), Wrong> {
    if text.is_empty() {
        return Err(Wrong::new("it is empty", "write its name"));
    }
    Ok(())
}

#[expect(clippy::ptr_arg, reason = "a rule looks at the value as it is kept")]
pub(super) fn namespace(text: &String) -> Result<(), Wrong> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(is_allowed) {
        return Err(Wrong::new(
            "it has characters other than ASCII letters, digits, `_`, `-` and `.`, or is empty",
            "write 1 to 64 of these",
        ));
    }
    Ok(())
}

/// The address of a trace; browsers refuse other schemes, or run them.
pub(super) fn trace_url(url: &Option<String>) -> Result<(), Wrong> {
    let Some(url) = url else { return Ok(()) };
    let is_web = ["https://", "http://"].iter().any(|scheme| {
        url.strip_prefix(scheme)
            .is_some_and(|rest| !rest.is_empty())
    });
    let is_whole = !url.chars().any(|c| c.is_whitespace() || c.is_control());
    if !is_web || !is_whole || !url.contains("{trace_id}") {
        return Err(Wrong::new(
            "it is no address with a place for the id of a trace",
            "write an address that begins with https:// or http://, has no spaces, and contains \
             {trace_id}",
        ));
    }
    Ok(())
}

fn within<T: PartialOrd>(value: &T, range: RangeInclusive<T>, written: &str) -> Result<(), Wrong> {
    if !range.contains(value) {
        return Err(Wrong::new(
            "it is out of range",
            format_args!("write one {written}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keyfall::target::Pull;
    use keyfall::{Client, Handler, Router};

    use super::*;

    #[test]
    fn the_address_of_a_trace_has_a_place_for_its_id() {
        for (url, is_fine) in [
            ("https://tempo.example.org/trace/{trace_id}", true),
            ("http://localhost:16686/trace/{trace_id}?x=1", true),
            ("https://tempo.example.org/trace/", false),
            ("https://{trace_id} x", false),
            ("javascript:alert(1)//{trace_id}", false),
            ("https://", false),
            ("", false),
        ] {
            assert_eq!(trace_url(&Some(url.to_owned())).is_ok(), is_fine, "{url}");
        }
        assert!(trace_url(&None).is_ok());
    }

    #[test]
    fn the_ranges_agree_with_the_library() {
        let ms = Duration::from_millis;
        for ms in [ms(999), ms(1000), DAY, DAY + ms(1)] {
            let route = Router::<()>::new().try_route("a:b:c:*", Pull::new().lease(ms));
            assert_eq!(lease(&ms).is_ok(), route.is_ok(), "{ms:?}");
        }
        let builder = Client::builder("redis://localhost");
        for ms in [ms(0), ms(1), HOUR, HOUR + ms(1)] {
            let checked = builder.clone().call_timeout(ms).check();
            assert_eq!(wait(&ms).is_ok(), checked.is_ok(), "{ms:?}");
        }
        for bytes in [0, 1, 256 << 20, (256 << 20) + 1] {
            let checked = builder.clone().payload_limit(bytes).check();
            assert_eq!(size(&Bytes(bytes)).is_ok(), checked.is_ok(), "{bytes}");
        }
        for count in [0, 1, 256, 257] {
            let checked = builder.clone().default_shards(count).check();
            let ours = shards(&Some(usize::from(count)));
            assert_eq!(ours.is_ok(), checked.is_ok(), "{count}");
        }
        let long = ["x".repeat(64), "x".repeat(65)];
        for text in ["", "a.b_C-9", "a b", "ä", &long[0], &long[1]] {
            let checked = builder.clone().namespace(text).check();
            assert_eq!(
                namespace(&text.to_owned()).is_ok(),
                checked.is_ok(),
                "{text}"
            );
        }
    }
}
