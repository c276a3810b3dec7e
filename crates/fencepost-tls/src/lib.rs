//! TLS for the engines and the service of fencepost: the options of a URL, and the meaning of a failure.
//!
//! The options `ca`, `cert` and `key` of a URL become a configuration of rustls, with aws-lc-rs. The provider is named here, because a
//! program may have several providers linked and none installed. Servers' certificates and names are always checked.
//!
//! The files are read when a client is made, and for each connection: see [`Certificates`]. Their contents are in no message and no
//! `Debug`; their paths are.
//!
//! # Features
//! - `rustls` (default): TLS itself. Without it there is no value of [`Tls`], and a URL that asks for TLS is refused.

#[cfg(feature = "rustls")]
mod certificates;
#[cfg(feature = "rustls")]
mod config;
mod error;
#[cfg(feature = "rustls")]
mod explain;
#[cfg(feature = "rustls")]
mod files;
#[cfg(feature = "rustls")]
mod server;
#[cfg(all(test, feature = "rustls"))]
mod testing;
#[cfg(not(feature = "rustls"))]
mod without;

#[cfg(feature = "rustls")]
pub use certificates::{Certificates, Loaded, Pem};
#[cfg(feature = "rustls")]
pub use config::{Tls, install_provider, server_name};
pub use error::{Schemes, TlsError};
#[cfg(not(feature = "rustls"))]
pub use without::{Certificates, Tls, server_name};

/// The options of a URL that are about TLS.
pub const OPTIONS: &[&str] = &["ca", "cert", "key"];
