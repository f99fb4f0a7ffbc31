//! The values from a file, the environment and flags, and the reported faults.

mod alerts;
mod callbacks;
mod classic;
mod targets;

use std::path::Path;
use std::time::Duration;

use keyfall::target::Pull;

use super::fault::Faults;
use super::settings::{SECTIONS, all};
use super::value::Bytes;
use super::value::Form;
use super::{Config, DEFAULT, Flags};

/// The configuration of a text, without other sources.
fn read(text: &str) -> Result<Config, Faults> {
    read_with(text, &[], &[])
}

fn read_with(text: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, Faults> {
    let env = |name: &str| {
        let mut env = env.iter().filter(|(known, _)| *known == name);
        env.next().map(|(_, text)| (*text).to_owned())
    };
    Config::read(Some((Path::new("k.toml"), text)), &env, &Flags::of(flags))
}

/// The faults of a text, one a line.
fn faults(text: &str) -> Vec<String> {
    let faults = read(text).expect_err(text).to_string();
    faults.lines().map(str::to_owned).collect()
}

/// The descriptions of the settings in the form of `default.toml`.
fn listed() -> String {
    let comment =
        |doc: &[&str]| -> String { doc.iter().map(|line| format!("#{line}\n")).collect() };
    let mut text = String::new();
    for section in SECTIONS {
        text += &format!("\n{}[{}]\n", comment(section.doc), section.name);
        for setting in section.settings {
            let (before, value) = match (setting.default, setting.like) {
                (Some(default), None) => ("", default),
                (None, Some(like)) => ("# ", like),
                other => panic!("{}: {other:?}", setting.field()),
            };
            let quote = if setting.form == Form::Text { "\"" } else { "" };
            text += &format!(
                "\n{}{before}{} = {quote}{value}{quote}\n",
                comment(setting.doc),
                setting.name
            );
        }
    }
    text
}

/// The same text, with all commented-out settings switched on.
fn switched_on(text: &str) -> String {
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_lowercase())
    };
    let is_setting = |line: &str| {
        let name = line.split_once(" = ").map(|(name, _)| name);
        name.is_some_and(is_name) || line == "[[route]]"
    };
    let on = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_setting(rest) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(on).collect()
}

#[test]
fn the_default_file_agrees_with_the_list() {
    let listed = listed();
    let start = DEFAULT.find("\n# The Redis").unwrap_or(0);
    let end = DEFAULT.find("\n# The routes").unwrap_or(DEFAULT.len());
    assert!(
        DEFAULT[start..end] == listed,
        "crates/daemon/src/config/default.toml does not hold what the list says:\n{listed}"
    );
}

#[test]
fn the_default_file_is_read_and_changes_nothing() {
    let read = read(DEFAULT).unwrap();
    let nothing = self::read("").unwrap();
    let values = |config: &Config| {
        let Config {
            redis,
            http,
            classic,
            worker,
            alerts,
            tokens,
            log,
            traces,
            routes,
            ..
        } = config;
        format!(
            "{redis:?} {http:?} {classic:?} {worker:?} {alerts:?} {tokens:?} {log:?} {traces:?} \
             {routes:?}"
        )
    };
    assert_eq!(values(&read), values(&nothing));
    let given: Vec<String> = read.given().map(|(field, ..)| field).collect();
    let with_default = all().filter(|setting| setting.default.is_some());
    let with_default: Vec<String> = with_default.map(|setting| setting.field()).collect();
    assert_eq!(given, with_default);
}

#[test]
fn the_commented_out_settings_of_the_default_file_are_valid() {
    let on = switched_on(DEFAULT);
    // All files are missing, the place of Redis is given twice, and there is no other fault.
    for fault in faults(&on) {
        let known = ["_file: ", "tokens.file: ", "redis.nodes: a cluster has no"];
        assert!(known.iter().any(|it| fault.contains(it)), "{fault}");
    }
    for field in super::routes::FIELDS {
        assert!(on.contains(&format!("\n{field} = ")), "{field}");
    }
}

