//! The floor of a crowd: a token in a list that one takes and puts back.

use super::byhand::connection;
use crate::side::{Contender, now, run, serve};
use redis::aio::MultiplexedConnection;

/// A side of a crowd, with a connection for each waiter.
pub(crate) fn side(url: &str, name: &str) {
    run(serve(Floor { url: url.to_owned(), list: name.to_owned(), connections: Vec::new() }));
}

struct Floor {
    url: String,
    list: String,
    connections: Vec<MultiplexedConnection>,
}

impl Contender for Floor {
    type Held = ();

    async fn prepare(&mut self, count: usize) {
        while self.connections.len() < count {
            self.connections.push(connection(&self.url).await);
        }
    }

    async fn hold(&mut self) {
        self.prepare(1).await;
        let del = redis::cmd("DEL").arg(&self.list).exec_async(&mut self.connections[0]).await;
        del.expect("a server that answers");
    }

    async fn free(&mut self, (): ()) {
        // Its first waiter stands in BLPOP on the first connection.
        let mut other = connection(&self.url).await;
        let push = redis::cmd("LPUSH").arg(&self.list).arg(1).exec_async(&mut other).await;
        push.expect("a server that answers");
    }

    fn turn(&mut self, number: usize) -> impl Future<Output = f64> + Send + 'static {
        let (list, mut connection) = (self.list.clone(), self.connections[number].clone());
        async move {
            let popped = redis::cmd("BLPOP").arg(&list).arg(0).exec_async(&mut connection).await;
            popped.expect("its turn comes");
            let granted = now();
            let pushed = redis::cmd("LPUSH").arg(&list).arg(1).exec_async(&mut connection).await;
            pushed.expect("a server that answers");
            granted
        }
    }
}
