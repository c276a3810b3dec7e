//! What is particular to etcd: its neighbours, its watch, its leases.

mod burst;
mod deleted;
mod endless;
mod entrance;
mod full;
mod guarded;
mod interop;
mod kit;
mod leases;
mod logins;
mod requests;
mod trouble;

/// What the other process does; nothing in this one.
#[test]
fn hold_elsewhere() {
    fencepost_testkit::conformance::hold_elsewhere(&kit::registry());
}