#[test]
fn all_faults_are_reported_at_once_each_with_its_place() {
    let text = r#"
colour = "red"
redis_url = "redis://h"
[redis]
url = "redis://localhost:port"
namespce = "x"
lease = "15s"
allow_eviction = "yes"
call_timeout = 10
[htpp]
listen = "x"
[http]
body_limit = "64KB"
max_connections = "many"
listen = "0.0.0.0:9276"
grace = "2d"
[worker]
lease = "1ms"
dead_letters = 0
[log]
filter = "keyfall=loud"
"#;
    let expected = [
        "k.toml:2:1: colour: there is no such section; there are `redis`, ",
        "k.toml:3:1: redis_url: there is no such section; write it below [redis] as `url`",
        "k.toml:5:7: redis.url: the Redis URL is not valid: the port is not a number",
        "k.toml:6:1: redis.namespce: there is no such setting; did you mean `namespace`?",
        "k.toml:7:1: redis.lease: there is no such setting; `lease` stands below [worker]",
        "k.toml:8:18: redis.allow_eviction: this is a text; write true or false, without quotes",
        "k.toml:9:16: redis.call_timeout: this is a number; write a text, in quotes",
        "k.toml:10:2: htpp: there is no such section; did you mean `http`?",
        "k.toml:13:14: http.body_limit: \"64KB\" is not a size; write a whole number",
        "k.toml:14:19: http.max_connections: this is a text; write a whole number, without quotes",
        "k.toml:15:10: http.listen: 0.0.0.0:9276 can be reached from elsewhere, and there are no",
        "k.toml:16:9: http.grace: it is out of range; write one up to 1d",
        "k.toml:18:9: worker.lease: it is out of range; write one from 1s to 1d",
        "k.toml:19:16: worker.dead_letters: it is 0; write 1 or more",
        "k.toml:21:10: log.filter: \"keyfall=loud\" is not a filter",
    ];
    let faults = faults(text);
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\n{expected}");
    }
}

#[test]
fn invalid_toml_does_not_hide_other_faults() {
    let text =
        "[redis]\nurl = redis://:geheim@h\nnamespce = \"x\"\n[[route]]\npattern = 1\n[http\n";
    let faults = faults(text);
    let places: Vec<&str> = faults
        .iter()
        .map(|it| it.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        places,
        ["k.toml:2:7:", "k.toml:3:1:", "k.toml:5:11:", "k.toml:6:6:"]
    );
    assert!(!faults.concat().contains("geheim"), "{faults:#?}");
}

#[test]
fn all_faults_of_routes_are_reported_each_with_its_line() {
    let text = r#"
[[route]]
pattern = "app1:trans:notice:{id}"
target = "pull"
retry = "15s 3 bananas"
lease = "2d"
timeout = "0s"
[[route]]
pattern = "app1:trans:notice:*"
target = "pul"
[[route]]
pattern = "app1:trans"
target = 7
concurrency = 0
rate = "fast"
payload_limit = "8MiB"
[[route]]
retries = "none"
retry = { exponential = { base = "1s" } }
"#;
    let expected = [
        "k.toml:5:9: route.retry: rung 2, \"3\", is not a duration",
        "k.toml:6:9: route.lease: it is out of range; write one from 1s to 1d",
        "k.toml:7:11: route.timeout: it is zero",
        "k.toml:9:11: route.pattern: `app1:trans:notice:*` clashes with `app1:trans:notice:{id}` \
         at k.toml:3:11: ",
        "k.toml:10:10: route.target: there is no such target; did you mean `pull`?",
        "k.toml:12:11: route.pattern: \"app1:trans\" is not a route pattern: it has 2 segments",
        "k.toml:13:10: route.target: a target is a text or a table; write \"pull\", or {",
        "k.toml:14:15: route.concurrency: \"0\" is not a whole number from 1",
        "k.toml:15:8: route.rate: \"fast\" is not a rate",
        "k.toml:16:17: route.payload_limit: it is more than a request may hold",
        "k.toml:17:1: route.pattern: it is missing; write `pattern = ",
        "k.toml:17:1: route.target: it is missing; write `target = \"pull\"`",
        "k.toml:18:1: route.retries: a route has no such field; did you mean `retry`?",
        "k.toml:19:9: route.retry: missing field `cap`",
    ];
    let faults = faults(text);
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\n{expected}");
    }
    let faults = self::faults("[route]\npattern = \"a:b:c:*\"\n");
    assert!(
        faults[0].contains("routes are tables; write [[route]]"),
        "{faults:#?}"
    );
}

