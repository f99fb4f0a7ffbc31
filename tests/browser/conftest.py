"""One site for all tests, with the same jobs each time; one browser for each sort of reader."""

import subprocess
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.ui import WebDriverWait

from daemon import ROOT, Site

AXE = ROOT / "target/browser/axe.min.js"

# A text that is a script wherever somebody forgets to escape it.
HOSTILE = """"'></script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>{{7*7}}"""


# It turns its end around, and has a letter that nobody sees.
HIDDEN = "pay \u202e001\u202c to\u200b bob"


@pytest.fixture(scope="session")
def site():
    site = Site()
    try:
        fill(site)
        yield site
    finally:
        site.close()


def fill(site):
    """Jobs in each state, with ordinary and with hostile contents."""
    orders = [(1700 + number, 3 + 7 * number) for number in range(12)]
    for order, minutes in orders:
        site.schedule(f"shop:orders:close:{order}", {"order": order, "amount": 990}, after=f"{minutes}m")
    site.schedule("shop:orders:close:9007199254740993", {"exact": 9007199254740993}, after="2h")
    site.schedule("shop:mail:welcome:" + "long-id-" * 28, "a long name", after="3h")
    for number in range(3):
        site.schedule(f"crm:trial:ends:{number}", {"customer": number}, after=f"{number + 1}d")
    site.reshard("crm:trial:ends", 3)
    # An entry of the log of actions.
    site.must("POST", "/v1/history", {"prefix": "crm:", "entries": 4000})
    rule = {"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin"}
    body = {"payload": {"user": 42}, "recurring": rule}
    site.must("PUT", "/v1/jobs/crm:digest:daily:42", body)
    dead = [f"shop:mail:invoice:{number}" for number in range(5)]
    for key in dead:
        site.schedule(key, {"invoice": key[-1]}, after="0s")
    site.bury(dead, "the mail server answered 550: no such user 4711")
    site.schedule("shop:hostile:words:1", {"text": HOSTILE}, headers={"note": HOSTILE}, after="0s")
    site.bury(["shop:hostile:words:1"], HOSTILE)
    site.schedule("crm:hidden:text:1", {"text": HIDDEN}, headers={"note": HIDDEN}, after="4h")
    site.schedule("shop:hostile:words:2", HOSTILE, headers={"note": HOSTILE}, after="1h")


class Browser(webdriver.Chrome):
    """A Chromium without anything that others have stored in it."""

    def __init__(self, folder, script=True, size=(1280, 900)):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for word in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en",
            f"--window-size={size[0]},{size[1]}", f"--user-data-dir={folder}",
        ):
            options.add_argument(word)
        if not script:
            content = {"profile.managed_default_content_settings.javascript": 2}
            options.add_experimental_option("prefs", content)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = subprocess.run(["sh", "-c", "command -v chromedriver"], capture_output=True, text=True)
        super().__init__(options, Service(driver.stdout.strip()))
        self.speak("en")

    def speak(self, language):
        agent = self.execute_script("return navigator.userAgent")
        self.execute_cdp_cmd("Network.setUserAgentOverride", {"userAgent": agent, "acceptLanguage": language})

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width, height):
        # Chromium's own windows have a smallest width.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def complaints(self):
        """What the console complains of, such as a refusal by the content security policy."""
        return [entry["message"] for entry in self.get_log("browser") if entry["level"] == "SEVERE"]

    def leave(self, act):
        """Does something that opens another page, and waits until this one is gone."""
        old = self.find("html")
        act()
        # In the middle of the change, the driver may answer with an error of another name.
        wait = WebDriverWait(self, 30, ignored_exceptions=[WebDriverException])
        wait.until(expected_conditions.staleness_of(old), "the page is still the same")

    def follow(self, act):
        """Does something that opens another page of Keyfall, and waits for that page."""
        self.leave(act)
        self.find("footer")

    def click(self, selector):
        """Clicks a link or a button that opens another page."""
        self.follow(self.find(selector).click)

    def enter(self, site, token=None):
        self.get(site.url + "login")
        self.find("#token").send_keys(token or site.token)
        self.click("form button.main")

    def text(self, selector="body"):
        """The visible text of an element, in one call: the page may be replacing it."""
        self.find(selector)
        return self.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def find(self, selector):
        """The element, which may still be on its way."""
        found = expected_conditions.presence_of_element_located(("css selector", selector))
        return WebDriverWait(self, 30).until(found, f"no {selector} in {self.current_url}")

    def all(self, selector):
        return self.find_elements("css selector", selector)

    def violations(self):
        """What axe-core finds, as short texts."""
        self.execute_script(AXE.read_text())
        found = self.execute_async_script(
            "axe.run(document).then(arguments[arguments.length - 1], e => arguments[0](String(e)))"
        )
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}" for one in found["violations"]
        ]


@pytest.fixture(scope="session")
def browsers(tmp_path_factory):
    """Starts browsers, and ends them."""
    open_ones = []

    def start(**settings):
        open_ones.append(Browser(tmp_path_factory.mktemp("profile"), **settings))
        return open_ones[-1]

    yield start
    for one in open_ones:
        one.quit()


@pytest.fixture(scope="session")
def shared(browsers, site):
    browser = browsers()
    browser.enter(site)
    return browser


@pytest.fixture
def browser(shared):
    """A browser of somebody who has logged in and may do everything."""
    shared.get_log("browser")
    return shared
