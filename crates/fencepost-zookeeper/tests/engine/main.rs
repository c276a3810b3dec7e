//! The features of ZooKeeper alone: sessions, lost answers, folders, watches, users, and nodes of other libraries.

mod counter;
mod deleted;
mod folders;
mod guarded;
mod kinds;
mod kit;
mod operators;
mod rotated;
mod sessions;
mod tls;
mod uncontended;
