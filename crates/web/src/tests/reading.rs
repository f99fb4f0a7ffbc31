//! Languages, links behind a proxy, errors, and what a reader may not do.

use super::Calls;

#[tokio::test]
async fn every_answer_has_a_strict_policy() {
    let site = Calls::new("x").site(false);
    for path in ["", "jobs", "login", "nowhere", "job?key=", "assets/x"] {
        let answer = site.get(path).await;
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{path}");
        assert!(!policy.contains("unsafe"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    }
}

#[tokio::test]
async fn assets_are_kept_for_ever_under_the_names_that_pages_have() {
    let site = Calls::new("x").site(false);
    let page = site.get("").await.body;
    let names: Vec<&str> = page
        .split("\"assets/")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let answer = site.get(&format!("assets/{name}")).await;
        assert_eq!(answer.status, 200, "{name}");
        assert!(answer.header("cache-control").contains("immutable"));
    }
}

#[tokio::test]
async fn the_browser_chooses_the_language() {
    let site = Calls::new("x").site(false);
    let english = site.get("workers").await.body;
    assert!(english.contains("<html lang=\"en\">") && english.contains(">Overview</a>"));
    let chinese = [("accept-language", "zh-CN,zh;q=0.9,en;q=0.8")];
    let chinese = site.get_with("workers", &chinese).await.body;
    assert!(chinese.contains("<html lang=\"zh\">") && chinese.contains(">总览</a>"));
}

#[tokio::test]
async fn times_are_in_the_zone_of_the_reader() {
    let site = Calls::new("x").site(false);
    let utc = site.get("job?key=a:b:c:1").await.body;
    assert!(utc.contains("2026-11-24T12:00:00.123Z") && utc.contains("UTC"));
    let zone = [("cookie", "keyfall_zone=Asia%2FTokyo")];
    let tokyo = site.get_with("job?key=a:b:c:1", &zone).await.body;
    assert!(
        tokyo.contains(" 21:00:00") || tokyo.contains(">21:00:00"),
        "{tokyo}"
    );
    assert!(tokyo.contains("Asia/Tokyo"));
    let wrong = [("cookie", "keyfall_zone=Nowhere")];
    assert_eq!(site.get_with("job?key=a:b:c:1", &wrong).await.status, 200);
}

/// A proxy can put any path before the page: no link begins with a slash or names a host.
#[tokio::test]
async fn links_stay_below_the_path_of_a_proxy() {
    let site = Calls::new("a:b:c:1").site(false);
    for path in [
        "",
        "jobs",
        "job?key=a:b:c:1",
        "live",
        "archive",
        "ended?key=a:b:c:1&ended=2026-11-24T12:00:00.123Z",
        "workers",
        "pauses",
        "limits",
        "doctor",
        "nowhere",
    ] {
        let body = site.get(path).await.body;
        for attribute in [
            "href=\"",
            "src=\"",
            "action=\"",
            "hx-get=\"",
            "sse-connect=\"",
        ] {
            for link in body.split(attribute).skip(1) {
                let link = link.split('"').next().unwrap();
                // Only a trace is in another program.
                if link.starts_with("https://traces.example/") {
                    continue;
                }
                assert!(
                    !link.starts_with('/') && !link.contains("://"),
                    "{path}: {link}"
                );
            }
        }
    }
}

#[tokio::test]
async fn redis_is_away_is_said_and_the_page_loads_itself_again() {
    let mut calls = Calls::new("connection refused");
    calls.is_away = true;
    let site = calls.site(false);
    let answer = site.get("").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("Redis cannot be reached"));
    assert!(answer.body.contains("connection refused"));
    assert!(answer.body.contains("http-equiv=\"refresh\""));
    // A script gets a line above the page, which stays and asks again.
    let part = site.get_with("", &[("hx-request", "true")]).await;
    assert_eq!((part.status, part.header("hx-retarget")), (503, "#fault"));
    assert!(part.body.contains("connection refused") && !part.body.contains("<html"));
    // A form is not sent again.
    let form = site.post("job", &[], "key=a:b:c:1&do=fire").await;
    assert_eq!(form.status, 503);
    assert!(!form.body.contains("http-equiv"));
}

