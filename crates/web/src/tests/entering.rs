//! Login, logout, cookies, and requests of other sites.

use super::{Calls, Site, TOKEN};
use crate::Web;

const COOKIE: &str = "keyfall9276=kf_3f9a1c20_secret";

#[tokio::test]
async fn a_token_is_asked_for_and_kept_in_a_cookie() {
    let site = Calls::new("x").site(true);
    let answer = site.get("jobs?q=a%3A").await;
    assert_eq!(answer.status, 303);
    assert_eq!(answer.header("location"), "login?next=jobs%3Fq%3Da%253A");
    let login = site.get("login?next=jobs%3Fq%3Da%253A").await;
    assert_eq!(login.status, 200);
    assert!(
        login.body.contains("value=\"jobs?q=a%3A\""),
        "{}",
        login.body
    );

    let refused = site.post("login", &[], "token=kf_wrong&next=").await;
    assert_eq!((refused.status, refused.header("set-cookie")), (200, ""));
    assert!(refused.body.contains("role=\"alert\""));

    let form = format!("token={TOKEN}&next=jobs%3Fq%3Da%253A");
    let entered = site.post("login", &[], &form).await;
    assert_eq!(entered.status, 303);
    assert_eq!(entered.header("location"), "jobs?q=a%3A");
    let cookie = entered.header("set-cookie");
    assert_eq!(cookie, format!("{COOKIE}; HttpOnly; SameSite=Strict"));
    let inside = site.get_with("jobs?q=a%3A", &[("cookie", COOKIE)]).await;
    assert_eq!(inside.status, 200);

    let left = site.post("logout", &[("cookie", COOKIE)], "").await;
    assert_eq!(left.header("location"), "login");
    assert!(left.header("set-cookie").contains("keyfall9276=; "));
    assert!(left.header("set-cookie").contains("Max-Age=0"));
}

#[tokio::test]
async fn a_cookie_is_secure_behind_https() {
    let site = Calls::new("x").site(true);
    let form = format!("token={TOKEN}");
    let headers = [("x-forwarded-proto", "https"), ("host", "board.example")];
    let entered = site.post("login", &headers, &form).await;
    let cookie = entered.header("set-cookie");
    assert!(cookie.starts_with("keyfall=kf_"), "{cookie}");
    assert!(cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn a_token_that_ended_leads_to_the_login() {
    let site = Calls::new("x").site(true);
    for path in ["", "jobs", "job?key=a:b:c:1", "nowhere"] {
        let old = [("cookie", "keyfall9276=kf_old")];
        let answer = site.get_with(path, &old).await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").starts_with("login"), "{path}");
    }
    // A part of the login page has no place in another page.
    let part = [("cookie", "keyfall9276=kf_old"), ("hx-request", "true")];
    let answer = site.get_with("", &part).await;
    assert_eq!(
        (answer.status, answer.header("hx-redirect")),
        (204, "login")
    );
    let form = "key=a:b:c:1&do=cancel";
    let answer = site
        .post("job", &[("cookie", "keyfall9276=kf_old")], form)
        .await;
    assert_eq!((answer.status, answer.header("location")), (303, "login"));
    assert_eq!(site.changes(), [""; 0]);
}

#[tokio::test]
async fn forms_of_other_sites_change_nothing() {
    let site = Calls::new("a:b:c:1").site(true);
    let form = "key=a:b:c:1&do=cancel";
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let headers = [("cookie", COOKIE), (name, value)];
        for path in [
            "job", "pauses", "limits", "dead", "breakers", "logout", "login",
        ] {
            let answer = site.post(path, &headers, form).await;
            assert_eq!(answer.status, 403, "{path}, {name}: {value}");
            assert_eq!(answer.header("set-cookie"), "");
        }
    }
    assert_eq!(site.changes(), [""; 0]);
    let ours = [
        ("cookie", COOKIE),
        ("sec-fetch-site", "same-origin"),
        ("origin", "http://127.0.0.1:9276"),
    ];
    assert_eq!(site.post("job", &ours, form).await.status, 303);
    assert_eq!(site.changes(), ["DELETE /v1/jobs/a%3Ab%3Ac%3A1 "]);
}

#[tokio::test]
async fn without_tokens_only_names_of_this_machine_are_answered() {
    let site = Calls::new("x").site(false);
    assert_eq!(site.get("").await.status, 200);
    let rebound = [("host", "evil.example:9276")];
    for path in ["", "jobs", "login", "assets/x"] {
        assert_eq!(site.get_with(path, &rebound).await.status, 403, "{path}");
    }
    // With tokens, the page has whatever name its proxy has.
    let site = Calls::new("x").site(true);
    let named = [
        ("host", "board.example"),
        ("cookie", "keyfall=kf_3f9a1c20_secret"),
    ];
    assert_eq!(site.get_with("", &named).await.status, 200);
}

#[tokio::test]
async fn the_page_of_one_person_opens_by_its_secret_and_only_reads() {
    let calls = Calls::new("a:b:c:1");
    let made = calls.made.clone();
    let web = Web::with_secret(calls.clone().router(), "5ec2e7".to_owned());
    let site = Site::of(web, made.clone());
    assert_eq!(site.get("").await.header("location"), "login");
    assert_eq!(
        site.get("open?secret=wrong").await.header("location"),
        "login"
    );
    assert_eq!(site.get("open?secret=wrong").await.header("set-cookie"), "");
    let opened = site.get("open?secret=5ec2e7").await;
    assert_eq!(opened.header("location"), "./");
    let cookie = opened.header("set-cookie").split(';').next().unwrap();
    let with = [("cookie", cookie)];
    let job = site.get_with("job?key=a:b:c:1", &with).await;
    assert_eq!(job.status, 200);
    assert!(!job.body.contains("name=\"do\""), "{}", job.body);
    let form = "key=a:b:c:1&do=fire";
    let refused = site.post("job", &with, form).await;
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("--actions"));
    assert_eq!(site.changes(), [""; 0]);

    let web = Web::with_secret(calls.router(), "5ec2e7".to_owned()).allow_changes();
    let site = Site::of(web, made);
    let job = site.get_with("job?key=a:b:c:1", &with).await;
    assert!(job.body.contains("ask=cancel-series"));
    assert_eq!(site.post("job", &with, form).await.status, 303);
    assert_eq!(site.changes(), ["POST /v1/jobs/a%3Ab%3Ac%3A1/fire "]);
}

#[tokio::test]
async fn a_form_has_a_limit() {
    let site = Calls::new("x").site(false);
    let form = format!("key=a:b:c:1&do=payload&payload={}", "x".repeat(20_000));
    assert_eq!(site.post("job", &[], &form).await.status, 413);
}
