//! Leases that are not renewed.

use fencepost_testkit::{needs, sql};

use crate::{connect, start};

#[tokio::test]
async fn an_evicted_holder_with_a_fixed_lease_is_told() {
    needs!(MARIADB);
    let (_server, url) = start().await;
    sql::evicted_holders_with_fixed_leases_are_told(async || connect(&url).await).await;
}

#[tokio::test]
async fn a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted() {
    needs!(MARIADB);
    let (_server, url) = start().await;
    sql::a_holder_with_a_fixed_lease_is_told_that_its_row_was_deleted(async || connect(&url).await).await;
}