#[tokio::test]
async fn a_reader_gets_no_buttons() {
    let mut calls = Calls::new("a:b:c:1");
    calls.scopes = vec!["read"];
    let site = calls.site(false);
    for path in [
        "job?key=a:b:c:1",
        ENDED,
        "pauses",
        "limits",
        "workers",
        "doctor",
    ] {
        let body = site.get(path).await.body;
        assert!(!body.contains("method=\"post\""), "{path}");
    }
}

#[tokio::test]
async fn a_wrong_form_names_the_field_and_the_remedy() {
    let site = Calls::new("a:b:c:1").site(false);
    for (form, field, remedy) in [
        ("do=postpone", "after", "Write a duration such as 15m"),
        ("do=postpone&after=15", "after", "15"),
        (
            "do=postpone&after=15m&at=2026-12-24T18:00",
            "at",
            "Leave one",
        ),
        ("do=postpone&at=soon", "at", "not a time"),
        ("do=payload&form=json&payload=%7B", "payload", "was JSON"),
        ("do=requeue", "letter", "number"),
    ] {
        let answer = site.post("job", &[], &format!("key=a:b:c:1&{form}")).await;
        assert_eq!(answer.status, 400, "{form}");
        assert!(
            answer.body.contains(&format!("Field: {field}")),
            "{form}: {}",
            answer.body
        );
        assert!(answer.body.contains(remedy), "{form}: {}", answer.body);
    }
    assert_eq!(site.changes(), [""; 0]);
}

#[tokio::test]
async fn a_rule_is_shown_with_its_next_times_before_it_is_stored() {
    let site = Calls::new("a:b:c:1").site(false);
    let body = site.get("job?key=a:b:c:1").await.body;
    assert!(body.contains("At 09:00, in Europe/Berlin"), "{body}");
    assert_eq!(
        body.matches("T07:00:00.000Z").count() + body.matches("T08:00:00.000Z").count(),
        5
    );
    assert!(body.contains("value=\"pause-rule\"") && body.contains("Times left out so far"));
    let body = site.get("job?key=a:b:c:1&rule=every+2h&zone=").await.body;
    assert!(body.contains("value=\"every 2h\"") && body.contains("Save the rule"));
    let body = site.get("job?key=a:b:c:1&rule=%7Bx&zone=").await.body;
    assert!(body.contains("begins like JSON, and is none"), "{body}");
    assert_eq!(
        site.changes(),
        ["POST /v1/rules/preview {\"rule\":{\"every\":\"2h\"}}"]
    );
}

#[tokio::test]
async fn a_move_of_a_series_is_shown_before_it_is_made() {
    let site = Calls::new("a:b:c:1").site(false);
    let body = site.get("job?key=a:b:c:1").await.body;
    assert!(body.contains("name=\"anchor\"") && body.contains("ask=cancel-series"));
    // The plan is no job that could be fired.
    assert!(!body.contains("value=\"fire\""), "{body}");
    let body = site
        .get("job?key=a:b:c:1&anchor=2026-12-24+18:00")
        .await
        .body;
    assert!(
        body.contains("moves to") && body.contains("value=\"move-series\""),
        "{body}"
    );
    let body = site.get("job?key=a:b:c:1&ask=cancel-series").await.body;
    assert!(body.contains("value=\"cancel-series\""), "{body}");
    assert_eq!(
        site.changes(),
        [
            "POST /v1/series/preview {\"key\":\"a:b:c:1\",\"series\":{\"anchor\":\"2026-12-24 18:00\"}}"
        ]
    );
}