#[test]
fn the_fields_of_a_route_reach_the_library() {
    let text = r#"
[[route]]
pattern = "app1:trans:notice:*"
target = "pull"
retry = "15s 3m"
lease = "30s"
timeout = "5m"
concurrency = 100
rate = "50/s"
payload_limit = "2MiB"
durable = 2
[[route]]
pattern = "app1:trans:notice:{id}"
target = "pull"
priority = -1
retry = { fixed = "1m", attempts = 3 }
"#;
    let config = read(text).unwrap();
    let [first, second] = &config.routes[..] else {
        panic!("{:#?}", config.routes);
    };
    assert_eq!(first.retry.as_ref().unwrap().max_attempts(), 3);
    assert_eq!(second.retry.as_ref().unwrap().max_attempts(), 3);
    assert_eq!(first.rate.unwrap().count.get(), 50);
    assert_eq!(first.concurrency.unwrap().get(), 100);
    assert_eq!(first.payload_limit, Some(Bytes(2 << 20)));
    let routes = format!("{:?}", config.router(&Pull::new()));
    for said in [
        "notice:*",
        "notice:{id}",
        "lease: Some(30s)",
        "priority: -1",
        "Durable { replicas: 2,",
    ] {
        assert!(routes.contains(said), "no {said} in {routes}");
    }
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let text = "[worker]\nlease = \"10s\"\ngrace = \"1s\"\n[http]\naccess_log = false\n";
    let env = [
        ("KEYFALL_WORKER_LEASE", "20s"),
        ("KEYFALL_WORKER_GRACE", "2s"),
        ("KEYFALL_HTTP_ACCESS_LOG", ""),
        ("KEYFALL_HTTP_MAX_CONNECTIONS", "7"),
    ];
    let config = read_with(text, &env, &[("worker-lease", "30s")]).unwrap();
    assert_eq!(config.worker.lease, Duration::from_secs(30));
    assert_eq!(config.worker.grace, Duration::from_secs(2));
    assert_eq!(config.worker.dead_letters, 10_000);
    assert_eq!(config.http.max_connections, 7);
    // An empty variable does not count.
    assert!(!config.http.access_log);
    let given: Vec<String> = config
        .given()
        .map(|(field, value, origin)| format!("{field} = {value} ({origin})"))
        .collect();
    assert_eq!(
        given,
        [
            "http.max_connections = 7 (KEYFALL_HTTP_MAX_CONNECTIONS)",
            "http.access_log = false (k.toml:5:14)",
            "worker.lease = 30s (--worker-lease)",
            "worker.grace = 2s (KEYFALL_WORKER_GRACE)",
        ]
    );
}

#[test]
fn sentinels_are_settings_or_a_url() {
    let secret = Kept::new("sentinel-password", "g/heim\n");
    let file = secret.path();
    for (text, url) in [
        (
            "sentinels = \"a, b:1\"\nmaster = \"main\"".to_owned(),
            "redis+sentinel://a,b:1/main",
        ),
        (
            format!(
                "sentinels = \"a\"\nmaster = \"main\"\nurl = \"rediss://app1@/3\"\n\
                 password_file = \"{file}\"\nsentinel_password_file = \"{file}\"\n\
                 sentinel_user = \"u@\"\nsentinel_tls = true"
            ),
            "rediss+sentinel://app1:g%2Fheim@a/main/3?sentinel_user=u%40&\
             sentinel_password=g%2Fheim&sentinel_tls=true",
        ),
        (
            format!(
                "url = \"redis+sentinel://a/main?sentinel_user=u\"\n\
                 sentinel_password_file = \"{file}\""
            ),
            "redis+sentinel://a/main?sentinel_user=u&sentinel_password=g%2Fheim",
        ),
    ] {
        let config = read(&format!("[redis]\n{text}\n")).unwrap();
        assert_eq!(config.redis.url.reveal(), url);
        assert!(config.names_redis());
        assert!(!format!("{:?}", config.redis).contains("heim"));
    }
    for (text, fault) in [
        (
            "sentinels = \"a\"",
            "redis.sentinels: the name of their primary is missing",
        ),
        (
            "sentinels = \"a,,b\"\nmaster = \"m\"",
            "redis.sentinels: \"\" is not a host",
        ),
        (
            "sentinels = \"a\"\nmaster = \"m\"\nurl = \"redis://h\"",
            "redis.url: it says where Redis is, and so do `redis.sentinels`",
        ),
        (
            "sentinels = \"a\"\nmaster = \"m\"\nurl = \"redis+sentinel://b/m\"",
            "redis.url: it says where Redis is, and so do `redis.sentinels`",
        ),
        ("master = \"m\"", "redis.master: there are no sentinels"),
        (
            "sentinel_tls = true",
            "redis.sentinel_tls: there are no sentinels",
        ),
        (
            "url = \"redis+sentinel://a/m?sentinel_user=u\"\nsentinel_user = \"v\"",
            "redis.sentinel_user: the URL says `sentinel_user` already",
        ),
    ] {
        let faults = faults(&format!("[redis]\n{text}\n"));
        assert!(faults[0].contains(fault), "{text}: {faults:#?}");
    }
    let with_secret = "redis+sentinel://a/m?sentinel_password=geheim";
    let refused = read_with("", &[], &[("redis-url", with_secret)]).unwrap_err();
    assert!(refused.to_string().contains("list its command lines"));
    assert!(!refused.to_string().contains("geheim"));
}

