"""Who gets in, and what a page of somebody else can do: nothing."""

import http.server
import threading

import pytest

from daemon import until


def is_at_login(browser):
    return "/ui/login" in browser.current_url


@pytest.mark.quick
def test_a_stranger_is_asked_for_a_token(browsers, site):
    browser = browsers()
    browser.get(site.url + "jobs?q=shop%3A")
    assert is_at_login(browser)
    browser.find("#token").send_keys("kf_00000000_" + 64 * "0")
    browser.click("form button.main")
    assert browser.all("[role=alert]")
    browser.enter(site)
    assert not is_at_login(browser)
    cookies = [it for it in browser.get_cookies() if it["name"].startswith("keyfall") and it["httpOnly"]]
    assert [it["sameSite"] for it in cookies] == ["Strict"]
    browser.click("form[action=logout] button")
    browser.get(site.url + "jobs")
    assert is_at_login(browser)


@pytest.mark.quick
def test_a_token_that_only_reads_sees_no_action(browsers, site):
    browser = browsers()
    browser.enter(site, site.make_token("read", prefix="shop:"))
    browser.get(site.url + "job?key=shop%3Aorders%3Aclose%3A1700")
    assert "shop:orders:close:1700" in browser.text()
    assert browser.all("button[name=do]") == []
    # Whoever sends the form all the same is refused by the API.
    browser.follow(lambda: browser.execute_script("""
        const form = document.createElement("form");
        form.method = "post"; form.action = "job";
        for (const [name, value] of [["key", "shop:orders:close:1700"], ["do", "cancel"]]) {
            const field = document.createElement("input");
            field.name = name; field.value = value; form.append(field);
        }
        document.body.append(form); form.submit();
    """))
    assert "schedule" in browser.text(), "the refusal names the scope"
    assert site.job("shop:orders:close:1700")[0] == 200
    # And it sees nothing of other prefixes.
    browser.get(site.url + "job?key=crm%3Atrial%3Aends%3A1")
    assert "customer" not in browser.text()


@pytest.mark.quick
def test_a_token_that_only_reads_repairs_nothing(browsers, site):
    site.config("client-output-buffer-limit", "pubsub 33554432 8388608 60")
    browser = browsers()
    browser.enter(site, site.make_token("read"))
    browser.get(site.url + "doctor")
    until(lambda: "pubsub-buffer" in browser.text(), "the doctor has looked again")
    assert browser.all("button[name=fix]") == []
    browser.follow(lambda: browser.execute_script("""
        const form = document.createElement("form");
        form.method = "post"; form.action = "doctor";
        const field = document.createElement("input");
        field.name = "fix"; field.value = "pubsub-buffer"; form.append(field);
        document.body.append(form); form.submit();
    """))
    assert "operate" in browser.text(), "the refusal names the scope"
    finding = [it for it in site.must("GET", "/v1/doctor")["findings"] if it["id"] == "pubsub-buffer"]
    assert finding[0]["fixable"]


@pytest.mark.quick
def test_a_revoked_token_shows_nothing_more(browsers, site):
    token = site.make_token("read")
    browser = browsers()
    browser.enter(site, token)
    browser.get(site.url + "jobs?q=shop%3Aorders%3A")
    assert "shop:orders:close:1700" in browser.text()
    site.revoke(token)

    def is_out():
        browser.get(site.url + "jobs?q=shop%3Aorders%3A")
        return "shop:orders:close:1700" not in browser.text()

    until(is_out, "the revocation takes effect")
    assert is_at_login(browser)


def test_an_expired_token_shows_nothing_more(browsers, site):
    browser = browsers()
    browser.enter(site, site.make_token("read", expires="4s"))
    browser.get(site.url + "jobs?q=shop%3Aorders%3A")
    assert "shop:orders:close:1700" in browser.text()

    def is_out():
        browser.get(site.url + "jobs?q=shop%3Aorders%3A")
        return is_at_login(browser)

    until(is_out, "the token expires")


@pytest.mark.quick
def test_a_form_of_another_site_changes_nothing(browser, site):
    site.schedule("crm:forged:cancel:1", {})
    form = f"""<!doctype html><form method=post action="{site.url}job">
        <input name=key value="crm:forged:cancel:1"><button name=do value=cancel>win</button></form>"""

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(form.encode())

        def log_message(self, *_):
            pass

    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    try:
        # Another port is another origin of the same site, so the cookie goes along; another name is
        # another site.
        for host in ("127.0.0.1", "localhost"):
            browser.get(f"http://{host}:{evil.server_port}/")
            browser.leave(browser.find("button").click)
            assert site.job("crm:forged:cancel:1")[0] == 200
    finally:
        evil.shutdown()


@pytest.mark.quick
def test_everything_works_without_scripts(browsers, site):
    browser = browsers(script=False)
    browser.enter(site)
    assert "shop:orders:close" in browser.find("#main").text
    browser.find("#find").send_keys("crm:plain:html:1")
    site.schedule("crm:plain:html:1", {"without": "script"})
    browser.follow(browser.find("#find").submit)
    browser.click("a.key[href*='crm%3Aplain%3Ahtml%3A1']")
    assert "without" in browser.find("#payload").text
    browser.click("a[href*='ask=cancel']")
    browser.click("button[name=do][value=cancel]")
    assert site.job("crm:plain:html:1")[0] == 404
    site.config("client-output-buffer-limit", "pubsub 33554432 8388608 60")
    browser.get(site.url + "doctor")
    browser.click("button[name=fix][value=pubsub-buffer]")
    assert "pubsub-buffer" in browser.find("[role=status].fine").text
    browser.get(site.url + "workers")
    assert f"127.0.0.1:{site.redis_port}" in browser.find("#places").text
