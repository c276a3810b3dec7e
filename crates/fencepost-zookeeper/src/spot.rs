//! A claim's own nodes in one folder: one, or as many as it has permits.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use fencepost_core::{Error, ErrorKind, Result, Token};
use futures_util::future::{join, join_all};
use zookeeper_client as zk;

use crate::count::check;
use crate::error::{ENGINE, failure, is_over, is_unknown};
use crate::link::{Asked, Link};
use crate::shared::Shared;

/// How often folders that vanish between being made and being used are made again.
const TRIES: u32 = 5;

/// Ephemeral sequential nodes that are made at once, and go at once.
pub(crate) struct Spot {
    pub(crate) folder: String,
    /// What their names begin with; no other claim has it.
    prefix: String,
    count: u32,
    data: Arc<[u8]>,
    at: At,
}

enum At {
    /// Nothing was asked.
    Nowhere,
    /// Asked, and not answered.
    Asked(Asked<Nodes>),
    /// They could not be made.
    Failed(zk::Error),
    /// The answer was lost: they are there or not.
    Unknown,
    There(Nodes),
    Gone,
}

/// Nodes that are there.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) names: Vec<String>,
    /// The transaction that made them.
    pub(crate) token: Token,
}

/// What a folder has after our own nodes are in it.
pub(crate) struct Placed {
    pub(crate) nodes: Nodes,
    pub(crate) names: Vec<String>,
}

impl Spot {
    pub(crate) fn new(folder: String, prefix: String, count: u32, data: Arc<[u8]>) -> Spot {
        Spot { folder, prefix, count, data, at: At::Nowhere }
    }

    /// Changes what nodes hold that are made from now on.
    pub(crate) fn set_data(&mut self, data: Vec<u8>) {
        self.data = data.into();
    }

