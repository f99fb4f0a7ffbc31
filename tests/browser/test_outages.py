"""A page that is open while things change, or go away and come back."""

import pytest
from selenium.common.exceptions import StaleElementReferenceException

from daemon import until


def reads(browser, selector, text):
    """Whether this part of the page says so; the page may be replacing it."""
    try:
        return text in browser.find(selector).text
    except StaleElementReferenceException:
        return False


@pytest.mark.quick
def test_an_open_overview_shows_new_jobs(browser, site):
    browser.get(site.url)
    assert "crm:news:kind" not in browser.text()
    site.schedule("crm:news:kind:1", {})
    until(lambda: reads(browser, "#live", "crm:news:kind"), "the overview shows the new kind")


def test_a_page_says_that_the_daemon_is_away_and_comes_back(browser, site):
    browser.get(site.url)
    site.kill(site.daemon)
    until(lambda: browser.find("#offline").is_displayed(), "the page says that the daemon is away", 60)
    site.start()
    until(lambda: not browser.find("#offline").is_displayed(), "the page is back", 60)
    site.schedule("crm:back:daemon:1", {})
    until(lambda: reads(browser, "#live", "crm:back:daemon"), "the page goes on", 60)


def test_a_page_says_that_redis_is_away_and_comes_back(browser, site):
    browser.get(site.url)
    site.kill(site.redis)
    until(lambda: browser.all(".trouble.error, #problem"), "the page says that Redis is away", 60)
    site.start_redis()
    until(lambda: site.call("PUT", "/v1/jobs/crm:back:redis:1", {"after": "1h"})[0] < 300, "Redis is back", 60)
    until(lambda: reads(browser, "body", "crm:back:redis"), "the page goes on", 60)
