//! Tests of the etcd engine on real servers: other software, the watch, leases.

mod burst;
mod deleted;
mod dropped;
mod endless;
mod entrance;
mod evicted;
mod full;
mod guarded;
mod interop;
mod kit;
mod leases;
mod logins;
mod requests;
mod rotated;
mod runs;
mod trouble;

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    fencepost_testkit::conformance::hold_elsewhere(&kit::registry());
}
