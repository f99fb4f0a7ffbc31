"""Starts Redis, PostgreSQL, two daemons and Prometheus, has the daemons do a bit of everything, and asks
Prometheus every query of ops/dashboard.json and ops/alerts.yml: each is understood, and each
finds something. What finds nothing on a day like that is listed below, with the reason."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYFALL = ROOT / "target/debug/keyfall"
PATIENCE = 60

# Metrics that the dashboard leaves out on purpose, and the reasons.
NOT_SHOWN = {}

started = []


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def start(name, *command, folder):
    log = open(folder / f"{name}.log", "wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    started.append(process)
    return process


def eventually(what, probe):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = probe()
        except (OSError, subprocess.CalledProcessError):
            answer = None
        if answer:
            return answer
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.1)


def fetch(url, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if data else {}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read().decode()


def call(url, method="GET", body=None):
    return json.loads(fetch(url, method, body))


# ---- what is checked --------------------------------------------------------------------------


def described():
    """The metrics that src/metrics/described.rs and the work on the database describe."""
    text = (ROOT / "src/metrics/described.rs").read_text().split("pub fn describe")[0]
    names = set(re.findall(r'"(keyfall_\w+)"', text))
    for file in (ROOT / "crates/database/src").rglob("*.rs"):
        names |= set(re.findall(r'describe_\w+!\(\s*"(keyfall_\w+)"', file.read_text()))
    return names


def dashboard():
    return json.loads((ROOT / "ops/dashboard.json").read_text())


def panel_queries():
    """(title, expression) of each query of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def alerts(prometheus):
    """The alerts as Prometheus has read them."""
    groups = call(f"{prometheus}/api/v1/rules?type=alert")["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metric(name):
    """The metric that a series belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def check_names(expressions):
    """What is asked for exists, and what exists is asked for."""
    asked = {metric(name) for text in expressions for name in re.findall(r"keyfall_\w+", text)}
    known = described()
    faults = [f"{name} is asked for, and is no metric" for name in asked - known]
    shown = {metric(n) for _, text in panel_queries() for n in re.findall(r"keyfall_\w+", text)}
    faults += [f"{name} is not on the dashboard" for name in known - shown - set(NOT_SHOWN)]
    faults += [f"{name} is on the dashboard" for name in shown & set(NOT_SHOWN)]
    return faults


def check_texts(rules):
    """Each alert says how bad it is, what happened, and what to do with commands that exist."""
    faults, commands = [], set()
    for rule in rules:
        texts, name = rule["annotations"], rule["name"]
        faults += [f"{name}: no {it}" for it in ("summary", "description", "remedy") if not texts.get(it)]
        if rule["labels"].get("severity") not in ("critical", "warning"):
            faults.append(f"{name}: no severity")
        commands |= set(re.findall(r"`keyfall ([a-z]+(?: (?:ls|rm|requeue))?)", " ".join(texts.values())))
    source = (ROOT / "ops/alerts.yml").read_text()
    if source.count("        for: ") != len(rules):
        faults.append("an alert has no `for`")
    tests = (ROOT / "ops/alerts_test.yml").read_text()
    faults += [f"{rule['name']} has no test" for rule in rules if f'alertname="{rule["name"]}"' not in tests]
    readme = (ROOT / "ops/README.md").read_text()
    faults += [f"ops/README.md does not mention {r['name']}" for r in rules if r["name"] not in readme]
    for command in sorted(commands):
        if subprocess.run([KEYFALL, *command.split(), "--help"], capture_output=True).returncode:
            faults.append(f"`keyfall {command}` is no command")
    return faults


def found(prometheus, expression, since):
    """How many series have a value, at any time since then."""
    wanted = urllib.parse.urlencode(
        {"query": expression, "start": since, "end": time.time(), "step": 1}
    )
    try:
        answer = call(f"{prometheus}/api/v1/query_range?{wanted}")
    except urllib.error.HTTPError as error:
        sys.exit(f"Prometheus refuses\n  {expression}\n  {error.read().decode()}")
    series = answer["data"]["result"]
    return sum(any(value != "NaN" for _, value in one["values"]) for one in series)


def as_grafana_asks(expression, variables):
    """With the variables of a dashboard in it. Grafana takes at least four scrapes for a rate."""
    known = {"__rate_interval": "4s", **variables}
    for name, value in known.items():
        expression = expression.replace(f"${name}", value)
    left = re.search(r"\$\w+", expression)
    if left:
        sys.exit(f"no value for {left[0]}: {expression}")
    return expression


def without_limits(expression):
    """What an alert compares: it is empty while all is well, and this is not."""
    return re.sub(r"\s(>|<|==)\s[0-9.]+", "", expression)


# ---- what happens -----------------------------------------------------------------------------

CONFIG = """
[[route]]
pattern = "ops:list:*:*"
target = { list = { key = "ops-list" } }
concurrency = 1

[[route]]
pattern = "ops:pull:*:*"
target = "pull"
retry = "100ms 100ms"

[[route]]
pattern = "ops:plain:*:*"
target = "pull"
adoption = "run"

[[route]]
pattern = "ops:slow:*:*"
target = "pull"
lease = "1s"
"""


def start_postgres(folder):
    """A PostgreSQL whose files and socket are in this folder; its URL. As another user than root, which
    it refuses."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    programs = Path(os.environ.get("KEYFALL_POSTGRES_BIN") or installed[-1])
    user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres", "postgres")
    folder.chmod(0o755)
    make = [programs / "initdb", "-N", "-A", "trust", "-U", "keyfall", "-E", "UTF8", "--locale=C"]
    subprocess.run([*make, "-D", folder / "data"], check=True, capture_output=True, cwd=folder, **user)
    serve = [programs / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=",
             "-c", "fsync=off"]
    with open(folder / "log", "wb") as log:
        started.append(subprocess.Popen(serve, stdout=log, stderr=log, cwd=folder, **user))
    return f"host={folder} user=keyfall dbname=postgres"


def live_a_little(redis, daemon, postgres):
    """Has each thing happen that is counted."""

    def sql(statements):
        return subprocess.run(["psql", "-Atqc", statements, postgres], check=True, capture_output=True)

    def ask(*command):
        return subprocess.run(
            ["redis-cli", "-p", str(redis), *command], check=True, capture_output=True, text=True
        ).stdout

    def schedule(key, after="0s"):
        call(f"{daemon}/v1/jobs/{key}", "PUT", {"payload": {}, "after": after})

    def pull(kind):
        wanted = {"max": 1, "wait": "20s", "kinds": [kind]}
        return call(f"{daemon}/v1/pull", "POST", wanted)["jobs"][0]["lease"]

    def settle(verb, lease, **body):
        call(f"{daemon}/v1/leases/{verb}", "POST", {"leases": [lease], **body})

    archive = [KEYFALL, "archive", "set", "--all", "--api", daemon]
    subprocess.run(archive, check=True, capture_output=True)
    eventually("the daemons make their tables", lambda: sql("SELECT FROM keyfall_archive"))
    for number in range(3):
        sql(f"SELECT keyfall_schedule('ops:list:ordered:{number}'); SELECT keyfall_schedule('no key')")
        time.sleep(1.5)
    schedule("ops:list:job:later", "1h")
    schedule("ops:list:job:cancelled", "1h")
    call(f"{daemon}/v1/jobs/ops:list:job:cancelled", "DELETE")
    schedule("ops:nobody:job:1")
    call(f"{daemon}/v1/pause", "POST", {"prefix": "ops:list:paused:"})
    schedule("ops:list:paused:1")
    # On time, by event.
    for number in range(30):
        schedule(f"ops:list:job:{number}", "1s")
    # A job that fails, is tried again and is done, and a job that is buried. A rate needs two of
    # them.
    for number in range(3):
        ask("SET", f"ops:plain:job:{number}", "1", "EX", "3600")
        schedule("ops:pull:job:1")
        settle("fail", pull("ops:pull:job"), error="away")
        settle("finish", pull("ops:pull:job"))
        schedule("ops:pull:job:2")
        settle("fail", pull("ops:pull:job"), error="wrong", bury=True)
        # Each in a scrape of its own.
        time.sleep(1.5)
    # A job that another consumer takes when its lease is over.
    schedule("ops:slow:job:1")
    late = pull("ops:slow:job")
    settle("finish", pull("ops:slow:job"))
    settle("finish", late)
    # A foreign key, and events of jobs that no longer exist; more than are noted, without a claim.
    ask("SET", "somebody:else", "1", "PX", "100")
    many = "for i = 1, 5000 do redis.call('PUBLISH', '__keyevent@0__:expired', KEYS[1] .. i) end"
    for kind in ("ops:list:job", "ops:list:paused"):
        ask("EVAL", many, "1", f"{kind}:gone-")
    # A backlog.
    lines = [
        json.dumps({"call": "schedule", "key": f"ops:list:job:burst-{n}", "payload": 1, "after": "1s"})
        for n in range(1000)
    ]
    body = "\n".join(lines).encode()
    request = urllib.request.Request(f"{daemon}/v1/batch", body, method="POST")
    urllib.request.urlopen(request, timeout=PATIENCE).read()
    ask("CLIENT", "KILL", "TYPE", "pubsub")
    time.sleep(0.5)
    ask("CLIENT", "KILL", "TYPE", "normal")
    ended = lambda: call(f"{daemon}/v1/kinds/ops:list:job")["pending"] == 1
    eventually("all is run", ended)


def main():
    folder = Path(tempfile.mkdtemp(prefix="keyfall-ops-"))
    database = Path(tempfile.mkdtemp(prefix="keyfall-ops-pg-"))
    try:
        check(folder, start_postgres(database))
    except BaseException:
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        raise
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(database, ignore_errors=True)


def check(folder, postgres):
    redis_port, prometheus_port = free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    start(
        "redis", "redis-server", str(ROOT / "redis.conf"), "--port", str(redis_port),
        "--dir", str(folder), "--daemonize", "no", folder=folder,
    )
    eventually("Redis answers", lambda: socket.create_connection(("127.0.0.1", redis_port)))
    # Due before there is a worker: only the sweep can find it.
    early = [KEYFALL, "schedule", "--redis-url", redis_url, "ops:list:job:early", "1"]
    subprocess.run(early, check=True, capture_output=True)
    (folder / "keyfall.toml").write_text(CONFIG)

    daemons = []
    for name in ("a", "b"):
        start(
            name, str(KEYFALL), "serve", "--redis-url", redis_url, "--config", "keyfall.toml",
            "--http-listen", "127.0.0.1:0", "--database-url", postgres, folder=folder,
        )
        log = folder / f"{name}.log"
        line = eventually("the daemon listens", lambda: re.search(r"listening on (\S+)", log.read_text()))
        daemons.append(line[1])

    targets = [url.split("://")[1] for url in daemons]
    config = (ROOT / "ops/prometheus.yml").read_text()
    config = config.replace('["127.0.0.1:9276"]', json.dumps(targets))
    config = config.replace("scrape_interval: 15s", "scrape_interval: 1s")
    config = config.replace("scrape_timeout: 10s", "scrape_timeout: 1s")
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(ROOT / "ops/alerts.yml", folder)
    prometheus = f"http://127.0.0.1:{prometheus_port}"
    since = time.time()
    start(
        "prometheus", "prometheus", "--config.file=prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{prometheus_port}",
        folder=folder,
    )
    up = f"{prometheus}/api/v1/query?query=sum(up)"

    def scraped():
        result = call(up)["data"]["result"]
        return result and result[0]["value"][1] == "2"

    eventually("Prometheus has scraped both daemons", scraped)
    live_a_little(redis_port, daemons[0], postgres)
    # Rates count from the first scrape of a counter.
    live_a_little(redis_port, daemons[1], postgres)
    time.sleep(3)

    for daemon in daemons:
        text = fetch(f"{daemon}/metrics")
        linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        if linted.returncode or linted.stdout or linted.stderr:
            sys.exit(f"promtool check metrics: {linted.stdout}{linted.stderr}")

    rules = alerts(prometheus)
    queries = [(f"dashboard, {title}", text) for title, text in panel_queries()]
    notes = [(f"dashboard, {it['name']}", it["expr"]) for it in dashboard()["annotations"]["list"]]
    faults = check_names([text for _, text in queries] + [rule["query"] for rule in rules])
    faults += check_texts(rules)

    for name in sorted(described()):
        any_of = f'{{__name__=~"{name}(_count)?"}}'
        if not found(prometheus, any_of, since):
            faults.append(f"{name} was not scraped")

    # All kinds and instances, and some of them, as Grafana writes that.
    labels = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] != "query":
            continue
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
        match = urllib.parse.urlencode({"match[]": series})
        values = call(f"{prometheus}/api/v1/label/{label}/values?{match}")["data"]
        if not values:
            faults.append(f"the variable {variable['name']} has no values")
        labels[variable["name"]] = values
    everything = {name: ".*" for name in labels}
    some = {name: f"({'|'.join(values)})" for name, values in labels.items()}
    for variables in (everything, some):
        for place, text in queries:
            text = as_grafana_asks(text, variables)
            if not found(prometheus, text, since):
                faults.append(f"{place}: nothing for {text}")
    for place, text in notes:
        found(prometheus, text, since)
    for rule in rules:
        found(prometheus, rule["query"], since)
        if not found(prometheus, without_limits(rule["query"]), since):
            faults.append(f"alert {rule['name']}: nothing for {without_limits(rule['query'])}")

    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(described())} metrics, {len(queries)} queries and {len(rules)} alerts are sound")


if __name__ == "__main__":
    main()
