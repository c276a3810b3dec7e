//! A certificate for a server's TLS, and the files of a client of that server.

use super::TempDir;
use std::io;
use std::path::Path;
use std::process::Command;

/// Makes a certificate for the loopback interface: `cert.pem` and `key.pem` in the folder.
///
/// # Errors
/// Returns an error if `openssl` fails.
pub fn certify(dir: &Path) -> io::Result<()> {
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

/// The files of a client: the certificate of a server as `ca.pem` and as `cert.pem`, and its key as `key.pem`.
pub struct ClientFiles(TempDir);

impl ClientFiles {
    /// Copies the files of a server, which [`certificate`](crate::redis::Redis::certificate) and its like
    /// name.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn of(certificate: &Path) -> io::Result<ClientFiles> {
        let files = ClientFiles(TempDir::new("client")?);
        files.replace(certificate)?;
        Ok(files)
    }

    /// Replaces them by the files of a server. Each file appears at once and complete.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn replace(&self, certificate: &Path) -> io::Result<()> {
        let key = certificate.with_file_name("key.pem");
        for (from, name) in [(certificate, "ca.pem"), (certificate, "cert.pem"), (&key, "key.pem")] {
            let new = self.0.path().join("new");
            std::fs::copy(from, &new)?;
            std::fs::rename(new, self.0.path().join(name))?;
        }
        Ok(())
    }

    /// Leaves half of the client's certificate, as somebody does who is writing it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn halve(&self) -> io::Result<()> {
        let path = self.0.path().join("cert.pem");
        let whole = std::fs::read(&path)?;
        std::fs::write(path, &whole[..whole.len() / 2])
    }

    /// Returns the options of a URL that name them: `ca=...&cert=...&key=...`.
    pub fn options(&self) -> String {
        let dir = self.0.path().display();
        format!("ca={dir}/ca.pem&cert={dir}/cert.pem&key={dir}/key.pem")
    }
}
