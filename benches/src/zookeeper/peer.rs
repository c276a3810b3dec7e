//! The bare driver, and the lock that comes with it.

use crate::side::{Contender, now, run, serve};
use zookeeper_client::{Acls, Client, CreateMode, LockPrefix};

/// The folder of a peer's lock.
pub(super) const FOLDER: &str = "/peer";

/// Opens a session of the driver on the runtime of the measurement.
pub(super) async fn connect(url: &str) -> Client {
    let hosts = url.strip_prefix("zookeeper://").and_then(|rest| rest.split('/').next());
    let client = Client::connect(hosts.expect("a URL")).await.expect("a server that answers");
    // It may be there.
    let _ = client.create(FOLDER, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await;
    client
}

/// Creates and deletes a node: the least that a lock costs.
pub(super) async fn by_hand(client: &Client) {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create("/peer/x-", b"", &options).await.expect("a node");
    client.delete(&format!("/peer/x-{number}"), None).await.expect("it was there");
}

/// The driver's own lock, with the end of its node waited for.
pub(super) async fn cycle(client: &Client) {
    let prefix = LockPrefix::new_curator(FOLDER, "lock-").expect("a good path");
    let lock = client.lock(prefix, b"", Acls::anyone_all()).await.expect("nobody else wants it");
    client.delete(lock.lock_path(), None).await.expect("it was there");
    // Else it is deleted once more.
    std::mem::forget(lock);
}

/// A side of a crowd with the driver's own lock.
pub(crate) fn side(url: &str) {
    run(async {
        let client: &'static Client = Box::leak(Box::new(connect(url).await));
        serve(Peer(client)).await;
    });
}

struct Peer(&'static Client);

impl Contender for Peer {
    type Held = zookeeper_client::LockClient<'static>;

    async fn hold(&mut self) -> Self::Held {
        let prefix = LockPrefix::new_curator(FOLDER, "lock-").expect("a good path");
        self.0.lock(prefix, b"", Acls::anyone_all()).await.expect("nobody else wants it")
    }

    async fn free(&mut self, held: Self::Held) {
        drop(held);
    }

    fn turn(&mut self, _: usize) -> impl Future<Output = f64> + Send + 'static {
        let client = self.0;
        async move {
            let prefix = LockPrefix::new_curator(FOLDER, "lock-").expect("a good path");
            let lock = client.lock(prefix, b"", Acls::anyone_all()).await.expect("its turn comes");
            let granted = now();
            drop(lock);
            granted
        }
    }
}
