use super::*;

fn parse(url: &str) -> Result<Config> {
    Config::parse(&BackendUrl::parse(url).expect("a URL"))
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp(host.to_owned(), port)
}

fn one(url: &str) -> (Address, Login, i64, bool) {
    let config = parse(url).expect(url);
    let Servers::One(address) = config.servers else { panic!("{url} is several servers") };
    (address, config.login, config.database, config.tls.is_some())
}

fn known(user: Option<&str>, password: &str) -> Login {
    Login { user: user.map(str::to_owned), password: Some(password.to_owned().into()) }
}

#[test]
fn one_server_is_read() {
    let nobody = Login::default;
    for (url, expected) in [
        ("redis://", (tcp("127.0.0.1", 6379), nobody(), 0, false)),
        ("redis://host", (tcp("host", 6379), nobody(), 0, false)),
        ("redis://host/", (tcp("host", 6379), nobody(), 0, false)),
        ("rediss://host:7000/3", (tcp("host", 7000), nobody(), 3, true)),
        ("redis://[::1]", (tcp("::1", 6379), nobody(), 0, false)),
        ("redis://[fe80::1]:7000/1", (tcp("fe80::1", 7000), nobody(), 1, false)),
        ("redis://:hunter2@host", (tcp("host", 6379), known(None, "hunter2"), 0, false)),
        ("redis://me:a%40b%2F%3A@host", (tcp("host", 6379), known(Some("me"), "a@b/:"), 0, false)),
        (
            "redis+unix://me:x@/run/my%20redis.sock?db=4",
            (Address::Unix(PathBuf::from("/run/my redis.sock")), known(Some("me"), "x"), 4, false),
        ),
    ] {
        assert_eq!(one(url), expected, "{url}");
    }
}

#[test]
fn several_servers_are_read() {
    let config = parse("rediss+sentinel://me:x@a,b:1,[::1]:2/mymaster/3?sentinel_user=s&sentinel_password=y")
        .expect("a URL");
    let sentinels = vec![tcp("a", 26379), tcp("b", 1), tcp("::1", 2)];
    let login = known(Some("s"), "y");
    assert_eq!(config.servers, Servers::Sentinel { sentinels, master: "mymaster".to_owned(), login });
    assert_eq!((config.login, config.database), (known(Some("me"), "x"), 3));
    assert!(config.tls.is_some());
    let config = parse("redis+cluster://a:1,b").expect("a URL");
    assert_eq!(config.servers, Servers::Cluster(vec![tcp("a", 1), tcp("b", 6379)]));
}

#[test]
fn options_are_read() {
    let config =
        parse("rediss://h?prefix=x:&retention=7d&timeout=500ms&connect_timeout=3s&ca=/a.pem").expect("a URL");
    assert_eq!(config.prefix, "x:");
    assert_eq!(config.retention, Duration::from_secs(7 * 86_400));
    assert_eq!(config.timeout, Duration::from_millis(500));
    assert_eq!(config.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.tls, Some(Tls { ca: Some(PathBuf::from("/a.pem")), identity: None }));
    assert_eq!(parse("redis://h?replicas=2").expect("a URL").replicas, 2);
    let config = parse("redis://h").expect("a URL");
    assert_eq!(config.replicas, 0);
    assert_eq!((&*config.prefix, config.retention), ("fencepost:", Duration::from_secs(3600)));
}

#[test]
fn a_password_may_stand_in_a_file_or_the_environment() {
    let folder = fencepost_testkit::server::TempDir::new("redis-secret").expect("a folder");
    let path = folder.path().join("secret");
    std::fs::write(&path, "hunter2\n").expect("a file");
    let url = format!("redis://me@host?password_file={}", path.display());
    let login = one(&url).1;
    assert_eq!(login, known(Some("me"), "hunter2"));
    let home = std::env::var("PATH").expect("a PATH");
    assert_eq!(one("redis://host?password_env=PATH").1, known(None, &home));
}

#[test]
fn nothing_secret_is_shown() {
    let config = parse("redis+sentinel://me:hunter2@a/m?sentinel_password=hunter3").expect("a URL");
    assert!(!format!("{config:?}").contains("hunter"), "{config:?}");
}

#[test]
fn only_the_schemes_there_are_are_taken() {
    // Where TLS is meant, nothing may go in plain text.
    for url in ["redis+tls://h", "valkeys://:secret@h", "http://h", "rediss+unix:///x", "redlock://h"] {
        let error = parse(url).expect_err(url);
        let says = error.to_string();
        assert!(error.is_invalid() && says.contains("rediss+cluster:"), "{url}: {error}");
        assert!(!says.contains("secret"), "{error}");
        let nodes = BackendUrl::parse(&format!("redlock:redis://a,{url},redis://c")).expect("a URL");
        assert!(crate::redlock::parse(&nodes).expect_err(url).is_invalid(), "{url}");
    }
}

#[test]
fn what_cannot_work_is_refused_with_advice() {
    for (url, advice) in [
        ("redis:host", "redis://host:6379"),
        ("redis://a,b", "redis+cluster:"),
        ("redis://host/x", "database is a number"),
        ("redis://host/0/1", "redis+unix"),
        ("redis://host:x", "host:port"),
        ("redis://host:0", "host:port"),
        ("redis://::1", "[IPv6]"),
        ("redis://[::1", "[IPv6]"),
        ("redis://me@host", "password_env"),
        ("redis://host?timeout=5", "500ms"),
        ("redis://host?timeout=0s", "1ms"),
        ("redis://host?replicas=two", "replicas=2"),
        ("redis://host?prefix=", "prefix"),
        ("redis://host?prefix=redlock:x:", "redlock:"),
        ("redis://host?ca=/a.pem", "not an option"),
        ("rediss://host?cert=/a.pem", "go together"),
        ("redis://host?db=1", "not an option"),
        ("redis://host?tiemout=1s", "timeout"),
        ("redis+unix://", "redis+unix:///run"),
        ("redis+unix://host/a.sock", "no host"),
        ("redis+sentinel://a,b", "mymaster"),
        ("redis+cluster://a/1", "no databases"),
        ("redis+cluster://", "host:port"),
        ("redis+cluster://a,b,a:6379", "stands twice"),
        ("redis+cluster://a/0,b/0", "no databases"),
        ("redis+sentinel://a/x,b/x", "database is a number"),
    ] {
        let error = parse(url).expect_err(url);
        assert!(error.is_invalid() && error.to_string().contains(advice), "{url}: {error}");
    }
    for (url, advice) in [
        ("redis://host?password_env=FENCEPOST_NOT_SET", "not set"),
        ("redis://host?password_file=/nowhere/at/all", "cannot be read"),
    ] {
        let error = parse(url).expect_err(url);
        assert!(error.is_configuration() && error.to_string().contains(advice), "{url}: {error}");
    }
}
