//! Every value of a call is hostile.

use super::Calls;

/// It ends a tag, an attribute of either quote, a script, a comment and an expression.
const HOSTILE: &str = "--></title></script>\"'><script>alert(1)</script><img src=x onerror=alert(1)> \
                       {{7*7}} &lt; javascript:alert(1)\u{202e}\n\r\0";

pub(super) const PAGES: [&str; 21] = [
    "",
    "archive?prefix=x",
    "ended?key=x:y:z:1&ended=2026-11-24T12:00:00.123Z",
    "dead",
    "dead?ask=delete&prefix=x&reason=y",
    "actions",
    "ahead",
    "past",
    "jobs",
    "jobs?q=x:y:z:1",
    "job?key=x:y:z:1",
    "job?key=x:y:z:1&ask=cancel",
    "live",
    "stream",
    "workers",
    "pauses",
    "pauses?ask=pause&prefix=x",
    "limits",
    "limits?change=x:y:z",
    "limits?remove=x:y:z",
    "doctor",
];

#[tokio::test]
async fn no_page_has_markup_of_a_value() {
    let site = Calls::new(HOSTILE).site(false);
    for language in ["en", "zh"] {
        for path in PAGES {
            let answer = site.get_with(path, &[("accept-language", language)]).await;
            assert_eq!(answer.status, 200, "{path}");
            check(path, &answer.body);
        }
    }
}

#[tokio::test]
async fn a_hidden_character_of_a_key_is_shown() {
    let site = Calls::new("a:b:c:\u{202e}1").site(false);
    for path in [
        "", "dead", "actions", "jobs", "live", "workers", "pauses", "limits",
    ] {
        let body = site.get(path).await.body;
        for element in body.split("class=\"key\"").skip(1) {
            let text = element.split(['>', '<']).nth(1).unwrap();
            assert!(!text.contains('\u{202e}'), "{path}: {text}");
        }
        let is_shown = body.contains(">a:b:c:\\u{202e}1<");
        assert!(is_shown, "{path}\n{body}");
    }
    let body = site.get("job?key=a:b:c:%E2%80%AE1").await.body;
    assert!(
        body.contains("<h1 class=\"key\">a:b:c:\\u{202e}1</h1>"),
        "{body}"
    );
    // A form sends the key as it is.
    assert!(body.contains("value=\"a:b:c:\u{202e}1\""), "{body}");
}

/// The page without the parts that hold a text as it is: fields of forms, and commands to copy.
fn without_fields(body: &str) -> String {
    let mut text = body.to_owned();
    for (begin, end) in [
        ("value=\"", "\""),
        ("id=\"", "\""),
        ("href=\"", "\""),
        ("class=\"", "\""),
        ("<textarea", "</textarea>"),
        ("<pre id=\"command-", "</pre>"),
    ] {
        let mut from = 0;
        while let Some(at) = text[from..].find(begin) {
            let at = from + at;
            let inside = at + begin.len();
            let length = text[inside..].find(end).unwrap();
            text.replace_range(at..inside + length + end.len(), " ");
            from = at;
        }
    }
    text
}

#[tokio::test]
async fn a_hidden_character_of_any_text_is_shown() {
    let site = Calls::new("a:b:c:\u{202e}\u{200b}\u{85}1").site(false);
    for path in PAGES {
        let body = site.get(path).await.body;
        let shown = without_fields(&body);
        for hidden in ['\u{202e}', '\u{200b}', '\u{85}'] {
            if let Some(at) = shown.find(hidden) {
                let line = shown[..at].rfind('\n').unwrap_or(0);
                panic!("{path}: {hidden:?} in {}", &shown[line..at]);
            }
        }
    }
}

#[tokio::test]
async fn no_page_has_markup_of_a_request() {
    let site = Calls::new("x").site(false);
    let encoded: String = form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    for path in [
        format!("?prefix={encoded}&cursor={encoded}"),
        format!("jobs?q=%22{encoded}%22"),
        format!("jobs?q=state:{encoded}"),
        format!("jobs?q=due:%3C{encoded}"),
        format!("job?key={encoded}"),
        format!("job?key=a:b:c:1&done={encoded}"),
        format!("live?prefix={encoded}"),
        format!("archive?prefix={encoded}&how={encoded}&error={encoded}&cursor={encoded}"),
        format!("archive?since={encoded}"),
        format!("ended?key={encoded}&ended=2026-11-24T12:00:00.123Z&done={encoded}"),
        format!("pauses?ask=pause&prefix={encoded}"),
        format!("login?next={encoded}"),
        encoded.clone(),
    ] {
        check(&path, &site.get(&path).await.body);
    }
}

#[tokio::test]
async fn errors_are_escaped_too() {
    let mut calls = Calls::new(HOSTILE);
    calls.is_away = true;
    let site = calls.site(false);
    for path in PAGES {
        let answer = site.get(path).await;
        assert!(answer.status == 503 || answer.status == 200, "{path}");
        check(path, &answer.body);
    }
}

/// Nothing of the hostile text is markup.
fn check(path: &str, body: &str) {
    for markup in ["<script>", "<img src=x", "\"'>", "href=\"javascript"] {
        assert!(!body.contains(markup), "{path}: {markup}\n{body}");
    }
    // The scripts of the frame, and no other.
    let scripts = body.matches("<script").count();
    assert!(scripts == 0 || scripts == 3, "{path}: {scripts} scripts");
}
