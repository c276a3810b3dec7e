//! The static file of `cargo xtask dist` on a root that has only it, `/proc` and `/tmp`. The step `static binary` of `cargo xtask test`
//! builds it and runs these tests.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{Kid, Place, Said};

/// Mounts both folders and runs the file as the only program of its root. It is the first process of a space of its own.
const ALONE: &str = "mount -t proc proc \"$1/proc\"; mount -t tmpfs tmpfs \"$1/tmp\"; \
                     root=$1; shift; exec chroot \"$root\" /fencepost \"$@\"";

/// A root with the file and two empty folders.
fn root(place: &Place) -> PathBuf {
    let root = place.path("root");
    for folder in ["proc", "tmp"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let file =
        std::env::var_os("FENCEPOST_STATIC").expect("the path of the file, which `cargo xtask dist` builds");
    fs::copy(file, root.join("fencepost")).unwrap();
    root
}

fn alone(place: &Place, root: &Path, arguments: &[&str]) -> Said {
    let space = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-euc", ALONE, "sh"];
    let words = space.iter().map(AsRef::as_ref).chain([root.as_os_str()]);
    let mut command = place.via("unshare", words.chain(arguments.iter().map(AsRef::as_ref)));
    Kid::of(command.env("XDG_STATE_HOME", "/tmp/state")).said()
}

#[test]
#[ignore = "needs the file that `cargo xtask dist` builds"]
fn it_runs_where_nothing_else_is() {
    needs!(REDIS);
    let place = Place::new();
    let root = root(&place);
    let run = |arguments: &[&str]| alone(&place, &root, arguments);
    let said = run(&["run", "hello", "--", "/fencepost", "show", "hello"]);
    assert!(said.expect(0).out.contains("held by"), "{said:?}");
    run(&["run", "hello", "--", "/fencepost", "evict", "--token", "x", "hello"]).expect(64);
    run(&["run", "hello", "--", "/nothing"]).expect(127);
    run(&["doctor"]).expect(0);

    let server = Redis::start(&Config::new()).unwrap();
    let said = run(&["run", "-b", &server.url(), "hello", "--", "/fencepost", "ls", "-b", &server.url()]);
    assert!(said.expect(0).out.contains("hello"), "{said:?}");
    let files: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
}

#[test]
#[ignore = "needs the file that `cargo xtask dist` builds"]
fn it_looks_up_names_in_the_file_of_hosts_and_by_dns() {
    needs!(REDIS);
    let place = Place::new();
    let root = root(&place);
    let server = Redis::start(&Config::new()).unwrap();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    let etc = root.join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("hosts"), "127.0.0.1 redis.in-a-file.example\n").unwrap();
    let run = |host: &str| {
        let url = format!("redis://{host}:{port}");
        alone(&place, &root, &["run", "-b", &url, "hello", "--", "/fencepost", "show", "-b", &url, "hello"])
    };
    // Port 53 may be root's.
    if let Ok(socket) = UdpSocket::bind("127.53.53.53:53") {
        std::thread::spawn(move || answer(&socket));
        fs::write(etc.join("resolv.conf"), "nameserver 127.53.53.53\n").unwrap();
        fs::write(etc.join("nsswitch.conf"), "hosts: files dns\n").unwrap();
        run("redis.in-dns.example").expect(0);
    } else {
        needs::skip("this user may not bind port 53");
    }
    run("redis.in-a-file.example").expect(0);
    let said = run("redis.nowhere.example");
    said.expect(69).complains(&["redis.nowhere.example"]);
}

/// glibc would load a library of the system for a user whom `/etc/passwd` does not name.
#[test]
#[ignore = "needs the file that `cargo xtask dist` builds"]
fn it_runs_for_a_user_whom_no_file_names() {
    let place = Place::new();
    let file = root(&place).join("fencepost");
    if !nix::unistd::Uid::effective().is_root() {
        return needs::skip("only root starts a program of another user");
    }
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let somebody = ["--reuid=54321", "--regid=54321", "--clear-groups"].map(AsRef::as_ref);
    let words = ["run", "hello", "--", "true"].map(AsRef::as_ref);
    let mut command = place.via("setpriv", somebody.into_iter().chain([file.as_os_str()]).chain(words));
    Kid::of(command.env_remove("USER").env("HOME", place.path(""))).said().expect(0);
}

/// Answers each question for `redis.in-dns.example` with this machine's address, and each other one with "no such name".
fn answer(socket: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, asker)) = socket.recv_from(&mut packet) {
        let question = &packet[12..length];
        let known = question.starts_with(b"\x05redis\x06in-dns\x07example\0");
        // After the name come the type (1: an IPv4 address) and the class.
        let end = question.iter().position(|byte| *byte == 0).unwrap_or_default() + 5;
        let address = known && question[end - 3] == 1;
        let code = if known { 0 } else { 3 };
        let mut reply = [&packet[..2], &[0x81, 0x80 | code, 0, 1, 0, u8::from(address), 0, 0, 0, 0]].concat();
        reply.extend(&question[..end]);
        if address {
            // The name of the question, the type, the class, no time to live, four bytes.
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
        }
        let _ = socket.send_to(&reply, asker);
    }
}
