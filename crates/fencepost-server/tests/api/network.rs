//! The listener: TLS, and callers that are slow or send too much.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use axum::http::{Request, StatusCode, Version};
use fencepost_core::Client;
use fencepost_server::{
    Audit, Options, Tokens, bind, bind_admin, certificates, router, routers, serve, serve_admin,
};
use fencepost_testkit::needs;
use fencepost_testkit::server::TempDir;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::kit::{Lines, service};

const LOOPBACK: &str = "127.0.0.1:0";

/// Starts the service on a free port. It ends with the test's runtime.
async fn listen(options: Options) -> SocketAddr {
    let (_, locks) = service().await;
    listen_on(&locks, options)
}

/// Starts the service for these locks.
pub(crate) fn listen_on(locks: &Client, options: Options) -> SocketAddr {
    let listener = bind(LOOPBACK.parse().unwrap(), &options).unwrap();
    let address = listener.local_addr().unwrap();
    let router = router(locks.clone(), &options).unwrap();
    tokio::spawn(async move { serve(router, listener, &options).await });
    address
}

/// Sends bytes, and returns all that comes back until the connection is closed.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    // The service may have closed the connection before it has read all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn a_slow_or_silent_caller_is_cut_off() {
    let address = listen(Options::default()).await;
    for slow in [
        "",
        "GET /healthz HT",
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    ] {
        let stream = TcpStream::connect(address).await.unwrap();
        // Time passes as soon as all wait.
        tokio::time::pause();
        let answer = exchange(stream, slow.as_bytes()).await;
        tokio::time::resume();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let answer = exchange(TcpStream::connect(address).await.unwrap(), HEALTH.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn the_service_may_open_as_many_files_as_the_system_lets_it() {
    let limit = || getrlimit(Resource::Nofile);
    let lower = Rlimit { current: limit().maximum.map(|most| most - 1), ..limit() };
    setrlimit(Resource::Nofile, lower).unwrap();
    let address = listen(Options::default()).await;
    exchange(TcpStream::connect(address).await.unwrap(), HEALTH.as_bytes()).await;
    assert_eq!(limit().current, limit().maximum);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let address = listen(Options::default()).await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(100));
    for head in [long, many] {
        let answer = exchange(TcpStream::connect(address).await.unwrap(), head.as_bytes()).await;
        assert!(
            ["HTTP/1.1 431 ", "HTTP/1.1 414 "].iter().any(|status| answer.starts_with(status)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn other_machines_need_tokens_and_tls() {
    let refused = |options: &Options| bind("0.0.0.0:0".parse().unwrap(), options).unwrap_err();
    assert!(refused(&Options::default()).is_invalid());
    needs!(OPENSSL);
    let dir = TempDir::new("tls").unwrap();
    make_certificate(dir.path());
    let with_tls = tls(dir.path(), None);
    assert!(refused(&with_tls).to_string().contains("--tokens"));
    std::fs::write(dir.path().join("tokens"), "").unwrap();
    let tokens = Some(Arc::new(Tokens::read(&dir.path().join("tokens")).unwrap()));
    assert!(refused(&Options { tokens: tokens.clone(), ..Options::default() }).is_invalid());
    assert!(refused(&Options { is_plain: true, ..Options::default() }).is_invalid());
    bind("0.0.0.0:0".parse().unwrap(), &Options { tokens: tokens.clone(), ..with_tls }).unwrap();
    // A proxy or a mesh encrypts.
    bind("0.0.0.0:0".parse().unwrap(), &Options { tokens, is_plain: true, ..Options::default() }).unwrap();
}

#[tokio::test]
async fn health_and_metrics_need_no_certificate_and_no_access_token_at_their_own_listener() {
    needs!(OPENSSL);
    let (dir, (_, locks)) = (TempDir::new("tls").unwrap(), service().await);
    make_certificate(dir.path());
    std::fs::write(dir.path().join("tokens"), "").unwrap();
    let tokens = Some(Arc::new(Tokens::read(&dir.path().join("tokens")).unwrap()));
    let options = Options { tokens, ..tls(dir.path(), Some(dir.path())) };
    let listener = bind_admin(LOOPBACK.parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let admin = routers(locks, &options).unwrap().admin;
    tokio::spawn(async move { serve_admin(admin, listener, &options).await });
    let ask = |request: &'static str| async move {
        let head = format!("{request} HTTP/1.1\r\nHost: 10.0.0.7:7071\r\nConnection: close\r\n\r\n");
        let answer = exchange(TcpStream::connect(address).await.unwrap(), head.as_bytes()).await;
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for (request, status) in [
        ("GET /healthz", "200"),
        ("GET /readyz", "200"),
        // This service has no recorder.
        ("GET /metrics", "501"),
        ("POST /healthz", "405"),
        ("GET /", "404"),
        ("GET /v1/locks", "404"),
        ("GET /openapi.json", "404"),
        ("POST /v1/acquire", "404"),
        ("POST /v1/evict", "404"),
    ] {
        assert_eq!(ask(request).await, status, "{request}");
    }
}

/// Returns the address of the caller in the audit log of a failed login.
async fn address_in_the_log(proxy: &str) -> String {
    let (dir, (_, locks)) = (TempDir::new("tokens").unwrap(), service().await);
    std::fs::write(dir.path().join("tokens"), "").unwrap();
    let tokens = Some(Arc::new(Tokens::read(&dir.path().join("tokens")).unwrap()));
    let lines = Lines::default();
    let audit = Audit::to(lines.clone());
    let proxies = [proxy.parse().unwrap()].into();
    let address = listen_on(&locks, Options { tokens, audit: audit.clone(), proxies, ..Options::default() });
    let head = "GET /v1/locks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess\r\n\
                Forwarded: for=198.51.100.1, for=192.0.2.60\r\nConnection: close\r\n\r\n";
    let answer = exchange(TcpStream::connect(address).await.unwrap(), head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    audit.flush().await;
    let line: serde_json::Value = serde_json::from_str(lines.text().lines().next().unwrap()).unwrap();
    line["peer"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_a_proxy_that_was_named_tells_the_address_of_the_caller() {
    assert_eq!(address_in_the_log("127.0.0.0/8").await, "192.0.2.60");
    assert_eq!(address_in_the_log("10.0.0.0/8").await, "127.0.0.1");
}

#[tokio::test]
async fn a_request_that_is_cut_off_or_garbled_harms_nobody() {
    let address = listen(Options::default()).await;
    let body = "{\"name\":\"a/b\",\"ttl\":\"1m\",\"wait\":\"1s\",\"reason\":\"x\"}";
    let whole = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Idempotency-Key: 0123456789abcdef\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    for at in 0..whole.len() {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&whole.as_bytes()[..at]).await.unwrap();
        // The end of what is sent. The answer does not matter, but there is an end of it.
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
        let mut garbled = whole.clone().into_bytes();
        garbled[at] ^= 0x95;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(&garbled).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    let answer = exchange(TcpStream::connect(address).await.unwrap(), HEALTH.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Makes `cert.pem` and `key.pem` for this machine.
pub(crate) fn make_certificate(dir: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        // Not an authority: rustls refuses an authority as a server's certificate.
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

pub(crate) fn tls(server: &Path, clients: Option<&Path>) -> Options {
    let (cert, key) = (server.join("cert.pem"), server.join("key.pem"));
    let read = certificates(&cert, &key, clients.map(|dir| dir.join("cert.pem")).as_deref());
    Options { certificates: Some(Arc::new(read.unwrap())), ..Options::default() }
}

/// Connects to a server with this certificate, with a certificate of the client's or none.
pub(crate) async fn connect(
    address: SocketAddr,
    server: &Path,
    client: Option<&Path>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let certificate = |dir: &Path| CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(server)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(dir) => {
            let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).unwrap();
            builder.with_client_auth_cert(vec![certificate(dir)], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[tokio::test]
async fn tls_serves_both_versions_and_changed_certificates() {
    needs!(OPENSSL);
    let (dir, before) = (TempDir::new("tls").unwrap(), TempDir::new("before").unwrap());
    make_certificate(dir.path());
    let address = listen(tls(dir.path(), None)).await;
    let stream = connect(address, dir.path(), None, b"http/1.1").await.unwrap();
    let answer = exchange(stream, HEALTH.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("strict-transport-security"), "{answer}");

    let stream = connect(address, dir.path(), None, b"h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/readyz").body(axum::body::Body::empty()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
    // A refusal is not lost although the caller still sends its body.
    for _ in 0..20 {
        let body = axum::body::Body::from_stream(futures_util::stream::once(async {
            tokio::task::yield_now().await;
            Ok::<_, std::convert::Infallible>("{}")
        }));
        let request = Request::post("https://evil.example/v1/acquire").body(body).unwrap();
        let mut response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
        let frame = response.frame().await.expect("a body").expect("it is not cut off");
        assert!(frame.data_ref().is_some_and(|data| data.starts_with(b"{\"code\":\"wrong-host\"")));
    }

    for file in ["cert.pem", "key.pem"] {
        std::fs::copy(dir.path().join(file), before.path().join(file)).unwrap();
    }
    make_certificate(dir.path());
    connect(address, dir.path(), None, b"http/1.1").await.expect("the new certificate");
    connect(address, before.path(), None, b"http/1.1").await.expect_err("the old certificate");
    // A caller without TLS gets no answer.
    let answer = exchange(TcpStream::connect(address).await.unwrap(), HEALTH.as_bytes()).await;
    assert!(!answer.contains("200"), "{answer}");
}

#[tokio::test]
async fn a_client_needs_a_certificate_if_the_service_says_so() {
    needs!(OPENSSL);
    let dirs = [(); 3].map(|()| TempDir::new("tls").unwrap());
    dirs.iter().for_each(|dir| make_certificate(dir.path()));
    let [server, client, unknown] = dirs.each_ref().map(|dir| dir.path());
    let address = listen(tls(server, Some(client))).await;
    for (who, is_known) in [(None, false), (Some(unknown), false), (Some(client), true)] {
        // With TLS 1.3 the refusal comes after the client's part of the handshake.
        let answer = match connect(address, server, who, b"http/1.1").await {
            Ok(stream) => exchange(stream, HEALTH.as_bytes()).await,
            Err(error) => error.to_string(),
        };
        assert_eq!(answer.starts_with("HTTP/1.1 200 "), is_known, "{answer}");
    }
}
