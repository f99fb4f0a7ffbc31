//! A test that the order of the modules, as the documentation of `lib.rs` states it, holds in the
//! code: each module uses only modules of lower levels.

mod code;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use code::{Code, Used};

/// The root of the crate: the modules and their order, read from `lib.rs`.
struct Root {
    /// The level of each module, by the table in the documentation.
    levels: BTreeMap<String, u32>,
    /// The module of each name that the root re-exports.
    exports: BTreeMap<String, String>,
}

impl Root {
    /// Reads the table, the declared modules and the re-exports; asserts that table and
    /// declarations agree.
    fn read(text: &str) -> Self {
        let mut levels = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("//! | ")) {
            let mut cells = line.split('|').map(str::trim);
            let Some(Ok(level)) = cells.next().map(str::parse) else {
                continue;
            };
            let module = cells
                .next()
                .unwrap_or_default()
                .trim_matches('`')
                .to_owned();
            let twice = levels.insert(module, level);
            assert_eq!(twice, None, "two lines of one module: {line}");
        }
        let code = Code::new(text);
        let exports = code.exports().into_iter().collect();
        let stated: Vec<&String> = levels.keys().collect();
        let mut modules = code.modules();
        modules.sort();
        assert!(
            stated.into_iter().eq(&modules),
            "the table in lib.rs has other modules than {modules:?}"
        );
        Root { levels, exports }
    }

    /// The module that a name of the root belongs to.
    fn module<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let known = self.levels.contains_key(name).then_some(name);
        known.or_else(|| self.exports.get(name).map(String::as_str))
    }

    /// The uses in a file of this module that break the order, one line each. `depth` is the number
    /// of modules that the file is nested in.
    fn faults(&self, module: &str, depth: usize, file: &str, code: &Code) -> Vec<String> {
        let level = self.levels[module];
        let mut faults = Vec::new();
        for Used { line, name } in code.uses(depth) {
            match self.module(&name).map(|used| (used, self.levels[used])) {
                Some((used, _)) if used == module => {}
                Some((_, at)) if at < level => {}
                Some((used, at)) => faults.push(format!(
                    "{file}:{line}: `{module}` (level {level}) uses `{used}` (level {at})"
                )),
                None => faults.push(format!(
                    "{file}:{line}: no module is known to have `{name}`"
                )),
            }
        }
        faults
    }
}

/// Collects all Rust files in a folder and below.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The names of the modules that a file is in, itself included: `["client", "view"]`.
fn module_path(file: &Path) -> Vec<String> {
    let whole = file.with_extension("");
    let mut names: Vec<String> = whole
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.pop_if(|last| last == "mod");
    names
}

#[test]
fn each_module_uses_only_modules_of_lower_levels() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = Root::read(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut paths = Vec::new();
    files(&src, &mut paths);
    paths.sort();
    let mut all = Vec::new();
    let mut tests = Vec::new();
    for path in &paths {
        let file = path.strip_prefix(&src).unwrap();
        let code = Code::new(&fs::read_to_string(path).unwrap());
        let mut within = module_path(file);
        let at_root = within == ["lib"];
        if at_root {
            within.clear();
        }
        tests.extend(code.tests().iter().map(|name| {
            let mut path = within.clone();
            path.push(name.clone());
            path
        }));
        if !at_root {
            all.push((file, within, code));
        }
    }
    all.retain(|(_, within, _)| !tests.iter().any(|test| within.starts_with(test)));
    assert!(all.len() > root.levels.len(), "files are missing");
    let faults: Vec<String> = all
        .iter()
        .flat_map(|(file, within, code)| {
            let file = format!("src/{}", file.display());
            root.faults(&within[0], within.len(), &file, code)
        })
        .collect();
    assert!(
        faults.is_empty(),
        "edges that go up in the order of lib.rs:\n{}",
        faults.join("\n")
    );
}

#[test]
fn an_upward_dependency_is_found() {
    let root = Root::read(
        "//! | 0 | `low` | text |\n//! | 0 | `side` | text |\n//! | 1 | `high` | text |\n\
         mod low;\nmod side;\npub mod high;\n#[cfg(test)]\nmod probe;\npub use high::{Tower, Roof as Top};\n",
    );
    let of_low = |text: &str| root.faults("low", 1, "src/low.rs", &Code::new(text));
    assert_eq!(
        of_low("\n\nuse crate::{Top, low::Own};"),
        ["src/low.rs:3: `low` (level 0) uses `high` (level 1)"]
    );
    for up in [
        "fn f(it: crate::Tower) {}",
        "use crate::high::{self, x::{y, z}};",
        "use crate::side;",
        "use super::high::Tower;",
        "macro_rules! m { () => { $crate::Tower } }",
        "use crate::unknown;",
        "use crate::*;",
        "const A: &str = \"\\\"\"; const B: char = '\"'; fn f<'a>(it: &'a crate::Tower) {}",
        "#[cfg(any(test, feature = \"x\"))] use crate::high;",
        "#[cfg(test)] mod tests { const A: &str = \"}\"; } use crate::high;",
    ] {
        assert_eq!(of_low(up).len(), 1, "{up}");
    }
    for fine in [
        "use crate::low::{high, Own};",
        "// crate::high",
        "/// [`Tower`](crate::Tower)",
        "/* /* */ crate::high */",
        "const A: &str = r#\"crate::high\" crate::high\"#;",
        "#[cfg(test)]\n#[allow(x)]\nmod tests { use crate::high; }",
        "#[cfg(all(test, unix))]\nuse crate::high::{Tower, Roof};",
        "#[cfg(test)] mod tests { use super::super::high; }",
        "#[cfg(test)] pub(crate) mod probe { use crate::high; }",
    ] {
        assert_eq!(of_low(fine), Vec::<String>::new(), "{fine}");
    }
    let of_high = |text: &str| root.faults("high", 2, "src/high/x.rs", &Code::new(text));
    assert_eq!(
        of_high("use crate::low; use super::side;"),
        Vec::<String>::new()
    );
}
