//! The view of `top` on a terminal.

use std::fs;

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::{HOLD, Kid, Place, child_of};
use crate::serve::Service;
use crate::terminal::{Desk, fencepost};

/// The terminal is taken over, and given back with its cursor.
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l\x1b[?25h";

/// Runs `top` in a shell, which prints its exit code and notes how the terminal was set before and after.
fn watched(place: &Place, arguments: &str) -> Desk {
    let before = place.path("before").display().to_string();
    let after = place.path("after").display().to_string();
    let script = format!(
        "stty -g >{before}; \"$FENCEPOST\" top {arguments}; echo code-$?; stty -g >{after}; echo do\"\"ne"
    );
    let mut desk = Desk::new(place, &["sh", "-c", &script]);
    desk.shows(TAKEN);
    desk
}

/// It has ended with this exit code, and the terminal is as it was.
#[track_caller]
fn gave_back(desk: &mut Desk, place: &Place, code: i32) {
    desk.shows(GIVEN_BACK);
    desk.shows(&format!("code-{code}"));
    desk.shows("done");
    let [before, after] = ["before", "after"].map(|name| fs::read_to_string(place.path(name)).unwrap());
    assert_eq!(before, after);
}

#[test]
fn a_holder_and_a_waiter_are_seen_and_q_gives_the_terminal_back() {
    let place = Place::new();
    // A file that nobody has used is not made.
    let mut desk = watched(&place, "--every 50ms");
    desk.shows("Nothing");
    assert!(!place.database().exists());
    let holder = place.running(&["--reason", "nightly"], "backup", HOLD);
    desk.shows("backup");
    desk.shows(&holder.kid.pid().to_string());
    let waiter = Kid::of(&mut place.fencepost(["run", "-w", "60s", "backup", "--", "true"]));
    let pid = place.waiters("backup", 1)["waiters"][0]["pid"].to_string();
    desk.type_in("\r");
    desk.shows("Queue:");
    desk.shows(&pid);
    desk.type_in("\x1b");
    desk.shows("WAIT");
    // The filter hides it.
    desk.type_in("/nowhere\r");
    desk.shows("matches");
    desk.type_in("q");
    gave_back(&mut desk, &place, 0);
    holder.kid.send(Signal::SIGTERM);
    waiter.said().expect(0);
}

#[test]
fn signals_give_the_terminal_back() {
    let place = Place::new();
    let _holder = place.running(&[], "backup", HOLD);
    let mut desk = watched(&place, "");
    desk.shows("backup");
    desk.type_in("\x03");
    gave_back(&mut desk, &place, 130);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut desk = watched(&place, "");
        desk.shows("backup");
        let pid = child_of(desk.kid.pid()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        gave_back(&mut desk, &place, code);
    }
}

#[test]
fn control_z_gives_the_terminal_to_the_shell_until_fg() {
    let place = Place::new();
    let _holder = place.running(&[], "backup", HOLD);
    let mut desk = Desk::new(&place, &["bash", "--norc", "--noprofile", "-i"]);
    desk.shows("prompt> ");
    desk.type_in("$FENCEPOST top\n");
    desk.shows("backup");
    desk.type_in("\x1a");
    desk.shows(GIVEN_BACK);
    desk.shows("Stopped");
    desk.shows("prompt> ");
    desk.type_in("fg\n");
    desk.shows(TAKEN);
    desk.shows("backup");
    desk.type_in("q");
    desk.shows(GIVEN_BACK);
    desk.shows("prompt> ");
    desk.type_in("exit\n");
    desk.kid.end();
}

#[test]
fn an_engine_that_goes_away_is_named_and_comes_back() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let holder = place.running(&["--ttl", "60s"], "backup", HOLD);
    let mut desk = watched(&place, "--every 50ms");
    desk.shows("backup");
    server.kill().unwrap();
    desk.shows("away");
    desk.type_in("q");
    gave_back(&mut desk, &place, 0);
    // It may be away from the start.
    let mut desk = watched(&place, "--every 50ms");
    desk.shows("away");
    server.restart().unwrap();
    desk.shows("waiting");
    let _later = place.running(&["--ttl", "60s"], "later", HOLD);
    desk.shows("later");
    desk.type_in("q");
    gave_back(&mut desk, &place, 0);
    drop(holder);
}

/// An access token that is removed is an error, which is printed on the terminal as it was.
#[test]
fn the_lock_service_is_an_engine_and_an_error_gives_the_terminal_back() {
    let place = Place::new();
    let tokens = place.file("tokens", "");
    let tokens = tokens.to_str().unwrap();
    let service = Service::listen(&place, "127.0.0.1:0", &["--tokens", tokens]);
    let token =
        |add: &[&str]| place.output(["serve", "token"].iter().chain(add)).expect(0).out.trim().to_owned();
    let secret = token(&["add", "--tokens", tokens, "--allow", "read:stock/", "ops"]);
    let _held = place.running(&[], "stock/1", HOLD);
    let through = Place::at(&format!("http://{}", service.address));
    let env = through.file("secret", &secret);
    let mut desk = watched(
        &through,
        &format!("--every 50ms stock/ -b \"$FENCEPOST_BACKEND?token_file={}\"", env.display()),
    );
    desk.shows("stock/1");
    token(&["remove", "--tokens", tokens, "ops"]);
    gave_back(&mut desk, &through, 77);
    drop(service);
}

#[test]
fn without_a_terminal_it_names_what_to_use() {
    let place = Place::new();
    place.output(["top"]).expect(64).complains(&["needs a terminal", "fencepost watch", "ls --json"]);
    // A terminal for the output alone is not enough.
    let mut desk = Desk::new(&place, &["sh", "-c", "\"$FENCEPOST\" top </dev/null; echo code-$?"]);
    desk.shows("needs");
    desk.shows("code-64");
    let mut desk = Desk::new(&place, &[fencepost(), "top", "--every", "1ms"]);
    desk.shows("at least 10ms");
}

#[test]
fn nothing_is_coloured_where_colours_are_not_welcome() {
    let place = Place::new();
    let _holder = place.running(&[], "backup", HOLD);
    for (variable, is_coloured) in [("", true), ("NO_COLOR=1", false)] {
        let mut desk = Desk::new(&place, &["sh", "-c", &format!("{variable} \"$FENCEPOST\" top")]);
        let before = desk.shows("backup");
        // Dark grey is the colour of the columns' names.
        assert_eq!(before.contains("38;5;8"), is_coloured, "{before:?}");
        desk.type_in("q");
        desk.shows(GIVEN_BACK);
    }
}
