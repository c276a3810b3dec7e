//! Row locks through a pooler in transaction mode: a transaction keeps its connection to the server.

use fencepost_core::Loss;
use fencepost_testkit::needs;
use fencepost_testkit::sql::PgBouncer;
use tokio_postgres::types::{ToSql, Type};

use fencepost_testkit::sql::rows::{RowEngine, SOON, connect, lock};

use crate::driver::Rows;
use crate::{server, transaction};

#[tokio::test]
async fn a_pooler_in_transaction_mode_works() {
    needs!(POSTGRES, PGBOUNCER);
    let server = server().await;
    let pooler = PgBouncer::start(&server.server, "transaction").expect("a pooler starts");
    let url = format!("{}?mode=row", pooler.url());
    let (client, other) =
        (connect::<Rows>(&url).await.expect("it answers"), connect::<Rows>(&url).await.expect("it answers"));
    for change in 1..=20_i32 {
        let mut guard = lock(&client, "stock/42").await;
        let mutex = other.mutex("stock/42").expect("a good name");
        assert!(mutex.try_lock().await.expect("busy is no error").is_none());
        // Prepared statements belong to the pooler's connections: this one is not prepared.
        let set = "UPDATE stock SET pieces = $1";
        let values = [(&change as &(dyn ToSql + Sync), Type::INT4)];
        transaction(&mut guard).client().query_typed(set, &values).await.expect("it is open");
        guard.release().await.expect("it was held");
        assert_eq!(server.pieces(), change.to_string());
        drop(lock(&other, "stock/42").await);
    }
    // A waiter that gives up leaves nothing, and the server ends a silent holder.
    let guard = lock(&client, "stock/42").await;
    let waiting = other.mutex("stock/42").expect("a good name");
    let wait = std::time::Duration::from_millis(100);
    assert!(waiting.lock().wait(wait).await.expect_err("it is held").is_timeout());
    Rows::end_session(&server.server);
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(lost, Loss::SessionEnded);
    lock(&other, "stock/42").await.release().await.expect("it was held");
    fencepost_testkit::wait::eventually(SOON, "no transaction is open", || async { server.open() == "0" })
        .await;
    client.close().await;
    other.close().await;
}
