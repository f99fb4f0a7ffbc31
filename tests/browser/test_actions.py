"""Each action, as a person clicks it, and what the API says of the job afterwards."""

import time

import pytest


def open_job(browser, site, key):
    browser.get(site.url + "job?key=" + key.replace(":", "%3A"))


def press(browser, word):
    browser.click(f"button[name=do][value={word}]")


@pytest.mark.quick
def test_a_job_is_fired(browser, site):
    site.schedule("crm:act:fire:1", {})
    open_job(browser, site, "crm:act:fire:1")
    press(browser, "fire")
    assert browser.all("[role=status].fine")
    due = site.must("GET", "/v1/jobs/crm:act:fire:1")["due"]
    assert due <= site.must("GET", "/v1/overview")["at"]
    site.must("DELETE", "/v1/jobs/crm:act:fire:1")


@pytest.mark.quick
def test_a_job_is_postponed(browser, site):
    before = site.schedule("crm:act:later:1", {}, after="1h")["due"]
    open_job(browser, site, "crm:act:later:1")
    browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
    browser.find("#after").send_keys("5h")
    press(browser, "postpone")
    assert site.must("GET", "/v1/jobs/crm:act:later:1")["due"] > before


def test_a_wrong_delay_is_refused_with_a_remedy(browser, site):
    due = site.schedule("crm:act:wrong:1", {}, after="1h")["due"]
    open_job(browser, site, "crm:act:wrong:1")
    browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
    browser.find("#after").send_keys("10")
    press(browser, "postpone")
    assert "10s" in browser.text()
    assert site.must("GET", "/v1/jobs/crm:act:wrong:1")["due"] == due


@pytest.mark.quick
def test_a_payload_is_edited(browser, site):
    site.schedule("crm:act:edit:1", {"old": 9007199254740993})
    open_job(browser, site, "crm:act:edit:1")
    browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
    field = browser.find("#edit")
    assert "9007199254740993" in field.get_attribute("value")
    field.clear()
    field.send_keys('{"new": 9007199254740995}')
    press(browser, "payload")
    assert site.must("GET", "/v1/jobs/crm:act:edit:1")["payload"] == {"new": 9007199254740995}


@pytest.mark.quick
def test_a_rule_is_changed_after_a_look_at_its_times_paused_and_resumed(browser, site):
    key = "crm:act:recurs:1"
    body = {"payload": 7, "recurring": {"cron": "0 9 * * *", "zone": "Asia/Tokyo"}}
    site.must("PUT", "/v1/jobs/" + key, body)
    occurrence = lambda: site.must("GET", "/v1/jobs/" + key)["occurrence"]
    open_job(browser, site, key)
    assert "At 09:00, in Asia/Tokyo" in browser.text()
    browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
    field = browser.find("#rule")
    field.clear()
    field.send_keys("every 2h")
    browser.find("#zone").clear()
    browser.click("form[method=get][action=job] button")
    assert "Every 2h" in browser.text()
    assert occurrence()["rule"] == {"cron": "0 9 * * *", "zone": "Asia/Tokyo"}
    press(browser, "rule")
    assert browser.all("[role=status].fine")
    assert occurrence()["rule"] == {"every": "2h"}
    press(browser, "pause-rule")
    assert "paused_since" in occurrence()
    press(browser, "resume-rule")
    assert "paused_since" not in occurrence()
    site.must("DELETE", "/v1/jobs/" + key)


def test_a_series_is_moved_after_a_look_and_cancelled_after_a_question(browser, site):
    key = "crm:act:series:1"
    # An anchor is at most ten years ahead.
    year = time.gmtime().tm_year + 1
    body = {"anchor": f"{year}-12-24 18:00", "zone": "Asia/Tokyo", "at": ["-1h", "-3d 09:00"]}
    site.must("PUT", "/v1/series/" + key, body)
    due = lambda: site.must("GET", "/v1/jobs/" + key + "~-1h")["due"]
    open_job(browser, site, key)
    assert not browser.all("[value=fire]")
    browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
    field = browser.find("#anchor")
    assert field.get_attribute("value") == f"{year}-12-24 18:00:00"
    field.clear()
    field.send_keys(f"{year}-12-25 18:00")
    browser.click("form[method=get][action=job] button")
    assert "moves to" in browser.text()
    assert due() == f"{year}-12-24T08:00:00.000Z"
    press(browser, "move-series")
    assert browser.all("[role=status].fine")
    assert due() == f"{year}-12-25T08:00:00.000Z"
    browser.click("a[href*='ask=cancel-series']")
    press(browser, "cancel-series")
    assert site.job(key)[0] == site.job(key + "~-1h")[0] == 404


@pytest.mark.quick
def test_a_job_is_cancelled_after_a_question(browser, site):
    site.schedule("crm:act:cancel:1", {})
    open_job(browser, site, "crm:act:cancel:1")
    browser.click("a[href*='ask=cancel']")
    assert site.job("crm:act:cancel:1")[0] == 200
    press(browser, "cancel")
    assert site.job("crm:act:cancel:1")[0] == 404


