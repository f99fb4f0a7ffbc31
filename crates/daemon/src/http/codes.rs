//! The codes of errors. Each has a page, which its answers name as their `type`.

use std::fmt;

use axum::extract::Path;

use super::problem::Problem;

macro_rules! codes {
    ($($code:ident $name:literal)*) => {
        /// The code of an error, for programs. Its name stays the same for ever.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Code {
            $($code),*
        }

        impl Code {
            pub(super) const ALL: &[Code] = &[$(Code::$code),*];

            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Code::$code => $name),*
                }
            }

            /// What the error means and what to do about it, in Markdown.
            fn page(self) -> &'static str {
                match self {
                    $(Code::$code => include_str!(concat!("../../errors/", $name, ".md"))),*
                }
            }
        }
    };
}

codes! {
    ArchiveUnavailable "archive_unavailable"
    BodyTimeout "body_timeout"
    Damaged "damaged"
    Forbidden "forbidden"
    Incompatible "incompatible"
    InvalidHeaders "invalid_headers"
    InvalidKey "invalid_key"
    InvalidPayload "invalid_payload"
    InvalidPolicy "invalid_policy"
    InvalidRequest "invalid_request"
    InvalidRule "invalid_rule"
    InvalidTime "invalid_time"
    JobAbsent "job_absent"
    JobNotRecurring "job_not_recurring"
    JobPresent "job_present"
    JobRunning "job_running"
    KindAbsent "kind_absent"
    KindInUse "kind_in_use"
    KindUnlimited "kind_unlimited"
    LetterAbsent "letter_absent"
    LetterPresent "letter_present"
    NoArchive "no_archive"
    OutcomeUnknown "outcome_unknown"
    PayloadTooLarge "payload_too_large"
    PayloadUnarchived "payload_unarchived"
    RateLimited "rate_limited"
    RedisDenied "redis_denied"
    RedisFull "redis_full"
    RedisReadOnly "redis_read_only"
    RunAbsent "run_absent"
    Stopping "stopping"
    TooManyKinds "too_many_kinds"
    TooManyTails "too_many_tails"
    Unannounced "unannounced"
    Unauthorized "unauthorized"
    Unavailable "unavailable"
    UnknownMethod "unknown_method"
    UnknownRoute "unknown_route"
    WebPage "web_page"
}

/// Displays the path of the page, which is the `type` of RFC 9457.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/v1/errors/{}", self.name())
    }
}

/// What an error code means and what to do about it.
#[utoipa::path(get, path = "/v1/errors/{code}", operation_id = "get_error", tag = "about",
    params(("code" = String, Path, description = "The `code` of an error")),
    responses(
        (status = 200, description = "A page in Markdown", body = String, content_type = "text/plain"),
        (status = 404, description = "There is no such code", body = Problem)))]
pub(super) async fn show(Path(name): Path<String>) -> Result<&'static str, Problem> {
    let code = Code::ALL.iter().find(|code| code.name() == name);
    Ok(code.ok_or_else(Problem::unknown_route)?.page())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;

    use keyfall::{RetryPolicy, Rule};

    use super::*;
    #[cfg(feature = "database")]
    use crate::http::wire::Time;

    fn assert_is_example(code: Code, problem: impl Into<Problem>) {
        let example = code.page().split("```json\n").nth(1).unwrap();
        let example = example.split("```").next().unwrap();
        let example: serde_json::Value = serde_json::from_str(example).unwrap();
        let problem: Problem = problem.into();
        assert_eq!(serde_json::to_value(problem).unwrap(), example);
    }

    /// Calls over HTTP hardly ever meet these: `http::errors` of `tests/it` has the others.
    #[test]
    fn the_examples_of_rare_errors_are_real() {
        let second = Duration::from_secs(1);
        let policy = RetryPolicy::exponential(3600 * second, second).unwrap_err();
        assert_is_example(Code::InvalidPolicy, policy);
        let rule = "0 9 30 2 *".parse::<Rule>().unwrap_err();
        assert_is_example(Code::InvalidRule, rule);
        assert_is_example(
            Code::KindUnlimited,
            Problem::kind_unlimited("app1:trans:notice"),
        );
        assert_is_example(Code::Stopping, Problem::stopping());
        #[cfg(feature = "database")]
        {
            let key = "app1:mail:send:42";
            let ended: jiff::Timestamp = "2026-12-24T18:00:00Z".parse().unwrap();
            let bare = Problem::payload_unarchived(&key.parse().unwrap(), Time(ended.into()), 20);
            assert_is_example(Code::PayloadUnarchived, bare);
            assert_is_example(Code::RunAbsent, Problem::run_absent(key, None));
            assert_is_example(Code::LetterPresent, Problem::letter_present(key, 7));
            let away = Problem::archive_away("PostgreSQL cannot be reached: Connection refused");
            assert_is_example(Code::ArchiveUnavailable, away);
        }
    }

    #[test]
    fn every_page_has_a_code_and_the_manual_lists_it() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("errors");
        let pages = std::fs::read_dir(folder).unwrap();
        let pages: BTreeSet<_> = pages
            .map(|page| page.unwrap().file_name().into_string().unwrap())
            .collect();
        let codes = Code::ALL.iter().map(|code| format!("{}.md", code.name()));
        assert_eq!(pages, codes.collect());
        let manual = include_str!("../../../../docs/daemon.md");
        for page in pages {
            let link = format!("(../crates/daemon/errors/{page})");
            assert!(manual.contains(&link), "docs/daemon.md has no {link}");
        }
    }
}
