//! What an operator should know of a deployment.

use fencepost_core::{Finding, Report, Result};
use zookeeper_client as zk;

use crate::link::Asked;
use crate::shared::Shared;
use crate::versions::versions;

/// Examines the deployment: the session that the server gives, its members, and what this user may do.
///
/// # Cancel safety
/// May be dropped: it only reads.
pub(crate) async fn examine(shared: &Shared) -> Result<Report> {
    let link = shared.link().await?;
    let mut findings = Vec::new();
    let (asked, given) = (shared.config.session, link.length);
    findings.push(if given == asked {
        Finding::ok("session", format!("it lasts {given:?} without a word of its client, as asked for"))
    } else {
        let bound = if given > asked { "no shorter" } else { "no longer" };
        Finding::note(
            "session",
            format!("it lasts {given:?} without a word of its client: the server gives {bound} ones ({asked:?} was asked for)"),
        )
        .advice("see to minSessionTimeout, maxSessionTimeout and tickTime, or ask for this with session=")
    });
    findings.extend(versions(&shared.config, shared.tunnel().as_deref(), link.clock()).await);
    findings.push(members(shared).await?);
    findings.push(watches(shared).await?);
    findings.push(Finding::ok(
        "clocks",
        "no promise rests on the servers' clocks: they count ticks of their own",
    ));
    Ok(findings.into())
}

/// Who stands in the ensemble, from what ZooKeeper keeps of its own configuration.
async fn members(shared: &Shared) -> Result<Finding> {
    let link = shared.link().await?;
    let asked: Asked<_> = link.ask(|client| async move { client.get_config().await });
    let data = match link.within(asked).await? {
        Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
        Err(_) => String::new(),
    };
    let voters =
        data.lines().filter(|line| line.starts_with("server.") && !line.contains(":observer")).count();
    Ok(match voters {
        0 => Finding::warning("quorum", "the server stands alone: while it is away there are no locks")
            .advice("for more than that run an ensemble of three or five"),
        1 | 2 => Finding::warning("quorum", format!("{voters} voting servers survive the loss of none"))
            .advice("run three or five"),
        even if even % 2 == 0 => Finding::note(
            "quorum",
            format!("{even} voting servers survive no more losses than {} would", even - 1),
        ),
        _ => {
            Finding::ok("quorum", format!("{voters} voting servers survive the loss of {}", (voters - 1) / 2))
        }
    })
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
