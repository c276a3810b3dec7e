//! Users, passwords, TLS.

use fencepost_testkit::needs;
use fencepost_testkit::sql::MariaDb;

use crate::{connect, try_connect};

/// The password is proved, and a wrong one is refused without being named.
#[tokio::test]
async fn a_password_is_proved() {
    needs!(MARIADB);
    let server = MariaDb::start().expect("a server starts");
    server.run("CREATE USER app IDENTIFIED BY 'hunter2'; GRANT ALL ON fencepost.* TO app").expect("made");
    let url = |password: &str| format!("mysql://app:{password}@{}/fencepost", server.address());
    let client = connect(&url("hunter2")).await;
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    client.close().await;
    let error = try_connect(&url("hunter3")).await.expect_err("it is wrong");
    assert!(error.is_denied() && !error.to_string().contains("hunter3"), "{error}");
    let error = try_connect(&format!("mysql://root@{}/nothing", server.address())).await;
    let error = error.expect_err("there is no such database");
    assert!(error.is_configuration() && error.to_string().contains("database"), "{error}");
}

/// Two servers behind one address grant by themselves, so a client uses one of them only, and connects until it finds that one.
#[tokio::test]
async fn a_load_balancer_between_servers_is_refused() {
    needs!(MARIADB);
    let servers = [MariaDb::start().expect("a server starts"), MariaDb::start().expect("a server starts")];
    let balancer = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
    let at = balancer.local_addr().expect("it is bound");
    let addresses = servers.each_ref().map(MariaDb::address);
    tokio::spawn(async move {
        for address in addresses.into_iter().cycle() {
            let (mut client, _) = balancer.accept().await.expect("it listens");
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(address).await.expect("the server listens");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let client = connect(&format!("mysql://root@{at}/fencepost")).await;
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    // The wait needs another connection.
    let other = client.mutex("lock").expect("a good name");
    let error = other.lock().wait(std::time::Duration::from_secs(5)).await.expect_err("it is held");
    assert!(error.is_timeout(), "{error}");
    guard.release().await.expect("it was held");
    client.close().await;
}

#[tokio::test]
async fn over_tls() {
    needs!(MARIADB, OPENSSL);
    let server = MariaDb::start_tls().expect("a server starts");
    server
        .run("CREATE USER app IDENTIFIED BY 'hunter2' REQUIRE SSL; GRANT ALL ON fencepost.* TO app")
        .expect("made");
    let (ca, at) = (server.certificate(), server.address());
    let url = format!("mysql://app:hunter2@{at}/fencepost");
    let client = connect(&format!("{url}?sslmode=verify-full&ca={}", ca.display())).await;
    let guard = client.mutex("lock").expect("a good name").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    client.close().await;
    let error = try_connect(&url).await.expect_err("TLS is required");
    assert!(error.is_denied(), "{error}");
    let error = try_connect(&format!("{url}?sslmode=verify-full")).await.expect_err("nobody knows it");
    assert!(error.to_string().contains("certificate") || error.to_string().contains("ca="), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_if_tls_is_asked_for() {
    needs!(MARIADB);
    let server = MariaDb::start_options(&["--skip-ssl"]).expect("a server starts");
    let error = try_connect(&format!("{}?sslmode=verify-full", server.url())).await.expect_err("no TLS");
    assert!(error.is_configuration() && error.to_string().contains("TLS"), "{error}");
}
