//! Users and TLS.

use std::time::Instant;

use crate::kit::{
    SOON, client_of, connect, connect_by, eventually, fill, refused, server, stand, try_connect, users,
};
use fencepost_core::{Client, Clock, Finding, Registry, Report, Severity};
use fencepost_testkit::etcd::{Cluster, Config, Etcd};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::server::Proxy;

#[tokio::test(flavor = "multi_thread")]
async fn users_are_let_in_by_their_password_and_no_further_than_they_may() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    users(&etcd);
    let host = etcd.address();
    let locks = connect(&format!("etcd://app:hunter2@{host}?prefix=locks/")).await;
    let guard = locks.mutex("stock").unwrap().lock().await.unwrap();
    assert!(locks.mutex("stock").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.close().await;
    for (url, denied) in [
        (format!("etcd://app:wrong@{host}?prefix=locks/"), true),
        (format!("etcd://app:hunter2@{host}?prefix=other/"), true),
        (format!("etcd://{host}?prefix=locks/"), true),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.is_denied(), denied, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_refused_where_nobody_asks_for_them() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    let error = refused(&format!("etcd://app:hunter2@{}", etcd.address())).await;
    assert!(error.is_configuration() && !error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_trusts_whom_it_is_told_to() {
    needs!(ETCD, ETCDCTL);
    let etcd = Etcd::start(&Config::new().tls()).unwrap();
    let locks = connect(&format!("{}?ca={}", etcd.url(), etcd.certificate().display())).await;
    locks.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    locks.close().await;
    let error = refused(&etcd.url()).await;
    assert!(error.is_configuration() && error.to_string().contains("check ca"), "{error}");
    let error = refused(&format!("{}?ca=/nowhere", etcd.url())).await;
    assert!(error.is_configuration(), "{error}");
    let cert = etcd.certificate().display().to_string();
    let key = etcd.certificate().with_file_name("key.pem").display().to_string();
    for (cert, key, what) in
        [(&key, &cert, "cert names"), (&cert, &cert, "key names"), (&key, &key, "cert names")]
    {
        let url = format!("{}?ca={}&cert={cert}&key={key}", etcd.url(), etcd.certificate().display());
        let error = refused(&url).await;
        assert!(error.is_configuration() && error.to_string().contains(what), "{error}");
    }
    let url = format!("{}?ca={}&cert={key}&key={cert}", etcd.url(), etcd.certificate().display());
    let error = refused(&url).await;
    assert!(error.to_string().contains("are cert and key swapped"), "{error}");
    let error = refused(&format!("{}?ca={key}", etcd.url())).await;
    assert!(error.to_string().contains("ca names"), "{error}");
    let error = try_connect(&etcd.url().replace("etcds:", "etcd:")).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_the_server_does_not_accept_is_named() {
    needs!(ETCD, ETCDCTL);
    // The server's own certificate is the authority for its clients.
    let etcd = Etcd::start(&Config::new().tls().client_certificates()).unwrap();
    let other = Etcd::start(&Config::new().tls()).unwrap();
    let file = |of: &Etcd, name: &str| of.certificate().with_file_name(name).display().to_string();
    let url = format!("{}?ca={}", etcd.url(), etcd.certificate().display());
    let identity = |of: &Etcd| format!("{url}&cert={}&key={}", file(of, "cert.pem"), file(of, "key.pem"));
    let locks = connect(&identity(&etcd)).await;
    locks.mutex("stock").unwrap().lock().await.unwrap().release().await.unwrap();
    locks.close().await;
    for (url, named) in [(identity(&other), "cert and key"), (url.clone(), "with cert=/path")] {
        let error = refused(&url).await;
        let text = error.to_string();
        assert!(
            error.is_configuration() && text.contains("certificate") && text.contains(named),
            "{error:?}"
        );
        assert!(!text.contains("transport error"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_examination_tells_what_the_cluster_is() {
    needs!(ETCD, ETCDCTL);
    let cluster = Cluster::start(&Config::new()).unwrap();
    let locks = connect(&cluster.url()).await;
    let start = Instant::now();
    let says = |report: &Report, subject: &str| {
        let found = report.findings.iter().find(|finding| finding.subject == subject);
        found.unwrap_or_else(|| panic!("nothing about {subject}: {report:?}")).says.clone()
    };
    let report = loop {
        let report = locks.examine().await.unwrap();
        if report.worst() < Severity::Problem
            && says(&report, "quorum").contains("3 members, of which 1 may fail")
        {
            break report;
        }
        // On a busy machine the members may elect another leader.
        assert!(start.elapsed() < SOON, "{report:?}");
    };
    let says = |subject: &str| says(&report, subject);
    assert!(says("alarms").contains("none") && says("version").contains("etcd 3."));
    assert!(says("leases").contains("shortest") && !says("clocks").is_empty());
    locks.close().await;
    let one = connect(&cluster.url_of(0)).await;
    let report = one.examine().await.unwrap();
    assert_eq!(report.worst(), Severity::Warning, "the URL names one of three: {report:?}");
    one.close().await;
    assert!(cluster.look().leases().is_empty(), "the examination leaves a lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_told_once() {
    needs!(ETCD, ETCDCTL);
    let etcd = Etcd::start(&Config::new().argument("--quota-backend-bytes=200000")).unwrap();
    let locks = connect(&etcd.url()).await;
    fill(&etcd);
    let report = locks.examine().await.unwrap();
    let told = |finding: &&Finding| ["alarms", "errors"].contains(&finding.subject);
    let told: Vec<_> = report.findings.iter().filter(told).collect();
    assert!(told.len() == 1 && told[0].says.contains("out of space"), "{report:?}");
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_breaks_a_rule_names_it() {
    needs!(ETCD, ETCDCTL);
    let error = fencepost_core::Client::builder()
        .connect(&fencepost_etcd::register(Registry::new()), "etcd://host?lease=3")
        .await
        .unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("prefix"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_loses_a_right_is_told_so_with_the_loss() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    users(&etcd);
    let clock = Clock::manual();
    let locks = client_of(&clock, &format!("etcd://app:hunter2@{}?prefix=locks/", etcd.address())).await;
    let guard = locks.mutex("stock").unwrap().lock().ttl(SOON).await.unwrap();
    assert_eq!(guard.last_renewal_error(), None);
    etcd.look().of("root:topsecret").run(&["user", "revoke-role", "app", "locks"]);
    clock.advance_to(clock.now() + SOON / 2);
    eventually("its renewal fails", async || guard.last_renewal_error().is_some()).await;
    clock.advance_to(clock.now() + SOON);
    tokio::time::timeout(SOON, guard.lost()).await.expect("it is lost");
    let error = guard.ensure_held().unwrap_err();
    let told = error.to_string();
    assert!(
        error.is_lost() && told.contains("renewal failed") && told.contains("grant the user read and write"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
    drop(guard);
    locks.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_login_the_server_has_forgotten_logs_in_again() {
    needs!(ETCD, ETCDCTL);
    let etcd = server();
    users(&etcd);
    let url = format!("etcd://app:hunter2@{}?prefix=locks/", etcd.address());
    let proxy = &mut Proxy::start(etcd.address()).unwrap();
    let near = connect(&url).await;
    // The first renewal, which would log in too, comes much later.
    let url = url.replace(&etcd.address().to_string(), &proxy.address().to_string());
    let far = connect_by(Client::builder().ttl(SOON * 20), &url).await;
    let guard = near.mutex("stock").unwrap().lock().await.unwrap();
    let waiting = stand(&far, "stock", 2).await;
    // The server forgets all logins of a deleted user, as after a restart.
    let root = etcd.look().of("root:topsecret");
    for command in [&["delete", "app"][..], &["add", "app:hunter2"], &["grant-role", "app", "locks"]] {
        root.run(&[&["user"], command].concat());
    }
    proxy.cut().unwrap();
    guard.release().await.unwrap();
    proxy.mend().unwrap();
    waiting.granted().await.release().await.unwrap();
    near.close().await;
    far.close().await;
}
