//! What is ZooKeeper's own: sessions, lost answers, folders, watches, users, and other people's nodes.

mod alone;
mod counter;
mod deleted;
mod folders;
mod guarded;
mod kinds;
mod kit;
mod operators;
mod sessions;
mod tls;
