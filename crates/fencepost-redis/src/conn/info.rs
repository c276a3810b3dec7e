//! The answer of INFO, and the run of a quorum's node that it names. A node begins a new run when it starts, and when it takes the
//! data of another server.

use std::collections::HashMap;

use redis::Cmd;
use redis::aio::MultiplexedConnection;

/// `name:value`, a line each.
pub(crate) fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

/// Returns the name of the server's run, as script/lua/quorum.lua makes it. `None`: an answer is missing, the server is a replica, or it
/// refuses `CLIENT TRACKING`. By tracking the server reports when its data is replaced. Without that report, the name may be out of date
/// at once.
pub(crate) async fn met(connection: &mut MultiplexedConnection) -> Option<String> {
    let mut tracking = Cmd::new();
    // With OPTIN, the server reports only changes of all keys (FLUSHALL). It keeps no list of keys for this connection.
    tracking.arg("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN");
    tracking.exec_async(connection).await.ok()?;
    let mut facts = HashMap::new();
    // Before Redis 7.0, INFO takes one section.
    for section in ["server", "replication"] {
        let mut info = Cmd::new();
        info.arg("INFO").arg(section);
        let text: String = info.query_async(connection).await.ok()?;
        facts.extend(fields(&text));
    }
    run(&facts).filter(|run| !run.is_empty())
}

/// Returns the name of a quorum node's run, from these fields of INFO, as script/lua/quorum.lua does. `None`: a field is missing, or the
/// server is a replica. Only when a replica becomes a master does INFO show whose data it has taken, and the connection outlives that.
pub(crate) fn run(facts: &HashMap<String, String>) -> Option<String> {
    facts.get("role").filter(|role| *role == "master")?;
    let taken = facts.get("master_replid2").filter(|id| id.bytes().any(|digit| digit != b'0'));
    Some([facts.get("run_id")?.as_str(), taken.map_or("", String::as_str)].concat())
}