#[tokio::test]
async fn forms_make_the_calls_of_the_api() {
    let site = Calls::new("a:b:c:1").site(false);
    let zone = [("cookie", "keyfall_zone=Asia%2FTokyo")];
    for (form, call) in [
        ("do=fire", "POST /v1/jobs/a%3Ab%3Ac%3A1/fire "),
        (
            "do=postpone&after=15m&at=",
            "POST /v1/jobs/a%3Ab%3Ac%3A1/postpone {\"after\":\"15m\"}",
        ),
        (
            "do=postpone&after=&at=2026-12-24T18:00",
            "POST /v1/jobs/a%3Ab%3Ac%3A1/postpone {\"at\":\"2026-12-24T09:00:00.000Z\"}",
        ),
        (
            "do=payload&form=json&payload=%7B%22a%22:9007199254740993%7D",
            "PUT /v1/jobs/a%3Ab%3Ac%3A1/payload {\"payload\":{\"a\":9007199254740993}}",
        ),
        (
            "do=payload&form=text&payload=a%0D%0Ab",
            "PUT /v1/jobs/a%3Ab%3Ac%3A1/payload {\"payload_base64\":\"YQpi\"}",
        ),
        (
            "do=rule&rule=0+9+*+*+*&zone=Asia/Tokyo",
            "PUT /v1/jobs/a%3Ab%3Ac%3A1/rule {\"rule\":{\"cron\":\"0 9 * * *\",\"zone\":\"Asia/Tokyo\"}}",
        ),
        ("do=pause-rule", "POST /v1/jobs/a%3Ab%3Ac%3A1/rule/pause "),
        ("do=resume-rule", "POST /v1/jobs/a%3Ab%3Ac%3A1/rule/resume "),
        (
            "do=move-series&anchor=2026-12-24+18:00",
            "PUT /v1/series/a%3Ab%3Ac%3A1 {\"anchor\":\"2026-12-24 18:00\"}",
        ),
        ("do=cancel-series", "DELETE /v1/series/a%3Ab%3Ac%3A1 "),
        (
            "do=requeue&letter=7",
            "POST /v1/dead/a%3Ab%3Ac%3A1/requeue {\"letter\":7}",
        ),
    ] {
        let answer = site
            .post("job", &zone, &format!("key=a:b:c:1&{form}"))
            .await;
        assert_eq!(answer.status, 303, "{form}: {}", answer.body);
        let to = answer.header("location");
        assert!(to.starts_with("job?key=a%3Ab%3Ac%3A1&done="), "{to}");
        assert_eq!(site.changes().last().unwrap(), call);
    }
    // A long change goes on part by part, by a form that sends itself.
    let form = "do=delete&prefix=a:&reason=order+%23&matched=9&done=4";
    let part = site.post("dead", &[], form).await;
    assert_eq!(part.status, 200);
    assert!(part.body.contains("6 of 9 deleted") && part.body.contains("hx-trigger=\"load\""));
    assert!(
        part.body.contains("name=\"done\" value=\"6\""),
        "{}",
        part.body
    );
    let call = "POST /v1/dead/delete {\"prefix\":\"a:\",\"everything\":false,\
                \"reason\":\"order #\",\"at_most\":2000,\"dry_run\":false}";
    assert_eq!(site.changes().last().unwrap(), call);
    // A preview changes nothing, and the form that follows does.
    site.get("pauses?ask=pause&prefix=a:").await;
    let dry = "POST /v1/pause {\"prefix\":\"a:\",\"everything\":false,\"dry_run\":true}";
    assert_eq!(site.changes().last().unwrap(), dry);
    site.post("pauses", &[], "do=pause&prefix=a:").await;
    let wet = "POST /v1/pause {\"prefix\":\"a:\",\"everything\":false,\"dry_run\":false}";
    assert_eq!(site.changes().last().unwrap(), wet);
}

