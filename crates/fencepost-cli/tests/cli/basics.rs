//! `run` when nothing fails, and when the program cannot be started.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::kit::{HOLD, Kid, Place, Running};

#[test]
fn a_program_runs_and_its_code_comes_back() {
    let place = Place::new();
    let said = place.output(["run", "hello", "--", "echo", "hi"]);
    assert_eq!((said.expect(0).out.as_str(), said.err.as_str()), ("hi\n", ""));
    for code in [1, 42, 75, 255] {
        place.output(["run", "hello", "--", "sh", "-c", &format!("exit {code}")]).expect(code);
    }
    place.output(["run", "hello", "--", "sh", "-c", "kill -9 $$"]).expect(137);
    place.output(["run", "hello", "--", "sh", "-c", "kill -TERM $$"]).expect(143);
}

#[test]
fn a_missing_program_and_one_that_is_not_executable() {
    let place = Place::new();
    place
        .output(["run", "hello", "--", "no-such-program"])
        .expect(127)
        .complains(&["no-such-program", "PATH"]);
    place.output(["run", "hello", "--", "./not/there"]).expect(127);
    let text = place.file("text", "echo hi\n");
    place.output(["run", "hello", "--", text.to_str().unwrap()]).expect(126).complains(&["chmod +x"]);
    place.output(["run", "hello", "--", "/"]).expect(126);
    let script = place.file("script", "#!/no/such/interpreter\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.output(["run", "hello", "--", script.to_str().unwrap()]).expect(127).complains(&["interpreter"]);
    // And the lock is free.
    place.output(["run", "-n", "hello", "--", "true"]).expect(0);
}

#[test]
fn standard_input_is_passed_on() {
    let place = Place::new();
    let mut kid = Kid::of(place.fencepost(["run", "hello", "--", "cat"]).stdin(Stdio::piped()));
    kid.child().stdin.take().unwrap().write_all(b"some\ntext").unwrap();
    assert_eq!(kid.said().expect(0).out, "some\ntext");
}

#[test]
fn the_program_sees_name_token_holder_and_deadline() {
    let place = Place::new();
    let script =
        "echo \"$FENCEPOST_NAME|$FENCEPOST_TOKEN|$FENCEPOST_HOLDER|$FENCEPOST_DEADLINE_MS|$(date +%s%3N)\"";
    let said = place.output(["run", "--ttl", "60s", "hello", "--", "sh", "-c", script]);
    let fields: Vec<&str> = said.expect(0).out.trim().split('|').collect();
    let [name, token, holder, deadline, now] = fields[..] else { panic!("{said:?}") };
    assert_eq!(name, "hello");
    let token: u64 = token.parse().unwrap();
    assert!(token > 0);
    assert!(holder.ends_with("/sh") && holder.contains('@'), "{holder}");
    let left = deadline.parse::<i64>().unwrap() - now.parse::<i64>().unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    let again = place.output(["run", "hello", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(again.out.trim().parse::<u64>().unwrap() > token);
}

#[test]
fn several_names_are_sorted_and_all_or_none() {
    let place = Place::new();
    let said = place.output([
        "run",
        "b",
        "a",
        "c",
        "a",
        "--",
        "sh",
        "-c",
        "echo \"$FENCEPOST_NAME\"; echo \"$FENCEPOST_TOKEN\"",
    ]);
    let lines: Vec<&str> = said.expect(0).out.lines().collect();
    assert_eq!(lines[..3], ["a", "b", "c"]);
    assert_eq!(lines.len(), 6);
    let holder = place.running(&[], "b", "echo up >&9; exec sleep 1000");
    place.output(["run", "-n", "a", "b", "--", "true"]).expect(75).complains(&["b is busy"]);
    // Nothing of the refused one is left on the other name.
    place.output(["run", "-n", "a", "--", "true"]).expect(0);
    drop(holder);
}

#[test]
fn runs_may_be_nested() {
    let place = Place::new();
    let script = "\"$FENCEPOST\" run inner -- sh -c 'echo $FENCEPOST_NAME'; echo $FENCEPOST_NAME";
    let said = place.output(["run", "outer", "--", "sh", "-c", script]);
    assert_eq!(said.expect(0).out, "inner\nouter\n");
    // The same name within itself: busy, and the holder is the outer one.
    let script = "echo $FENCEPOST_HOLDER; \"$FENCEPOST\" run -n outer -- true";
    let said = place.output(["run", "outer", "--", "sh", "-c", script]);
    let holder = said.out.trim().to_owned();
    said.expect(75).complains(&["outer is busy", &holder]);
    // It would wait for itself, with and without a limit.
    for wait in ["", "-w 30s"] {
        let script = format!("exec \"$FENCEPOST\" run {wait} outer -- echo never");
        let said = place.output(["run", "outer", "--", "sh", "-c", &script]);
        assert_eq!(said.expect(64).complains(&["'outer'", "deadlock"]).out, "");
    }
    // Readers and permits are held together.
    for (mode, code) in [("-s", 0), ("--permits 2", 0), ("--permits 1", 64)] {
        let script = format!("exec \"$FENCEPOST\" run {mode} several -- true");
        let outer = mode.split(' ').chain(["several", "--", "sh", "-c", &script]);
        place.output(["run"].into_iter().chain(outer)).expect(code);
    }
    // The variables of a run that is over, or of another engine, change nothing.
    let script = "FENCEPOST_TOKEN=1 exec \"$FENCEPOST\" run --max-hold 10s outer -- true";
    let said = place.output(["run", "--max-hold", "300ms", "outer", "--", "sh", "-c", script]);
    said.expect(124).complains(&["--max-hold"]);
}

#[test]
fn a_firing_that_several_hosts_start_runs_once() {
    let place = Place::new();
    let script = "echo ran; sleep 0.3";
    let start_job = |name: &'static str, options: &[&str]| {
        let job = [name, "--", "sh", "-c", script];
        Kid::of(&mut place.fencepost(["run"].iter().chain(options).chain(&job)))
    };
    let start = |options: &[&str]| start_job("job", options);
    let hosts: Vec<_> = (0..5).map(|_| start(&["--once-per", "1h"])).collect();
    let said: String = hosts.into_iter().map(|host| host.said().expect(0).out.clone()).collect();
    assert_eq!(said, "ran\n");
    // A later firing, and one whose run failed.
    assert_eq!(start(&["--once-per", "1ms"]).said().expect(0).out, "ran\n");
    place.output(["run", "--once-per", "1h", "bad", "--", "false"]).expect(1);
    let again = start_job("bad", &["--once-per", "1h"]).said();
    assert_eq!(
        again
            .expect(0)
            .complains(&["bad has already run: by ", "failed with exit code 1; skipped (--once-per)"])
            .out,
        ""
    );
    assert_eq!(start_job("bad", &["--once-per", "1h", "--retry"]).said().expect(0).out, "ran\n");
    for wrong in
        [&["--retry"][..], &["--once-per", "1h", "-s"], &["--once-per", "1h", "--on-lost", "restart"]]
    {
        start(wrong).said().expect(64).complains(&["--once-per"]);
    }
}

/// Two starts meet at a lock that users do not know.
#[test]
fn a_start_that_finds_another_start_names_the_lock_of_the_user() {
    let place = Place::new();
    let _other = place.running(&[], "job#once", HOLD);
    let said = place.output(["run", "-n", "--once-per", "1h", "job", "--", "true"]);
    said.expect(75).complains(&["job is busy: another host is starting this job, or has just ended it"]);
    assert!(!said.err.contains("#once"), "{said:?}");
    let said = place.output(["run", "--once-per", "1h", &"x".repeat(251), "--", "true"]);
    said.expect(64).complains(&["250 bytes"]);
    assert!(!said.err.contains("#once"), "{said:?}");
}

#[test]
fn a_lock_that_nobody_else_sees_is_warned_of() {
    let place = Place::new();
    let said = place.output(["run", "-b", "memory:", "hello", "--", "echo", "hi"]);
    assert_eq!(said.expect(0).complains(&["memory"]).out, "hi\n");
}

#[test]
fn the_program_gets_its_signals_and_descriptors_as_the_caller_had_them() {
    let place = Place::new();
    let plain = Kid::of(&mut place.via("grep", ["SigBlk\\|SigIgn", "/proc/self/status"])).said();
    let run = place.output(["run", "hello", "--", "grep", "SigBlk\\|SigIgn", "/proc/self/status"]);
    assert_eq!(run.expect(0).out, plain.out);
    // An ignored signal stays ignored.
    let ignoring = |signal: &str, script: &str| {
        let option = format!("--ignore-signal={signal}");
        let binary = env!("CARGO_BIN_EXE_fencepost");
        Kid::of(&mut place.via("env", [&option, binary, "run", "hello", "--", "sh", "-c", script]))
    };
    ignoring("HUP", "kill -HUP $$; exit 9").said().expect(9);
    let mut pipe = crate::kit::Pipe::new(&place);
    let (up, go) = (pipe.path.display(), place.path("go"));
    let script = format!("echo up > '{up}'; until [ -e '{}' ]; do sleep 0.05; done; exit 9", go.display());
    let hung_up = ignoring("HUP", &script);
    pipe.line();
    hung_up.send(nix::sys::signal::Signal::SIGHUP);
    place.file("go", "");
    hung_up.said().expect(9);
    // But for SIGCHLD, without which no exit code would come back.
    ignoring("CHLD", "exit 9").said().expect(9);
    // A descriptor of the caller is passed on, the control socket and the database are not.
    let script = "exec 5</dev/null; exec \"$FENCEPOST\" run hello -- ls -l /proc/self/fd";
    let said = Kid::of(&mut place.via("sh", ["-c", script])).said();
    assert!(said.expect(0).out.contains(" 5 -> /dev/null"), "{said:?}");
    assert!(!said.out.contains("socket:") && !said.out.contains("locks.db\n"), "{said:?}");
}

#[test]
fn at_least_keeps_the_lock_after_a_short_program() {
    let place = Place::new();
    let start = std::time::Instant::now();
    place.output(["run", "--at-least", "1s", "hello", "--", "true"]).expect(0);
    assert!(start.elapsed() >= std::time::Duration::from_secs(1));
    // And it is really held: another one is refused while the program has long ended.
    let mut first = place.running(&["--at-least", "1000s"], "hello", "echo up >&9");
    first.pipe.closed(crate::kit::LONG);
    place.output(["run", "-n", "hello", "--", "true"]).expect(75);
    first.kid.send(nix::sys::signal::Signal::SIGTERM);
    first.kid.said().expect(0);
    place.output(["run", "-n", "hello", "--", "true"]).expect(0);
}

#[test]
fn max_hold_ends_the_program() {
    let place = Place::new();
    let said = place.output(["run", "--max-hold", "300ms", "hello", "--", "sleep", "1000"]);
    said.expect(124).complains(&["--max-hold"]);
    // A program that was stopped is an error, which `-q` prints.
    let said = place.output(["run", "-q", "--max-hold", "300ms", "hello", "--", "sleep", "1000"]);
    said.expect(124).complains(&["--max-hold"]);
    // One that does not listen is killed after the grace.
    let script = "trap '' TERM; sleep 1000 & wait; sleep 1000";
    let said =
        place.output(["run", "--max-hold", "100ms", "--grace", "200ms", "hello", "--", "sh", "-c", script]);
    said.expect(124);
}

#[test]
fn everything_that_the_program_started_is_asked_to_end() {
    let place = Place::new();
    // In a session of its own, so no signal to the program's group reaches it.
    let apart =
        "setsid sh -c 'trap \"echo bye >&9; exit\" TERM; echo up >&9; while :; do sleep 0.05; done' & wait";
    let mut running = place.running_briefly(&["--max-hold", "2s", "--grace", "10s"], "hello", apart);
    assert_eq!(running.pipe.line(), "bye");
    running.kid.said().expect(124);
}

#[test]
fn what_the_program_leaves_behind_ends_before_the_lock_is_free() {
    let place = Place::new();
    let script = format!("{} echo left >&9; exit 3", crate::kit::DAEMON);
    let mut running = place.running(&["--grace", "100ms"], "hello", &script);
    let status = running.kid.end();
    assert_eq!(status.code(), Some(3));
    assert!(!running.pipe.is_open(), "the daemon lives although the command has ended");
}

#[test]
fn a_daemon_whose_main_thread_has_ended_is_killed_as_well() {
    let place = Place::new();
    // It looks dead from then on, and its other thread runs.
    let program = "import ctypes, os, threading, time\n\
        def run():\n    \
            while open(\"/proc/self/stat\").read().rsplit(\")\", 1)[1].split()[0] != \"Z\": time.sleep(0.01)\n    \
            os.write(9, b\"up\\n\")\n    \
            time.sleep(1000)\n\
        threading.Thread(target=run).start()\n\
        ctypes.CDLL(None).pthread_exit(None)\n";
    let script = format!("setsid python3 -c '{program}' & sleep 1000");
    let running = place.running(&["--grace", "100ms"], "hello", &script);
    running.kid.send(Signal::SIGTERM);
    let Running { kid, pipe } = running;
    kid.said().expect(143);
    assert!(!pipe.is_open(), "the daemon lives although the command has ended");
}

#[test]
fn a_grace_longer_than_a_third_of_the_lease_is_refused() {
    let place = Place::new();
    let run = |options: &[&str]| place.output([&["run"], options, &["hello", "--", "true"]].concat());
    run(&["--grace", "20s"]).expect(64).complains(&["--grace 20s is longer than 10s"]);
    for options in [&["--grace", "10s"][..], &["--ttl", "6s"], &[]] {
        assert_eq!(run(options).expect(0).err, "");
    }
}
