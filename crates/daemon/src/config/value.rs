//! The written form of values: a text, the same in the file, in the environment and behind a flag.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use keyfall::{MaxLateness, MissingKey};
use tracing_subscriber::EnvFilter;

use super::fault::Wrong;
use crate::duration;

/// Whether plain keys become jobs, and the effect of a missing key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adoption(pub Option<MissingKey>);

/// The TOML type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Number,
    Switch,
}

/// A value that a setting can have.
pub(super) trait Value: Sized {
    const FORM: Form;

    /// Its name in the help.
    const WHAT: &'static str;

    fn parse(text: &str) -> Result<Self, Wrong>;

    /// The value of an absent setting without a default.
    fn absent() -> Option<Self> {
        None
    }

    /// The form of the value in messages: without secrets.
    fn shown(text: &str) -> String {
        text.to_owned()
    }
}

impl<T: Value> Value for Option<T> {
    const FORM: Form = T::FORM;
    const WHAT: &'static str = T::WHAT;

    fn parse(text: &str) -> Result<Self, Wrong> {
        T::parse(text).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn shown(text: &str) -> String {
        T::shown(text)
    }
}

impl Value for String {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "TEXT";

    fn parse(text: &str) -> Result<Self, Wrong> {
        Ok(text.to_owned())
    }
}

impl Value for PathBuf {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "PATH";

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.is_empty() {
            return Err(Wrong::new(
                "it is empty",
                "name a file, or leave the setting out",
            ));
        }
        Ok(text.into())
    }
}

impl Value for bool {
    const FORM: Form = Form::Switch;
    const WHAT: &'static str = "BOOL";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Wrong::new(
                format_args!("{} is not known", cut(text)),
                "write true or false",
            )),
        }
    }
}

impl Value for u64 {
    const FORM: Form = Form::Number;
    const WHAT: &'static str = "NUMBER";

    fn parse(text: &str) -> Result<Self, Wrong> {
        text.parse().map_err(|_| {
            Wrong::new(
                format_args!("{} is not a whole number from 0", cut(text)),
                "write digits only",
            )
        })
    }
}

impl Value for usize {
    const FORM: Form = u64::FORM;
    const WHAT: &'static str = u64::WHAT;

    fn parse(text: &str) -> Result<Self, Wrong> {
        usize::try_from(u64::parse(text)?).map_err(|_| {
            Wrong::new(
                format_args!("{text} is too large"),
                "write a smaller number",
            )
        })
    }
}

impl Value for i32 {
    const FORM: Form = Form::Number;
    const WHAT: &'static str = "NUMBER";

    fn parse(text: &str) -> Result<Self, Wrong> {
        text.parse().map_err(|_| {
            Wrong::new(
                format_args!("{} is not a whole number of 32 bits", cut(text)),
                "write digits, with a minus before them if it is negative",
            )
        })
    }
}

impl Value for NonZeroU32 {
    const FORM: Form = Form::Number;
    const WHAT: &'static str = "NUMBER";

    fn parse(text: &str) -> Result<Self, Wrong> {
        text.parse().map_err(|_| {
            Wrong::new(
                format_args!("{} is not a whole number from 1 to {}", cut(text), u32::MAX),
                "write digits only",
            )
        })
    }
}

impl Value for Duration {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "DURATION";

    fn parse(text: &str) -> Result<Self, Wrong> {
        duration::parse(text).map_err(|wrong| {
            let (rule, remedy) = wrong.told();
            Wrong::new(format_args!("{} {rule}", cut(text)), remedy)
        })
    }
}

impl Value for MaxLateness {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "LIMIT";

    fn parse(text: &str) -> Result<Self, Wrong> {
        text.parse()
            .map_err(|error: keyfall::Error| Wrong(error.to_string()))
    }
}

impl Value for SocketAddr {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "ADDRESS";

    fn parse(text: &str) -> Result<Self, Wrong> {
        text.parse().map_err(|_| {
            Wrong::new(
                format_args!("{} is not an address", cut(text)),
                "write an IP address and a port, such as 127.0.0.1:9276 or [::1]:9276",
            )
        })
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl Value for Bytes {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = match unit.trim_start() {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => 0,
        };
        let bytes = number
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(unit));
        match bytes.filter(|_| unit > 0) {
            Some(bytes) => Ok(Bytes(bytes)),
            None => Err(Wrong::new(
                format_args!("{} is not a size", cut(text)),
                "write a whole number and one of the units B, KiB, MiB and GiB, such as 64KiB",
            )),
        }
    }
}

/// A number of jobs in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: NonZeroU32,
    pub per: Duration,
}

impl Value for Adoption {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "WHAT";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "none" => Ok(Adoption(None)),
            "run" => Ok(Adoption(Some(MissingKey::Run))),
            "cancel" => Ok(Adoption(Some(MissingKey::Cancel))),
            _ => Err(Wrong::new(
                format_args!("{} is not known", cut(text)),
                "write the effect of a missing key, run or cancel, or none to adopt no keys",
            )),
        }
    }
}