#[test]
fn nodes_of_a_cluster_are_settings_or_a_url() {
    for (text, url) in [
        ("nodes = \"a, b:1\"", "redis+cluster://a,b:1"),
        (
            "nodes = \"a\"\nurl = \"rediss://app1@\"",
            "rediss+cluster://app1@a",
        ),
        ("url = \"redis+cluster://a,b:1\"", "redis+cluster://a,b:1"),
    ] {
        let config = read(&format!("[redis]\n{text}\n")).unwrap();
        assert_eq!(config.redis.url.reveal(), url);
        assert!(config.names_redis());
    }
    for (text, fault) in [
        ("nodes = \"a,/\"", "redis.nodes: \"/\" is not a host"),
        (
            "nodes = \"a\"\nurl = \"redis://h\"",
            "redis.url: it says where Redis is, and so do `redis.nodes`",
        ),
        (
            "nodes = \"a\"\nurl = \"redis://u@/3\"",
            "redis.url: it says where Redis is, and so do `redis.nodes`",
        ),
        (
            "nodes = \"a\"\nurl = \"redis://h redis://i\"",
            "redis.url: it says where Redis is, and so do `redis.nodes`",
        ),
        (
            "nodes = \"a\"\nsentinels = \"b\"\nmaster = \"m\"",
            "redis.nodes: a cluster has no sentinels",
        ),
    ] {
        let faults = faults(&format!("[redis]\n{text}\n"));
        assert!(faults[0].contains(fault), "{text}: {faults:#?}");
    }
}

