//! Takes several locks in one statement. A statement that draws a token commits, and the commit waits until the server has written its
//! log to the disk. The claims that come during such a statement take their locks and draw their tokens together, in the next one.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::Runtime;
use futures_util::future::try_join;
use mysql_common::value::Value;

use super::groups::Groups;
use crate::conn::channel::{Answer, Channel, ReplySender, reply};
use crate::conn::statements::Statements;
use crate::error::Unanswered;
use crate::schema::tokens::{MysqlTry, try_all};

/// The largest number of locks that one statement takes.
const MAX_GROUP: usize = 128;

/// The longest description of a holder, in bytes, in a statement for several claims. The server ends a connection whose statement is
/// longer than its limit.
const MAX_HOLDER: usize = 512;

/// The draws of the claims of one connection: those under way, and those that wait.
pub(crate) struct Draws {
    channel: Channel,
    statements: Arc<Statements>,
    runtime: Runtime,
    groups: Groups<Draw>,
}

/// A lock that is to be taken. The reply has the form of the reply to the statement for one lock. If the lock was not taken, it says that
/// no row was changed. Otherwise its insert id is the token.
struct Draw {
    lock: MysqlTry,
    reply: ReplySender,
}

/// Marks a group as under way until this is dropped. The task of the connection drops it, so no caller can delay the next group.
struct UnderWay(Arc<Draws>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send(self.0.groups.next());
    }
}

impl Draws {
    pub(crate) fn new(channel: Channel, statements: Arc<Statements>, runtime: Runtime) -> Arc<Draws> {
        Arc::new(Draws { channel, statements, runtime, groups: Groups::new(MAX_GROUP) })
    }

    /// Takes a lock if it is free, and draws its token. If a group is under way, the request is sent with the next group.
    ///
    /// # Cancel safety
    /// If the returned future is dropped, the statement takes effect all the same.
    pub(crate) fn take(
        self: &Arc<Draws>,
        lock: MysqlTry,
    ) -> impl Future<Output = Result<Answer, Unanswered>> + use<> {
        let (reply, received) = reply();
        let draw = Draw { lock, reply };
        match draw.lock.holder.len() > MAX_HOLDER {
            true => self.send_one(draw, None),
            false => self.send(self.groups.add(draw).into_iter().collect()),
        }
        received
    }

    fn send(self: &Arc<Draws>, mut group: Vec<Draw>) {
        let then = |own: &Arc<Draws>| Some(Box::new(UnderWay(Arc::clone(own))) as Box<dyn Send>);
        match group.len() {
            0 => {}
            1 => self.send_one(group.remove(0), then(self)),
            _ => {
                let [take, read] = try_all(group.iter().map(|draw| &draw.lock));
                let taking = self.channel.query(&take);
                let (reply, reading) = reply();
                self.channel.query_for(&read, reply, then(self));
                let own = Arc::clone(self);
                self.runtime.spawn(async move {
                    let replies = try_join(taking, reading).await;
                    own.answer(group, replies.map(|(_, tokens)| tokens));
                });
            }
        }
    }

    fn send_one(&self, draw: Draw, then: Option<Box<dyn Send>>) {
        let MysqlTry { lock, name, holder } = draw.lock;
        let values = [lock.clone(), name, holder, lock].map(Value::Bytes);
        self.channel.execute_for(self.statements.try_lock.number, &values, draw.reply, then);
    }

    /// Gives each claim its reply. If the connection has ended, all replies are dropped.
    fn answer(&self, group: Vec<Draw>, tokens: Result<Answer, Unanswered>) {
        match tokens {
            Ok(tokens) => {
                let row = |mut row: mysql_common::row::Row| Some((row.take::<Vec<u8>, _>(0)?, row.take(1)?));
                let tokens: HashMap<Vec<u8>, Option<u64>> = tokens.rows.into_iter().filter_map(row).collect();
                for draw in group {
                    let token = tokens.get(&draw.lock.lock).copied();
                    if token == Some(None) {
                        self.again(draw);
                        continue;
                    }
                    let (affected, insert_id) = (token.is_some().into(), token.flatten().unwrap_or(0));
                    let _ = draw.reply.send(Ok(Answer { affected, insert_id, ..Answer::default() }));
                }
            }
            // For example, another session has locked one of the rows. A failed statement keeps the locks that it took.
            Err(Unanswered::Refused { .. }) => group.into_iter().for_each(|draw| self.again(draw)),
            Err(Unanswered::Ended) => {}
        }
    }

    /// Releases a lock that a group may have taken without a token. Then the claim has a statement, and a result, of its own.
    fn again(&self, draw: Draw) {
        let lock = Value::Bytes(draw.lock.lock.clone());
        drop(self.channel.execute(self.statements.release.number, &[lock]));
        self.send_one(draw, None);
    }
}
