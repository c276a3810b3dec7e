//! A build without TLS. A URL that asks for it was refused, so these functions are not called.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fencepost_core::Runtime;
use fencepost_tls::{Certificates, TlsError};
use tonic::transport::{Channel, Endpoint};

use crate::error::Failure;

pub(crate) fn channel(_: &Endpoint, _: &Arc<Certificates>, _: &Arc<AtomicBool>) -> Channel {
    unreachable!("the URL was refused")
}

pub(crate) async fn refusal(_: &Arc<Certificates>, _member: &str, _runtime: &Runtime) -> Option<Failure> {
    unreachable!("the URL was refused")
}

pub(crate) fn failure(trouble: TlsError) -> Failure {
    Failure::new(trouble.kind, trouble.message)
}