#[test]
fn several_servers_are_tables_or_a_url() {
    let secret = Kept::new("server-password", "g/heim\n");
    let (file, url) = (
        secret.path(),
        Kept::new("server-url", "redis://:geheim@c\n"),
    );
    let text = format!(
        "[redis]\nnamespace = \"mine\"\nurl = \"redis://127.0.0.1:6379\"\n\
         [[redis.servers]]\nurl = \"redis://app1@a/3\"\npassword_file = \"{file}\"\n\
         [[redis.servers]]\nsentinels = \"b, b:1\"\nmaster = \"main\"\nurl = \"rediss://\"\n\
         sentinel_user = \"u\"\nsentinel_password_file = \"{file}\"\nsentinel_tls = true\n\
         [[redis.servers]]\nurl_file = {:?}\n",
        url.path()
    );
    let config = read(&text).unwrap();
    assert_eq!(
        config.redis.url.reveal(),
        "redis://app1:g%2Fheim@a/3 \
         rediss+sentinel://b,b:1/main?sentinel_user=u&sentinel_password=g%2Fheim&sentinel_tls=true \
         redis://:geheim@c"
    );
    assert!(config.names_redis());
    assert!(!format!("{:?}", config.redis).contains("heim"));
    let given = config
        .given()
        .find(|(field, ..)| field == "redis.url")
        .unwrap();
    assert_eq!(given.2.to_string(), "k.toml:4:1");
    assert!(!given.1.contains("heim"), "{}", given.1);
    // A stronger source replaces all servers of the weaker one.
    let config = read_with(&text, &[], &[("redis-url", "redis://h:8")]).unwrap();
    assert_eq!(config.redis.url.reveal(), "redis://h:8");

    let one = "[[redis.servers]]\nurl = \"redis://a\"\n";
    for (text, fault) in [
        (
            "[redis]\nservers = \"redis://a\"",
            "k.toml:2:1: redis.servers: servers are tables; write",
        ),
        (
            "[redis]\nservers = []",
            "redis.servers: servers are tables; write",
        ),
        (
            "[redis]\nservers = [1]",
            "redis.servers: servers are tables; write",
        ),
        (
            "[[redis.server]]\nurl = \"redis://a\"",
            "redis.server: there is no such setting",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a\"\nport = 1",
            "redis.servers.port: `servers` has no such field",
        ),
        (
            "[[redis.servers]]\n",
            "redis.servers.url: the address of this server is missing",
        ),
        (
            "[[redis.servers]]\nurl = 7",
            "redis.servers.url: this is a number; write a text",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a\"\nurl_file = \"b\"",
            "k.toml:3:12: redis.servers.url_file: the URL is given twice",
        ),
        (
            "[[redis.servers]]\nurl_file = \"nowhere\"",
            "redis.servers.url_file: nowhere cannot be read",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a redis://b\"",
            "redis.servers.url: this table is for one server",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://h:port\"",
            "redis.servers.url: the Redis URL is not valid",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://:p@a\"\npassword_file = \"FILE\"",
            "redis.servers.password_file: the URL has a password already",
        ),
        (
            "[[redis.servers]]\nsentinels = \"a\"",
            "redis.servers.sentinels: the name of their primary is missing",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a\"\nmaster = \"m\"",
            "redis.servers.master: there are no sentinels",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a\"\nsentinel_tls = true",
            "redis.servers.sentinel_tls: there are no sentinels",
        ),
        (
            "[[redis.servers]]\nurl = \"redis://a\"\nsentinels = \"b\"\nmaster = \"m\"",
            "redis.servers.url: it says where Redis is, and so do the `sentinels`",
        ),
        (
            "[[redis.servers]]\nurl = \"redis+sentinel://a/m?sentinel_user=u\"\nsentinel_user = \"v\"",
            "redis.servers.sentinel_user: the URL says `sentinel_user` already",
        ),
        (
            "ONE[[redis.servers]]\nurl = \"redis+cluster://a\"",
            "redis.servers: several Redis URLs are given, and one of them names a cluster",
        ),
        (
            "[redis]\nurl = \"redis://h\"\nONE",
            "k.toml:2:7: redis.url: each table of [[redis.servers]] says",
        ),
        (
            "[redis]\nnodes = \"h\"\nONE",
            "redis.nodes: each table of [[redis.servers]] says",
        ),
        (
            "[redis]\nmaster = \"h\"\nONE",
            "redis.master: each table of [[redis.servers]] says",
        ),
    ] {
        let text = text.replace("ONE", one).replace("FILE", file);
        let faults = faults(&text);
        assert!(faults[0].contains(fault), "{text}: {faults:#?}");
    }
}

#[test]
fn the_example_of_servers_in_the_default_file_is_valid() {
    let from = DEFAULT.find("#   [[redis.servers]]").unwrap();
    let lines = DEFAULT[from..]
        .lines()
        .take_while(|line| line.starts_with("# ") || *line == "#");
    let text: String = lines.map(|line| format!("{}\n", &line[1..])).collect();
    for field in super::servers::FIELDS {
        assert!(text.contains(&format!("\n   {field} = ")), "{field}");
    }
    for fault in faults(&text) {
        assert!(fault.contains("cannot be read"), "{fault}");
    }
}

#[test]
fn the_example_of_a_recurring_job_in_the_default_file_is_valid() {
    let from = DEFAULT.find("#   [[recurring]]").unwrap();
    let lines = DEFAULT[from..]
        .lines()
        .take_while(|line| line.starts_with("# ") || *line == "#");
    let text: String = lines.map(|line| format!("{}\n", &line[1..])).collect();
    for field in super::recurring::fields() {
        // A rule has one sort of times; the example names the others.
        let is_there = text.contains(&format!("\n   {field} = "));
        assert!(
            is_there || text.contains(&format!("`{field} = ")),
            "{field}"
        );
    }
    let jobs = read(&text).unwrap().recurring.unwrap();
    let [job] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    assert_eq!(job.key.as_str(), "app1:digest:daily:all");
    assert_eq!(job.rule.zone_name(), "Europe/Berlin");
    assert_eq!(
        job.payload,
        serde_json::json!({"report": "digest", "pages": 2})
    );
    assert_eq!(job.headers["tenant"], "acme");
    assert_eq!(job.attempts.unwrap().get(), 3);
}

