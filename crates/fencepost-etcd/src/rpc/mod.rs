//! Requests to etcd: the cluster, its members, the login and the messages.

pub(crate) mod channel;
pub(crate) mod cluster;
pub(crate) mod login;
pub(crate) mod proto;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
pub(crate) mod tls;
