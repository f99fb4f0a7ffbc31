//! TLS: with a private CA, with certificates on both sides, and the errors when it fails.

use keyfall::embedded::Embedded;
use keyfall::{Client, ClientBuilder, ErrorKind, Handler, Outcome, RetryPolicy, Router, Source};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::limits::assert_refused;
use crate::runs::{PATIENCE, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{Running, ms};

/// A CA of our own.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate of the same name would pass for its own issuer.
        let name = format!("authority {:016x}", rand::random::<u64>());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a host, or for a client, whose name is not checked.
    pub(crate) fn signs(&self, host: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            chain: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A certificate that was valid in the last century only.
    pub(crate) fn signed_once(&self, host: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(1990, 1, 1);
        params.not_after = rcgen::date_time_ymd(1999, 12, 31);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            chain: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A Redis that speaks TLS on one port and does not on another.
struct Encrypted {
    server: Embedded,
    /// `127.0.0.1:port`
    tls: String,
    plain: String,
    files: std::path::PathBuf,
}

impl Encrypted {
    /// `auth` is `yes` if clients must show a certificate, or `no`.
    async fn start(authority: &Authority, identity: &Identity, auth: &str) -> Self {
        let name = format!("keyfall-tls-{:016x}", rand::random::<u64>());
        let files = std::env::temp_dir().join(name);
        std::fs::create_dir(&files).unwrap();
        let write = |name: &str, text: &str| {
            let path = files.join(name);
            std::fs::write(&path, text).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let [tls, plain] = [(); 2].map(|()| {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        });
        let ca = write("ca.pem", &authority.pem());
        let (chain, key) = (
            write("redis.pem", &identity.chain),
            write("redis.key", &identity.key),
        );
        let (tls_port, port) = (tls.port().to_string(), plain.port().to_string());
        let server = Embedded::options()
            .args(["--bind", "127.0.0.1", "--port", &port])
            .args(["--tls-port", &tls_port, "--tls-auth-clients", auth])
            .args(["--tls-ca-cert-file", &ca])
            .args(["--tls-cert-file", &chain, "--tls-key-file", &key])
            .start()
            .await
            .unwrap();
        Encrypted {
            server,
            tls: tls.to_string(),
            plain: plain.to_string(),
            files,
        }
    }

    fn client(&self) -> ClientBuilder {
        Client::builder(&format!("rediss://{}", self.tls))
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_scheduled_announced_and_run_over_tls() {
    let authority = Authority::new();
    let redis = Encrypted::start(&authority, &authority.signs("127.0.0.1"), "yes").await;
    // The server refuses connections without TLS, so all successful calls use TLS.
    let mut admin = crate::site::connect(&redis.server.url()).await;
    let () = crate::site::command(&mut admin, &["CONFIG", "SET", "port", "0"]).await;
    let ours = authority.signs("worker");
    let chain = redis.files.join("worker.pem");
    let key = redis.files.join("worker.key");
    std::fs::write(&chain, &ours.chain).unwrap();
    std::fs::write(&key, &ours.key).unwrap();
    let client = redis
        .client()
        .ca_certificate_file(redis.files.join("ca.pem"))
        .client_certificate_files(chain, key);
    let client = client.connect().await.unwrap();

    let (note, mut runs) = recorder();
    let handler = note.then(|job| match job.attempt() {
        1 => Outcome::retry("not yet"),
        _ => Outcome::Done,
    });
    let route = handler.retry(RetryPolicy::fixed(ms(50)).unwrap());
    let router = Router::new().route("encrypted:it:job:{id}", route);
    let worker = Running::start(keyfall::Worker::new(client.clone(), router));
    worker.ready().await;
    let mut heard = 0;
    for id in 0..5 {
        let key = format!("encrypted:it:job:{id}");
        client.schedule(key, "").after(ms(300)).await.unwrap();
        let both = runs.take(2).await;
        heard += both
            .iter()
            .filter(|it| it.source() == Source::Event)
            .count();
    }
    assert!(heard > 0, "the subscription is encrypted, too");
    worker.stop().await;
    let stats = client.stats("encrypted:it:job").await.unwrap();
    assert_eq!((stats.done, stats.is_balanced()), (5, true), "{stats:?}");
    // A client with the certificates as text.
    let client = redis.client().ca_certificate(authority.pem());
    let client = client.client_certificate(ours.chain, ours.key);
    client.connect().await.unwrap();
}

#[tokio::test]
async fn tls_failures_are_reported_with_the_remedy() {
    let authority = Authority::new();
    let other = Authority::new();
    let redis = Encrypted::start(&authority, &authority.signs("127.0.0.1"), "no").await;
    let trusting = |url: String| Client::builder(&url).ca_certificate(authority.pem());
    let host = async |identity: Identity| Encrypted::start(&authority, &identity, "no").await;
    let (strict, elsewhere, expired) = (
        Encrypted::start(&authority, &authority.signs("127.0.0.1"), "yes").await,
        host(authority.signs("redis.example")).await,
        host(authority.signed_once("127.0.0.1")).await,
    );
    trusting(format!("rediss://{}", redis.tls))
        .connect()
        .await
        .unwrap();
    let ours = other.signs("worker");
    for (case, builder, kind, names) in [
        (
            "an unknown CA",
            redis.client(),
            ErrorKind::Denied,
            ["no trusted CA", "ca_certificate_file"],
        ),
        (
            "a wrong CA",
            redis.client().ca_certificate(other.pem()),
            ErrorKind::Denied,
            ["no trusted CA", "ca_certificate_file"],
        ),
        (
            "no certificate",
            strict.client().ca_certificate(authority.pem()),
            ErrorKind::Denied,
            ["requires a client certificate", "client_certificate_files"],
        ),
        (
            "a certificate of somebody else",
            strict
                .client()
                .ca_certificate(authority.pem())
                .client_certificate(ours.chain.clone(), ours.key.clone()),
            ErrorKind::Denied,
            [
                "does not accept the client certificate",
                "a CA that the server trusts",
            ],
        ),
        (
            "another host",
            trusting(format!("rediss://{}", elsewhere.tls)),
            ErrorKind::Denied,
            ["for another host", "redis.example"],
        ),
        (
            "an old certificate",
            trusting(format!("rediss://{}", expired.tls)),
            ErrorKind::Denied,
            ["not valid at this time", "renew it"],
        ),
        (
            "no TLS asked for",
            trusting(format!("redis://{}", redis.plain)),
            ErrorKind::InvalidSetting,
            ["does not use TLS", "rediss://"],
        ),
        (
            "no file",
            redis.client().ca_certificate_file("/no/such.pem"),
            ErrorKind::InvalidSetting,
            ["ca_certificate, file /no/such.pem", "cannot be read"],
        ),
        (
            "no certificate in the text",
            redis.client().ca_certificate(ours.key.clone()),
            ErrorKind::InvalidSetting,
            ["ca_certificate holds no certificate", "BEGIN CERTIFICATE"],
        ),
        (
            "no key in the text",
            redis.client().client_certificate(ours.chain.clone(), "key"),
            ErrorKind::InvalidSetting,
            ["the key of client_certificate", "no private key"],
        ),
        (
            "the key of another certificate",
            redis
                .client()
                .client_certificate(ours.chain.clone(), other.signs("x").key),
            ErrorKind::InvalidSetting,
            ["the chain of client_certificate", "do not belong together"],
        ),
    ] {
        println!("{case}");
        // A refusal comes at once, or as soon as the machine allows.
        let patient = builder.connect_timeout(PATIENCE).call_timeout(PATIENCE);
        assert_refused(patient.connect().await, kind, &names);
    }
    for (builder, remedy) in [
        // Redis waits for the end of a command, and does not answer.
        (
            trusting(format!("rediss://{}", redis.plain)),
            "its port with TLS?",
        ),
        // Redis hangs up.
        (
            Client::builder(&format!("redis://{}", redis.tls)),
            "does this port need TLS, rediss://?",
        ),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn commands_take_certificates_and_a_password_as_the_daemon_does() {
    let authority = Authority::new();
    let redis = Encrypted::start(&authority, &authority.signs("127.0.0.1"), "yes").await;
    let mut admin = crate::site::connect(&redis.server.url()).await;
    for (name, text) in [("requirepass", "correct horse"), ("port", "0")] {
        let () = crate::site::command(&mut admin, &["CONFIG", "SET", name, text]).await;
    }
    let ours = authority.signs("operator");
    let file = |name: &str, text: &str| {
        let path = redis.files.join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let url = format!("rediss://{}", redis.tls);
    let ca = file("ca.pem", &authority.pem());
    let chain = file("ours.pem", &ours.chain);
    let key = file("ours.key", &ours.key);
    let password = file("password", "correct horse\n");
    let flags = [
        ["--redis-url", &url],
        ["--redis-ca-file", &ca],
        ["--redis-cert-file", &chain],
        ["--redis-key-file", &key],
        ["--redis-password-file", &password],
    ];
    let with = |command: &[&str], flags: &[[&str; 2]]| {
        let args: Vec<&str> = command
            .iter()
            .chain(flags.iter().flatten())
            .copied()
            .collect();
        Ran::of(keyfall(&args))
    };
    let count = ["count", "--json"];
    assert_eq!(with(&count, &flags).await.value()["pending"], 0);
    let mut of_env = keyfall(&count);
    for [flag, value] in flags {
        let name = flag.trim_start_matches('-').replace('-', "_");
        of_env.env(format!("KEYFALL_{}", name.to_uppercase()), value);
    }
    assert_eq!(Ran::of(of_env).await.value()["pending"], 0);

    // The jobs of another system are reached in the same way.
    let () = crate::site::command(&mut admin, &["AUTH", "correct horse"]).await;
    let due = (std::time::SystemTime::now() + crate::site::HOUR)
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let score = due.as_secs().to_string();
    let _: u64 = crate::site::command(&mut admin, &["ZADD", "delayed", &score, "1"]).await;
    let _: u64 = crate::site::command(&mut admin, &["HSET", "bodies", "1", "{}"]).await;
    let import = "import --from redis-zset --due-key delayed --payload-key bodies --due-unit s \
                  --key encrypted:it:taken:{member} --json";
    let import: Vec<&str> = import.split_whitespace().collect();
    assert_eq!(with(&import, &flags).await.value()["scheduled"], 1);

    with(&count, &flags[..2]).await.fails(1, "certificate");
    with(&count, &flags[..4]).await.fails(1, "password");
    let alone = [flags[0], flags[2]];
    with(&count, &alone).await.fails(2, "go together");
    let shown = format!("rediss://:correct@{}", redis.tls);
    let ran = with(&count, &[["--redis-url", &shown]]).await;
    ran.fails(2, "list its command lines");
    assert!(!ran.err.contains("correct"), "{ran:?}");
}
