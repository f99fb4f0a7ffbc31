//! Databases of another kind: with TLS and passwords, of another encoding, with a clock that is wrong.

use keyfall_database::internals::store;
use keyfall_database::{Database, Error, Settings};
use keyfall_testing::ports::free_port;
use keyfall_testing::postgres::Postgres;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::archive::{NOON, row};
use crate::site::Site;

/// A CA of its own.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test]
async fn tls_is_used_where_its_ca_is_known_and_refused_with_the_remedy_elsewhere() {
    let (ca, other) = (authority("ours"), authority("theirs"));
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let chain = params.signed_by(&key, &ca).unwrap();
    let port = free_port();
    let postgres = Postgres::with_tls(port, &chain.pem(), &key.serialize_pem());
    let role = "CREATE ROLE service LOGIN PASSWORD 'a secret';
        GRANT CREATE ON SCHEMA public TO service";
    postgres.sql("postgres", role);
    let file = |name: &str, ca: &CertifiedIssuer<'static, KeyPair>| {
        let file = postgres.folder().join(name);
        std::fs::write(&file, ca.pem()).unwrap();
        file
    };
    let (ours, theirs) = (file("ours.pem", &ca), file("theirs.pem", &other));
    let url = |mode: &str| format!("postgresql://service@localhost:{port}/postgres?sslmode={mode}");
    let right = Settings::new(url("require"))
        .password("a secret")
        .ca_file(&ours);
    Database::open(&right).unwrap().migrate().await.unwrap();

    let told = async |settings: Settings| {
        let error = Database::open(&settings)
            .unwrap()
            .check()
            .await
            .unwrap_err();
        error.to_string()
    };
    let wrong_ca = Settings::new(url("require"))
        .password("a secret")
        .ca_file(&theirs);
    let error = told(wrong_ca).await;
    assert!(error.contains("certificate"), "{error}");
    assert!(error.contains("`database.ca_file`"), "{error}");
    let error = told(Settings::new(url("disable")).password("a secret")).await;
    assert!(error.contains("no encryption"), "{error}");
    let error = told(right.clone().password("another")).await;
    assert!(error.contains("password authentication failed"), "{error}");
    assert!(!error.contains("another"), "{error}");
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused_with_the_remedy() {
    let postgres = Postgres::start();
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let name = encoding.to_lowercase();
        let make = format!("CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0");
        postgres.sql("postgres", &make);
        let database = Database::open(&Settings::new(postgres.url(&name))).unwrap();
        let error = database.migrate().await.unwrap_err();
        assert!(matches!(error, Error::Schema(_)), "{error}");
        let told = error.to_string();
        assert!(
            told.contains(&format!("is {encoding}, and Keyfall needs UTF8")),
            "{told}"
        );
        let tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'keyfall%'";
        assert_eq!(postgres.sql(&name, tables).trim(), "0");
    }
}

#[tokio::test]
async fn a_clock_that_is_wrong_drops_no_month() {
    let site = Site::new("place-clock").await;
    let (database, year) = (site.database(), 365 * 86_400 * 1_000_000);
    // It ended long ago, and its time is over by any clock.
    store(&database, &[row("a:b:c:1", NOON - 3 * year)])
        .await
        .unwrap();
    let fake = "CREATE SCHEMA fake; CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz
        LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '2 days' $$";
    site.sql.batch_execute(fake).await.unwrap();
    let ahead = format!(
        "{} options='-c search_path=fake,pg_catalog,public'",
        site.url
    );
    let ahead = Database::open(&Settings::new(ahead)).unwrap();
    let error = ahead.drop_expired().await.unwrap_err().to_string();
    assert!(error.contains("its clock differs"), "{error}");
    assert!(error.contains("set both clocks"), "{error}");
    let rows = "SELECT count(*) FROM keyfall_archive";
    assert_eq!(site.one::<i64>(rows).await, 1);
    assert_eq!(database.drop_expired().await.unwrap().len(), 1);
    assert_eq!(site.one::<i64>(rows).await, 0);
}
