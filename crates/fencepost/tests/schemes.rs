//! The errors for URLs that this build cannot open say what to do.

use fencepost::Locks;

async fn refusal(url: &str) -> String {
    let error = Locks::connect(url).await.expect_err(url);
    assert!(error.is_invalid(), "{url}: {error}");
    error.to_string()
}

/// With all features nothing is missing; `cargo xtask test` runs this also without any.
#[tokio::test]
async fn an_engine_whose_feature_is_off_is_named_with_it() {
    for (there, feature, urls) in [
        (cfg!(feature = "sqlite"), "sqlite", &["sqlite:/tmp/locks.db"][..]),
        (
            cfg!(feature = "redis"),
            "redis",
            &["redis://h", "rediss://h", "redis+cluster://h", "redlock:redis://h"],
        ),
        (cfg!(feature = "etcd"), "etcd", &["etcd://h", "etcds://h"]),
        (cfg!(feature = "http"), "http", &["http://h", "https://h"]),
        (cfg!(feature = "mysql"), "mysql", &["mysql://me@h/app", "mariadb://me@h/app"]),
        (cfg!(feature = "object"), "object", &["s3://bucket", "gs://bucket", "az://container"]),
        (cfg!(feature = "postgres"), "postgres", &["postgres://me@h/app", "postgresql://me@h"]),
        (cfg!(feature = "zookeeper"), "zookeeper", &["zookeeper://h/locks", "zookeepers://h/locks"]),
    ] {
        for url in urls.iter().filter(|_| !there) {
            let said = refusal(url).await;
            assert!(said.contains(&format!("built without the feature `{feature}`")), "{said}");
        }
    }
}

#[tokio::test]
async fn tls_whose_feature_is_off_is_named_with_it() {
    for (engine, url) in [
        (cfg!(feature = "redis"), "rediss://h"),
        (cfg!(feature = "redis"), "redlock:rediss://h"),
        (cfg!(feature = "etcd"), "etcds://h"),
        (cfg!(feature = "zookeeper"), "zookeepers://h/locks"),
        (cfg!(feature = "http"), "https://h"),
        (cfg!(feature = "mysql"), "mysql://me@h/app?sslmode=verify-full"),
        (cfg!(feature = "postgres"), "postgres://me@h/app?sslmode=verify-full"),
    ] {
        if engine && !cfg!(feature = "tls") {
            let said = refusal(url).await;
            assert!(said.contains("built without the feature `tls`"), "{url}: {said}");
        }
    }
}

#[tokio::test]
async fn an_address_without_an_engine_is_answered_with_the_url_to_write() {
    for (url, advice) in [
        ("127.0.0.1:6379", "write redis://127.0.0.1:6379"),
        ("localhost:6379/2", "write redis://localhost:6379"),
        ("etcd.example.org:2379", "write etcd://etcd.example.org:2379"),
        ("zk1:2181,zk2:2181", "write zookeeper://zk1:2181"),
    ] {
        let said = refusal(url).await;
        assert!(said.contains(advice), "{said}");
    }
    // No port of an engine: it may be a password.
    assert!(!refusal("admin:4711").await.contains("4711"));
}
