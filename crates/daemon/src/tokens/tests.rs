use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::secret::Secret;
use super::{Scope, TokenFile, Tokens};

/// A folder of a test, gone after it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("keyfall-tokens-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("tokens.toml")
    }

    fn make(&self, scopes: &[Scope], prefixes: &[&str]) -> Secret {
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        TokenFile::make(
            &self.file(),
            scopes.to_vec(),
            prefixes,
            "a note".into(),
            None,
        )
        .unwrap()
        .0
    }

    /// Tokens that look at the file each time.
    fn open(&self) -> Tokens {
        let mut tokens = Tokens::open(&self.file()).unwrap();
        tokens.look = Duration::ZERO;
        tokens
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_token_is_known_by_its_text_and_by_nothing_else() {
    let folder = Folder::new("known");
    let secret = folder.make(&[Scope::Read], &["app1:"]);
    let other = folder.make(&[Scope::Schedule], &[""]);
    let tokens = folder.open();
    let text = secret.reveal();
    assert_eq!(text.len(), "kf_".len() + 8 + 1 + 64);
    assert_eq!(tokens.check(text).unwrap().id, secret.id);
    assert_eq!(tokens.check(other.reveal()).unwrap().id, other.id);
    let swapped = other.reveal().replace(&other.id, &secret.id);
    for wrong in [
        "",
        "kf_",
        "kf__",
        &text[..text.len() - 1],
        &format!("{text}0"),
        &text.to_uppercase(),
        &swapped,
        &format!("kf_{}_", secret.id),
    ] {
        assert!(tokens.check(wrong).is_none(), "{wrong}");
    }
    let kept = fs::read_to_string(folder.file()).unwrap();
    let bits = text.rsplit('_').next().unwrap();
    assert!(kept.contains(&secret.id) && !kept.contains(bits));
    assert!(!format!("{secret:?} {tokens:?}").contains(bits));
}

#[test]
fn a_grant_is_good_for_its_scopes_and_prefixes() {
    let folder = Folder::new("grant");
    let secret = folder.make(
        &[Scope::Schedule, Scope::Read],
        &["app1:", "app2:trans:notice:2026-"],
    );
    let grant = folder.open().check(secret.reveal()).unwrap();
    for (keys, allowed) in [
        ("app1:trans:notice:1", true),
        ("app1:", true),
        ("app1:trans:notice", true),
        ("app1", false),
        ("app10:trans:notice:1", false),
        ("", false),
        ("app2:trans:notice:2026-01", true),
        ("app2:trans:notice:", false),
    ] {
        assert_eq!(grant.allows(Scope::Schedule, keys), allowed, "{keys}");
        assert!(!grant.allows(Scope::Operate, keys), "{keys}");
    }
    assert!(grant.has(Scope::Read) && !grant.has(Scope::Consume));
    let all = folder.make(&[Scope::Consume], &[""]);
    let all = folder.open().check(all.reveal()).unwrap();
    assert!(all.allows(Scope::Consume, "") && all.allows(Scope::Consume, "a:b:c:d"));
}

#[test]
fn running_daemons_notice_new_revoked_and_expired_tokens() {
    let folder = Folder::new("change");
    let first = folder.make(&[Scope::Read], &[""]);
    let tokens = folder.open();
    let second = folder.make(&[Scope::Read], &[""]);
    assert!(tokens.check(second.reveal()).is_some());
    TokenFile::revoke(&folder.file(), &first.id).unwrap();
    assert!(tokens.check(first.reveal()).is_none());
    assert!(tokens.check(second.reveal()).is_some());
    let soon = Timestamp::now() + SignedDuration::from_millis(300);
    let (third, _) = TokenFile::make(
        &folder.file(),
        vec![Scope::Read],
        vec![String::new()],
        String::new(),
        Some(soon),
    )
    .unwrap();
    let grant = tokens.check(third.reveal());
    assert!(grant.is_some() || Timestamp::now() >= soon);
    while tokens.check(third.reveal()).is_some() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Timestamp::now() >= soon);
}

#[test]
fn the_file_is_not_looked_at_all_the_time() {
    let folder = Folder::new("pace");
    let secret = folder.make(&[Scope::Read], &[""]);
    let mut tokens = Tokens::open(&folder.file()).unwrap();
    tokens.look = Duration::from_secs(3600);
    TokenFile::revoke(&folder.file(), &secret.id).unwrap();
    assert!(tokens.check(secret.reveal()).is_some());
}

