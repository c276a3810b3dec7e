//! Examines a deployment for operators.

mod servers;

use fencepost_core::{Finding, Report, Result, Severity, checks};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::client::Client;
use crate::doctor::servers::servers;
use crate::recipe::names::from_node;
use crate::recipe::sequence::{MANY, ever};
use crate::session::{Request, Session};

/// The number of locks whose counters are asked for at once.
const AT_ONCE: usize = 64;

/// Examines the deployment: the session timeout, the servers, the rights of this user, the counters.
///
/// # Cancel safety
/// May be dropped: it only reads.
pub(crate) async fn examine(client: &Client) -> Result<Report> {
    let session = client.session().await?;
    let mut findings = Vec::new();
    let (asked, given) = (client.config.session, session.length);
    findings.push(if given == asked {
        Finding::ok("session", format!("session timeout is {given:?}, as requested"))
    } else {
        let bound = if given > asked { "shorter" } else { "longer" };
        let says =
            format!("session timeout is {given:?}: the server allows none {bound} ({asked:?} was requested)");
        Finding::note("session", says).advice(
            "check minSessionTimeout, maxSessionTimeout and tickTime, or request this one with session=",
        )
    });
    let servers = servers(client, session.clock()).await;
    let away = servers.iter().filter(|finding| finding.subject == "reach").count();
    findings.extend(servers);
    findings.push(members(&session, away).await?);
    findings.push(watches(&session).await?);
    findings.extend(counters(client, &session).await?);
    findings.push(Finding::ok(
        "clocks",
        "no guarantee depends on the servers' clocks: they count their own ticks",
    ));
    Ok(findings.into())
}

/// Counts the voting servers of the ensemble, by its own configuration. `away`: the number of servers that cannot be reached.
async fn members(session: &Session, away: usize) -> Result<Finding> {
    let request: Request<_> = session.request(|driver| async move { driver.get_config().await });
    let data = match session.within(request).await? {
        Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
        Err(_) => String::new(),
    };
    let voters =
        data.lines().filter(|line| line.starts_with("server.") && !line.contains(":observer")).count();
    Ok(checks::majority("voting servers", voters, away, Severity::Warning))
}

/// Checks for persistent watches, which make long queues cheap.
async fn watches(session: &Session) -> Result<Finding> {
    let request: Request<_> = session
        .request(|driver| async move { driver.watch("/", zk::AddWatchMode::Persistent).await.map(drop) });
    Ok(match session.within(request).await? {
        Ok(()) => Finding::ok(
            "watches",
            "the server has persistent watches (3.6 or later), which make long queues cheap",
        ),
        Err(_) => Finding::note(
            "watches",
            "the server has no persistent watches (they came with 3.6): a long queue costs more requests",
        ),
    })
}

/// Finds the folders whose counter is near its end.
async fn counters(client: &Client, session: &Session) -> Result<Vec<Finding>> {
    let root = &client.config.root;
    // An error: there are no locks yet, or this user may not list them.
    let parent = client.config.layout.parent(root);
    let Ok(nodes) = session.within(session.list(parent)).await? else { return Ok(Vec::new()) };
    let locks: Vec<_> =
        nodes.iter().filter_map(|node| Some((node, from_node(node, root.is_empty())?))).collect();
    let mut findings = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        let folders = some.iter().flat_map(|(node, name)| {
            let folder = client.config.layout.folder(root, node);
            ["", "/locks", "/leases"].map(|sub| (name, format!("{folder}{sub}")))
        });
        let folders: Vec<_> = folders.collect();
        let requests = folders.iter().map(|(_, path)| session.stat(path.clone()));
        let stats = session.within(join_all(requests)).await?;
        for ((name, path), stat) in folders.into_iter().zip(stats) {
            let count = stat.ok().flatten().map_or(0, |stat| ever(&stat));
            findings.extend((count >= MANY).then(|| counter(name, &path, count)));
        }
    }
    Ok(findings)
}

fn counter(name: &str, path: &str, count: u32) -> Finding {
    let says = format!(
        "{path} has had {count} nodes; from 2146435072 on claims of '{name}' are refused (the server's counter ends at 2^31)"
    );
    Finding::warning("counter", says)
        .advice("use another name, or delete the folder when nobody claims the lock")
}
