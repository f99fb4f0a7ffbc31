//! The fields of a callback.

use super::*;

/// The faults of this target, after the name of the file.
fn of_target(target: &str) -> Vec<String> {
    let text = format!("[[route]]\npattern = \"a:b:c:*\"\ntarget = {target}\n");
    let faults = read_with(&text, &[("NO_SECRET", "geheim")], &[]);
    let faults = faults.expect_err(target).to_string();
    let told = faults.lines().map(|fault| fault.strip_prefix("k.toml:3:"));
    told.map(|told| told.expect("it is on line 3").to_owned())
        .collect()
}

#[test]
fn all_faults_of_a_callback_are_reported_each_with_its_column() {
    for (target, expected) in [
        (
            "\"http\"",
            "10: route.target: it names no destination; write { http = { url",
        ),
        (
            "{ htp = {} }",
            "12: route.target.htp: `target` has no such field; did you mean `http`?",
        ),
        ("{}", "10: route.target: it names no target"),
        (
            "{ http = 7 }",
            "19: route.target.http: it has to be a table; write http = {",
        ),
        (
            "{ http = {} }",
            "19: route.target.http.url: it has no URL; write `url",
        ),
        (
            "{ http = { url = 7 } }",
            "27: route.target.http.url: this is a number",
        ),
        (
            "{ http = { url = \"shop\" } }",
            "27: route.target.http.url: the URL of its callback is",
        ),
        (
            "{ http = { ulr = \"http://h\" } }",
            "21: route.target.http.ulr: `http` has no such",
        ),
        (
            "{ http = { job_url = true } }",
            "31: route.target.http.job_url: jobs may name any host",
        ),
        (
            "{ http = { url = \"http://h\", hosts = [\"h\"] } }",
            "47: route.target.http.hosts: hosts are for jobs that name their URLs",
        ),
        (
            "{ http = { job_url = true, hosts = \"h\" } }",
            "45: route.target.http.hosts: this is a text; write a list of texts",
        ),
        (
            "{ http = { job_url = true, hosts = [\"https://h\"] } }",
            "45: route.target.http.hosts: `job_urls`: \"https://h\" is not a host",
        ),
        (
            "{ http = { url = \"http://h\", networks = [\"10\"] } }",
            "50: route.target.http.networks: `networks`: \"10\" is not a network",
        ),
        (
            "{ http = { url = \"http://h\", secret_env = \"NOBODY_HAS_IT\" } }",
            "52: route.target.http.secret_env: the environment has no NOBODY_HAS_IT",
        ),
        (
            "{ http = { url = \"http://h\", secret_env = \"NO_SECRET\" } }",
            "52: route.target.http.secret_env: `secret`: a secret is not valid: write whsec_",
        ),
        (
            "{ http = { url = \"http://h\", secret_file = \"/no/such\" } }",
            "53: route.target.http.secret_file: /no/such cannot be read",
        ),
        (
            "{ http = { url = \"http://h\", cert_file = \"/no/such\" } }",
            "51: route.target.http.cert_file: a certificate and its key go together",
        ),
        (
            "{ http = { url = \"http://h\", breaker_failures = 0 } }",
            "58: route.target.http.breaker_failures: \"0\" is not a whole number from 1",
        ),
        (
            "{ http = { url = \"http://h\", connect_timeout = \"0s\" } }",
            "57: route.target.http.connect_timeout: it is zero",
        ),
    ] {
        let told = of_target(target);
        let is_told = told.iter().any(|told| told.starts_with(expected));
        assert!(is_told, "{target}: {told:#?}");
        assert!(!told.concat().contains("geheim"), "{told:#?}");
    }
}

#[test]
fn a_callback_is_the_same_if_its_secrets_are() {
    let text = r#"
[[route]]
pattern = "app1:hook:call:*"
target = { http = { url = "https://shop.example.org/", secret_env = "SECRET" } }
[[route]]
pattern = "app2:hook:call:*"
[route.target.http]
job_url = true
hosts = ["*.hooks.example.org"]
networks = ["10.0.0.0/8"]
connect_timeout = "3s"
response_limit = "4KiB"
redirects = 2
host_concurrency = 4
breaker_failures = 9
breaker_pause = "10s"
hold_kind = "1m"
"#;
    let with = |secret| read_with(text, &[("SECRET", secret)], &[]).unwrap().routes;
    let one = with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    assert_eq!(one, with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let two = with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    assert_ne!(one, two);
    assert!(format!("{two:?}").contains("secrets: 2"), "{two:?}");
    assert!(!format!("{two:?}").contains("whsec"), "{two:?}");
}

#[test]
fn the_example_of_a_callback_in_the_default_file_is_valid() {
    let from = DEFAULT.find("#   [route.target.http]").unwrap();
    let lines = DEFAULT[from..].lines();
    let table: String = lines.map(|line| format!("{}\n", &line[1..])).collect();
    let text = format!("[[route]]\npattern = \"a:b:c:*\"\n{table}");
    for field in super::super::target::callback::FIELDS {
        assert!(table.contains(&format!("\n   {field} = ")), "{field}");
    }
    // All files are missing, and so is the variable.
    let faults = faults(&text);
    assert_eq!(faults.len(), 6, "{faults:#?}");
    for fault in faults {
        assert!(
            fault.contains("cannot be read") || fault.contains("has no HOOK"),
            "{fault}"
        );
    }
}
