//! Tests the helpers that start and end servers and make faults, on a small server.

use fencepost_testkit::faults::{Fault, Faults};
use fencepost_testkit::server::{Plan, Proxy, Server};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

fn plan() -> Plan {
    let mut plan = Plan::new("echo", |port, dir| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost-echo"));
        command.arg(port.to_string()).arg(dir);
        command
    });
    plan.patience = SOON;
    plan
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"hello")?;
    let mut back = [0; 5];
    stream.read_exact(&mut back)?;
    assert_eq!(&back, b"hello");
    Ok(())
}

/// Whether the process runs (a zombie does not).
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_server_answers_and_goes_with_its_children_even_when_the_test_panics() {
    let (mut server_pid, mut child_pid, mut dir) = (String::new(), String::new(), None);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let server = Server::start(plan()).unwrap();
        server_pid = server.pid().unwrap().to_string();
        child_pid = std::fs::read_to_string(server.dir().join("child")).unwrap();
        dir = Some(server.dir().to_owned());
        echo(&mut connect(server.address())).unwrap();
        assert!(runs(&server_pid) && runs(&child_pid));
        std::panic::resume_unwind(Box::new("as a failing test would"));
    }));
    assert!(panicked.is_err());
    assert!(!runs(&server_pid), "the server outlived its owner");
    eventually("the server's child outlived it", || !runs(&child_pid));
    assert!(!dir.unwrap().exists(), "the folder was left");
}

/// Set for this test binary when it is started a second time, to leave a server behind.
const LEAVER: &str = "FENCEPOST_LEAVER";

/// Leaves a server behind in the other process. Does nothing in this one.
#[test]
fn leave_a_server() {
    if std::env::var_os(LEAVER).is_none() {
        return;
    }
    let server = Box::leak(Box::new(Server::start(plan()).unwrap()));
    let child = std::fs::read_to_string(server.dir().join("child")).unwrap();
    eprintln!("left {} {child} {}", server.pid().unwrap(), server.dir().display());
    // Waits until the test has read that: the input is empty until its end.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_server_that_is_never_dropped_goes_with_its_process() {
    for killed in [false, true] {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["leave_a_server", "--exact", "--nocapture"])
            .env(LEAVER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said = said.find(|line| line.starts_with("left ")).expect("it starts a server");
        let [_, pid, child, dir] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(runs(pid) && runs(child) && Path::new(dir).exists());
        if killed {
            process.kill().unwrap();
        }
        drop(process.stdin.take());
        process.wait().unwrap();
        eventually("the server outlived its process", || {
            !runs(pid) && !runs(child) && !Path::new(dir).exists()
        });
    }
}

#[test]
fn a_server_that_ends_says_why() {
    let mut plan = plan();
    let command = plan.command;
    plan.command = Box::new(move |port, dir| {
        std::fs::write(dir.join("fail"), "").unwrap();
        command(port, dir)
    });
    let Err(error) = Server::start(plan) else { panic!("it was told to fail") };
    assert!(error.to_string().contains("told to fail"), "{error}");
}

#[test]
fn a_server_that_is_never_ready_is_given_up() {
    let mut plan = plan();
    plan.ready = Box::new(|_, _| false);
    plan.patience = Duration::from_millis(50);
    let Err(error) = Server::start(plan) else { panic!("it was never ready") };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn kill_restart_stop_and_continue() {
    let mut server = Server::start(plan()).unwrap();
    let mut old = connect(server.address());
    echo(&mut old).unwrap();
    server.kill().unwrap();
    assert!(echo(&mut old).is_err());
    assert!(server.stop().is_err(), "there is nothing to stop");
    server.restart().unwrap();
    let mut stream = connect(server.address());
    echo(&mut stream).unwrap();
    server.stop().unwrap();
    stream.write_all(b"hello").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let silence = stream.read(&mut [0; 5]).unwrap_err();
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    server.cont().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_proxy_passes_cuts_silences_delays_and_mends() {
    let server = Server::start(plan()).unwrap();
    let mut proxy = Proxy::start(server.address()).unwrap();
    let mut stream = connect(proxy.address());
    echo(&mut stream).unwrap();

    proxy.delay(Duration::from_millis(60)).unwrap();
    let start = Instant::now();
    echo(&mut stream).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(120), "once each way");

    proxy.delay(Duration::ZERO).unwrap();
    proxy.silence().unwrap();
    stream.write_all(b"hello").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stream.read(&mut [0; 5]).is_err(), "the network is silent");
    proxy.mend().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();

    proxy.cut().unwrap();
    assert!(echo(&mut stream).is_err());
    assert!(echo(&mut connect(proxy.address())).is_err(), "new connections are cut, too");
    proxy.mend().unwrap();
    echo(&mut connect(proxy.address())).unwrap();
}

#[test]
fn what_an_engine_has_no_hook_for_says_so() {
    struct Nothing;
    impl Faults for Nothing {}
    let mut none = Nothing;
    let answers = [
        none.kill(),
        none.restart(),
        none.stop(),
        none.cont(),
        none.cut(),
        none.silence(),
        none.delay(SOON),
        none.mend(),
        none.jump(1),
    ];
    assert!(answers.iter().all(|answer| matches!(answer, Err(Fault::NotSupported(_)))));
}
