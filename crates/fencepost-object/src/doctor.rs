//! Examines the store.

use fencepost_core::{Finding, Report, Result};

use crate::client::ObjectClient;
use crate::conditions;

pub(crate) async fn examine(client: &ObjectClient, plain: bool) -> Result<Report> {
    let store = client.store.shown();
    let asked = client.store.clock().now();
    client.store.get(&client.keys.conditions()).await?;
    let took = client.store.clock().now().since(asked);
    let conditions = match conditions::are_kept(client).await {
        Ok(true) => {
            Finding::ok("conditions", "the store keeps the conditions of writes, so a lock has one holder")
        }
        Ok(false) => Finding::problem(
            "conditions",
            "the store ignores the conditions of writes, so two may hold one lock",
        )
        .advice("use a store that has conditional writes, or another engine"),
        Err(error) => Finding::problem("conditions", format!("a trial failed: {error}"))
            .advice("check that the credentials may read, write, list and delete"),
    };
    let tls = if plain {
        Finding::warning("tls", "the connections have no TLS, so the objects can be read on the network")
            .advice("write endpoint=https://… in the URL")
    } else {
        Finding::ok("tls", "the connections have TLS")
    };
    let poll = client.poll;
    Ok(vec![
        Finding::ok("store", format!("{store} answers in {} ms", took.as_millis())),
        conditions,
        tls,
        Finding::note(
            "queue",
            format!("there is none: waiters look again after up to {poll:?}, in no order"),
        ),
    ]
    .into())
}
