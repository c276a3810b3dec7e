//! Certificates for the tests of this crate.

use std::path::Path;
use std::process::{Command, Stdio};

/// A certificate and its key, in files of these names.
pub(crate) fn make(dir: &Path, cert: &str, key: &str) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-subj", "/CN=localhost", "-keyout", key, "-out", cert])
        .current_dir(dir)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl").success());
}