    /// Was anything asked of the server that may still be there?
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.at, At::Nowhere | At::Gone)
    }

    /// Its nodes, if they are known to be there.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        match &self.at {
            At::There(nodes) => Some(nodes),
            _ => None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.nodes().map_or_else(Vec::new, |nodes| nodes.names.iter().map(|name| self.path(name)).collect())
    }

    /// Returns whether all its nodes are still there.
    pub(crate) async fn is_there(&mut self, link: &Link) -> Result<bool> {
        let stats = join_all(self.paths().into_iter().map(|path| link.stat(path)));
        let stats: Vec<_> = link
            .within(stats)
            .await?
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| failure(&error))?;
        Ok(stats.iter().all(Option::is_some))
    }

    /// Makes the nodes unless they are there, and lists the folder behind them in the same round trip. `None`: they were
    /// there, and are no more.
    ///
    /// # Cancel safety
    /// May be dropped: the request is kept, and its answer is taken the next time.
    pub(crate) async fn place(&mut self, shared: &Shared, link: &Link) -> Result<Option<Placed>> {
        for _ in 0..TRIES {
            match &mut self.at {
                At::Gone => return Ok(None),
                At::There(nodes) => {
                    let nodes = nodes.clone();
                    check(&self.folder, &nodes.names)?;
                    let names = match link.within(link.list(self.folder.clone())).await? {
                        Err(zk::Error::NoNode) => Vec::new(),
                        names => names.map_err(|error| failure(&error))?,
                    };
                    if !nodes.names.iter().all(|own| names.contains(own)) {
                        // Of several, those that are left.
                        self.remove(link).await?;
                        return Ok(None);
                    }
                    return Ok(Some(Placed { nodes, names }));
                }
                At::Unknown => {
                    self.find(link).await?;
                }
                At::Asked(_) => {
                    link.within(self.at.answered()).await?;
                }
                At::Failed(_) => self.failed(shared, link).await?,
                At::Nowhere => {
                    let mut list = link.list(self.folder.clone());
                    self.at = At::Asked(self.create(shared, link));
                    let sent = link.clock().now();
                    // The first poll sends both, in this order. Answers come in the same order: the first one need wake nobody.
                    let mut asked = false;
                    let names = link.within(poll_fn(|cx| {
                        if !std::mem::replace(&mut asked, true) {
                            let _ = self.at.poll_answered(&mut Context::from_waker(Waker::noop()));
                        }
                        list.as_mut().poll(cx)
                    }));
                    let names = names.await?;
                    link.within(self.at.answered()).await?;
                    if let (At::There(nodes), Ok(names)) = (&self.at, names) {
                        link.confirm(sent);
                        check(&self.folder, &nodes.names)?;
                        return Ok(Some(Placed { nodes: nodes.clone(), names }));
                    }
                }
            }
        }
        Err(vanishing())
    }

    /// Makes the nodes unless they are there, and lists nothing. `None`: they were there, and are no more.
    ///
    /// # Cancel safety
    /// That of [`place`](Spot::place).
    pub(crate) async fn make(&mut self, shared: &Shared, link: &Link) -> Result<Option<Nodes>> {
        for _ in 0..TRIES {
            match &self.at {
                At::Gone => return Ok(None),
                At::There(nodes) => {
                    check(&self.folder, &nodes.names)?;
                    return Ok(Some(nodes.clone()));
                }
                At::Unknown => self.find(link).await?,
                At::Failed(_) => self.failed(shared, link).await?,
                At::Asked(_) => link.within(self.at.answered()).await?,
                At::Nowhere => {
                    self.at = At::Asked(self.create(shared, link));
                    let sent = link.clock().now();
                    link.within(self.at.answered()).await?;
                    if let At::There(_) = self.at {
                        link.confirm(sent);
                    }
                }
            }
        }
        Err(vanishing())
    }

    /// Making them failed.
    async fn failed(&mut self, shared: &Shared, link: &Link) -> Result<()> {
        let At::Failed(error) = &self.at else { return Ok(()) };
        let error = error.clone();
        if let zk::Error::NoNode = error {
            self.at = At::Nowhere;
            return shared.make_folder(link, &self.folder).await;
        }
        self.at = At::after(&error);
        if let At::Gone = self.at { Ok(()) } else { Err(failure(&error)) }
    }

    /// Settles what became of a request whose answer was lost. Our names are ours alone; the owner is looked at all the same, for
    /// what is not of this session does not die with it.
    async fn find(&mut self, link: &Link) -> Result<()> {
        let (synced, names) = link.within(join(link.sync(), link.list(self.folder.clone()))).await?;
        let names = match (synced, names) {
            (Ok(()), Ok(names)) => names,
            (Ok(()), Err(zk::Error::NoNode)) => Vec::new(),
            (Err(error), _) | (_, Err(error)) => return Err(failure(&error)),
        };
        let own: Vec<_> = names.into_iter().filter(|name| name.starts_with(&self.prefix)).collect();
        let stats = own.iter().map(|name| link.stat(self.path(name)));
        let mut nodes = Nodes { names: Vec::new(), token: Token::new(u64::MAX) };
        for (name, stat) in own.iter().zip(link.within(join_all(stats)).await?) {
            if let Some(stat) =
                stat.map_err(|error| failure(&error))?.filter(|stat| stat.ephemeral_owner == link.id)
            {
                nodes.names.push(name.clone());
                nodes.token = nodes.token.min(Token::new(stat.czxid as u64));
            }
        }
        self.at = if nodes.names.is_empty() { At::Nowhere } else { At::There(nodes) };
        Ok(())
    }

    /// Leaves none of them. Answers whether any was there.
    ///
    /// # Cancel safety
    /// The first poll sends, if the nodes are known. May be dropped and called again.
    pub(crate) async fn remove(&mut self, link: &Link) -> Result<bool> {
        if let At::Asked(_) = self.at {
            link.within(self.at.answered()).await?;
        }
        if let At::Failed(error) = &self.at {
            self.at = At::after(error);
        }
        if let At::Unknown = self.at {
            self.find(link).await?;
        }
        let At::There(nodes) = &self.at else { return Ok(false) };
        let sent = link.clock().now();
        let deleted = match &*nodes.names {
            [name] => vec![link.within(link.delete(self.path(name))).await?],
            names => link.within(join_all(names.iter().map(|name| link.delete(self.path(name))))).await?,
        };
        let mut any = false;
        for answer in deleted {
            match answer {
                Ok(()) => any = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        if any {
            link.confirm(sent);
        }
        self.at = At::Gone;
        Ok(any)
    }

    /// Itself, with whatever it has at the server; nothing stays behind.
    pub(crate) fn take(&mut self) -> Spot {
        let at = std::mem::replace(&mut self.at, At::Gone);
        let (folder, prefix, data) = (self.folder.clone(), self.prefix.clone(), Arc::clone(&self.data));
        Spot { folder, prefix, count: self.count, data, at }
    }

    /// Somebody else removes them.
    pub(crate) fn give_away(&mut self) -> Vec<String> {
        let paths = self.paths();
        self.at = At::Gone;
        paths
    }

    /// Removed so that it can be made again: by an attempt that leaves nothing.
    pub(crate) fn reset(&mut self) {
        if let At::Gone = self.at {
            self.at = At::Nowhere;
        }
    }
}

fn vanishing() -> Error {
    Error::new(ErrorKind::Unreachable, "the lock's folder is removed again and again; try again").on(ENGINE)
}

impl At {
    /// Takes the answer in, if one is to come. Dropped midway, it comes the next time.
    async fn answered(&mut self) {
        poll_fn(|cx| self.poll_answered(cx)).await;
    }

    fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let At::Asked(asked) = self {
            *self = match ready!(asked.as_mut().poll(cx)) {
                Ok(nodes) => At::There(nodes),
                Err(error) => At::Failed(error),
            };
        }
        Poll::Ready(())
    }

    /// What is known after such a failure.
    fn after(error: &zk::Error) -> At {
        if is_over(error) {
            At::Gone
        } else if is_unknown(error) {
            At::Unknown
        } else {
            At::Nowhere
        }
    }
}

