//! A password and certificates that change while a client runs.

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::{ClientFiles, TempDir};
use fencepost_testkit::sql::MariaDb;

use crate::{SOON, connect};

/// The client connects again after the password has changed at the server and in its file.
#[tokio::test]
async fn a_rotated_password_is_read_again() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    server.run("CREATE USER app IDENTIFIED BY 'first'; GRANT ALL ON fencepost.* TO app").expect("made");
    let folder = TempDir::new("rotated").expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").expect("written");
    let url = format!("mysql://app@{}/fencepost?password_file={}", server.address(), file.display());
    let client = connect(&url).await;
    let mutex = client.mutex("lock").expect("a good name");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    std::fs::write(&file, "second\n").expect("written");
    server.run("ALTER USER app IDENTIFIED BY 'second'; KILL USER app;").expect("rotated");
    mutex.lock().await.expect("it is free").release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn certificates_are_read_again() {
    needs!(MARIADB, OPENSSL);
    let mut server = MariaDb::start_tls().expect("a server starts");
    server.run("CREATE USER app REQUIRE X509; GRANT ALL ON fencepost.* TO app").expect("made");
    let files = ClientFiles::of(&server.certificate()).expect("copied");
    let options = files.options();
    let url = format!("mysql://app@{}/fencepost?sslmode=verify-full&{options}", server.address());
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
