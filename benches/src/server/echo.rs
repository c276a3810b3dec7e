//! A bare server of axum that answers with the body of the request: what no service over HTTP can go below.

use super::Copy;
use crate::side::{program, run};
use axum::Router;
use axum::routing::post;
use std::process::Stdio;

/// Starts it as a process of its own.
pub(super) fn start() -> Copy {
    let mut command = program(&["server-side-echo"]);
    command.stdin(Stdio::null());
    Copy::of(command, "echo: ")
}

/// That process. Like the service it has one thread.
pub(crate) fn side() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("echo: {}", listener.local_addr().expect("it is bound"));
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| _ = stream.set_nodelay(true));
        let router = Router::new().route("/echo", post(async |body: String| body));
        axum::serve(listener, router).await.expect("a server");
    });
}
