//! The fields of a list or a stream.

use super::*;

#[test]
fn all_faults_of_targets_are_reported_without_passwords() {
    let text = r#"
[[route]]
pattern = "a:b:c1:*"
target = "list"
[[route]]
pattern = "a:b:c2:*"
target = { list = { url = "redis://:geheim@h:x", ack = true } }
[[route]]
pattern = "a:b:c3:*"
target = { stream = { key = "", keep = 0, group = 3, cert_file = "/c" } }
[[route]]
pattern = "a:b:c4:*"
target = { list = "mails", stream = { key = "s" } }
[[route]]
pattern = "a:b:c5:*"
target = { list = { key = "m", url = "redis://h", url_file = "/u", ca_file = "/none" } }
[[route]]
pattern = "a:b:c6:*"
target = { list = { key = "m", ca_file = "/none" } }
"#;
    let expected = [
        "k.toml:4:10: route.target: it names no destination; write { list = { key = ",
        "k.toml:7:19: route.target.list.key: it is missing; name the list or stream",
        "k.toml:7:27: route.target.list.url: the Redis URL is not valid: the port is not a number",
        "k.toml:7:50: route.target.list.ack: `list` has no such field; did you mean",
        "k.toml:10:29: route.target.stream.key: it is empty",
        "k.toml:10:40: route.target.stream.keep: it is 0",
        "k.toml:10:51: route.target.stream.group: this is a number",
        "k.toml:10:66: route.target.stream.cert_file: a certificate and its key go together",
        "k.toml:13:19: route.target.list: it has to be a table",
        "k.toml:13:37: route.target.stream: a route has one target; leave this or `list` out",
        "k.toml:16:62: route.target.list.url_file: the URL is given twice",
        "k.toml:16:78: route.target.list.ca_file: it has no effect without a URL",
        "k.toml:19:42: route.target.list.ca_file: it has no effect without a URL",
    ];
    let faults = faults(text);
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\n{expected}");
    }
    assert!(!faults.concat().contains("geheim"), "{faults:#?}");
}

#[test]
fn the_fields_of_a_target_reach_the_library() {
    let text = r#"
[[route]]
pattern = "a:b:c1:*"
target = { list = { key = "mails", acknowledged = true, url = "redis://:geheim@h" } }
lease = "30s"
[[route]]
pattern = "a:b:c2:*"
target = { stream = { key = "orders", group = "closers", keep = 10 } }
[[route]]
pattern = "a:b:c3:*"
target = { list = { key = "mails" } }
"#;
    let config = read(text).unwrap();
    let routes = format!("{:?}", config.router(&Pull::new()));
    assert!(!format!("{:?} {routes}", config.routes).contains("geheim"));
    assert_eq!(routes.matches("hands_over: true").count(), 2, "{routes}");
    assert_eq!(routes.matches("fault: None").count(), 3, "{routes}");
}

#[test]
fn a_target_is_the_same_if_its_certificates_are() {
    let make = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let ca = Kept::new("target-ca", &make().cert.pem());
    let text = format!(
        "[[route]]\npattern = \"a:b:c:*\"\n\
         target = {{ list = {{ key = \"m\", url = \"rediss://h\", ca_file = \"{}\" }} }}\n",
        ca.path()
    );
    let one = read(&text).unwrap().routes;
    assert_eq!(one, read(&text).unwrap().routes);
    std::fs::write(ca.path(), make().cert.pem()).unwrap();
    assert_ne!(one, read(&text).unwrap().routes);
}
