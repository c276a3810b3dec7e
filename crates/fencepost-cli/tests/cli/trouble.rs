//! A command that cannot work says what to do.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use nix::unistd::Uid;

use crate::kit::{Kid, Place};

#[test]
fn bad_names() {
    let place = Place::new();
    for (name, rule) in
        [("", "empty"), ("a\nb", "control"), (" a", "white space"), (&"x".repeat(256)[..], "255 bytes")]
    {
        place.output(["run", name, "--", "echo", "ran"]).expect(64).complains(&[rule]);
        place.output(["hold", name]).expect(64).complains(&[rule]);
        place.output(["show", name]).expect(64).complains(&[rule]);
    }
    assert!(!place.database().exists(), "nothing is opened for a bad name");
    for name in ["a/b", "ünï cödé", "{x}", "-- no", "..", &"x".repeat(255)] {
        place.output(["run", "-n", "--", name].iter().take(2)).expect(64);
        let said = place.output(["run", "-n", &format!("n{name}"), "--", "true"]);
        if name.len() < 255 {
            said.expect(0)
        } else {
            said.expect(64)
        };
    }
}

#[test]
fn a_reason_that_is_too_long() {
    let place = Place::new();
    let long = "x".repeat(1025);
    for verb in [
        &["run", "a", "--reason", &long, "--", "echo", "ran"][..],
        &["acquire", "a", "--ttl", "60s", "--reason", &long],
        &["hold", "a", "--reason", &long],
        &["evict", "a", "--token", "7", "--yes", "--reason", &long],
    ] {
        let said = place.output(verb);
        said.expect(64).complains(&["reason", "1024 bytes"]);
        assert!(said.out.is_empty() && said.err.len() < 300, "{said:?}");
    }
    assert!(!place.database().exists(), "nothing is opened for a bad reason");
    place.output(["run", "a", "--reason", &long[1..], "--", "true"]).expect(0);
}

#[test]
fn bad_urls_are_not_repeated() {
    let place = Place::new();
    for url in [
        "hunter2",
        "",
        "nosuch://user:hunter2@host/x",
        "redis://user:hunter?2@host",
        "sqlite:",
        "sqlite:hunter2/",
        "sqlite:/x?hunter=2",
        "sqlite://h/x",
    ] {
        let said = place.output(["run", "-b", url, "hello", "--", "echo", "ran"]);
        said.expect(64);
        assert!(said.out.is_empty() && !said.err.contains("2@host"), "{said:?}");
        let said = Kid::of(place.fencepost(["ls"]).env("FENCEPOST_BACKEND", url)).said();
        said.expect(64);
    }
    place.output(["run", "-b", "nosuch:", "a", "--", "true"]).complains(&["sqlite:"]);
    for (url, advice) in [
        ("127.0.0.1:6379", "write redis://127.0.0.1:6379"),
        ("mysql://app:hunter2@host/app?sslmode=preferred", "sslmode is disable or verify-full"),
        ("postgres://app:hunter2@host/app?sslmode=prefer", "sslmode is disable or verify-full"),
    ] {
        let said = place.output(["run", "-b", url, "a", "--", "true"]);
        assert!(!said.expect(64).complains(&[advice]).err.contains("hunter2"), "{said:?}");
    }
}

#[test]
fn wrong_usage() {
    let place = Place::new();
    for (arguments, hint) in [
        (&["run", "hello"][..], "put it after --"),
        (&["run", "--", "true"], "NAME"),
        (&["run", "--nonsense", "hello", "--", "true"], "--nonsense"),
        (&["run", "-w", "30", "hello", "--", "true"], "like 30s"),
        (&["run", "--ttl", "1s", "hello", "--", "true"], "2s or more"),
        (&["run", "--ttl", "9999d", "hello", "--", "true"], "1000 days"),
        (&["run", "-n", "-w", "1s", "hello", "--", "true"], "cannot be used"),
        (&["run", "-s", "--permits", "2", "hello", "--", "true"], "cannot be used"),
        (&["run", "--write", "-s", "hello", "--", "true"], "cannot be used"),
        (&["hold", "--write", "--permits", "2", "hello"], "cannot be used"),
        (&["run", "--permits", "0", "hello", "--", "true"], "0"),
        (&["run", "-E", "256", "hello", "--", "true"], "256"),
        (&["watch", "--every", "9ms"], "at least 10ms"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ] {
        place.output(arguments).expect(64).complains(&[hint]);
    }
    place.output(["__child"]).expect(125).complains(&["run --help"]);
}

#[test]
fn an_engine_without_replicas() {
    let place = Place::new();
    for verb in [&["run", "--replicas", "1", "a", "--", "echo", "ran"][..], &["hold", "--replicas", "1", "a"]]
    {
        let said = place.output(verb);
        said.expect(64).complains(&["no replicas to wait for"]);
        assert!(said.out.is_empty(), "{said:?}");
    }
}

#[test]
fn the_state_folder_is_private() {
    let place = Place::new();
    place.output(["run", "hello", "--", "true"]).expect(0);
    let folder = place.database().parent().unwrap().to_owned();
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    // Without any place to put it, the way out is named. Root always has one, so root becomes somebody else for this.
    let mut other = as_another_user(&place, &["ls"]);
    Kid::of(other.env_remove("XDG_STATE_HOME").env_remove("HOME"))
        .said()
        .expect(78)
        .complains(&["-b sqlite:"]);
    // HOME alone will do, and a relative XDG_STATE_HOME does not count.
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o777)).unwrap();
    let mut other = as_another_user(&place, &["run", "hello", "--", "true"]);
    Kid::of(other.env("XDG_STATE_HOME", "relative").env("HOME", &home)).said().expect(0);
    assert!(home.join(".local/state/fencepost/locks.db").exists());
    assert!(!place.path("relative").exists());
}

