"""A page that is open while things change, or go away and come back."""

import pytest

from daemon import until


@pytest.mark.quick
def test_an_open_overview_shows_new_jobs(browser, site):
    browser.get(site.url)
    assert "crm:news:kind" not in browser.text()
    site.schedule("crm:news:kind:1", {})
    until(lambda: "crm:news:kind" in browser.text("#live"), "the overview shows the new kind")


@pytest.mark.quick
def test_a_live_page_shows_changes_as_they_happen(browser, site):
    browser.get(site.url + "live?prefix=crm%3Alive%3A")
    site.schedule("crm:live:one:1", {})
    until(lambda: "crm:live:one:1" in browser.text("#rows"), "the page shows the schedule")
    site.schedule("crm:other:one:1", {})
    site.must("DELETE", "/v1/jobs/crm:live:one:1")
    until(lambda: len(browser.all("#rows tr")) == 2, "the page shows the cancel")
    assert "crm:other" not in browser.find("#rows").text


@pytest.mark.quick
def test_a_live_page_that_nobody_sees_closes_its_stream_and_catches_up(browser, site):
    browser.get(site.url + "live?prefix=crm%3Ahidden%3A")
    site.schedule("crm:hidden:one:1", {})
    until(lambda: "crm:hidden:one:1" in browser.text("#rows"), "the page shows the schedule")
    streams = """return performance.getEntriesByType("resource").filter(one => one.name.includes("/stream")).length"""
    show(browser, False)
    until(lambda: browser.execute_script(streams) == 1, "the stream ends")
    site.schedule("crm:hidden:one:2", {})
    site.schedule("crm:hidden:one:3", {})
    assert "crm:hidden:one:2" not in browser.find("#rows").text
    show(browser, True)
    until(lambda: "crm:hidden:one:3" in browser.text("#rows"), "the page catches up")
    assert [browser.find("#rows").text.count(f"crm:hidden:one:{number}") for number in (1, 2, 3)] == [1, 1, 1]


def show(browser, is_shown):
    """Tells the page that it is shown, or hidden behind another tab."""
    browser.execute_script(
        """Object.defineProperty(document, "hidden", { configurable: true, value: !arguments[0] });
        document.dispatchEvent(new Event("visibilitychange"));""", is_shown)


def test_a_live_page_goes_on_after_the_daemon_was_away(browser, site):
    browser.get(site.url + "live?prefix=crm%3Aagain%3A")
    site.schedule("crm:again:one:1", {})
    until(lambda: "crm:again:one:1" in browser.text("#rows"), "the page shows the schedule")
    site.kill(site.daemon)
    site.start()
    site.schedule("crm:again:one:2", {})
    until(lambda: "crm:again:one:2" in browser.text("#rows"), "the page goes on", 90)
    # A reopened stream repeats nothing that the page has.
    assert browser.find("#rows").text.count("crm:again:one:1") == browser.find("#rows").text.count("crm:again:one:2")


def test_a_page_says_that_the_daemon_is_away_and_comes_back(browser, site):
    browser.get(site.url)
    site.kill(site.daemon)
    until(lambda: browser.find("#offline").is_displayed(), "the page says that the daemon is away", 60)
    site.start()
    until(lambda: not browser.find("#offline").is_displayed(), "the page is back", 60)
    site.schedule("crm:back:daemon:1", {})
    until(lambda: "crm:back:daemon" in browser.text("#live"), "the page goes on", 60)


def test_a_page_says_that_redis_is_away_and_comes_back(browser, site):
    browser.get(site.url)
    site.kill(site.redis)
    until(lambda: browser.all(".trouble.error, #problem"), "the page says that Redis is away", 60)
    site.start_redis()
    until(lambda: site.call("PUT", "/v1/jobs/crm:back:redis:1", {"after": "1h"})[0] < 300, "Redis is back", 60)
    until(lambda: "crm:back:redis" in browser.text("body"), "the page goes on", 60)
