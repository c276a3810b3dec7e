//! Runs the conformance suite on the lease table.

use fencepost_core::Registry;
use fencepost_testkit::conformance::hold_elsewhere as hold;
use fencepost_testkit::sql::{SqlMode, SqlServer};

static TABLE: SqlMode = SqlMode {
    server: SqlServer::MariaDb,
    open: fencepost_mysql::open,
    register: fencepost_mysql::register,
    options: "?mode=table",
    has_schema: true,
    // The row of a session locks nothing by itself: that of a client that is dropped and not closed expires.
    leftovers: "SELECT name, owner FROM fencepost_lock WHERE owner IS NOT NULL OR contended <> 0; \
        SELECT name, owner FROM fencepost_lock_queue",
    ordered_tokens: true,
    frees_at_once: false,
};

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&fencepost_mysql::register(Registry::new()));
}

fencepost_testkit::conformance!(&TABLE, excused: [
]);
