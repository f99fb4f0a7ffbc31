//! One grammar for all commands: help, completions, and how they name jobs.

use std::collections::BTreeSet;

use keyfall_testing::files::Folder;

use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site};

/// The commands in the table of the manual: the first word of each text between backticks in its
/// first column.
fn commands_in_manual() -> BTreeSet<&'static str> {
    let manual = include_str!("../../../docs/daemon.md");
    let rows = manual.split("\n| command | |\n").nth(1).unwrap().lines();
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|line| line.split(" | ").next());
    let texts = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    texts.filter_map(|text| text.split(' ').next()).collect()
}

#[tokio::test]
async fn every_command_has_help_with_an_example_and_a_row_in_the_manual() {
    let help = Ran::of(keyfall(&["help"])).await;
    let listed = help.out.split("Commands:").nth(1).unwrap();
    let listed = listed.split("Options:").next().unwrap();
    let names = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 15, "{names:?}");
    let in_manual = commands_in_manual();
    for name in names.into_iter().filter(|name| *name != "help") {
        let ran = Ran::of(keyfall(&[name, "--help"])).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(
            ran.out.contains("Example"),
            "{name} has no example: write one into `after_help` of its variant of `Command`, in \
             crates/cli/src/lib.rs"
        );
        assert!(
            in_manual.contains(name),
            "{name} has no row in the table of commands of docs/daemon.md"
        );
    }
    for name in ["ls", "requeue", "rm"] {
        let ran = Ran::of(keyfall(&["dead", name, "--help"])).await;
        assert!(ran.out.contains("Example"), "dead {name} has no example");
    }
}

#[tokio::test]
async fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = Ran::of(keyfall(&["completions", shell])).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("skip-overdue"), "{shell}");
    }
    let ran = Ran::of(keyfall(&["completions", "abacus"])).await;
    ran.fails(2, "[possible values");
}

#[tokio::test]
async fn there_is_a_manual_page_for_each_command() {
    let printed = Ran::of(keyfall(&["man"])).await;
    assert!(printed.out.contains(".TH keyfall 1"), "{printed:?}");
    let folder = Folder::new("man");
    let ran = Ran::of(keyfall(&["man", "--dir", &folder.path("")])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(folder.read("keyfall.1"), printed.out);
    assert!(folder.read("keyfall-serve.1").contains("http\\-listen"));
    assert!(folder.read("keyfall-dead-requeue.1").contains("dry\\-run"));
    let ran = Ran::of(keyfall(&["man", "--dir", "/proc/none"])).await;
    ran.fails(1, "cannot be written to /proc/none");
}

/// The ways to select many jobs or kinds, the answers to questions, and the earlier spellings of
/// flags.
#[tokio::test]
async fn one_grammar_holds_for_all_commands() {
    let site = Site::new("cmd_grammar").await;
    let kind = site.kind();
    let call = site.client.schedule(site.key(1), "1").after(HOUR);
    call.await.unwrap();
    for look in [
        "list", "ls", "count", "kinds", "kind", "audit", "history", "export",
    ] {
        let there = site.run(&format!("{look} {kind}: --json")).await;
        assert_eq!(there.code, 0, "{look}: {there:?}");
        let same = site.run(&format!("{look} --prefix {kind}: --json")).await;
        assert_eq!((same.code, same.out), (0, there.out), "{look}");
        let both = site.run(&format!("{look} {kind}: --prefix {kind}:")).await;
        both.fails(2, "cannot be used with");
        let both = site.run(&format!("{look} {kind}: --all")).await;
        both.fails(2, "cannot be used with");
    }
    for change in [
        format!("pause --prefix {kind}: --yes"),
        format!("resume --prefix {kind}: --yes"),
        format!("history --prefix {kind}: --keep 100 --yes"),
        format!("audit {kind}: --fix --yes"),
        format!("dead requeue {kind}: --yes"),
        format!("dead delete --prefix {kind}: --yes"),
        format!("postpone {} --after 2h --yes", site.key(1)),
        format!("cancel {} --yes", site.key(1)),
        // A kind is also its prefix.
        format!("reshard {kind}: --json"),
        format!("kinds drop {kind}: --yes"),
    ] {
        let ran = site.run(&change).await;
        assert_eq!(ran.code, 0, "{change}: {ran:?}");
    }
    let ran = site.run("history --off").await;
    ran.fails(2, "Give a PREFIX, such as app1:trans:notice:, or `--all`");
    for (words, hint) in [
        ("demo --time 2s", "from 4s to 1h"),
        ("demo --seconds 2", "from 4s to 1h"),
        ("list -n x", "invalid digit"),
        ("dead list a:b:c: -n 1001", "from 1 to 1000"),
        ("export --cursor x", ""),
        ("tail --limit 1001", "1001"),
        ("schedule a:b:c:d --in 5s", "'--after'"),
        ("list a:b:c --url redis://127.0.0.1", "'--redis-url'"),
    ] {
        site.run(words).await.fails(2, hint);
    }
    // A wrong flag is the same error, wherever it is detected.
    let header = format!("a={}", "x".repeat(9000));
    let args = ["schedule", &site.key(1), "x", "--header", &header];
    site.run_args(&args).await.fails(2, "8192");
    site.assert_balanced().await;
}

/// No Redis is running, and no Redis was named.
#[tokio::test]
async fn the_remedy_for_a_missing_redis_fits_the_command() {
    for (words, remedy, other) in [
        ("list", "name a daemon with `--api`", "redis+cluster://"),
        ("reshard a:b:c", "start one with `keyfall dev`", "--api"),
        ("functions check", "start one with `keyfall dev`", "--api"),
        ("doctor", "name a daemon with `--api`", "redis+cluster://"),
        (
            "doctor --fix",
            "name a daemon with `--api`",
            "redis+cluster://",
        ),
        ("cluster mend", "redis+cluster://", "keyfall dev"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let ran = Ran::of(keyfall(&words)).await;
        if ran.code == 0 || !ran.err.contains("no Redis was named") {
            // A Redis happens to run on this machine.
            assert!(ran.code != 4, "{words:?}: {ran:?}");
            continue;
        }
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(
            ran.err.contains(remedy) && !ran.err.contains(other),
            "{words:?}: {ran:?}"
        );
    }
}
