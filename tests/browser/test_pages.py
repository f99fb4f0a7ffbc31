"""Each page: it opens without a complaint, escapes what it shows, and can be used by everybody."""

import re
import urllib.parse

import pytest

from conftest import HOSTILE

HOSTILE_JOB = "job?key=shop%3Ahostile%3Awords%3A"
PAGES = {
    "overview": "",
    "jobs": "jobs",
    "search": "jobs?q=shop%3Amail%3A",
    "nothing found": "jobs?q=nobody%3Ahas%3Athis%3A",
    "dead jobs": "jobs?q=state%3Adead",
    "job": "job?key=shop%3Aorders%3Aclose%3A1700",
    "dead job": "job?key=shop%3Amail%3Ainvoice%3A1",
    "hostile job": HOSTILE_JOB + "2",
    "hidden characters": "job?key=crm%3Ahidden%3Atext%3A1",
    "recurring job": "job?key=crm%3Adigest%3Adaily%3A42",
    "rule to confirm": "job?key=crm%3Adigest%3Adaily%3A42&rule=every%2090m&zone=",
    "hostile letter": HOSTILE_JOB + "1",
    "hostile search": "jobs?q=" + urllib.parse.quote(HOSTILE),
    "live": "live",
    "live, hostile": "live?prefix=shop%3Ahostile%3A",
    "by minute": "?by=minute",
    "dead": "dead",
    "actions": "actions",
    "workers": "workers",
    "pauses": "pauses",
    "limits": "limits",
    "limit to change": "limits?change=crm%3Adigest%3Adaily",
    "doctor": "doctor",
    "login": "login",
    "unknown": "nowhere",
}
each_page = pytest.mark.parametrize("page", PAGES)

# Pages on which the library speaks, without errors of handlers.
SAID = {
    "overview": "",
    "job": "job?key=crm%3Awords%3Astory%3A1",
    "recurring job": "job?key=crm%3Adigest%3Adaily%3A42",
    "rule to confirm": "job?key=crm%3Adigest%3Adaily%3A42&rule=every%2090m&zone=",
    "live": "live?prefix=crm%3Adigest%3A",
    "actions": "actions",
    "doctor": "doctor",
    "wrong search": "jobs?q=due%3Asoon",
    "wrong preview": "pauses?ask=pause",
}


@pytest.mark.quick
@each_page
def test_a_page_opens_and_nothing_in_it_runs(browser, site, page):
    browser.get(site.url + PAGES[page])
    assert browser.find("h1").get_attribute("textContent").strip()
    assert not browser.execute_script("return window.hacked"), "a hostile text has run"
    # The browser complains of the status of a page that is an error on purpose.
    complaints = [it for it in browser.complaints() if "the server responded with a status" not in it]
    assert complaints == []


@pytest.mark.quick
@each_page
def test_axe_finds_no_obstacle(browser, site, page):
    browser.get(site.url + PAGES[page])
    assert browser.violations() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@each_page
def test_axe_finds_no_obstacle_on_a_phone(browser, site, page, scheme):
    browser.prefer(scheme)
    browser.resize(375, 740)
    try:
        browser.get(site.url + PAGES[page])
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 375, f"the page is {wide} pixels wide, and must be scrolled sideways"
        assert browser.violations() == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.prefer("light")


@pytest.mark.quick
def test_hostile_texts_are_shown_as_they_are(browser, site):
    for number in ("1", "2"):
        browser.get(site.url + HOSTILE_JOB + number)
        text = browser.text()
        assert "<script>window.hacked=1</script>" in text
        assert "{{7*7}}" in text


@pytest.mark.quick
def test_hidden_characters_of_texts_are_shown(browser, site):
    browser.get(site.url + "job?key=crm%3Ahidden%3Atext%3A1")
    assert r"pay \u202e001\u202c to\u200b bob" in browser.find("#payload").text
    assert r"pay \u{202e}001\u{202c} to\u{200b} bob" in browser.find(".facts.code").text


@pytest.mark.quick
def test_shards_are_shown_with_their_servers(browser, site):
    browser.get(site.url + "workers")
    shards = browser.find("#shards").text
    assert "crm:trial:ends/2" in shards
    assert f"127.0.0.1:{site.redis_port}" in shards


