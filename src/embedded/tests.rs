use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use redis::aio::MultiplexedConnection;
use rustix::process::{kill_process, test_kill_process};

use super::*;

/// Set for the process that `a_parent_that_dies_leaves_nothing` starts and ends.
const PARENT: &str = "KEYFALL_TEST_PARENT";

async fn connect(server: &Embedded) -> MultiplexedConnection {
    redis::Client::open(server.url())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap()
}

async fn setting(server: &Embedded, name: &str) -> String {
    let (_, value): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg(name)
        .query_async(&mut connect(server).await)
        .await
        .unwrap();
    value
}

async fn get(server: &Embedded, key: &str) -> Option<String> {
    redis::cmd("GET")
        .arg(key)
        .query_async(&mut connect(server).await)
        .await
        .unwrap()
}

async fn set(server: &Embedded, key: &str, value: &str) {
    let () = redis::cmd("SET")
        .arg(key)
        .arg(value)
        .query_async(&mut connect(server).await)
        .await
        .unwrap();
}

fn pid(server: &Embedded) -> Pid {
    Pid::from_child(server.server.as_ref().unwrap())
}

fn runs(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// Waits until `probe` holds.
async fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !probe() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(POLL).await;
    }
}

#[tokio::test]
async fn the_server_runs_the_shipped_configuration() {
    let server = Embedded::start().await.unwrap();
    assert_eq!(server.pid(), u32::try_from(pid(&server).as_raw_pid()).ok());
    // Redis prints the letters in an order of its own.
    assert_eq!(setting(&server, "notify-keyspace-events").await.len(), 2);
    assert_eq!(setting(&server, "maxmemory-policy").await, "noeviction");
    assert_eq!(setting(&server, "appendonly").await, "yes");
    assert_eq!(setting(&server, "save").await, "");
    assert_eq!(setting(&server, "port").await, "0");
    assert!(server.log().contains("eady to accept connections"));
    let mode = server.dir.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn arguments_win_over_the_configuration() {
    let server = Embedded::options()
        .args(["--hz", "50"])
        .args(["--maxmemory", "64mb"])
        .start()
        .await
        .unwrap();
    assert_eq!(setting(&server, "hz").await, "50");
    assert_eq!(setting(&server, "maxmemory").await, "67108864");
}

#[tokio::test]
async fn drop_leaves_nothing() {
    let server = Embedded::start().await.unwrap();
    let (server_pid, guard_pid) = (pid(&server), server.guard.pid());
    let dir = server.dir.clone();
    assert!(runs(server_pid) && runs(guard_pid) && dir.exists());
    drop(server);
    assert!(!runs(server_pid) && !runs(guard_pid) && !dir.exists());
}

#[tokio::test]
async fn stop_leaves_nothing() {
    let server = Embedded::start().await.unwrap();
    let (server_pid, dir) = (pid(&server), server.dir.clone());
    server.stop().await.unwrap();
    assert!(!runs(server_pid) && !dir.exists());
}

#[tokio::test]
async fn drop_cleans_up_even_without_a_guard() {
    let server = Embedded::start().await.unwrap();
    let (server_pid, dir) = (pid(&server), server.dir.clone());
    kill_process(server.guard.pid(), Signal::KILL).unwrap();
    drop(server);
    assert!(!runs(server_pid) && !dir.exists());
}

#[tokio::test]
async fn a_restart_keeps_data_and_address() {
    // With `everysec`, a server whose disk is busy answers before it writes.
    let options = Embedded::options().args(["--appendfsync", "always"]);
    let mut server = options.start().await.unwrap();
    let (first, url) = (server.pid(), server.url());

    set(&server, "embedded:test:restart:1", "before a crash").await;
    server.kill_server().await.unwrap();
    assert_eq!(server.pid(), None);
    server.restart().await.unwrap();
    let second = server.pid();
    assert!(second.is_some() && second != first);
    let value = get(&server, "embedded:test:restart:1").await;
    assert_eq!(value.as_deref(), Some("before a crash"));

    set(&server, "embedded:test:restart:2", "before a clean end").await;
    server.restart().await.unwrap();
    assert_ne!(server.pid(), second);
    assert_eq!(server.url(), url);
    let value = get(&server, "embedded:test:restart:2").await;
    assert_eq!(value.as_deref(), Some("before a clean end"));
}

#[tokio::test]
async fn a_server_that_died_by_itself_can_be_restarted() {
    let mut server = Embedded::start().await.unwrap();
    kill_process(pid(&server), Signal::KILL).unwrap();
    server.restart().await.unwrap();
    assert_eq!(setting(&server, "port").await, "0");
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let error = Embedded::options()
        .args(["--no-such-setting", "1"])
        .start()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no-such-setting"), "{error}");
}

#[tokio::test]
async fn a_missing_binary_is_an_error_with_a_remedy() {
    let error = Embedded::options()
        .binary("/nonexistent/redis-server")
        .start()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    assert!(
        error.to_string().contains("apt-get install redis-server"),
        "{error}"
    );
}

#[tokio::test]
async fn a_parent_that_dies_leaves_nothing() {
    for signal in [Signal::KILL, Signal::INT] {
        let mut parent = Command::new(env::current_exe().unwrap())
            .args(["--exact", "embedded::tests::parent", "--nocapture"])
            .env(PARENT, "1")
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let dir = BufReader::new(parent.stdout.take().unwrap())
            .lines()
            .map(|line| line.expect("the parent ended early"))
            .find_map(|line| line.split_once("dir=").map(|(_, dir)| PathBuf::from(dir)))
            .expect("the parent names its directory");
        // Only the server holds this connection open, so it ends with the server. The process id
        // would not do: where no process reaps orphans, the id stays.
        let mut connection = UnixStream::connect(dir.join(SOCKET_FILE)).unwrap();
        connection
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();

        // A terminal sends this signal on Ctrl-C, or a harder one.
        kill_process_group(Pid::from_child(&parent), signal).unwrap();
        parent.wait().unwrap();

        match connection.read(&mut [0]) {
            Ok(0) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            other => panic!("the server outlived its parent: {other:?}"),
        }
        eventually("the directory is removed", || !dir.exists()).await;
    }
}

/// Not a test of its own: the process that the test above starts and ends.
#[tokio::test]
async fn parent() {
    if env::var_os(PARENT).is_some() {
        let server = Embedded::start().await.unwrap();
        println!("\ndir={}", server.dir.display());
        std::future::pending::<()>().await;
    }
}

#[test]
fn the_socket_path_fits() {
    let short = private_dir(Path::new("/var/tmp"));
    assert!(short.starts_with("/var/tmp"), "{short:?}");
    let long = private_dir(Path::new(&format!("/{}", "x".repeat(80))));
    assert!(long.starts_with("/tmp"), "{long:?}");
    assert!(private_dir(Path::new("relative")).is_absolute());
}

#[test]
fn the_url_survives_odd_paths() {
    use redis::IntoConnectionInfo;
    let socket = Path::new("/tmp/a b/ü?#%/redis.sock");
    let info = unix_url(socket).into_connection_info().unwrap();
    assert_eq!(*info.addr(), redis::ConnectionAddr::Unix(socket.to_owned()));
}

#[tokio::test]
async fn kept_data_exist_at_the_next_start() {
    let above = private_dir(&env::temp_dir());
    let dir = above.join("data");
    let start = || Embedded::options().keep(&dir).start();
    let server = start().await.unwrap();
    set(&server, "k", "v").await;
    let second = start().await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::InvalidSetting);
    assert!(second.to_string().contains("another embedded Redis"));
    server.stop().await.unwrap();

    let server = start().await.unwrap();
    assert_eq!(get(&server, "k").await.as_deref(), Some("v"));
    set(&server, "k", "w").await;
    let killed = pid(&server);
    drop(server);
    assert!(!runs(killed));

    let mut server = start().await.unwrap();
    assert_eq!(get(&server, "k").await.as_deref(), Some("w"));
    kill_process(pid(&server), Signal::TERM).unwrap();
    server.wait().await.unwrap();
    assert_eq!(server.pid(), None);
    drop(server);
    fs::remove_dir_all(above).unwrap();
}

#[test]
fn a_copy_of_its_file_does_not_keep_a_lock() {
    let dir = private_dir(&env::temp_dir());
    let (_, lock) = kept_dir(&dir).unwrap();
    let _copy = lock.0.try_clone().unwrap();
    assert!(kept_dir(&dir).is_err());
    drop(lock);
    kept_dir(&dir).unwrap();
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn an_unusable_data_directory_is_refused() {
    let too_long = env::temp_dir().join("x".repeat(MAX_SOCKET_BYTES));
    for (dir, hint) in [
        (too_long.as_path(), "shorter"),
        (Path::new("/dev/null/x"), "/dev/null"),
    ] {
        let error = Embedded::options().keep(dir).start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert!(error.to_string().contains(hint), "{error}");
    }
    fs::remove_dir_all(too_long).unwrap();
}
