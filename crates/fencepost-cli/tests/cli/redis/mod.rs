//! The command on Redis: its verbs on every deployment, its programs when processes, servers and networks fail, and its secrets.

mod away;
mod faults;
mod secrets;
pub(crate) mod verbs;