impl Value for Rate {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "RATE";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let rate = text.split_once('/').and_then(|(count, unit)| {
            let per = match unit.trim() {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                _ => return None,
            };
            Some(Rate {
                count: count.trim().parse().ok()?,
                per: Duration::from_secs(per),
            })
        });
        rate.ok_or_else(|| {
            Wrong::new(
                format_args!("{} is not a rate", cut(text)),
                "write a whole number from 1, and /s, /m or /h: 50/s",
            )
        })
    }
}

/// A filter of log lines, in the syntax of `tracing_subscriber::EnvFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl Value for LogFilter {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "FILTER";

    fn parse(text: &str) -> Result<Self, Wrong> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(LogFilter(text.to_owned())),
            Err(error) => Err(Wrong::new(
                format_args!("{} is not a filter, {error}", cut(text)),
                "write a level, such as info, or levels by module: info,keyfall=debug",
            )),
        }
    }
}

/// A share of a whole: `10%` or `0.1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

impl Value for Share {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "SHARE";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let share = match text.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
            None => text.trim().parse(),
        };
        let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Share).ok_or_else(|| {
            Wrong::new(
                format_args!("{} is not a share", cut(text)),
                "write a percentage from 0% to 100%, or a number from 0 to 1",
            )
        })
    }
}

/// The URL of a collector of OTLP over HTTP, without the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(pub String);

impl Value for Endpoint {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "URL";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_good = reqwest::Url::parse(text).is_ok_and(|url| {
            let has_user = !url.username().is_empty() || url.password().is_some();
            let is_plain = url.query().is_none() && url.fragment().is_none();
            ["http", "https"].contains(&url.scheme()) && url.has_host() && !has_user && is_plain
        });
        if !is_good {
            return Err(Wrong::new(
                "it is not the URL of a collector",
                "write http://host:4318 or https://…; headers go into the variable \
                 OTEL_EXPORTER_OTLP_HEADERS",
            ));
        }
        Ok(Endpoint(text.trim_end_matches('/').to_owned()))
    }

    /// Hides a part that might be a password.
    fn shown(text: &str) -> String {
        match Endpoint::parse(text) {
            Ok(Endpoint(url)) => url,
            Err(_) => "…".to_owned(),
        }
    }
}

/// The start of a text that may be of any length, in quotes.
pub(super) fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    let start: String = text.chars().take(SHOWN).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault<T: Value + std::fmt::Debug>(text: &str) -> String {
        T::parse(text).expect_err(text).0
    }

    #[test]
    fn shares_and_collectors_are_read_as_people_write_them() {
        assert_eq!(Share::parse("10%").unwrap(), Share(0.1));
        assert_eq!(Share::parse("1").unwrap(), Share(1.0));
        for text in ["", "%", "101%", "-1%", "2", "NaN", "ten"] {
            assert!(fault::<Share>(text).contains("is not a share"), "{text}");
        }
        let url = "http://127.0.0.1:4318/";
        assert_eq!(Endpoint::parse(url).unwrap().0, "http://127.0.0.1:4318");
        for text in [
            "",
            "127.0.0.1:4318",
            "grpc://h",
            "http://",
            "http://u:p@h",
            "http://h?k=p",
        ] {
            let fault = fault::<Endpoint>(text);
            assert!(fault.contains("it is not the URL of a collector"), "{text}");
            assert_eq!(Endpoint::shown(text), "…");
        }
    }

    #[test]
    fn values_are_read_as_people_write_them() {
        assert_eq!(
            Duration::parse("1h 30m").unwrap(),
            Duration::from_secs(5400)
        );
        assert_eq!(
            Duration::parse("2d").unwrap(),
            Duration::from_secs(2 * 86400)
        );
        assert_eq!(Duration::parse("0s").unwrap(), Duration::ZERO);
        assert_eq!(Bytes::parse("64KiB").unwrap(), Bytes(65536));
        assert_eq!(Bytes::parse("4 MiB").unwrap(), Bytes(4 << 20));
        let rate = Rate::parse("50/m").unwrap();
        assert_eq!((rate.count.get(), rate.per), (50, Duration::from_secs(60)));
        assert_eq!(i32::parse("-3").unwrap(), -3);
        assert_eq!(Option::<u64>::parse("7").unwrap(), Some(7));
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_rule_and_the_remedy() {
        for text in ["60 bananas", "", "1mo"] {
            let fault = fault::<Duration>(text);
            assert!(fault.contains("is not a duration; write"), "{fault}");
        }
        assert!(fault::<Duration>("60").contains("has no unit; write"));
        assert!(fault::<Duration>("-1s").contains("negative"));
        for text in ["64", "64KB", "KiB", "-1B", "99999999999999999GiB", ""] {
            assert!(
                fault::<Bytes>(text).contains("is not a size; write"),
                "{text}"
            );
        }
        for text in ["50", "0/s", "50/", "/s", "5/fortnight", "1.5/s"] {
            assert!(
                fault::<Rate>(text).contains("is not a rate; write"),
                "{text}"
            );
        }
        assert!(fault::<bool>("yes").contains("write true or false"));
        assert!(fault::<SocketAddr>("localhost:1").contains("is not an address"));
        assert!(fault::<LogFilter>("keyfall=loud").contains("is not a filter"));
        assert!(fault::<PathBuf>("").contains("it is empty"));
        let long = fault::<u64>(&"x".repeat(1000));
        assert!(long.len() < 150 && long.contains('…'), "{long}");
    }
}
