//! Test tools for fencepost's engines.
//!
//! - [`mod@conformance`]: the suite that every engine and every layer passes. Capabilities select the cases.
//! - [`history`]: a recorder of requests and answers, in one process or in many.
//! - [`checker`]: checks such a history for overlaps, token order, "busy" without a reason, fairness, missed
//!   wake-ups and leftovers.
//! - [`sim`]: all of core over an engine in one thread, by a seed, with the checker.
//! - [`chaos`], [`witness`]: layers that make faults in an engine, and that record what it confirmed.
//! - [`faults`]: the faults that a test can make in an engine.
//! - [`mod@needs`]: the programs that a test needs, and the skip where one is missing.
//! - [`server`]: real servers on free ports that end with the test, and a proxy that cuts and delays.
//! - [`zookeeper`]: one ZooKeeper server, and an ensemble of three.
//! - [`etcd`]: etcd with one member and with three.
//! - [`redis`]: Redis in each usual deployment: one server, Sentinel, a cluster, independent masters.
//! - [`sql`]: one PostgreSQL server, one MariaDB server.
//! - [`browser`]: a headless Chromium.
//! - [`wait`]: waits for a condition that sends no event.
//!
//! The crate is for tests alone and is never published.

pub mod browser;
pub mod chaos;
pub mod checker;
pub mod conformance;
pub mod etcd;
pub mod faults;
pub mod forgery;
pub mod forked;
pub mod history;
pub mod limited;
pub mod needs;
pub mod redis;
pub mod server;
pub mod sim;
pub mod sql;
pub mod wait;
pub mod witness;
pub mod zookeeper;