#[tokio::test]
async fn a_limit_is_set_changed_and_removed_by_a_form() {
    let site = Calls::new("a:b:c").site(false);
    let body = site.get("limits?change=a:b:c").await.body;
    assert!(body.contains("<progress value=\"3\" max=\"5\">"), "{body}");
    assert!(body.contains("jobs?q=a%3Ab%3Ac%3A+state%3Aheld") && body.contains("3 of 5"));
    // The form begins with the limit as it is.
    assert!(body.contains("name=\"rate\" value=\"a:b:c\""));
    assert!(body.contains("name=\"concurrency\" value=\"5\""));
    let form = "do=limit&kind=a:b:c&rate=10%2Fs&burst=&concurrency=+5";
    assert_eq!(site.post("limits", &[], form).await.status, 303);
    let put = "PUT /v1/kinds/a%3Ab%3Ac/limit {\"rate\":\"10/s\",\"concurrency\":5}";
    assert_eq!(site.changes().last().unwrap(), put);
    let wrong = site.post("limits", &[], "do=limit&kind=a:b:c&burst=many");
    let wrong = wrong.await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.body.contains("not a number of jobs"),
        "{}",
        wrong.body
    );
    // A removal asks first.
    let body = site.get("limits?remove=a:b:c").await.body;
    assert!(body.contains("value=\"unlimit\""));
    assert_eq!(site.changes().len(), 1);
    site.post("limits", &[], "do=unlimit&kind=a:b:c").await;
    let delete = "DELETE /v1/kinds/a%3Ab%3Ac/limit ";
    assert_eq!(site.changes().last().unwrap(), delete);
}

#[tokio::test]
async fn a_finding_has_a_button_that_repairs_it() {
    let site = Calls::new("x").site(false);
    for (language, word) in [("en", "Fix"), ("zh", "修复")] {
        let accepted = [("accept-language", language)];
        let doctor = site.get_with("doctor", &accepted).await.body;
        // Of the four findings, one can be repaired.
        assert_eq!(doctor.matches("name=\"fix\"").count(), 1, "{doctor}");
        assert!(doctor.contains(&format!(">{word}</button>")), "{doctor}");
    }
    let answer = site.post("doctor", &[], "fix=x").await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, "doctor?done=x")
    );
    let call = "POST /v1/doctor/fix {\"only\":[\"x\"]}";
    assert_eq!(site.changes(), [call]);
    let done = site.get("doctor?done=x").await.body;
    assert!(
        done.contains("x is repaired, until Redis restarts"),
        "{done}"
    );
    // Only a check that is as it should be counts as repaired.
    let other = site.get("doctor?done=y").await.body;
    assert!(!other.contains("is repaired"), "{other}");

    let refused = Calls::new("refused: NOPERM").site(false);
    let answer = refused.post("doctor", &[], "fix=notify-flags").await;
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains("refused: NOPERM"), "{}", answer.body);
    let foreign = [("sec-fetch-site", "cross-site")];
    let answer = site.post("doctor", &foreign, "fix=x").await;
    assert_eq!((answer.status, site.changes().len()), (403, 1));
}

