//! What single pages show, and in which case.

use std::time::Duration;

use super::Calls;

#[tokio::test(start_paused = true)]
async fn a_live_page_whose_past_is_late_follows_all_the_same() {
    let mut calls = Calls::new("a:b:c:1");
    calls.is_slow = true;
    let site = calls.site(false);
    for (language, slow) in [("en", "are being gathered"), ("zh", "正在汇总")] {
        let accepted = [("accept-language", language)];
        let live = site.get_with("live", &accepted).await;
        assert_eq!(live.status, 200, "{}", live.body);
        assert!(live.body.contains(slow), "{}", live.body);
        // The stream begins with all changes that it finds.
        assert!(live.body.contains("since=0"), "{}", live.body);
        assert!(!live.body.contains("id=\"nothing\""), "{}", live.body);
    }
    let paused = site.get("live?paused=yes").await.body;
    assert!(paused.contains("Load the page again"), "{paused}");
}

#[tokio::test]
async fn a_pause_names_who_paused_and_counts_its_kinds() {
    let site = Calls::new("a:b:c").site(false);
    let pauses = site.get("pauses").await.body;
    assert!(
        pauses.contains("By</th>") && pauses.contains(">a:b:c (ops)</td>"),
        "{pauses}"
    );
    // The kind is counted, and not listed once more.
    assert!(pauses.contains(">1 kind</a>"), "{pauses}");
    assert_eq!(pauses.matches("ask=resume").count(), 2, "{pauses}");
    assert!(pauses.contains(">z:a:b:c</a>"), "{pauses}");
}

#[tokio::test]
async fn the_time_of_a_dead_letter_is_that_of_its_death() {
    let site = Calls::new("a:b:c:1").site(false);
    let pending = site.get("jobs").await.body;
    assert!(pending.contains(">Due</th>"), "{pending}");
    let dead = site.get("jobs?q=state:dead").await.body;
    assert!(
        dead.contains(">Died</th>") && !dead.contains(">Due</th>"),
        "{dead}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_search_goes_on_through_pages_without_a_match() {
    let mut calls = Calls::new("a:b:c:1");
    calls.empty = 9;
    let site = calls.site(false);
    let found = site.get("jobs?q=a%3A%20due%3A%3E2h").await.body;
    assert!(found.contains("a:b:c:1</a>"), "{found}");
    assert_eq!(site.searches(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_slow_search_shows_how_far_it_came_and_goes_on_by_hand() {
    let mut calls = Calls::new("a:b:c:1");
    calls.empty = 9;
    calls.searching = Duration::from_millis(30);
    let site = calls.site(false);
    let some = site.get("jobs?q=a%3A%20due%3A%3E2h").await.body;
    assert!(!some.contains("a:b:c:1</a>"), "{some}");
    assert!(some.contains("cursor=after-2\""), "{some}");
    assert!(some.contains("200 jobs"), "{some}");
    assert_eq!(site.searches(), 2);

    let found = site.get("jobs?q=a%3A%20due%3A%3E2h&cursor=after-9");
    let found = found.await.body;
    assert!(found.contains("a:b:c:1</a>"), "{found}");
}

#[tokio::test]
async fn an_empty_chart_has_its_times() {
    let site = Calls::new("a:b:c").site(false);
    let past = site
        .get_with("past?span=hour", &[("hx-request", "true")])
        .await
        .body;
    for label in ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50"] {
        assert!(
            past.contains(&format!("<span>{label}</span>")),
            "{label}\n{past}"
        );
    }
}

#[tokio::test]
async fn an_error_of_this_page_is_in_the_language_of_the_reader() {
    let site = Calls::new("a:b:c").site(false);
    for (language, remedy) in [
        ("en", "No page has this address."),
        ("zh", "没有此地址的页面"),
    ] {
        let accepted = [("accept-language", language)];
        let answer = site.get_with("nowhere", &accepted).await;
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains(remedy), "{}", answer.body);
    }
}

#[tokio::test]
async fn many_kinds_without_a_route_leave_room_for_the_instances() {
    let site = Calls::new("a:b:c").site(false);
    let is_part = [("hx-request", "true")];
    let workers = site.get_with("workers", &is_part).await.body;
    assert_eq!(
        workers.matches("jobs?q=a%3Ab%3Ac%3A\"").count(),
        20,
        "{workers}"
    );
    assert!(workers.contains("and 5 more kinds"), "{workers}");
}
