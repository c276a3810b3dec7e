//! A claim's own nodes in one folder: one, or one for each permit.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use fencepost_core::{Error, ErrorKind, Result, Token};
use futures_util::future::{join, join_all};
use zookeeper_client as zk;

use crate::client::Client;
use crate::error::{ENGINE, failure, is_over, is_unknown};
use crate::recipe::sequence::check;
use crate::session::{Request, Session};

/// How often a folder is made again that vanishes before it is used.
const TRIES: u32 = 5;

/// Ephemeral sequential nodes that are made together and deleted together.
pub(crate) struct OwnNodes {
    pub(crate) folder: String,
    /// The beginning of their names; no other claim has it.
    prefix: String,
    count: u32,
    data: Arc<[u8]>,
    state: State,
}

enum State {
    /// No request was sent, or the nodes were refused.
    Absent,
    /// The request is sent, and its answer is to come.
    Requested(Request<Nodes>),
    Failed(zk::Error),
    /// The answer was lost: the nodes are there or not.
    Unknown,
    Present(Nodes),
    Gone,
}

/// Nodes that are there. A claim that finds fewer than it made has lost the others.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) names: Vec<String>,
    /// The transaction that made them.
    pub(crate) token: Token,
}

/// The nodes, and the names in their folder, listed after the nodes were made.
pub(crate) struct Listed {
    pub(crate) nodes: Nodes,
    pub(crate) names: Vec<String>,
}

impl OwnNodes {
    pub(crate) fn new(folder: String, prefix: String, count: u32, data: Arc<[u8]>) -> OwnNodes {
        OwnNodes { folder, prefix, count, data, state: State::Absent }
    }

    /// Changes the data of nodes that are made from now on.
    pub(crate) fn set_data(&mut self, data: Vec<u8>) {
        self.data = data.into();
    }

