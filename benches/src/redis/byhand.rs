//! A lock by hand: `SET NX PX` and a script that compares and deletes. It has neither a token nor a line.

use crate::cycle;
use redis::aio::MultiplexedConnection;

const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// A client with one connection.
#[derive(Clone)]
pub(crate) struct ByHand {
    connection: MultiplexedConnection,
    delete: String,
}

impl ByHand {
    /// Connects and loads the script.
    pub(crate) async fn connect(url: &str) -> ByHand {
        let mut connection = connection(url).await;
        let delete = redis::cmd("SCRIPT").arg("LOAD").arg(DELETE).query_async(&mut connection).await;
        ByHand { connection, delete: delete.expect("a script that loads") }
    }
}

impl cycle::ByHand for ByHand {
    async fn cycle(&mut self, key: usize) {
        let name = &format!("by hand/{key}");
        let owner = "0123456789abcdef";
        let taken: Option<String> = redis::cmd("SET")
            .arg(name)
            .arg(owner)
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query_async(&mut self.connection)
            .await
            .expect("a server that answers");
        assert!(taken.is_some(), "nobody else wants {name}");
        let given: i32 = redis::cmd("EVALSHA")
            .arg(&self.delete)
            .arg(1)
            .arg(name)
            .arg(owner)
            .query_async(&mut self.connection)
            .await
            .expect("a server that answers");
        assert_eq!(given, 1, "{name} was held");
    }
}

/// Opens a connection of the bare driver without a time limit for commands.
pub(crate) async fn connection(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url).expect("a good address");
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a server that answers")
}
