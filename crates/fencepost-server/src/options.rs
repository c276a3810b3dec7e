//! The options of the service.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Error, Name, Result};
use fencepost_tls::Certificates;
use rustls::ServerConfig;

use crate::archive::Archive;
use crate::audit::Audit;
use crate::prometheus::Metrics;
use crate::proxies::Network;
use crate::rights::tokens::Tokens;
use crate::streams::Streams;

/// The options of the service.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The rights of callers. `None`: each program of this machine may do all.
    pub tokens: Option<Arc<Tokens>>,
    /// Where the audit log goes.
    pub audit: Audit,
    /// The certificates of TLS. `None`: HTTP without TLS.
    pub certificates: Option<Arc<Certificates<ServerConfig>>>,
    /// The recorder for `/metrics`.
    pub metrics: Option<Metrics>,
    /// A proxy or a mesh encrypts what callers send, so that [`bind`](crate::bind) takes addresses of other machines also without TLS.
    pub is_plain: bool,
    /// No proxy stands in front of the service, except those of `proxies`. So the end of a caller's connection or stream tells that the
    /// caller has ended it, and the lock of that stream is free at once.
    pub is_direct: bool,
    /// The proxies whose header `Forwarded` names the caller. That of others is ignored, because each caller can send one.
    pub proxies: Arc<[Network]>,
    /// The streams that hold locks.
    pub streams: Streams,
    /// The address of the engine without credentials. The page shows it to callers with the right to read all names, so that they know
    /// staging from production.
    pub address: Option<Arc<str>>,
    /// The file with the history of locks. `None`: it is in memory alone.
    pub archive: Option<Archive>,
    /// How old the last good run of a job may be. The page says so where a job has none that is as young.
    pub max_ages: Arc<[(Name, Duration)]>,
}

/// Reads the certificate of the service and its key, and the authorities of its clients' certificates. With these, each client needs a
/// certificate. Changed files are read again for each connection.
///
/// # Errors
/// [`is_configuration`](Error::is_configuration): the fault of a file, with its path.
pub fn certificates(cert: &Path, key: &Path, clients: Option<&Path>) -> Result<Certificates<ServerConfig>> {
    let read = Certificates::of_server(cert.to_owned(), key.to_owned(), clients.map(Path::to_owned));
    read.map_err(Error::from)
}