#[test]
fn a_damaged_or_missing_file_leaves_the_known_tokens() {
    let folder = Folder::new("damaged");
    let secret = folder.make(&[Scope::Read], &[""]);
    let tokens = folder.open();
    let good = fs::read_to_string(folder.file()).unwrap();
    fs::write(folder.file(), "[[token]]\nid = 1\n").unwrap();
    assert!(tokens.check(secret.reveal()).is_some());
    fs::remove_file(folder.file()).unwrap();
    assert!(tokens.check(secret.reveal()).is_some());
    fs::write(folder.file(), good.replace(&secret.id, "another")).unwrap();
    assert!(tokens.check(secret.reveal()).is_none());
}

/// As does a file that the daemon may read only after a `chown`.
#[test]
fn a_file_that_becomes_usable_without_another_stamp_is_read() {
    let folder = Folder::new("again");
    let secret = folder.make(&[Scope::Read], &[""]);
    let tokens = folder.open();
    let good = fs::read_to_string(folder.file()).unwrap();
    let revoked = good.replace(&secret.id, &"x".repeat(secret.id.len()));
    fs::write(folder.file(), revoked.replace("[[token]]", "[[taken]]")).unwrap();
    assert!(tokens.check(secret.reveal()).is_some());
    let file = fs::File::options().write(true).open(folder.file()).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    fs::write(folder.file(), revoked).unwrap();
    file.set_modified(modified).unwrap();
    assert!(tokens.check(secret.reveal()).is_none());
}

#[test]
fn a_file_with_a_fault_is_refused_with_the_place_and_the_rule() {
    let folder = Folder::new("faults");
    folder.make(&[Scope::Read], &["app1:"]);
    let good = fs::read_to_string(folder.file()).unwrap();
    let token = &good[good.find("[[token]]").unwrap()..];
    for (text, fault) in [
        (
            good.replace("\"read\"", "\"reed\""),
            ": unknown variant `reed`",
        ),
        (good.replace("[\"read\"]", "[]"), "it has no scope"),
        (good.replace("[\"app1:\"]", "[]"), "it has no prefix"),
        (
            good.replace("app1:", "app1"),
            "end it with a colon, \"app1:\"",
        ),
        (good.replace("app1:", "a b:"), "no job key begins with"),
        (
            good.replace("sha256 = \"", "sha256 = \"z"),
            "64 hexadecimal",
        ),
        (good.replace("made", "maid"), "unknown field `maid`"),
        (good.replace("id = \"", "id = \"ä"), "an id has"),
        (
            good.replace("[[token]]", "[[tokens]]"),
            "unknown field `tokens`",
        ),
        (format!("{good}\n{token}"), "occurs twice"),
        ("nonsense".to_owned(), "tokens.toml:1: "),
    ] {
        fs::write(folder.file(), &text).unwrap();
        let error = format!("{:#}", Tokens::open(&folder.file()).unwrap_err());
        assert!(error.contains(fault), "{fault}: {error}");
        assert!(error.contains("tokens.toml"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn the_file_is_for_its_owner_and_changes_in_one_step() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = Folder::new("mode");
    let file = folder.file();
    folder.make(&[Scope::Read], &[""]);
    assert_eq!(mode(&file), 0o600);
    // A changed file keeps its permissions.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.0.join("link.toml");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let all = vec![String::new()];
    TokenFile::make(&link, vec![Scope::Read], all, String::new(), None).unwrap();
    assert_eq!(mode(&file), 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(TokenFile::read(&file).unwrap().grants.len(), 2);
    // While one process changes the file, no other does.
    let new = folder.0.join("tokens.toml.new");
    fs::write(&new, "").unwrap();
    let id = TokenFile::read(&file).unwrap().grants[0].id.clone();
    let error = TokenFile::revoke(&file, &id).unwrap_err().to_string();
    assert!(error.contains("is being changed"), "{error}");
    fs::remove_file(&new).unwrap();
    let before = fs::read(&file).unwrap();
    assert!(TokenFile::revoke(&file, "none").unwrap().is_none());
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(!new.exists());
    assert!(TokenFile::revoke(&file, &id).unwrap().is_some());
    assert_eq!(TokenFile::read(&file).unwrap().grants.len(), 1);
}
