//! What every fencepost engine is proved with.
//!
//! - [`mod@conformance`]: the suite that every engine and every layer passes, gated by capability.
//! - [`history`]: a recorder of what clients asked and were told, in one process or in many.
//! - [`checker`]: a pure judge of such a history: overlaps, token order, unjustified busy answers, fairness,
//!   missed wakeups, leftovers.
//! - [`sim`]: all of core over an engine in one thread, by a seed, judged by the checker.
//! - [`chaos`], [`witness`]: layers that trouble an engine, and that write down what it confirmed.
//! - [`faults`]: what can be done to an engine while it is under test.
//! - [`server`]: real servers on free ports that go away with the test, and a proxy that cuts and delays.
//! - [`zookeeper`]: one ZooKeeper server, and an ensemble of three.
//! - [`etcd`]: etcd with one member and with three.
//! - [`redis`]: Redis in every way people run it: one server, Sentinel, a cluster, independent masters.
//! - [`wait`]: waiting for what nobody tells.
//!
//! Nothing here is part of the product: the crate is never published.

pub mod chaos;
pub mod checker;
pub mod conformance;
pub mod etcd;
pub mod faults;
pub mod forgery;
pub mod forked;
pub mod history;
pub mod redis;
pub mod server;
pub mod sim;
pub mod wait;
pub mod witness;
pub mod zookeeper;
