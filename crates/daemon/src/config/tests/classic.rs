//! The classic interface.

use super::*;

#[test]
fn the_classic_interface_is_off_or_local_or_lists_its_networks() {
    assert!(
        read("[classic]\nprefix = \"app1:queue\"\n")
            .unwrap()
            .classic()
            .is_none()
    );
    let text = "[classic]\nlisten = \"127.0.0.1:9277\"\nprefix = \"app1:queue\"\n";
    let (listen, terms) = read(text).unwrap().classic().unwrap();
    assert_eq!(
        (listen.port(), terms.pattern()),
        (9277, "app1:queue:*:*".into())
    );
    let open = text.replace("127.0.0.1", "0.0.0.0");
    assert!(read(&format!("{open}allow = \"10.0.0.0/8\"\n")).is_ok());
    let route =
        |pattern: &str| format!("{text}[[route]]\npattern = \"{pattern}\"\ntarget = \"pull\"\n");
    assert!(read(&route("app1:queue:orders:*")).is_ok() && read(&route("*:*:*:*")).is_ok());
    for (text, expected) in [
        (
            open,
            "k.toml:2:10: classic.listen: 0.0.0.0:9277 can be reached from elsewhere",
        ),
        (
            "[classic]\nlisten = \"127.0.0.1:9277\"\n".into(),
            "k.toml:2:10: classic.listen: its job keys have no prefix; write `prefix",
        ),
        (
            "[classic]\nprefix = \"app1\"\n".into(),
            "k.toml:2:10: classic.prefix: \"app1\" is not the beginning of job keys; write two",
        ),
        (
            "[classic]\nexisting = \"keep\"\n".into(),
            "k.toml:2:12: classic.existing: \"keep\" is not known; write replace or refuse",
        ),
        (
            route("app1:queue:*:*"),
            "k.toml:3:10: classic.prefix: its route `app1:queue:*:*` clashes with \
             `app1:queue:*:*` at k.toml:5:11",
        ),
    ] {
        let faults = faults(&text);
        assert!(
            faults.len() == 1 && faults[0].starts_with(expected),
            "{faults:?}\n{expected}"
        );
    }
}
