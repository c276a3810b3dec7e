//! A server that sends back what it receives. The tests of the testkit's server helpers use it.
//!
//! `fencepost-echo PORT DIR`. If DIR has a file `fail`, it ends at once. It starts a child and writes the
//! child's process id to `child`, so that a test can check that both are killed together.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(port), Some(dir)) = (args.next().and_then(|port| port.parse::<u16>().ok()), args.next()) else {
        eprintln!("usage: fencepost-echo PORT DIR");
        return ExitCode::from(64);
    };
    let dir = PathBuf::from(dir);
    if dir.join("fail").exists() {
        eprintln!("told to fail");
        return ExitCode::FAILURE;
    }
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep is everywhere");
    std::fs::write(dir.join("child"), child.id().to_string()).expect("the folder can be written");
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let (mut from, mut to) = (stream.try_clone().expect("a stream can be cloned"), stream);
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        });
    }
    child.wait().expect("the child is ours");
    ExitCode::SUCCESS
}
