//! A certificate for a server's TLS.

use std::io;
use std::path::Path;
use std::process::Command;

/// Makes a certificate for the loopback interface: `cert.pem` and `key.pem` in the folder.
pub(crate) fn certify(dir: &Path) -> io::Result<()> {
    certify_for(dir, "IP:127.0.0.1,DNS:localhost")
}

/// Makes a certificate for other names, in the form of the certificate's extension.
pub(crate) fn certify_for(dir: &Path, names: &str) -> io::Result<()> {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        // Not an authority: rustls refuses an authority as a server's certificate.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"])
        .args(["-addext", &format!("subjectAltName={names}")])
        .current_dir(dir)
        .output()?;
    if !made.status.success() {
        return Err(io::Error::other(format!("openssl: {}", String::from_utf8_lossy(&made.stderr))));
    }
    Ok(())
}
