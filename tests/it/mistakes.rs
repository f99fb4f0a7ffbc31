//! The errors of the compiler for functions that are not handlers.
//!
//! Each program is compiled against the library that Cargo has built for the tests. The tests
//! compare our part of the message, and the line it points at; the compiler's part changes with its
//! version.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The beginning of every program, on one line.
const PRELUDE: &str =
    "#![allow(unused)] use keyfall::*; #[derive(Clone)] struct Db; struct Unknown; fn main() {}";

/// A program that compiles.
const SOUND: &str = "
    #[debug_handler]
    async fn handle(Json(_): Json<u8>, _: State<Db>, _: Job) -> Result<(), std::io::Error> { Ok(()) }
    #[debug_handler]
    fn by_hand(_: Job) -> impl Future<Output = Outcome> { async { Outcome::Done } }
    struct Row;
    impl FromJob<Db> for Row {
        async fn from_job(_: &Job, _: &Db) -> Result<Self, Rejection> { Ok(Row) }
    }
    #[debug_handler(state = Db)]
    async fn with_row(_: Row) {}
    fn app() -> Router {
        Router::new().route(\"a:b:c:*\", handle).route(\"a:b:d:*\", with_row).with_state(Db)
            .route(\"a:b:e:*\", by_hand)
    }
";

/// Compiles a program. `None` if it compiles, and otherwise the errors of the compiler.
fn complaint(library: &Path, name: &str, program: &str) -> Option<String> {
    let libraries = library.parent().unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compiler = Command::new(rustc)
        .args([
            "-",
            "--edition=2024",
            "--emit=metadata",
            "--crate-name",
            name,
        ])
        .args(["--out-dir", env!("CARGO_TARGET_TMPDIR")])
        .arg(format!("--extern=keyfall={}", library.display()))
        .arg(format!("-Ldependency={}", libraries.display()))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = compiler.stdin.take().unwrap();
    write!(stdin, "{PRELUDE}{program}").unwrap();
    drop(stdin);
    let output = compiler.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
}

/// The newest library with which a sound program compiles: other builds have other features.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let folder = test.parent().unwrap().read_dir().unwrap();
        let is_library = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libkeyfall-") && name.ends_with(".rlib")
        };
        let mut built: Vec<PathBuf> = folder
            .map(|it| it.unwrap().path())
            .filter(is_library)
            .collect();
        built.sort_by_key(|path| path.metadata().unwrap().modified().unwrap());
        let mut said = Vec::new();
        while let Some(library) = built.pop() {
            match complaint(&library, "sound", SOUND) {
                None => return library,
                Some(complaint) => said.push(complaint),
            }
        }
        panic!("a sound program does not compile: {:?}", said.first());
    })
}

/// Asserts that the program does not compile, and that the compiler prints all of these.
#[track_caller]
fn assert_refused(name: &str, program: &str, phrases: &[&str]) {
    let program = program.trim_start();
    let said = complaint(library(), name, program);
    let said = said.unwrap_or_else(|| panic!("it compiles: {program}"));
    // Lines are broken as the compiler likes.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for phrase in phrases {
        assert!(said.contains(phrase), "no `{phrase}` in:\n{said}");
    }
}

#[test]
fn the_error_for_a_non_handler_names_the_attribute() {
    assert_refused(
        "route",
        r#"async fn handle(_: Unknown) {}
           fn app() -> Router { Router::new().route("a:b:c:*", handle) }"#,
        &[
            "is not a handler",
            "put `#[keyfall::debug_handler]` above the function",
        ],
    );
}

#[test]
fn the_error_names_the_faulty_argument() {
    assert_refused(
        "argument",
        "#[debug_handler]
         async fn handle(_: Job, first: Unknown) {}",
        &[
            "`Unknown` cannot be made from a job on a router whose state is `()`",
            "async fn handle(_: Job, first: Unknown) {} | ^^^^^^^ a handler cannot take this",
        ],
    );
    assert_refused(
        "payload",
        "#[debug_handler]
         async fn handle(_: Json<Unknown>) {}",
        &[":2:", "Deserialize"],
    );
    assert_refused(
        "reference",
        "#[debug_handler]
         async fn handle(_: Job, _: &Headers) {}",
        &["argument 2 is a reference, and a handler owns its arguments"],
    );
    assert_refused(
        "opaque",
        "#[debug_handler]
         async fn handle(_: impl Clone) {}",
        &["argument 1 has no type of its own"],
    );
}

#[test]
fn the_error_names_the_state() {
    assert_refused(
        "part",
        "struct App;
         #[debug_handler(state = App)]
         async fn handle(_: State<Db>) {}",
        &["`Db` is not part of the router's state, `App`"],
    );
    assert_refused(
        "states",
        "#[debug_handler]
         async fn handle(_: State<Db>, _: State<u8>) {}",
        &[
            "the arguments take several states",
            "debug_handler(state = App)",
        ],
    );
    assert_refused(
        "usage",
        "#[debug_handler(Db)]
         async fn handle(_: State<Db>) {}",
        &["write `#[debug_handler]` or `#[debug_handler(state = App)]`"],
    );
    assert_refused(
        "forgotten",
        r#"async fn handle(_: State<Db>) {}
           fn run(client: Client) -> Worker {
               let app: Router<Db> = Router::new().route("a:b:c:*", handle);
               Worker::new(client, app)
           }"#,
        &[
            "the handlers of this `keyfall::Router<Db>` have no state yet",
            "call `.with_state(…)` on it first",
        ],
    );
}

#[test]
fn the_error_names_the_return_type() {
    assert_refused(
        "output",
        "#[debug_handler]
         async fn handle() -> u8 { 1 }",
        &[
            "`u8` does not say how a job ends",
            "async fn handle() -> u8 { 1 } | ^^ a handler cannot",
        ],
    );
    assert_refused(
        "error",
        "#[debug_handler]
         async fn handle() -> Result<(), Unknown> { Ok(()) }",
        &[":2:", "Unknown"],
    );
}

#[test]
fn the_error_names_the_shape_of_the_function() {
    assert_refused(
        "sync",
        "#[debug_handler]
         fn handle(_: Job) {}",
        &["a handler is an `async fn`"],
    );
    assert_refused(
        "nine",
        "#[debug_handler]
         async fn handle(_: Job, _: Job, _: Job, _: Job, _: Job, _: Job, _: Job, _: Job, _: Payload) {}",
        &["a handler takes at most eight arguments, and this one takes 9"],
    );
    assert_refused(
        "generic",
        "#[debug_handler]
         async fn handle<T>(_: Json<T>) {}",
        &["cannot look into a generic function"],
    );
    assert_refused(
        "method",
        "impl Unknown {
            #[debug_handler]
            async fn handle(self) {}
         }",
        &["takes no `self`"],
    );
    assert_refused(
        "item",
        "#[debug_handler]
         struct Handler;",
        &["`debug_handler` stands above an `async fn`"],
    );
}

#[test]
fn the_error_says_why_a_future_is_not_send() {
    assert_refused(
        "send",
        "#[debug_handler]
         async fn handle() {
             let shared = std::rc::Rc::new(1);
             async {}.await;
             drop(shared);
         }",
        &[
            "future cannot be sent between threads safely",
            "Rc<i32>",
            "async {}.await; | ^^^^^ await occurs here",
        ],
    );
}

#[test]
fn a_type_that_is_no_service_of_jobs_is_refused() {
    assert_refused(
        "service",
        r#"fn app() -> Router { Router::new().route_service("a:b:c:*", Unknown) }"#,
        &["`Unknown` cannot run jobs", "tower::Service<Job>"],
    );
}
