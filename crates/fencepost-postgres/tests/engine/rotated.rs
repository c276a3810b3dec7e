//! A password that changes while a client runs.

use fencepost_testkit::needs;
use fencepost_testkit::server::TempDir;
use fencepost_testkit::sql::Postgres;

use crate::connect;

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
    let url = format!("postgres://app@{}/postgres?password_file={}", server.address(), file.display());
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
