"""The pictures of the README and of docs/web.md, if SCREENS names a folder."""

import os
from pathlib import Path

import pytest

SCREENS = os.environ.get("SCREENS")
PICTURES = {
    "overview": "",
    "jobs": "jobs?q=shop%3A",
    "job": "job?key=shop%3Aorders%3Aclose%3A1700",
    "letter": "job?key=shop%3Amail%3Ainvoice%3A1",
    "live": "live",
    "dead": "dead",
    "workers": "workers",
    "doctor": "doctor",
}


@pytest.mark.skipif(not SCREENS, reason="SCREENS names no folder")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PICTURES)
def test_screens(browser, site, name, scheme):
    folder = Path(SCREENS)
    folder.mkdir(parents=True, exist_ok=True)
    browser.prefer(scheme)
    for width, suffix in ((1200, ""), (390, "-phone")):
        browser.resize(width, 760)
        browser.get(site.url + PICTURES[name])
        assert browser.get_screenshot_as_file(str(folder / f"{name}-{scheme}{suffix}.png"))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.prefer("light")
