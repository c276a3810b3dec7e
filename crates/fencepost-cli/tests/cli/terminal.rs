//! On a terminal: who has the foreground, Ctrl-C, Ctrl-Z.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};

use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, LONG, Pipe, Place, eventually, state};

/// A process that leads a session on a terminal of its own.
pub(crate) struct Desk {
    pub(crate) kid: Kid,
    keyboard: File,
    shown: String,
}

impl Desk {
    pub(crate) fn new(place: &Place, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        // setsid becomes the session's leader, takes the terminal and then becomes the program.
        let mut command = place.via("setsid", ["--ctty"].iter().chain(arguments));
        command.stdin(side(&pty.slave)).stdout(side(&pty.slave)).stderr(side(&pty.slave));
        command.env("PS1", "prompt> ").env("TERM", "dumb");
        let kid = Kid::of(&mut command);
        Self { kid, keyboard: File::from(pty.master), shown: String::new() }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types Ctrl-Z, which stops the process, and `fg`, which lets it go on in the foreground.
    fn suspends(&mut self, pid: i64) {
        let pid = i32::try_from(pid).unwrap();
        self.type_in("\x1a");
        self.shows("Stopped");
        self.shows("prompt> ");
        assert_eq!(state(pid).as_deref(), Some("T"));
        self.type_in("fg\n");
        eventually("it goes on", LONG, || (state(pid)? != "T").then_some(()));
    }

    /// Waits until the screen shows this; what came before it is forgotten.
    #[track_caller]
    pub(crate) fn shows(&mut self, what: &str) -> String {
        let end = Instant::now() + LONG;
        loop {
            if let Some(at) = self.shown.find(what) {
                let before = self.shown[..at].to_owned();
                self.shown.drain(..at + what.len());
                return before;
            }
            assert!(Instant::now() < end, "no {what:?} on the screen: {:?}", self.shown);
            let mut at = [PollFd::new(self.keyboard.as_fd(), PollFlags::POLLIN)];
            poll(&mut at, PollTimeout::from(100u16)).unwrap();
            if at[0].revents().unwrap().contains(PollFlags::POLLIN) {
                let mut bytes = [0; 4096];
                let n = self.keyboard.read(&mut bytes).unwrap();
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        }
    }
}

pub(crate) fn fencepost() -> &'static str {
    env!("CARGO_BIN_EXE_fencepost")
}

#[test]
fn the_program_has_the_foreground_and_gives_it_back() {
    let place = Place::new();
    // A script is in one group with the command, and reads the terminal after it.
    let script = "\"$FENCEPOST\" run hello -- sh -c \
                  'set -- $(ps -o pgid= -o tpgid= -p $$); [ $1 = $2 ] && echo in front; read x; echo got-$x'; \
                  read y; echo then-$y";
    let mut desk = Desk::new(&place, &["sh", "-c", script]);
    desk.shows("in front");
    desk.type_in("one\n");
    desk.shows("got-one");
    desk.type_in("two\n");
    desk.shows("then-two");
    assert_eq!(desk.kid.end().code(), Some(0));
}

#[test]
fn control_c_reaches_the_program() {
    let place = Place::new();
    let script = "trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.05; done";
    let mut desk = Desk::new(&place, &[fencepost(), "run", "hello", "--", "sh", "-c", script]);
    desk.shows("up");
    desk.type_in("\x03");
    desk.shows("caught");
    assert_eq!(desk.kid.end().code(), Some(3));
}

#[test]
fn control_z_stops_the_job_and_fg_goes_on() {
    let place = Place::new();
    let mut desk = Desk::new(&place, &["bash", "--norc", "--noprofile", "-i"]);
    desk.shows("prompt> ");
    desk.type_in("$FENCEPOST run hello -- sh -c 'echo u\"\"p; read x; echo go\"\"t-$x'; echo code-$?\n");
    desk.shows("up");
    desk.type_in("\x1a");
    desk.shows("Stopped");
    desk.shows("prompt> ");
    // The lock is held meanwhile.
    place.output(["run", "-n", "hello", "--", "true"]).expect(75);
    desk.type_in("fg\n");
    desk.type_in("one\n");
    desk.shows("got-one");
    desk.shows("prompt> ");
    // And in the background: reading stops the job until it is in front again.
    desk.type_in("$FENCEPOST run hello -- sh -c 'read x; echo go\"\"t-$x' &\n");
    desk.shows("prompt> ");
    crate::kit::eventually("the job has stopped itself", LONG, || {
        desk.type_in("jobs\n");
        desk.shows("prompt> ").contains("Stopped").then_some(())
    });
    desk.type_in("fg\n");
    desk.type_in("two\n");
    desk.shows("got-two");
    desk.shows("prompt> ");
    desk.type_in("exit\n");
    desk.kid.end();
}

#[test]
fn control_z_suspends_a_job_that_waits() {
    let place = Place::new();
    let holder = place.running(&[], "hello", HOLD);
    let mut desk = Desk::new(&place, &["bash", "--norc", "--noprofile", "-i"]);
    desk.shows("prompt> ");
    for verb in ["run hello -- echo mi\"\"ne", "hold --no-stdin hello"] {
        desk.type_in(&format!("$FENCEPOST {verb}\n"));
        let pid = place.waiters("hello", 1)["waiters"][0]["pid"].as_i64().unwrap();
        desk.suspends(pid);
        if verb.starts_with("run") {
            desk.type_in("\x03");
            desk.shows("prompt> ");
        }
    }
    holder.kid.send(Signal::SIGTERM);
    desk.shows("holding hello");
    // It is suspended while it holds as well.
    let pid = place.show("hello")["holders"][0]["pid"].as_i64().unwrap();
    desk.suspends(pid);
    desk.type_in("\x03");
    desk.shows("prompt> ");
    desk.type_in("exit\n");
    desk.kid.end();
}

#[test]
fn a_job_stopped_past_its_lease_loses_its_program() {
    let place = Place::new();
    let mut pipe = Pipe::new(&place);
    let mut desk = Desk::new(&place, &["bash", "--norc", "--noprofile", "-i"]);
    desk.shows("prompt> ");
    // With `exec`: a shell in the middle of a vfork cannot be stopped, with fencepost or without.
    let script = format!("exec 9> {}; echo u\"\"p >&9; exec sleep 1000", pipe.path.display());
    desk.type_in(&format!("$FENCEPOST run --ttl 2s hello -- sh -c '{script}'; echo code-$?\n"));
    pipe.line();
    desk.type_in("\x1a");
    desk.shows("Stopped");
    pipe.closed(LONG);
    // The next one need not wait for the stopped wrapper.
    place.output(["run", "-w", "30s", "hello", "--", "true"]).expect(0);
    desk.type_in("fg; echo code-$?\n");
    desk.shows("code-76");
    desk.type_in("exit\n");
    desk.kid.end();
}

#[test]
fn a_program_in_a_pipe_gets_the_terminal_when_it_asks() {
    let place = Place::new();
    let mut desk = Desk::new(&place, &["bash", "--norc", "--noprofile", "-i"]);
    desk.shows("prompt> ");
    desk.type_in("$FENCEPOST run hello -- sh -c 'echo u\"\"p; read x < /dev/tty; echo go\"\"t-$x' | cat\n");
    desk.shows("up");
    desk.type_in("one\n");
    desk.shows("got-one");
    desk.shows("prompt> ");
    desk.type_in("exit\n");
    desk.kid.end();
}

#[test]
fn who_waits_on_a_terminal_sees_the_holder_and_the_place() {
    let place = Place::new();
    let holder = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    let mut desk = Desk::new(&place, &[fencepost(), "run", "hello", "--", "echo", "mine"]);
    desk.shows("waiting for hello: held by");
    desk.shows(&holder.kid.pid().to_string());
    desk.shows("place 1 in the queue");
    desk.type_in("\x03");
    assert_eq!(desk.kid.end().code(), Some(130));
}

#[test]
fn evict_asks_on_a_terminal() {
    let place = Place::new();
    let holder = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    let token = place.show("hello")["holders"][0]["token"].to_string();
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello", "--token", &token]);
    desk.shows("[y/N] ");
    desk.type_in("n\n");
    assert_eq!(desk.kid.end().code(), Some(1));
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello", "--token", &token]);
    desk.shows(&holder.kid.pid().to_string());
    desk.shows("[y/N] ");
    desk.type_in("y\n");
    assert_eq!(desk.kid.end().code(), Some(0));
    holder.kid.said().expect(76);
}

#[test]
fn evict_on_a_terminal_needs_no_token_of_an_only_holder() {
    let place = Place::new();
    let holder = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    let token = place.show("hello")["holders"][0]["token"].to_string();
    // It shows the holder, and does nothing without a yes.
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello"]);
    desk.shows(&format!("pid {}", holder.kid.pid()));
    desk.shows(&format!("token {token}"));
    desk.shows("[y/N] ");
    desk.type_in("\n");
    desk.shows("nothing was changed");
    assert_eq!(desk.kid.end().code(), Some(1));
    // Without a question it could be a later holder.
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello", "--yes"]);
    desk.shows("use --token T");
    assert_eq!(desk.kid.end().code(), Some(64));
    assert_eq!(place.show("hello")["holders"][0]["evicted"], false);
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello"]);
    desk.shows("[y/N] ");
    desk.type_in("y\n");
    assert_eq!(desk.kid.end().code(), Some(0));
    holder.kid.said().expect(76);
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello"]);
    desk.shows("hello is free");
    assert_eq!(desk.kid.end().code(), Some(1));
    // Of several holders one is chosen by its token.
    let readers = [(); 2].map(|()| place.running(&["-s"], "hello", "echo up >&9; exec sleep 1000"));
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello"]);
    desk.shows("hello has 2 holders; choose one with --token T");
    assert_eq!(desk.kid.end().code(), Some(64));
    drop(readers);
}

/// The answer may come late: the holder that was shown is evicted, and not the one after it.
#[test]
fn evict_on_a_terminal_spares_a_later_holder() {
    let place = Place::new();
    let holder = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    let mut desk = Desk::new(&place, &[fencepost(), "evict", "hello"]);
    desk.shows("[y/N] ");
    holder.kid.send(Signal::SIGTERM);
    holder.kid.said().expect(143);
    let later = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    desk.type_in("y\n");
    assert_eq!(desk.kid.end().code(), Some(1));
    assert_eq!(place.show("hello")["holders"][0]["evicted"], false);
    drop(later);
}

#[test]
fn colours_only_where_they_are_welcome() {
    let place = Place::new();
    let _holder = place.running(&[], "hello", "echo up >&9; exec sleep 1000");
    let mut desk = Desk::new(&place, &["sh", "-c", "\"$FENCEPOST\" ls; echo en\"\"d"]);
    assert!(desk.shows("end").contains("\x1b["));
    let mut desk = Desk::new(&place, &["sh", "-c", "NO_COLOR=1 \"$FENCEPOST\" ls; echo en\"\"d"]);
    assert!(!desk.shows("end").contains('\x1b'));
    assert!(!place.output(["ls"]).expect(0).out.contains('\x1b'));
}
