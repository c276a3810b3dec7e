//! The lines on standard error: their form, what a silent run says, and what a wait and its end say.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::kit::{HOLD, Kid, Place, Said};

fn json_lines(said: &Said) -> Vec<Value> {
    said.err.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Whether a line begins with a time like `2026-11-24T12:00:00Z`.
fn has_time(line: &str) -> bool {
    let digits = line.chars().take(20).map(|c| if c.is_ascii_digit() { '0' } else { c });
    digits.eq("0000-00-00T00:00:00Z".chars())
}

#[test]
fn a_run_that_goes_well_is_silent_unless_somebody_wants_to_know() {
    let place = Place::new();
    let run = |options: &[&str]| place.output([options, &["run", "a", "--", "sh", "-c", "exit 3"]].concat());
    for options in [&[][..], &["-q"], &["--log", "text"], &["-q", "--log", "json"]] {
        assert_eq!(run(options).expect(3).err, "", "{options:?}");
    }
    let said = run(&["-v"]);
    let lines: Vec<&str> = said.expect(3).err.lines().collect();
    let [granted, ended] = lines[..] else { panic!("{said:?}") };
    assert!(
        has_time(granted)
            && granted.contains(" fencepost 'a' token ")
            && granted.contains(": granted after ")
    );
    assert!(ended.contains(" fencepost 'a' token ") && ended.ends_with(", exit code 3, released"), "{ended}");
    let said = run(&["--log", "json"]);
    let lines = json_lines(said.expect(3));
    let [granted, ended] = &lines[..] else { panic!("{said:?}") };
    assert_eq!(
        (&granted["event"], &granted["name"], &granted["level"]),
        (&"granted".into(), &"a".into(), &"info".into())
    );
    assert!(granted["token"].as_u64().is_some() && granted["waited_ms"].as_u64().is_some());
    assert_eq!((&ended["event"], &ended["token"]), (&"ended".into(), &granted["token"]));
    assert_eq!((&ended["exit_code"], &ended["outcome"]), (&3.into(), &"released".into()));
    assert!(ended["held_ms"].as_u64().is_some() && has_time(ended["time"].as_str().unwrap()));
}

#[test]
fn the_variable_chooses_the_form_and_reaches_the_program() {
    let place = Place::new();
    let script = "echo \"$FENCEPOST_LOG\"; \"$FENCEPOST\" run -n a -- true";
    let run = ["run", "a", "--", "sh", "-c", script];
    let said = Kid::of(place.fencepost(run).env("FENCEPOST_LOG", "json")).said();
    assert_eq!(said.expect(75).out, "json\n");
    let said = place.output([&["--log", "json"], &run[..]].concat());
    assert_eq!(said.expect(75).out, "json\n");
    let lines = json_lines(&said);
    let busy = lines.iter().find(|line| line["exit_code"] == 75 && line["level"] == "error").unwrap();
    assert!(busy["message"].as_str().unwrap().contains("a is busy: held by"), "{busy}");
    assert_eq!((&busy["name"], &busy["token"]), (&"a".into(), &Value::Null));
    let said = Kid::of(place.fencepost(["ls"]).env("FENCEPOST_LOG", "xml")).said();
    said.expect(64).complains(&["neither text nor json"]);
    place.output(["-v", "-q", "ls"]).expect(64).complains(&["cannot be used together"]);
}

#[test]
fn a_wait_is_logged_with_the_holder_and_so_is_its_end() {
    let place = Place::new();
    for (options, time) in [(&[][..], true), (&["--log", "json"], false)] {
        let holder = place.running(&["--reason", "nightly job"], "a", HOLD);
        let mut waiter = Kid::of(&mut place.fencepost([options, &["run", "a", "--", "true"]].concat()));
        let mut lines = waiter.err();
        let waits = lines.line();
        assert!(waits.contains("waiting: held by ") && waits.contains("nightly job"), "{waits}");
        assert!(waits.contains("; place 1 in the queue"), "{waits}");
        assert_eq!(has_time(&waits), time, "{waits}");
        holder.kid.send(Signal::SIGTERM);
        assert_eq!(waiter.end().code(), Some(0));
        let rest = lines.rest();
        let [granted, ended] = rest.lines().collect::<Vec<_>>()[..] else { panic!("{rest}") };
        assert!(granted.contains("granted after ") && ended.contains("exit code 0, released"), "{rest}");
    }
}

#[test]
fn quiet_prints_errors_only() {
    let place = Place::new();
    let holder = place.running(&[], "a", HOLD);
    let mut waiter = Kid::of(&mut place.fencepost(["-q", "run", "-w", "1500ms", "a", "--", "true"]));
    // It waited long enough to be reported without -q, and an error is printed.
    let (mut err, code) = (waiter.err(), waiter.end().code());
    let text = err.rest();
    assert!(
        code == Some(75) && text.lines().count() == 1 && text.contains("a is still busy after 1s: held by "),
        "{text}"
    );
    assert_eq!(place.output(["-q", "run", "--skip-ok", "a", "--", "true"]).expect(0).err, "");
    assert_eq!(place.output(["ls", "-q", "nothing/"]).expect(0).err, "");
    // The loss of a lock is an error.
    let quiet = place.running(&["-q"], "b", HOLD);
    let token = place.show("b")["holders"][0]["token"].to_string();
    let said = place.output(["-q", "evict", "b", "--token", &token, "--yes", "--now"]);
    said.expect(0).complains(&["audit"]);
    quiet.kid.said().expect(76).complains(&["the lock is lost", "'b' token"]);
    drop(holder);
}

#[test]
fn skip_ok_does_not_wait() {
    let place = Place::new();
    let _holder = place.running(&[], "a", HOLD);
    let said = place.output(["run", "--skip-ok", "a", "--", "echo", "ran"]);
    said.expect(0).complains(&["fencepost: a is busy: held by", "; skipped (--skip-ok)"]);
    assert_eq!(said.out, "");
    // With a time it waits for so long.
    let start = std::time::Instant::now();
    place.output(["run", "--skip-ok", "-w", "300ms", "a", "--", "true"]).expect(0);
    assert!(start.elapsed() >= std::time::Duration::from_millis(300));
}

#[test]
fn a_line_of_the_guardian_has_time_name_and_token() {
    let place = Place::new();
    let mut running = place.running(&["--log", "json"], "a", HOLD);
    let token = place.show("a")["holders"][0]["token"].clone();
    let mut err = running.kid.err();
    running.kid.send(Signal::SIGKILL);
    running.pipe.closed(crate::kit::LONG);
    let line = loop {
        let line: Value = serde_json::from_str(&err.line()).unwrap();
        if line["level"] == "error" {
            break line;
        }
    };
    assert!(line["message"].as_str().unwrap().contains("was killed"), "{line}");
    assert_eq!((&line["name"], &line["token"]), (&"a".into(), &token));
}

#[test]
fn verbose_names_the_processes_that_are_ended_after_the_program() {
    let place = Place::new();
    // The child is named `sh` until it becomes `sleep`.
    let script = "sleep 1000 & while [ \"$(cat /proc/$!/comm)\" != sleep ]; do :; done; exit 3";
    let said = place.output(["run", "-v", "a", "--", "sh", "-c", script]);
    let text = "the program exited; ending 1 process that it left running: sleep\n";
    assert_eq!(said.expect(3).err.matches(text).count(), 1, "{said:?}");
    let json = place.output(["run", "--log", "json", "a", "--", "sh", "-c", script]);
    let lines = json_lines(json.expect(3));
    let line = lines.iter().find(|line| line["event"] == "descendants").unwrap();
    assert_eq!(
        (&line["processes"], &line["level"]),
        (&serde_json::json!(["sleep"]), &"info".into()),
        "{line}"
    );
    assert_eq!(place.output(["run", "a", "--", "sh", "-c", script]).expect(3).err, "");
    assert!(!place.output(["run", "-v", "a", "--", "true"]).expect(0).err.contains("left running"));
}

/// Runs a command on a terminal, where the status line stands instead.
#[test]
fn on_a_terminal_lines_are_short() {
    let place = Place::new();
    let script = "\"$FENCEPOST\" run -n a -- false; \"$FENCEPOST\" run a -- no-such-program; \"$FENCEPOST\" -v run a -- true";
    let mut command: Command = place.via("script", ["-qec", script, "/dev/null"]);
    let said = Kid::of(&mut command).said();
    let text = said.expect(0).out.replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    let [missing, granted, ended] = lines[..] else { panic!("{said:?}") };
    assert!(missing.starts_with("fencepost: cannot run 'no-such-program'"), "{missing}");
    assert!(
        granted.starts_with("fencepost: granted after ") && ended.starts_with("fencepost: held for "),
        "{text}"
    );
}