#[test]
fn the_example_of_a_limit_in_the_default_file_is_valid() {
    let from = DEFAULT.find("#   [[limit]]").unwrap();
    let lines = DEFAULT[from..]
        .lines()
        .take_while(|line| line.starts_with("# ") || *line == "#");
    let text: String = lines.map(|line| format!("{}\n", &line[1..])).collect();
    let limits = read(&text).unwrap().limits;
    let [one] = &limits[..] else {
        panic!("{limits:?}");
    };
    assert_eq!(one.scope.as_str(), "app1:mail:send");
    let words = one.limit.to_string();
    let each = "10/s, 5 at once, 3 at the same time for each header:tenant";
    let total = "100/s, 20 at once, 50 at the same time in total";
    assert_eq!(words, format!("{each}; {total}; weights acme=3"));
    assert!(read("").unwrap().limits.is_empty());
}

#[test]
fn each_fault_of_a_limit_names_its_field() {
    let kind = "kind = \"a:b:c\"";
    for (entry, fault) in [
        (
            "rate = \"1/s\"".to_owned(),
            "limit.kind: the kind is missing",
        ),
        ("kind = \"a:b\"\nrate = \"1/s\"".to_owned(), "limit.kind: "),
        (kind.to_owned(), "limit.rate: a limit has a rate"),
        (format!("{kind}\nrate = \"fast\""), "limit.rate: "),
        (format!("{kind}\nrate = \"0/s\""), "limit.rate: "),
        (format!("{kind}\nburst = 2"), "limit.burst: "),
        (format!("{kind}\nconcurrency = 0"), "limit.concurrency: "),
        (
            format!("{kind}\nconcurrency = 2000000"),
            "limit.concurrency: ",
        ),
        (format!("{kind}\nrat = \"1/s\""), "did you mean `rate`"),
        (
            format!("{kind}\nrate = \"1/s\"\n[[limit]]\n{kind}\nrate = \"2/s\""),
            "limit.kind: another entry has this kind",
        ),
    ] {
        let faults = faults(&format!("[[limit]]\n{entry}\n"));
        assert!(
            faults.iter().any(|it| it.contains(fault)),
            "{entry}: {faults:#?}"
        );
    }
    let faults = faults("limit = \"x\"");
    assert!(faults[0].contains("limits are tables"), "{faults:#?}");
}

#[test]
fn a_file_without_recurring_jobs_declares_none_unless_it_has_an_empty_list() {
    assert_eq!(read("").unwrap().recurring, None);
    assert_eq!(read("recurring = []").unwrap().recurring, Some(Vec::new()));
    // A rule that has ended stays in the file.
    let ended = "[[recurring]]\nkey = \"a:b:c:1\"\ncron = \"@daily\"\nuntil = \"2020-01-01 00:00\"";
    assert_eq!(read(ended).unwrap().recurring.unwrap().len(), 1);
}

#[test]
fn each_fault_of_a_recurring_job_names_its_field() {
    for (entry, fault) in [
        (
            "cron = \"@daily\"",
            "recurring.key: the name of the job is missing",
        ),
        ("key = \"a:b:c\"\ncron = \"@daily\"", "recurring.key: "),
        ("key = \"a:b:c:1\"", "recurring.cron: "),
        (
            "key = \"a:b:c:1\"\ncron = \"0 0 30 2 x\"",
            "recurring.cron: ",
        ),
        (
            "key = \"a:b:c:1\"\nevery = \"500ms\"",
            "from 1 s to 10 years",
        ),
        (
            "key = \"a:b:c:1\"\ncron = \"@daily\"\nzone = \"Mars\"",
            "does not know",
        ),
        (
            "key = \"a:b:c:1\"\ncorn = \"@daily\"",
            "did you mean `cron`",
        ),
        (
            "key = \"a:b:c:1\"\ncron = \"@daily\"\nretry = \"soon\"",
            "recurring.retry: ",
        ),
        (
            "key = \"a:b:c:1\"\ncron = \"@daily\"\nheaders = \"x\"",
            "recurring.headers: headers are a table",
        ),
        (
            "key = \"a:b:c:1\"\ncron = \"@daily\"\n[[recurring]]\nkey = \"a:b:c:1\"\ncron = \"@daily\"",
            "recurring.key: another entry has this key",
        ),
    ] {
        let faults = faults(&format!("[[recurring]]\n{entry}\n"));
        assert!(
            faults.iter().any(|it| it.contains(fault)),
            "{entry}: {faults:#?}"
        );
    }
    let faults = faults("recurring = \"x\"");
    assert!(
        faults[0].contains("recurring jobs are tables"),
        "{faults:#?}"
    );
}

