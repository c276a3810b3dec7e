//! Claims beside another library's lock of another kind.

use super::server::start;
use crate::client::{connect, runtime};
use crate::figure::Measured;
use fencepost::{Kind, MultiLock};
use std::time::Duration;
use zookeeper_client::{Acls, Client, CreateMode};

/// A node as Curator makes it, the kinds of ours that are refused beside it, and the way out that the error names.
const THEIRS: [(&str, &[Kind], &str); 4] = [
    ("_c_0-lock-", &[Kind::Write, Kind::Read], "without --write and --shared"),
    ("_c_0-__WRIT__", &[Kind::Mutex], "--write or --shared"),
    ("_c_0-__READ__", &[Kind::Mutex], "--write or --shared"),
    ("leases/_c_0-lease-", &[Kind::Mutex, Kind::Write, Kind::Read], "--permits"),
];
/// How often each is tried, with and without waiting.
const ROUNDS: usize = 50;

/// How many claims are not refused with the message that says how to claim the lock.
pub(crate) fn refused() -> Measured {
    let server = start();
    let (tried, wrong) = runtime().block_on(async {
        let bare = Client::connect(&server.address().to_string()).await.expect("a server that answers");
        let locks = connect(&format!("{}/kinds", server.url())).await;
        let (mut tried, mut wrong) = (0, 0);
        for (number, (prefix, kinds, advice)) in THEIRS.into_iter().enumerate() {
            let all = Acls::anyone_all();
            for sub in ["locks", "leases"].into_iter().filter(|_| prefix.contains('/')) {
                let folder = format!("/kinds/{number}/{sub}");
                bare.mkdir(&folder, &CreateMode::Persistent.with_acls(all)).await.expect("it is made");
            }
            bare.mkdir(&format!("/kinds/{number}"), &CreateMode::Persistent.with_acls(all))
                .await
                .expect("it is made");
            let options = CreateMode::EphemeralSequential.with_acls(all);
            bare.create(&format!("/kinds/{number}/{prefix}"), b"10.0.0.7", &options)
                .await
                .expect("it is made");
            for round in 0..ROUNDS {
                for kind in kinds {
                    let lock = locks.multi([&*number.to_string()]).expect("a good name").kind(*kind);
                    tried += 1;
                    wrong += usize::from(!is_refused(&lock, round % 2 == 0, advice).await);
                }
            }
        }
        locks.close().await;
        (tried, wrong)
    });
    Measured {
        figure: wrong as f64,
        note: format!("{tried} claims, each beside one of Curator's nodes of another kind"),
    }
}

async fn is_refused(lock: &MultiLock, waits: bool, advice: &str) -> bool {
    let answer = match waits {
        true => lock.lock().wait(Duration::from_secs(10)).await.map(drop),
        false => lock.try_lock().await.map(drop),
    };
    answer.is_err_and(|error| error.is_configuration() && error.to_string().contains(advice))
}
