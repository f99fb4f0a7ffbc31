"""The pictures of the README and of docs/web.md, if SCREENS names a folder."""

import os
from pathlib import Path

import pytest

from daemon import until

SCREENS = os.environ.get("SCREENS")
PICTURES = {
    "overview": "",
    "jobs": "jobs?q=shop%3A",
    "job": "job?key=shop%3Aorders%3Aclose%3A1700",
    "recurring": "job?key=crm%3Adigest%3Adaily%3A42",
    "letter": "job?key=shop%3Amail%3Ainvoice%3A1",
    "live": "live",
    "dead": "dead",
    "limits": "limits",
    "pauses": "pauses?ask=pause&prefix=shop%3A",
    "log": "actions",
    "workers": "workers",
    "doctor": "doctor",
}


@pytest.fixture(scope="module")
def runs(site):
    """Runs of a minute, which the daemon has written to the series."""
    if not SCREENS:
        return
    for number in range(60):
        site.schedule(f"shop:orders:paid:{number}", {"order": number}, after=f"{number // 4}s")
    left = 60
    while left:
        jobs = site.must("POST", "/v1/pull", {"max": 5, "wait": "5s"})["jobs"]
        for job in jobs:
            site.must("POST", "/v1/leases/finish", {"leases": [job["lease"]]})
        left -= len(jobs)
    tenants = {"per": "header:tenant", "rate": "10/s", "concurrency": 5, "total_rate": "100/s"}
    for kind, limit in (
        ("shop:mail:invoice", {"rate": "10/s", "burst": 5, "concurrency": 3}),
        ("shop:orders:close", tenants),
    ):
        site.must("PUT", f"/v1/kinds/{kind}/limit", limit)
    started = lambda: sum(site.must("GET", "/v1/series?span=hour")["sum"]["started"])
    until(lambda: started() >= 60, "the daemon writes its series", 150)


@pytest.mark.skipif(not SCREENS, reason="SCREENS names no folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PICTURES)
def test_screens(browser, site, runs, name, scheme):
    folder = Path(SCREENS)
    folder.mkdir(parents=True, exist_ok=True)
    browser.prefer(scheme)
    for width, suffix in ((1200, ""), (390, "-phone")):
        browser.resize(width, 760)
        browser.get(site.url + PICTURES[name])
        assert browser.get_screenshot_as_file(str(folder / f"{name}-{scheme}{suffix}.png"))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.prefer("light")