/// Returns the command as a user who is not root.
fn as_another_user(place: &Place, arguments: &[&str]) -> Command {
    let binary = place.path("fencepost");
    if !binary.exists() {
        // A program of its own copies the file. Another test may fork meanwhile: a file that this process has open for writing
        // would be open in that child, and could not be executed ("text file busy").
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fencepost")).arg(&binary).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(place.path("."), Permissions::from_mode(0o755)).unwrap();
    }
    let binary = binary.to_str().unwrap();
    let command: &[&str] = if Uid::effective().is_root() {
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary]
    } else {
        &[binary]
    };
    place.via(command[0], command[1..].iter().chain(arguments))
}

#[test]
fn a_read_only_folder() {
    let place = Place::new();
    let folder = place.path("sealed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o555)).unwrap();
    // Permissions do not bind root, so root becomes somebody else for this.
    let run = |arguments: &[&str]| {
        Kid::of(as_another_user(&place, arguments).env("XDG_STATE_HOME", &folder)).said()
    };
    run(&["run", "hello", "--", "echo", "ran"]).expect(77).complains(&["state folder", "-b sqlite:"]);
    let url = format!("sqlite:{}/locks.db", folder.display());
    let said = run(&["run", "-b", &url, "hello", "--", "echo", "ran"]);
    said.expect(77).complains(&["locks.db", "choose another place"]);
    assert_eq!(said.out, "");
}

#[test]
fn a_full_disk() {
    let place = Place::new();
    // No file can grow: what a full disk does, without one. SIGXFSZ would kill; ignored, the write fails.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$FENCEPOST\" run hello -- echo ran";
    let said = Kid::of(&mut place.via("sh", ["-c", script])).said();
    assert_eq!(said.out, "", "{said:?}");
    said.expect(78).complains(&["locks.db", "ulimit -f"]);
    // A real one, where this user may mount.
    let folder = place.path("full");
    fs::create_dir(&folder).unwrap();
    let script = "mount -t tmpfs -o size=16k none \"$1\" 2>/dev/null || exit 99; head -c 65536 /dev/zero > \"$1/fill\" 2>/dev/null; \
                  exec \"$FENCEPOST\" run -b \"sqlite:$1/locks.db\" hello -- echo ran";
    let said =
        Kid::of(&mut place.via("unshare", ["-m", "sh", "-c", script, "sh", folder.to_str().unwrap()])).said();
    // `unshare` itself fails with 1.
    if matches!(said.code, Some(1 | 99)) && !Uid::effective().is_root() {
        needs::skip("this user may not mount");
    } else {
        assert_eq!(said.out, "", "{said:?}");
        said.expect(78).complains(&["full"]);
    }
}

#[test]
fn a_machine_without_proc() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::new();
    let script = "mount -t tmpfs none /proc 2>/dev/null || exit 99; exec \"$FENCEPOST\" run -b \"$1\" hello -- echo ran";
    for url in [server.url(), format!("sqlite:{}", place.path("locks.db").display())] {
        let said = Kid::of(&mut place.via("unshare", ["-m", "sh", "-c", script, "sh", &url])).said();
        if matches!(said.code, Some(1 | 99)) && !Uid::effective().is_root() {
            needs::skip("this user may not mount");
            return;
        }
        assert_eq!(said.out, "", "{said:?}");
        said.expect(125).complains(&["without /proc", "mount -t proc proc /proc"]);
    }
}

#[test]
fn a_file_that_is_no_database() {
    let place = Place::new();
    let file = place.file("text", &"no database\n".repeat(1000));
    let said =
        place.output(["run", "-b", &format!("sqlite:{}", file.display()), "hello", "--", "echo", "ran"]);
    said.expect(78);
    assert_eq!(said.out, "");
}

/// Nobody can hear what is said on a full disk; that must cost the program neither its grace nor its exit code.
#[test]
fn an_unwritable_standard_error() {
    let place = Place::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let code = |arguments: &[&str]| Kid::of(place.fencepost(arguments).stderr(full())).end().code();
    assert_eq!(code(&["run", "x", "--", "/nonexistent"]), Some(127));
    assert_eq!(code(&["run", "", "--", "true"]), Some(64));
    let script = "trap 'echo termed > termed; exit 5' TERM; echo up > up; while :; do sleep 0.05; done";
    // On a busy machine the shell may be stopped before it has set its trap.
    let has_its_grace = (0..3).any(|_| {
        let stopped = code(&["run", "--max-hold", "500ms", "x", "--", "sh", "-c", script]);
        assert_eq!(stopped, Some(124));
        assert!(place.leftovers().is_empty());
        place.read("termed").trim() == "termed"
    });
    assert!(has_its_grace, "the program was not asked to end, three times");
}

/// A lease that could not be printed is known to nobody.
#[test]
fn an_unwritable_standard_output() {
    let place = Place::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut acquire = Kid::of(place.fencepost(["acquire", "--ttl", "10m", "x"]).stdout(full()));
    assert_eq!(acquire.end().code(), Some(125));
    assert!(place.leftovers().is_empty(), "it was released again");
    assert_eq!(Kid::of(place.fencepost(["man"]).stdout(full())).end().code(), Some(125));
}

#[test]
fn a_slip_in_a_lease_is_not_taken_for_a_name() {
    let place = Place::new();
    let said = place.output(["show", "fencepost1-0123456789"]);
    said.expect(64).complains(&["not a lease"]);
    assert!(!said.err.contains("0123456789") && said.out.is_empty(), "{said:?}");
}