@pytest.mark.quick
def test_numbers_beyond_those_of_javascript_stay_exact(browser, site):
    browser.get(site.url + "job?key=shop%3Aorders%3Aclose%3A9007199254740993")
    assert '9007199254740993' in browser.find("#payload").text


@each_page
def test_a_page_is_in_the_language_of_the_reader(browser, site, page):
    browser.speak("zh-CN")
    try:
        browser.get(site.url + PAGES[page])
        assert browser.find("html").get_attribute("lang").startswith("zh")
        heading = browser.find("h1, #main").get_attribute("textContent")
        assert heading.strip()
        own = browser.find("footer").text
        assert any("\u4e00" <= letter <= "\u9fff" for letter in own), own
    finally:
        browser.speak("en")


@pytest.mark.quick
@pytest.mark.parametrize("page", SAID)
def test_sentences_of_the_api_are_in_the_language_of_the_reader(browser, site, page):
    site.schedule("crm:words:story:1", {}, after="2h")
    browser.speak("zh-CN")
    try:
        browser.get(site.url + SAID[page])
        # In one step: the page loads parts of itself again.
        read = "return [...document.querySelectorAll(arguments[0])].map(it => it.textContent)"
        said = browser.execute_script(read, "main p, main li, main dd, main td, .trouble")
        assert said
        # Commands, settings and names have no four English words in a row.
        english = [it for it in said if re.search(r"\b[a-z]{2,} [a-z]{2,} [a-z]{2,} [a-z]{2,}\b", it)]
        assert english == []
    finally:
        browser.speak("en")


@pytest.mark.quick
def test_a_kind_is_found_on_the_overview(browser, site):
    browser.get(site.url + "?prefix=crm%3A")
    assert browser.find("#prefix").get_attribute("value") == "crm:"
    assert "crm:digest:daily" in browser.text()
    assert "shop:orders:close" not in browser.find("#live table").text


@pytest.mark.quick
def test_the_keyboard_searches_and_moves(browser, site):
    browser.get(site.url + "jobs")
    body = browser.find("body")
    body.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "find"
    browser.follow(lambda: browser.switch_to.active_element.send_keys("shop:orders:close:1703\n"))
    assert "shop:orders:close:1703" in browser.find("#main").text
    browser.get(site.url + "jobs?q=shop%3Aorders%3A")
    browser.find("body").send_keys("jj")
    second = browser.all(".rows tbody a.key")[1]
    assert browser.switch_to.active_element.get_attribute("href") == second.get_attribute("href")
    browser.follow(lambda: browser.switch_to.active_element.send_keys("\n"))
    assert "/ui/job?key=" in browser.current_url


@pytest.mark.quick
def test_the_keyboard_moves_through_the_reasons_of_dead_letters(browser, site):
    browser.get(site.url + "dead")
    browser.find("body").send_keys("j")
    first = browser.all(".rows tbody .reason a")[0]
    assert browser.switch_to.active_element.get_attribute("href") == first.get_attribute("href")


@pytest.mark.quick
@pytest.mark.parametrize("page", ["overview", "dead", "actions", "workers", "doctor"])
def test_a_row_on_a_phone_shows_all_its_values(browser, site, page):
    browser.resize(375, 740)
    try:
        browser.get(site.url + PAGES[page])
        browser.execute_script("for (const it of document.querySelectorAll('details')) it.open = true")
        assert browser.all(".wide")
        for table in browser.all(".wide"):
            wide, seen = (browser.execute_script(f"return arguments[0].{it}", table) for it in ("scrollWidth", "clientWidth"))
            assert wide <= seen, f"{wide} pixels of values in {seen}"
        pages = browser.all("header nav a")
        assert all(it.rect["x"] + it.rect["width"] <= 375 for it in pages), "a page is beyond the edge"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.quick
def test_the_keys_of_a_bar_lead_to_its_jobs(browser, site):
    browser.get(site.url + "?by=day")
    # The last bar: shortly before midnight the jobs of the first fall due before they are looked at.
    browser.follow(lambda: browser.all("#ahead svg a")[-1].send_keys("\n"))
    assert "/ui/jobs?q=" in browser.current_url
    assert browser.all(".rows tbody a.key")