#[test]
fn quiet_hours_of_a_route_are_later_or_left_out() {
    let route = |quiet: &str| {
        format!("[[route]]\npattern = \"app1:a:b:*\"\ntarget = \"pull\"\nquiet = {quiet}\n")
    };
    for (quiet, fault) in [
        ("\"25:00\"", "route.quiet: `hours` of the quiet hours"),
        (
            "{ days = [\"FOO\"] }",
            "route.quiet: `days` of the quiet hours",
        ),
        (
            "{ hours = \"22:00-08:00\", instead = \"earlier\" }",
            "route.quiet: it asks for an earlier start",
        ),
    ] {
        let faults = faults(&route(quiet));
        assert_eq!(faults.len(), 1, "{faults:#?}");
        assert!(faults[0].contains(fault), "{faults:#?}");
    }
    for quiet in [
        "\"22:00-08:00\"",
        "{ days = [\"SUN\"], instead = \"skip\" }",
    ] {
        let config = read(&route(quiet)).unwrap();
        assert!(config.routes[0].quiet.is_some(), "{quiet}");
    }
}

#[test]
fn every_source_is_checked_even_if_another_one_holds() {
    let text = "[worker]\nlease = \"10\"\n";
    let env = [("KEYFALL_WORKER_LEASE", "1ms")];
    let faults = read_with(text, &env, &[("worker-lease", "30s")]).unwrap_err();
    let faults = faults.to_string();
    let faults: Vec<&str> = faults.lines().collect();
    assert_eq!(faults.len(), 2, "{faults:#?}");
    assert!(faults[0].starts_with("k.toml:2:9: worker.lease: \"10\" has no unit"));
    assert!(faults[1].starts_with("KEYFALL_WORKER_LEASE: worker.lease: it is out of range"));
}

#[test]
fn every_setting_can_be_given_each_way() {
    for setting in all() {
        let text = setting.default.or(setting.like).unwrap();
        let quote = if setting.form == Form::Text { "\"" } else { "" };
        let (section, name) = (setting.section, setting.name);
        let file = format!("[{section}]\n{name} = {quote}{text}{quote}\n");
        let ways = [
            (read(&file), format!("k.toml:2:{}", name.len() + 4)),
            (read_with("", &[(&setting.env(), text)], &[]), setting.env()),
            (
                read_with("", &[], &[(&setting.flag(), text)]),
                format!("--{}", setting.flag()),
            ),
        ];
        for (config, origin) in ways {
            match config {
                Ok(config) => {
                    let given: Vec<_> = config.given().collect();
                    assert_eq!(given.len(), 1);
                    assert_eq!((&given[0].0, given[0].1), (&setting.field(), text));
                    assert_eq!(given[0].2.to_string(), origin);
                }
                // A file that is not there, as it was looked for.
                Err(faults) => {
                    let begin = format!("{origin}: {}: ", setting.field());
                    assert!(faults.to_string().starts_with(&begin), "{faults}");
                    assert!(setting.default.is_none(), "{faults}");
                }
            }
        }
    }
}

#[test]
fn the_tokens_decide_where_to_listen() {
    for listen in [
        "127.0.0.1:1",
        "127.9.9.9:1",
        "[::1]:1",
        "[::ffff:127.0.0.1]:1",
    ] {
        read(&format!("[http]\nlisten = \"{listen}\"\n")).expect(listen);
    }
    for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
        let faults = faults(&format!("[http]\nlisten = \"{listen}\"\n"));
        assert!(faults[0].contains("`keyfall token make`"), "{faults:#?}");
    }
}

/// A file of a test, gone after it.
struct Kept(std::path::PathBuf);

