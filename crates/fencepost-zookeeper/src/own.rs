//! Whose a connection over the loopback interface is.
//!
//! A port on that interface is open to every user of the machine. What is served there is for this process alone, so the other
//! end of a connection is looked for among its own open files: two ends of a connection have each other's addresses, and while the
//! one end is open nobody else can have the other's.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::RawFd;

use nix::sys::socket::{SockaddrIn, getpeername, getsockname};

/// Where the system lists the open files of this process.
const FILES: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// Has this process a socket at `near`, connected to `far`?
///
/// # Errors
/// The system does not tell.
pub(crate) fn has(near: SocketAddr, far: SocketAddr) -> io::Result<bool> {
    any(|fd| address(getsockname(fd)) == Some(near) && address(getpeername(fd)) == Some(far))
}

/// Has this process a socket at `near`?
///
/// # Errors
/// The system does not tell.
pub(crate) fn has_at(near: SocketAddr) -> io::Result<bool> {
    any(|fd| address(getsockname(fd)) == Some(near))
}

fn any(is: impl Fn(RawFd) -> bool) -> io::Result<bool> {
    for file in std::fs::read_dir(FILES)? {
        // What is no socket, or was closed meanwhile, has no address.
        if file?.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(&is) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn address(found: nix::Result<SockaddrIn>) -> Option<SocketAddr> {
    found.ok().map(|address| SocketAddr::V4(SocketAddrV4::from(address)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn our_own_connections_are_told_from_others() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let far = listener.local_addr().expect("an address");
        assert!(has_at(far).expect("the system tells"));
        let ours = TcpStream::connect(far).expect("it connects");
        let (accepted, near) = listener.accept().expect("a connection");
        assert!(has(near, far).expect("the system tells"));
        assert!(!has(near, ours.local_addr().expect("an address")).expect("the system tells"));
        drop(ours);
        assert!(!has(near, far).expect("the system tells"), "it is closed");
        drop(accepted);
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read -r _ <&3", far.port());
        let mut child =
            Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).spawn().expect("bash");
        let (mut accepted, near) = listener.accept().expect("a connection");
        assert!(!has(near, far).expect("the system tells"), "it is another process's");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert_eq!(accepted.read(&mut [0]).expect("its end"), 0);
    }
}
