"""The archive on the page: search, an ended job, requeue, and a database that is away."""

import os
import urllib.parse
from pathlib import Path

import pytest

from conftest import HIDDEN, HOSTILE
from daemon import Site, until
from postgres import Postgres

SCREENS = os.environ.get("SCREENS")
MAIL = "shop:mail:send:"


@pytest.fixture(scope="module")
def archived():
    """A site whose daemon has a database, with ended jobs of each sort."""
    postgres = Postgres()
    site = Site("--database-url", postgres.url)
    site.postgres = postgres
    try:
        site.must("PUT", "/v1/archives", {"prefix": "shop:", "payload": 4096, "keep_months": 24})
        for number in range(6):
            site.schedule(f"{MAIL}{4700 + number}", {"order": number, "amount": 990}, headers={"tenant": "north"})
            site.must("DELETE", f"/v1/jobs/{MAIL}{4700 + number}")
        site.schedule(MAIL + "hostile", {"text": HOSTILE, "more": HIDDEN}, headers={"note": HOSTILE}, after="0s")
        site.bury([MAIL + "hostile"], HOSTILE)
        site.schedule(MAIL + "long-" * 40, "x" * 5000)
        site.must("DELETE", "/v1/jobs/" + MAIL + "long-" * 40)
        until(lambda: len(site.must("GET", "/v1/archive")["jobs"]) == 8, "all are in the archive")
        yield site
    finally:
        site.close()
        postgres.close()


@pytest.fixture
def reader(browser, archived):
    browser.enter(archived)
    return browser


def page_of(site, key):
    run = site.must("GET", "/v1/archive?prefix=" + urllib.parse.quote(key))["jobs"][0]
    return site.url + "ended?" + urllib.parse.urlencode({"key": key, "ended": run["ended"]})


@pytest.mark.quick
def test_an_ended_job_is_found_and_requeued(reader, archived):
    reader.get(archived.url)
    reader.click("nav a[href=archive]")
    reader.find("#prefix").send_keys(MAIL)
    reader.find("#how option[value=cancelled]").click()
    reader.find("#since").send_keys("1h")
    reader.click("form.line button")
    rows = reader.all("table.rows tbody tr")
    assert len(rows) == 7, reader.text()
    reader.click("a.key[href*='4705']")
    assert "990" in reader.text() and "north" in reader.text()
    reader.find("#after").send_keys("2h")
    reader.click("form.fields button.main")
    assert "It is scheduled again." in reader.text()
    assert archived.job(MAIL + "4705")[1]["state"] == "pending"
    reader.click("a[href^='job?key=']")
    # The page of the job leads back to its ends.
    assert reader.find("a[href^='ended?']")


@pytest.mark.quick
@pytest.mark.parametrize("path", ["archive", "archive?error=script", "ended"])
def test_nothing_runs_and_axe_finds_no_obstacle(reader, archived, path):
    address = page_of(archived, MAIL + "hostile") if path == "ended" else archived.url + path
    for width in (1280, 390):
        reader.resize(width, 800)
        reader.get(address)
        assert not reader.execute_script("return window.hacked"), "a hostile text has run"
        assert reader.violations() == []
        wide = reader.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, f"{path} is {wide} wide on a screen of {width}"
    reader.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    if path == "ended":
        # A dead letter that is still there is not run from the archive as well.
        reader.click("form.fields button.main")
        assert "still there" in reader.text()


def test_a_search_of_jobs_without_a_result_leads_to_the_archive(reader, archived):
    reader.get(archived.url + "jobs?q=" + urllib.parse.quote(MAIL + "4701"))
    reader.click("p.empty a[href^='archive']")
    assert MAIL + "4701" in reader.text()


def test_the_archive_is_read_without_scripts_and_without_the_right_to_act(browsers, archived):
    plain = browsers(script=False)
    plain.enter(archived, archived.make_token("read"))
    plain.get(archived.url + "archive?how=cancelled")
    plain.click("table.rows a.key")
    assert "Payload" in plain.text()
    assert plain.all("main form") == []


def test_a_database_that_is_away_is_said_and_the_other_pages_go_on(reader, archived):
    archived.postgres.stop()
    try:
        reader.get(archived.url + "archive?prefix=" + urllib.parse.quote(MAIL))
        assert "PostgreSQL" in reader.text() and "Narrow the search" in reader.text()
        assert reader.find("#prefix").get_attribute("value") == MAIL
        for path in ("", "jobs", "job?key=" + MAIL + "4705", "workers"):
            reader.get(archived.url + path)
            assert "PostgreSQL" not in reader.text(), path
    finally:
        archived.postgres.start()


@pytest.mark.skipif(not SCREENS, reason="SCREENS names no folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screens(reader, archived, scheme):
    reader.prefer(scheme)
    for name, address in (
        ("archive", archived.url + "archive?prefix=" + MAIL),
        ("ended", page_of(archived, MAIL + "4703")),
        ("ended-long", page_of(archived, MAIL + "long-" * 40)),
    ):
        for width, suffix in ((1200, ""), (390, "-phone")):
            reader.resize(width, 760)
            reader.get(address)
            assert reader.get_screenshot_as_file(str(Path(SCREENS) / f"{name}-{scheme}{suffix}.png"))
    reader.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    reader.prefer("light")
