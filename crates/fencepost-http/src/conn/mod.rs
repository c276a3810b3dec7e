//! The connections to the service.

pub(crate) mod call;
mod connector;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
mod tls;
#[cfg(feature = "otlp")]
mod trace;
#[cfg(not(feature = "otlp"))]
#[path = "without_trace.rs"]
mod trace;