@pytest.mark.quick
def test_a_dead_letter_is_requeued_and_another_deleted(browser, site):
    keys = ["shop:act:dead:1", "shop:act:dead:2"]
    for key in keys:
        site.schedule(key, {}, after="0s")
    site.bury(keys, "it broke")
    open_job(browser, site, keys[1])
    browser.click("a[href*='ask=delete']")
    press(browser, "delete")
    assert site.job(keys[1])[0] == 404
    open_job(browser, site, keys[0])
    press(browser, "requeue")
    assert site.must("GET", "/v1/jobs/" + keys[0])["state"] != "dead"
    site.must("DELETE", "/v1/jobs/" + keys[0])


@pytest.mark.quick
def test_a_prefix_is_paused_after_a_preview_and_resumed(browser, site):
    site.schedule("crm:pause:one:1", {})
    browser.get(site.url + "pauses")
    browser.find("#prefix").send_keys("crm:pause:")
    browser.click("button[name=ask][value=pause]")
    assert "crm:pause:one" in browser.find(".confirm").text
    assert site.must("GET", "/v1/paused")["prefixes"] == []
    press(browser, "pause")
    assert [it["name"] for it in site.must("GET", "/v1/paused")["prefixes"]] == ["crm:pause:"]
    browser.get(site.url)
    assert "crm:pause:" in browser.find("#live section").text
    browser.get(site.url + "pauses?ask=resume&prefix=crm%3Apause%3A")
    press(browser, "resume")
    assert site.must("GET", "/v1/paused")["prefixes"] == []


@pytest.mark.quick
def test_a_limit_is_set_used_and_removed(browser, site):
    for number in range(3):
        site.schedule(f"shop:limit:one:{number}", {}, after="0s")
    browser.get(site.url + "limits?change=shop%3Alimit%3Aone")
    browser.find("#concurrency").send_keys("2")
    press(browser, "limit")
    assert browser.find("[role=status].fine")
    limits = site.must("GET", "/v1/limits")["limits"]
    limit = next(it for it in limits if it["kind"] == "shop:limit:one")
    assert limit["concurrency"] == 2
    pull = {"max": 3, "prefixes": ["shop:limit:one:"], "wait": "2s"}
    jobs = site.must("POST", "/v1/pull", pull)["jobs"]
    assert len(jobs) == 2
    browser.get(site.url + "limits")
    row = next(it for it in browser.all(".rows tbody tr") if "shop:limit:one" in it.text)
    assert "2 of 2" in row.text
    held = row.find_element("css selector", "a[href*=held]")
    assert held.text == "1"
    browser.follow(held.click)
    assert len(browser.all(".rows tbody tr")) == 1
    browser.get(site.url + "limits?remove=shop%3Alimit%3Aone")
    press(browser, "unlimit")
    limits = site.must("GET", "/v1/limits")["limits"]
    assert "shop:limit:one" not in [it["kind"] for it in limits]
    for job in jobs:
        site.must("POST", "/v1/leases/finish", {"leases": [job["lease"]]})
    site.must("DELETE", "/v1/jobs/" + "shop:limit:one:2")


@pytest.mark.quick
def test_a_limit_of_groups_is_set_and_changed(browser, site):
    browser.get(site.url + "limits")
    browser.find("#kind").send_keys("shop:limit:two")
    browser.find("#concurrency").send_keys("1")
    browser.find("#form summary").click()
    for field, value in (
        ("per", "header:tenant"), ("total_rate", "100/s"), ("weights", "acme=2.5\nzeta=0.5"),
    ):
        browser.find("#" + field).send_keys(value)
    press(browser, "limit")
    limits = site.must("GET", "/v1/limits")["limits"]
    limit = next(it for it in limits if it["kind"] == "shop:limit:two")
    assert (limit["per"], limit["concurrency"], limit["total_rate"]) == ("header:tenant", 1, "100/s")
    assert limit["weights"] == {"acme": 2.5, "zeta": 0.5}
    row = next(it for it in browser.all(".rows tbody tr") if "shop:limit:two" in it.text)
    assert "header:tenant" in row.text and "100/s" in row.text
    browser.get(site.url + "limits?change=shop%3Alimit%3Atwo")
    assert browser.find("#per").get_attribute("value") == "header:tenant"
    assert browser.find("#weights").get_attribute("value") == "acme=2.5\nzeta=0.5"
    browser.find("#weights").clear()
    browser.find("#weights").send_keys("acme")
    press(browser, "limit")
    assert "acme=3" in browser.find("main").text
    browser.get(site.url + "limits?remove=shop%3Alimit%3Atwo")
    press(browser, "unlimit")


@pytest.mark.quick
@pytest.mark.parametrize("language, word, note", [("en", "Fix", ": raised to"), ("zh-CN", "修复", "：提高到")])
def test_the_doctor_repairs_a_setting(browser, site, language, word, note):
    site.config("client-output-buffer-limit", "pubsub 33554432 8388608 60")
    browser.speak(language)
    try:
        browser.get(site.url + "doctor")
        button = browser.find("button[name=fix][value=pubsub-buffer]")
        assert button.text == word
        assert browser.violations() == []
        browser.follow(button.click)
        assert "pubsub-buffer" in browser.find("[role=status].fine").text
        assert browser.all("button[name=fix]") == []
        browser.get(site.url + "actions")
        assert "pubsub-buffer" + note in browser.find(".rows tbody tr").text
    finally:
        browser.speak("en")