    /// Returns whether the server has none of the nodes for certain.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self.state, State::Absent | State::Gone)
    }

    /// Returns the nodes, if they are known to be there.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        match &self.state {
            State::Present(nodes) => Some(nodes),
            _ => None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.nodes().map_or_else(Vec::new, |nodes| nodes.names.iter().map(|name| self.path(name)).collect())
    }

    /// Returns whether all nodes are still there.
    pub(crate) async fn are_there(&mut self, session: &Session) -> Result<bool> {
        let stats = join_all(self.paths().into_iter().map(|path| session.stat(path)));
        let stats: Result<Vec<_>, _> = session.within(stats).await?.into_iter().collect();
        Ok(stats.map_err(|error| failure(&error))?.iter().all(Option::is_some))
    }

    /// Makes the nodes unless they are there, and lists the folder after that in the same round trip. `None`: they were there, and
    /// are gone.
    ///
    /// # Cancel safety
    /// May be dropped: the request is kept, and the next call takes its answer.
    pub(crate) async fn make_and_list(
        &mut self,
        client: &Client,
        session: &Session,
    ) -> Result<Option<Listed>> {
        self.ensure(client, session, true).await
    }

    /// Makes the nodes unless they are there. `None`: they were there, and are gone.
    ///
    /// # Cancel safety
    /// That of [`make_and_list`](OwnNodes::make_and_list).
    pub(crate) async fn make(&mut self, client: &Client, session: &Session) -> Result<Option<Nodes>> {
        Ok(self.ensure(client, session, false).await?.map(|listed| listed.nodes))
    }

    async fn ensure(&mut self, client: &Client, session: &Session, list: bool) -> Result<Option<Listed>> {
        for _ in 0..TRIES {
            match &self.state {
                State::Gone => return Ok(None),
                State::Unknown => self.find(session).await?,
                State::Requested(_) => session.within(self.answered()).await?,
                State::Failed(_) => self.failed(client, session).await?,
                // They were made together, so the others are deleted already.
                State::Present(nodes) if nodes.names.len() < self.count as usize => {
                    self.remove(session).await?;
                    return Ok(None);
                }
                State::Present(nodes) => {
                    let nodes = nodes.clone();
                    check(&self.folder, &nodes.names)?;
                    if !list {
                        return Ok(Some(Listed { nodes, names: Vec::new() }));
                    }
                    let names = match session.within(session.list(self.folder.clone())).await? {
                        Err(zk::Error::NoNode) => Vec::new(),
                        names => names.map_err(|error| failure(&error))?,
                    };
                    if !nodes.names.iter().all(|own| names.contains(own)) {
                        // Some of several may be left.
                        self.remove(session).await?;
                        return Ok(None);
                    }
                    return Ok(Some(Listed { nodes, names }));
                }
                State::Absent => {
                    let mut listing = list.then(|| session.list(self.folder.clone()));
                    self.state = State::Requested(self.create(client, session));
                    let sent = session.clock().now();
                    let mut names = None;
                    if let Some(listing) = &mut listing {
                        // The first poll sends both, in this order. The answers come in the same order, so the first need wake nobody.
                        let mut sent = false;
                        let listed = poll_fn(|cx| {
                            if !std::mem::replace(&mut sent, true) {
                                let _ = self.poll_answered(&mut Context::from_waker(Waker::noop()));
                            }
                            listing.as_mut().poll(cx)
                        });
                        names = session.within(listed).await?.ok();
                    }
                    session.within(self.answered()).await?;
                    if let State::Present(nodes) = &self.state {
                        session.confirm(sent);
                        if let Some(names) = names {
                            check(&self.folder, &nodes.names)?;
                            return Ok(Some(Listed { nodes: nodes.clone(), names }));
                        }
                    }
                }
            }
        }
        let message = "the lock's folder is removed again and again; try again";
        Err(Error::new(ErrorKind::Unreachable, message).on(ENGINE))
    }

    /// Acts on a failure to make the nodes.
    async fn failed(&mut self, client: &Client, session: &Session) -> Result<()> {
        let State::Failed(error) = &self.state else { return Ok(()) };
        let error = error.clone();
        if let zk::Error::NoNode = error {
            self.state = State::Absent;
            return client.make_folder(session, &self.folder).await;
        }
        self.state = State::after(&error);
        if let State::Gone = self.state { Ok(()) } else { Err(failure(&error)) }
    }

    /// Finds out whether the nodes were made although the answer was lost. The names are this claim's alone. The owner is compared as
    /// well: a node of another session does not end with this one.
    async fn find(&mut self, session: &Session) -> Result<()> {
        let (synced, names) = session.within(join(session.sync(), session.list(self.folder.clone()))).await?;
        let names = match (synced, names) {
            (Ok(()), Ok(names)) => names,
            (Ok(()), Err(zk::Error::NoNode)) => Vec::new(),
            (Err(error), _) | (_, Err(error)) => return Err(failure(&error)),
        };
        let own: Vec<_> = names.into_iter().filter(|name| name.starts_with(&self.prefix)).collect();
        let stats = own.iter().map(|name| session.stat(self.path(name)));
        let mut nodes = Nodes { names: Vec::new(), token: Token::new(u64::MAX) };
        for (name, stat) in own.iter().zip(session.within(join_all(stats)).await?) {
            let stat = stat.map_err(|error| failure(&error))?;
            if let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id) {
                nodes.names.push(name.clone());
                nodes.token = nodes.token.min(Token::new(stat.czxid as u64));
            }
        }
        self.state = if nodes.names.is_empty() { State::Absent } else { State::Present(nodes) };
        Ok(())
    }

    /// Deletes the nodes. Returns whether any was there.
    ///
    /// # Cancel safety
    /// The first poll sends, if the nodes are known. May be dropped and called again.
    pub(crate) async fn remove(&mut self, session: &Session) -> Result<bool> {
        if let State::Requested(_) = self.state {
            session.within(self.answered()).await?;
        }
        if let State::Failed(error) = &self.state {
            self.state = State::after(error);
        }
        if let State::Unknown = self.state {
            self.find(session).await?;
        }
        let State::Present(nodes) = &self.state else { return Ok(false) };
        let sent = session.clock().now();
        let requests = nodes.names.iter().map(|name| session.delete(self.path(name)));
        let (mut any, mut failed) = (false, None);
        for answer in session.within(join_all(requests)).await? {
            match answer {
                Ok(()) => any = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => failed = Some(failure(&error)),
            }
        }
        if any {
            session.confirm(sent);
        }
        if let Some(error) = failed {
            return Err(if any { error.unknown() } else { error });
        }
        self.state = State::Gone;
        Ok(any)
    }

    /// Moves the nodes out, whatever their state.
    pub(crate) fn take(&mut self) -> OwnNodes {
        let state = std::mem::replace(&mut self.state, State::Gone);
        let (folder, prefix, data) = (self.folder.clone(), self.prefix.clone(), Arc::clone(&self.data));
        OwnNodes { folder, prefix, count: self.count, data, state }
    }

    /// Allows the nodes to be made again after an attempt that left nothing.
    pub(crate) fn reset(&mut self) {
        if let State::Gone = self.state {
            self.state = State::Absent;
        }
    }

    /// Waits for the answer, if one is to come. After a drop the next call takes it.
    async fn answered(&mut self) {
        poll_fn(|cx| self.poll_answered(cx)).await;
    }

    fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Requested(request) = &mut self.state {
            self.state = match ready!(request.as_mut().poll(cx)) {
                Ok(nodes) => State::Present(nodes),
                Err(error) => State::Failed(error),
            };
        }
        Poll::Ready(())
    }

    /// Returns the request that makes the nodes.
    fn create(&self, client: &Client, session: &Session) -> Request<Nodes> {
        let (prefix, data, acls) = (self.prefix.clone(), Arc::clone(&self.data), client.acls());
        let (path, count) = (self.path(&prefix), self.count);
        let base = self.folder.len() + 1;
        session.request(move |driver| async move {
            let options = zk::CreateMode::EphemeralSequential.with_acls(acls);
            if count == 1 {
                let (stat, number) = driver.create(&path, &data, &options).await?;
                let name = format!("{prefix}{number}");
                return Ok(Nodes { names: vec![name], token: Token::new(stat.czxid as u64) });
            }
            let mut writer = driver.new_multi_writer();
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
            // Some servers leave the transaction's number out of such an answer (ZOOKEEPER-4026).
            let first = first.unwrap_or_default();
            // The nodes are there, whatever error this request ends with.
            let stat = driver.check_stat(&first).await.map_err(|_| zk::Error::ConnectionLoss)?;
            let stat = stat.ok_or(zk::Error::SessionExpired)?;
            nodes.token = Token::new(stat.czxid as u64);
            Ok(nodes)
        })
    }
}

impl State {
    /// Returns what is known after a failure.
    fn after(error: &zk::Error) -> State {
        if is_over(error) {
            State::Gone
        } else if is_unknown(error) {
            State::Unknown
        } else {
            State::Absent
        }
    }
}