impl Kept {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("keyfall-config-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Kept(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn secrets_come_from_files_or_the_environment_and_are_never_shown() {
    let password = Kept::new("password", "ge heim\r\n");
    let url = Kept::new("url", "redis://app1:geheim@h\n");
    let empty = Kept::new("empty", "\n");
    let revealed = |config: &Config| {
        let shown = format!("{config:?}");
        assert!(!shown.contains("heim"), "{shown}");
        for (_, value, _) in config.given() {
            assert!(!value.contains("geheim"), "{value}");
        }
        config.redis.url.reveal().to_owned()
    };
    let env = [("KEYFALL_REDIS_PASSWORD_FILE", password.path())];
    let config = read_with("", &env, &[("redis-url", "redis://h:1/2")]).unwrap();
    assert_eq!(revealed(&config), "redis://:ge%20heim@h:1/2");
    let config = read_with("", &[("KEYFALL_REDIS_URL", "redis://:geheim@h")], &[]).unwrap();
    assert_eq!(revealed(&config), "redis://:geheim@h");
    let given = config.given().next().unwrap();
    assert_eq!(given.1, "redis://***@h");
    // The stronger source wins, in any form.
    let file = "[redis]\nurl = \"redis://h:7\"\n";
    let config = read_with(file, &[("KEYFALL_REDIS_URL_FILE", url.path())], &[]).unwrap();
    assert_eq!(revealed(&config), "redis://app1:geheim@h");
    let file = format!("[redis]\nurl_file = {:?}\n", url.path());
    let config = read_with(&file, &[], &[("redis-url", "redis://h:8")]).unwrap();
    assert_eq!(revealed(&config), "redis://h:8");

    let file = format!(
        "[redis]\nurl_file = {:?}\nurl = \"redis://h\"\n",
        url.path()
    );
    let faults = |result: Result<Config, Faults>| result.unwrap_err().to_string();
    for (fault, expected) in [
        (
            faults(read(&file)),
            "k.toml:2:12: redis.url_file: the URL is given twice",
        ),
        (
            faults(read_with("", &[], &[("redis-url", "redis://:geheim@h")])),
            "--redis-url: redis.url: it holds a password, and all users",
        ),
        (
            faults(read_with(
                "",
                &[("KEYFALL_REDIS_URL", "redis://:geheim@h"), env[0]],
                &[],
            )),
            "KEYFALL_REDIS_PASSWORD_FILE: redis.password_file: the URL has a password already",
        ),
        (
            faults(read_with(
                "",
                &[("KEYFALL_REDIS_URL_FILE", empty.path())],
                &[],
            )),
            "KEYFALL_REDIS_URL_FILE: redis.url_file: ",
        ),
        (
            faults(read_with("", &[], &[("redis-key-file", "k")])),
            "--redis-key-file: redis.key_file: a certificate and its key go together",
        ),
        (
            faults(read_with("", &[], &[("redis-ca-file", "nowhere")])),
            "--redis-ca-file: redis.ca_file: certificates are set, but the URL does not use",
        ),
    ] {
        assert!(fault.starts_with(expected), "{fault}");
        assert!(!fault.contains("geheim"), "{fault}");
    }
}

#[test]
fn https_needs_a_certificate_and_its_key() {
    let make = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (one, other) = (make(), make());
    let chain = Kept::new("chain", &one.cert.pem());
    let key = Kept::new("key", &one.signing_key.serialize_pem());
    let stranger = Kept::new("stranger", &other.signing_key.serialize_pem());
    let with = |chain: &str, key: &str| {
        let flags = [("http-tls-cert-file", chain), ("http-tls-key-file", key)];
        let flags = flags.into_iter().filter(|(_, path)| !path.is_empty());
        read_with("", &[], &flags.collect::<Vec<_>>())
    };
    assert!(with(chain.path(), key.path()).unwrap().tls().is_some());
    assert!(read("").unwrap().tls().is_none());
    for (chain, key, fault) in [
        (
            chain.path(),
            "",
            "--http-tls-cert-file: http.tls_cert_file: a certificate and its key",
        ),
        (
            "",
            key.path(),
            "--http-tls-key-file: http.tls_key_file: a certificate and its key",
        ),
        (
            chain.path(),
            stranger.path(),
            "--http-tls-cert-file: http.tls_cert_file: it cannot be",
        ),
        (
            key.path(),
            key.path(),
            "--http-tls-cert-file: http.tls_cert_file: ",
        ),
        (
            chain.path(),
            chain.path(),
            "--http-tls-key-file: http.tls_key_file: ",
        ),
        (
            "nowhere",
            key.path(),
            "--http-tls-cert-file: http.tls_cert_file: nowhere cannot be",
        ),
    ] {
        let faults = with(chain, key).unwrap_err().to_string();
        assert!(faults.starts_with(fault), "{faults}");
    }
}
