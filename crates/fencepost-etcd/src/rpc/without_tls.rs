//! A build without TLS. A URL that asks for it was refused, so these functions are not called.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fencepost_core::Runtime;
use fencepost_tls::Certificates;
use tonic::transport::{Channel, Endpoint};

use crate::error::Failed;

pub(crate) fn channel(_: &Endpoint, _: &Arc<Certificates>, _: &Arc<AtomicBool>) -> Channel {
    unreachable!("the URL was refused")
}

pub(crate) async fn refusal(_: &Arc<Certificates>, _member: &str, _runtime: &Runtime) -> Option<Failed> {
    unreachable!("the URL was refused")
}
