//! A password and certificates that change while a client runs.

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::{ClientFiles, TempDir};
use fencepost_testkit::sql::Postgres;

use crate::{SOON, connect, try_connect};

/// The server asks this user for a password, and all others for none.
const RULES: &str = "COPY (SELECT unnest(ARRAY['host all app 127.0.0.1/32 scram-sha-256', \
    'host all all 127.0.0.1/32 trust'])) TO";

#[tokio::test]
async fn a_rotated_password_is_read_again() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server.run("CREATE USER app SUPERUSER PASSWORD 'first'").expect("made");
    let rules = server.run("SHOW hba_file").expect("it has one");
    server.run(&format!("{RULES} '{}'; SELECT pg_reload_conf();", rules.trim())).expect("written");
    let folder = TempDir::new("rotated").expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").expect("written");
    let url = format!("postgres://app@{}/postgres", server.address());
    let error = try_connect(&url).await.expect_err("it asks for a password");
    assert!(error.is_denied() && error.to_string().contains("asks for a password"), "{error}");
    let url = format!("{url}?password_file={}", file.display());
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");

    std::fs::write(&file, "second\n").expect("written");
    let rotate = "ALTER USER app PASSWORD 'second';
        SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE usename = 'app';";
    server.run(rotate).expect("rotated");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    client.close().await;
}

/// The server asks this user for a certificate.
const TLS_RULES: &str = "COPY (SELECT unnest(ARRAY['hostssl all app 127.0.0.1/32 trust clientcert=verify-ca', \
    'host all fencepost 127.0.0.1/32 trust'])) TO";

#[tokio::test]
async fn certificates_are_read_again() {
    needs!(POSTGRES, OPENSSL);
    let mut server = Postgres::start_tls().expect("a server starts");
    server.run("CREATE USER app SUPERUSER").expect("made");
    let rules = server.run("SHOW hba_file").expect("it has one");
    server.run(&format!("{TLS_RULES} '{}'; SELECT pg_reload_conf();", rules.trim())).expect("written");
    let files = ClientFiles::of(&server.certificate()).expect("copied");
    let options = files.options();
    let url = format!("postgres://app@{}/postgres?sslmode=verify-full&{options}", server.address());
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    let guard = mutex.lock().await.expect("it is free");

    server.kill().expect("it runs");
    // The lock ended with its connection.
    guard.lost().await;
    server.rotate().expect("made");
    files.halve().expect("written");
    server.restart().expect("it starts");
    let error = mutex.try_lock().await.expect_err("the certificates are the old ones");
    assert!(error.to_string().contains("cert.pem"), "{error}");

    files.replace(&server.certificate()).expect("copied");
    mutex.lock().wait(SOON).await.expect("it is free").release().await.expect("it was held");
    client.close().await;
}
