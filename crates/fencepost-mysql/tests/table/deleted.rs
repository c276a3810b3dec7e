//! Rows of the lease table that an operator deletes or changes by hand.

use fencepost_testkit::needs;
use fencepost_testkit::sql::DeletedRows;

use crate::{registry, start};

#[tokio::test]
async fn holders_are_told_by_their_next_renewal() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let table = DeletedRows { server: &server, registry: &registry(), url: &url };
    table.holders_are_told_by_their_next_renewal().await;
}

#[tokio::test]
async fn tokens_never_begin_again() {
    needs!(MARIADB);
    let (server, url) = start().await;
    DeletedRows { server: &server, registry: &registry(), url: &url }.tokens_never_begin_again().await;
}

#[tokio::test]
async fn readers_and_waiters_outlive_the_row_of_their_name() {
    needs!(MARIADB);
    let (server, url) = start().await;
    let table = DeletedRows { server: &server, registry: &registry(), url: &url };
    table.readers_and_waiters_outlive_the_row_of_their_name().await;
}
