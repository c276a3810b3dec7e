//! A build without TLS. There is no value of [`Certificates`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fencepost_core::Runtime;
use fencepost_tls::{Certificates, TlsError};
use tonic::transport::{Channel, Endpoint};

use crate::error::Failure;

pub(crate) fn channel(_: &Endpoint, certificates: &Arc<Certificates>, _: &Arc<AtomicBool>) -> Channel {
    match **certificates {}
}

pub(crate) async fn refusal(
    certificates: &Arc<Certificates>,
    _member: &str,
    _runtime: &Runtime,
) -> Option<Failure> {
    match **certificates {}
}

pub(crate) fn failure(trouble: TlsError) -> Failure {
    Failure::new(trouble.kind, trouble.message)
}
