//! What an operator should know of a deployment.

use fencepost_core::{Finding, Report, Result};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::count::{MANY, ever};
use crate::link::Asked;
use crate::name::from_node;
use crate::shared::Shared;
use crate::versions::versions;

/// The number of locks whose counters are asked for at once.
const AT_ONCE: usize = 64;

/// Examines the deployment: the session that the server gives, its members, and what this user may do.
///
/// # Cancel safety
/// May be dropped: it only reads.
pub(crate) async fn examine(shared: &Shared) -> Result<Report> {
    let link = shared.link().await?;
    let mut findings = Vec::new();
    let (asked, given) = (shared.config.session, link.length);
    findings.push(if given == asked {
        Finding::ok("session", format!("its timeout is {given:?}, as requested"))
    } else {
        let bound = if given > asked { "no shorter" } else { "no longer" };
        Finding::note(
            "session",
            format!("its timeout is {given:?}: the server gives {bound} ones ({asked:?} was requested)"),
        )
        .advice("see to minSessionTimeout, maxSessionTimeout and tickTime, or ask for this with session=")
    });
    let servers = versions(&shared.config, shared.tunnel().as_deref(), link.clock()).await;
    let away = servers.iter().filter(|finding| finding.subject == "reach").count();
    findings.extend(servers);
    findings.push(members(shared, away).await?);
    findings.push(watches(shared).await?);
    findings.extend(counters(shared).await?);
    findings.push(Finding::ok(
        "clocks",
        "no promise rests on the servers' clocks: they count ticks of their own",
    ));
    Ok(findings.into())
}

/// Who stands in the ensemble, from what ZooKeeper keeps of its own configuration. `away`: so many cannot be reached.
async fn members(shared: &Shared, away: usize) -> Result<Finding> {
    let link = shared.link().await?;
    let asked: Asked<_> = link.ask(|client| async move { client.get_config().await });
    let data = match link.within(asked).await? {
        Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
        Err(_) => String::new(),
    };
    let voters =
        data.lines().filter(|line| line.starts_with("server.") && !line.contains(":observer")).count();
    Ok(quorum(voters, away))
}

/// What becomes of locks when servers are lost.
fn quorum(voters: usize, away: usize) -> Finding {
    match voters {
        0 => Finding::warning("quorum", "the server stands alone: while it is away there are no locks")
            .advice("for more than that run an ensemble of three or five"),
        1 | 2 => Finding::warning("quorum", format!("{voters} voting servers survive the loss of none"))
            .advice("run three or five"),
        _ if away > 0 => Finding::warning(
            "quorum",
            format!(
                "{voters} voting servers survive the loss of {}, and {away} cannot be reached",
                (voters - 1) / 2
            ),
        )
        .advice("bring them back: locks are gone with the next that is lost beyond that"),
        even if even % 2 == 0 => Finding::note(
            "quorum",
            format!("{even} voting servers survive no more losses than {} would", even - 1),
        ),
        _ => {
            Finding::ok("quorum", format!("{voters} voting servers survive the loss of {}", (voters - 1) / 2))
        }
    }
}

/// Whether the server has the watches that keep long lines cheap.
async fn watches(shared: &Shared) -> Result<Finding> {
    let link = shared.link().await?;
    let asked: Asked<_> =
        link.ask(|client| async move { client.watch("/", zk::AddWatchMode::Persistent).await.map(drop) });
    Ok(match link.within(asked).await? {
        Ok(()) => Finding::ok(
            "watches",
            "the server has persistent watches (3.6 or later), which keep long lines cheap",
        ),
        Err(_) => Finding::note(
            "watches",
            "the server has no persistent watches (they came with 3.6): a long line costs more requests",
        ),
    })
}

/// The folders whose counter is near its end.
async fn counters(shared: &Shared) -> Result<Vec<Finding>> {
    let link = shared.link().await?;
    let root = &shared.config.root;
    let parent = shared.config.layout.parent(root);
    let nodes = match link.within(link.list(parent)).await? {
        Ok(nodes) => nodes,
        // Nobody has locked anything, or this user may not look.
        Err(_) => return Ok(Vec::new()),
    };
    let locks: Vec<_> =
        nodes.iter().filter_map(|node| Some((node, from_node(node, root.is_empty())?))).collect();
    let mut findings = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        let folders = some.iter().flat_map(|(node, name)| {
            let folder = shared.config.layout.folder(root, node);
            ["", "/locks", "/leases"].map(|sub| (name, format!("{folder}{sub}")))
        });
        let folders: Vec<_> = folders.collect();
        let stats = link.within(join_all(folders.iter().map(|(_, path)| link.stat(path.clone())))).await?;
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

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn an_ensemble_is_as_it_should_be_only_while_all_of_it_is_there() {
        for (voters, away, severity) in [
            (0, 0, Severity::Warning),
            (2, 0, Severity::Warning),
            (3, 0, Severity::Ok),
            (3, 1, Severity::Warning),
            (4, 0, Severity::Note),
            (5, 1, Severity::Warning),
        ] {
            assert_eq!(quorum(voters, away).severity, severity, "{voters} of which {away} are away");
        }
    }
}
