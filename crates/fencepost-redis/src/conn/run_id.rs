//! Which run of a node of a quorum a connection has met.

use std::collections::HashMap;

use redis::Cmd;
use redis::aio::MultiplexedConnection;

use crate::conn::info::fields;

/// The run of the server that this connection leads to, as lua/run.lua makes it. None as well where the server may not be asked
/// to say when its data is replaced: without that a connection knows its run for a moment alone.
pub(crate) async fn met(connection: &mut MultiplexedConnection) -> Option<String> {
    let mut tracking = Cmd::new();
    // Only what concerns all keys is told: it keeps no list for us.
    tracking.arg("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN");
    tracking.exec_async(connection).await.ok()?;
    let mut facts = HashMap::new();
    // Before 7.0 INFO takes one section.
    for section in ["server", "replication"] {
        let mut info = Cmd::new();
        info.arg("INFO").arg(section);
        let text: String = info.query_async(connection).await.ok()?;
        facts.extend(fields(&text));
    }
    run(&facts).filter(|run| !run.is_empty())
}

/// Returns the name of a quorum node's run, from these fields of INFO, as lua/run.lua does.
pub(crate) fn run(facts: &HashMap<String, String>) -> Option<String> {
    let taken = facts.get("master_replid2").filter(|id| id.bytes().any(|digit| digit != b'0'));
    Some([facts.get("run_id")?.as_str(), taken.map_or("", String::as_str)].concat())
}
