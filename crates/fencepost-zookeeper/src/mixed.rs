//! Permits beside exclusive and shared holders of the same name: they stand in folders of their own, each with its own numbers,
//! so that the transactions that made the nodes say who came first. Both sides make their own nodes before they look at the
//! other's, so that one of two sees the other at least, and whoever is older goes.

use fencepost_core::{Result, Token};
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::child::Child;
use crate::error::failure;
use crate::link::Link;

/// Who stands in the other folder.
pub(crate) enum Beside {
    /// Nobody who came before.
    Nobody,
    /// Somebody, with this path.
    Before(String),
}

/// Looks for contenders in `folder` that are older than `own`.
pub(crate) async fn beside(link: &Link, folder: &str, own: Token) -> Result<Beside> {
    let names = match link.within(link.list(folder.to_owned())).await? {
        Ok(names) => names,
        Err(zk::Error::NoNode) => return Ok(Beside::Nobody),
        Err(error) => return Err(failure(&error)),
    };
    let paths: Vec<_> = names
        .iter()
        .filter(|name| Child::read(name).is_some())
        .map(|name| format!("{folder}/{name}"))
        .collect();
    let stats = paths.iter().map(|path| link.stat(path.clone()));
    let stats = link.within(join_all(stats)).await?;
    for (path, stat) in paths.into_iter().zip(stats) {
        if let Some(stat) = stat.map_err(|error| failure(&error))?
            && (stat.czxid as u64) < own.get()
        {
            return Ok(Beside::Before(path));
        }
    }
    Ok(Beside::Nobody)
}
