//! Clients that ask an engine to keep runs, and engines that refuse them.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Client, ClientBuilder, Entry, How, Memory, Operator, Registry,
    Reply, Result, Runtime,
};

const DAY: Duration = Duration::from_secs(86_400);

/// An engine that keeps no runs.
struct Forgetful(Arc<Memory>);

impl Backend for Forgetful {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.history = false;
        capabilities
    }

    fn entry(self: Arc<Self>, claim: Arc<Claim>, how: How) -> Entry {
        assert!(how == How::Attach || claim.history.is_none(), "it was never promised");
        Arc::clone(&self.0).entry(claim, how)
    }

    fn operator(&self) -> &dyn Operator {
        self.0.operator()
    }
}

fn open(address: BackendUrl, _: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    Reply::ready(address.only(&[]).map(|()| Arc::new(Forgetful(Memory::new())) as Arc<dyn Backend>))
}

async fn connect(builder: ClientBuilder, url: &str) -> Result<Client> {
    builder.connect(&Registry::new().with("forgetful", open), url).await
}

/// Whether a run of this client can be seen after its end.
async fn keeps(client: &Client) -> bool {
    let guard = client.mutex("lock").unwrap().lock().await.unwrap();
    guard.report(0);
    guard.release().await.unwrap();
    client.inspect("lock").await.unwrap().runs.is_some_and(|runs| runs.good.is_some())
}

#[tokio::test]
async fn runs_are_kept_for_a_client_or_a_url_that_says_so() {
    for (builder, url, kept) in [
        (Client::builder(), "memory:", false),
        (Client::builder(), "memory:?history=31d", true),
        (Client::builder().history(DAY), "memory:", true),
        (Client::builder().history(DAY), "memory:?history=90m", true),
        (Client::builder().history_where_kept(DAY), "memory:", true),
        (Client::builder().history_where_kept(DAY), "forgetful:", false),
    ] {
        assert_eq!(keeps(&connect(builder, url).await.unwrap()).await, kept, "{url}");
    }
}

#[tokio::test]
async fn an_engine_that_keeps_none_refuses_who_needs_them() {
    for (builder, url) in [
        (Client::builder().history(DAY), "forgetful:"),
        (Client::builder(), "forgetful:?history=1d"),
        (Client::builder().history_where_kept(DAY), "forgetful:?history=1d"),
    ] {
        let error = connect(builder, url).await.unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("history of runs"), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_history_has_bounds() {
    for text in ["", "0d", "59s", "3661d", "31", "-1d", "1w"] {
        let error = connect(Client::builder(), &format!("memory:?history={text}")).await.unwrap_err();
        let rule = "history is a duration of 1m to 3660d";
        assert!(error.is_invalid() && error.to_string().contains(rule), "{text}: {error}");
    }
}