#[tokio::test]
async fn the_servers_and_shards_are_a_part_that_is_loaded_less_often() {
    let site = Calls::new("a:b:c").site(false);
    let page = site.get("workers").await.body;
    for part in [
        "paces 2, stands by for 1",
        "0.2 ms",
        "had 1 shards",
        "by sentinels",
        "3 s",
        "5 of 16 free",
        "7 s",
        "4 overdue",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert!(
        page.contains("href=\"workers?shards=a%3Ab%3Ac#shards\""),
        "{page}"
    );
    let is_part = [("hx-request", "true")];
    let often = site.get_with("workers", &is_part).await.body;
    assert!(
        !often.contains("id=\"places\"") && often.contains("id=\"live\""),
        "{often}"
    );
    let again = "workers?part=places&shards=a%3Ab%3Ad";
    let places = site.get_with(again, &is_part).await.body;
    assert!(
        places.contains("id=\"places\"") && !places.contains("<html"),
        "{places}"
    );
    assert!(
        places.contains("hx-get=\"workers?part=places&#38;shards=a%3Ab%3Ad\""),
        "{places}"
    );
    let calls = site.calls.lock().unwrap();
    let wanted = "GET /v1/shards?cursor=a%3Ab%3Ad&limit=20 ";
    assert_eq!(
        calls.iter().filter(|call| *call == wanted).count(),
        1,
        "{calls:#?}"
    );
}

#[tokio::test]
async fn a_job_links_to_its_trace() {
    let site = Calls::new("x").site(false);
    let body = site.get("job?key=a:b:c:1").await.body;
    let link = "href=\"https://traces.example/4bf92f3577b34da6a3ce929d0e0e4736\"";
    assert!(body.contains(link), "{body}");
}

/// The page of a run in the archive.
const ENDED: &str = "ended?key=a:b:c:1&ended=2026-11-24T12:00:00.123Z";

#[tokio::test]
async fn the_archive_is_searched_by_all_fields_page_by_page() {
    let site = Calls::new("a:b:c:1").site(false);
    let body = site
        .get("archive?prefix=a:b:&how=buried&since=7d&until=1h&error=no+licence")
        .await
        .body;
    let wanted =
        "GET /v1/archive?error=no+licence&how=buried&limit=50&prefix=a%3Ab%3A&since=168h&until=1h ";
    let calls = site.calls.lock().unwrap().join("\n");
    assert!(calls.contains(wanted), "{calls}");
    let next = "href=\"archive?prefix=a%3Ab%3A&#38;how=buried&#38;since=7d&#38;until=1h&#38;error=no+licence\
         &#38;cursor=a%3Ab%3Ac%3A1\"";
    assert!(body.contains(next), "{body}");
    assert!(body.contains("value=\"no licence\""), "{body}");
    let row = "href=\"ended?key=a%3Ab%3Ac%3A1&#38;ended=2026-11-24T12%3A00%3A00.123Z\"";
    assert!(body.contains(row), "{body}");
    let wrong = site.get("archive?since=soon").await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.body.contains("neither a duration nor a time"),
        "{}",
        wrong.body
    );
    // The ends of a job stand on its page as well, and a search without a job leads to the archive.
    assert!(site.get("job?key=a:b:c:1").await.body.contains(row));
}

#[tokio::test]
async fn an_archive_that_is_away_is_said_above_the_search() {
    let mut calls = Calls::new("connection refused");
    calls.archive_fails = Some("archive_unavailable");
    let site = calls.site(false);
    let answer = site.get("archive?prefix=a:b:").await;
    assert_eq!(answer.status, 503);
    assert!(
        answer.body.contains("connection refused") && answer.body.contains("Narrow the search")
    );
    assert!(answer.body.contains("value=\"a:b:\""), "{}", answer.body);
    for path in ["", "jobs", "job?key=a:b:c:1", "dead", "workers"] {
        assert_eq!(site.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_ended_job_is_requeued_once_however_often_the_form_is_sent() {
    let site = Calls::new("a:b:c:1").site(false);
    let body = site.get(ENDED).await.body;
    let name = |body: &str| {
        let (_, behind) = body.split_once("name=\"call\" value=\"").unwrap();
        behind.split_once('"').unwrap().0.to_owned()
    };
    let call = name(&body);
    assert_eq!(call.len(), 24);
    assert_ne!(
        name(&site.get(ENDED).await.body),
        call,
        "each page has a call of its own"
    );
    let form = format!("key=a:b:c:1&ended=2026-11-24T12:00:00.123Z&call={call}&after=5m&at=");
    let answer = site.post("ended", &[], &form).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    let wanted = format!(
        "POST /v1/archive/a%3Ab%3Ac%3A1/requeue {{\"ended\":\"2026-11-24T12:00:00.123Z\",\"after\":\"5m\",\"call\":\"{call}\"}}"
    );
    assert_eq!(site.changes(), [wanted]);
    let done = site.get(answer.header("location")).await.body;
    assert!(done.contains("It is scheduled again."), "{done}");

    let mut calls = Calls::new("a:b:c:1");
    calls.is_bare = true;
    let bare = calls.site(false).get(ENDED).await.body;
    assert!(
        bare.contains("does not have the payload of 5 bytes"),
        "{bare}"
    );
    assert!(!bare.contains("method=\"post\""), "{bare}");
}