impl Spot {
    /// The request that makes the nodes.
    fn create(&self, shared: &Shared, link: &Link) -> Asked<Nodes> {
        let (prefix, data, acls) = (self.prefix.clone(), Arc::clone(&self.data), shared.acls());
        let (path, count) = (self.path(&prefix), self.count);
        let base = self.folder.len() + 1;
        link.ask(move |client| async move {
            let options = zk::CreateMode::EphemeralSequential.with_acls(acls);
            if count == 1 {
                let (stat, number) = client.create(&path, &data, &options).await?;
                let name = format!("{prefix}{number}");
                return Ok(Nodes { names: vec![name], token: Token::new(stat.czxid as u64) });
            }
            let mut writer = client.new_multi_writer();
            for _ in 0..count {
                writer.add_create(&path, &data, &options)?;
            }
            let mut nodes = Nodes { names: Vec::new(), token: Token::new(0) };
            let mut first = None;
            for made in writer.commit().await.map_err(zk::Error::from)? {
                if let zk::MultiWriteResult::Create { path, .. } = made {
                    nodes.names.push(path[base..].to_owned());
                    first.get_or_insert(path);
                }
            }
            // Some servers leave the nodes' numbers out of such an answer (ZOOKEEPER-4026).
            let first = first.unwrap_or_default();
            // Whatever that fails by, the nodes are there.
            let stat = client.check_stat(&first).await.map_err(|_| zk::Error::ConnectionLoss)?;
            let stat = stat.ok_or(zk::Error::SessionExpired)?;
            nodes.token = Token::new(stat.czxid as u64);
            Ok(nodes)
        })
    }
}
