//! The commands that do the same in a shell.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// A command to copy.
pub(crate) struct Command {
    /// The program: `keyfall`, `curl` or `redis-cli`.
    pub(crate) program: &'static str,
    pub(crate) line: String,
}

/// The commands that show a job, and its trigger.
pub(crate) fn of_job(key: &str) -> Vec<Command> {
    let quoted = quoted(key);
    let encoded = utf8_percent_encode(key, NON_ALPHANUMERIC);
    // A key that begins with a dash is no flag.
    let end = if key.starts_with('-') { "-- " } else { "" };
    let command = |program, line| Command { program, line };
    vec![
        command("keyfall", format!("keyfall why {end}{quoted}")),
        command(
            "curl",
            format!(
                "curl -H \"authorization: Bearer $KEYFALL_TOKEN\" \"$KEYFALL_API/v1/jobs/{encoded}\""
            ),
        ),
        command("redis-cli", format!("redis-cli PTTL {quoted}")),
    ]
}

/// A word of a shell that stands for exactly this text.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_-./@%+".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_exactly_the_key() {
        for key in [
            "app1:trans:notice:42",
            "a:b:c:x y",
            "a:b:c:'; rm -rf / #",
            "a:b:c:$(touch x)`y`\"\\",
            "a:b:c:new\nline",
        ] {
            let line = format!("printf %s {}", quoted(key));
            let out = std::process::Command::new("sh")
                .args(["-c", &line])
                .output();
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), key);
        }
        let dashed = &of_job("-a:b:c:1")[0].line;
        assert_eq!(dashed, "keyfall why -- -a:b:c:1");
        let curl = &of_job("a:b:c:\"$(x)")[1].line;
        assert!(
            curl.ends_with("/v1/jobs/a%3Ab%3Ac%3A%22%24%28x%29\""),
            "{curl}"
        );
    }
}
