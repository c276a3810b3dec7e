//! Where the locks live: options, variables and files of settings, and the machines that an engine reaches.

use std::fs;
use std::process::Command;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};
use serde_json::Value;

use crate::kit::{HOLD, Kid, Place, Said};

const RUN: [&str; 5] = ["run", "a", "--", "echo", "ran"];

/// A place where nothing names an engine yet.
fn bare(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.fencepost(arguments);
    command.env_remove("FENCEPOST_BACKEND");
    command
}

fn said(command: &mut Command) -> Said {
    Kid::of(command).said()
}

/// Writes the user's file.
fn users(place: &Place, text: &str) {
    fs::create_dir_all(place.path("config/fencepost")).unwrap();
    place.file("config/fencepost/config.toml", text);
}

/// Writes the machine's file.
fn machines(place: &Place, text: &str) {
    place.file("etc.toml", text);
}

fn config(place: &Place, arguments: &[&str]) -> Value {
    let said = said(&mut bare(place, &[&["config", "--json"], arguments].concat()));
    serde_json::from_str(&said.expect(0).out).unwrap()
}

#[test]
fn a_file_that_nobody_chose_is_named_where_no_terminal_is() {
    let place = Place::new();
    let file = place.database();
    for arguments in [&RUN[..], &["hold", "a"], &["acquire", "--ttl", "1s", "a"]] {
        let said = said(&mut bare(&place, arguments));
        let line = said.expect(0).err.lines().next().unwrap_or_default();
        assert!(line.contains(file.to_str().unwrap()) && line.contains("this machine only"), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
    }
    // A look changes nothing.
    assert_eq!(said(&mut bare(&place, &["show", "a"])).err, "");
    // A file that was chosen is meant.
    assert_eq!(said(&mut bare(&place, &["run", "-b", "local", "a", "--", "true"])).expect(0).err, "");
    users(&place, "backend = \"local\"\n");
    assert_eq!(said(&mut bare(&place, &RUN)).expect(0).err, "");
}

#[test]
fn the_label_without_a_setting_is_that_of_each_program() {
    let place = Place::new();
    let shown = config(&place, &[]);
    let label = shown["label"]["value"].as_str().unwrap();
    let said = place.output(["run", "a", "--", "sh", "-c", "echo $FENCEPOST_HOLDER"]);
    assert_eq!(label.replace("<program>", "sh"), said.expect(0).out.trim());
    assert!(label.ends_with("/<program>"), "{label}");
}

#[test]
fn an_engine_of_one_machine_is_refused_for_many() {
    let place = Place::new();
    let file = format!("sqlite:{}", place.path("l.db").display());
    let refuse = |command: &mut Command| {
        let said = said(command);
        said.expect(64).complains(&["this machine only", "-b redis://host"]);
        assert!(said.out.is_empty() && said.err.lines().count() == 1, "{said:?}");
    };
    refuse(&mut bare(&place, &["run", "--across-hosts", "a", "--", "echo", "ran"]));
    refuse(bare(&place, &RUN).env("FENCEPOST_ACROSS_HOSTS", "1"));
    for url in ["local", "memory:", &file] {
        refuse(&mut bare(&place, &["--across-hosts", "run", "-b", url, "a", "--", "echo", "ran"]));
        refuse(&mut bare(&place, &["hold", "-b", url, "--across-hosts", "a"]));
    }
    machines(&place, "across_hosts = true\n");
    refuse(&mut bare(&place, &RUN));
    assert!(!place.database().exists(), "nothing is opened");
    // An option goes before a file.
    said(&mut bare(&place, &["run", "--across-hosts=false", "a", "--", "true"])).expect(0);
    said(bare(&place, &RUN).env("FENCEPOST_ACROSS_HOSTS", "0")).expect(0);
    said(bare(&place, &RUN).env("FENCEPOST_ACROSS_HOSTS", "yes")).expect(64).complains(&["neither 1 nor 0"]);
}

#[test]
fn an_address_of_this_machine_passes_with_a_warning() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    let place = Place::new();
    let url = server.url();
    for url in [url.clone(), url.replace("127.0.0.1", "localhost")] {
        let said = said(&mut bare(&place, &["run", "--across-hosts", "-b", &url, "a", "--", "echo", "ran"]));
        said.expect(0).complains(&["warning", "this machine"]);
        assert_eq!((said.out.as_str(), said.err.lines().count()), ("ran\n", 1), "{said:?}");
    }
    // The address is judged before the server is asked: `.invalid` has none (RFC 6761).
    let said =
        said(&mut bare(&place, &["run", "--across-hosts", "-b", "redis://db.invalid", "a", "--", "true"]));
    assert!(!said.expect(69).err.contains("warning"), "{said:?}");
}

#[test]
fn settings_are_taken_in_their_order() {
    let place = Place::new();
    machines(
        &place,
        "backend = \"etc\"\nttl = \"40s\"\nlabel = \"etc\"\n[backends]\netc = \"redis://etc\"\nboth = \"redis://b1\"\n",
    );
    let shown = config(&place, &[]);
    let etc = place.path("etc.toml").display().to_string();
    assert_eq!(shown["backend"]["value"], "redis://etc");
    for key in ["backend", "ttl", "label"] {
        assert_eq!(shown[key]["from"], etc, "{key}: {shown}");
    }
    users(&place, "backend = \"both\"\nttl = \"50s\"\n[backends]\nboth = \"redis://b2\"\n");
    let shown = config(&place, &[]);
    let own = place.path("config/fencepost/config.toml").display().to_string();
    assert_eq!(
        (&shown["backend"]["value"], &shown["backend"]["from"]),
        (&"redis://b2".into(), &own.clone().into())
    );
    assert_eq!((&shown["ttl"]["value"], &shown["ttl"]["from"]), (&"50s".into(), &own.clone().into()));
    assert_eq!((&shown["label"]["value"], &shown["label"]["from"]), (&"etc".into(), &etc.clone().into()));
    assert_eq!(shown["backends"]["etc"]["from"], etc);
    assert_eq!(shown["files"][0]["path"], own);
    assert_eq!(shown["across_hosts"]["from"], "default");
    let shown: Value = serde_json::from_str(
        &said(
            bare(&place, &["config", "--json"])
                .env("FENCEPOST_BACKEND", "redis://v")
                .env("FENCEPOST_TTL", "9s"),
        )
        .out,
    )
    .unwrap();
    assert_eq!(
        (&shown["backend"]["value"], &shown["backend"]["from"]),
        (&"redis://v".into(), &"FENCEPOST_BACKEND".into())
    );
    assert_eq!((&shown["ttl"]["value"], &shown["ttl"]["from"]), (&"9s".into(), &"FENCEPOST_TTL".into()));
    let shown = config(&place, &["-b", "etc"]);
    assert_eq!(
        (&shown["backend"]["value"], &shown["backend"]["from"]),
        (&"redis://etc".into(), &"-b".into())
    );
    // For people: a line for each setting and each file.
    let text = said(&mut bare(&place, &["config"])).expect(0).out.clone();
    assert!(text.contains("SETTING") && text.contains(&format!("{etc}: read")), "{text}");
}

#[test]
fn settings_apply_to_a_run() {
    let place = Place::new();
    let file = place.path("named.db");
    users(
        &place,
        &format!(
            "backend = \"files\"\nttl = \"50s\"\nlabel = \"web tier\"\n[backends]\nfiles = \"sqlite:{}\"\n",
            file.display()
        ),
    );
    let script = "echo \"$FENCEPOST_HOLDER\"; \"$FENCEPOST\" show --json a";
    let run = said(&mut bare(&place, &["run", "a", "--", "sh", "-c", script]));
    let (holder, shown) = run.expect(0).out.split_once('\n').unwrap();
    assert_eq!(holder, "web tier");
    let shown: Value = serde_json::from_str(shown).unwrap();
    assert_eq!(shown["holders"][0]["holder"], "web tier");
    for (option, millis) in [(&[][..], 50_000), (&["--ttl", "40s"], 40_000)] {
        let lease =
            said(&mut bare(&place, &[&["acquire", "--json", "--permits", "9", "b"], option].concat()));
        let lease: Value = serde_json::from_str(&lease.expect(0).out).unwrap();
        assert_eq!(lease["ttl_ms"], millis);
    }
    assert!(file.exists() && !place.database().exists());
    // A lease that a program could not live with is refused wherever it is set.
    let run = said(bare(&place, &RUN).env("FENCEPOST_TTL", "1s"));
    assert_eq!(run.expect(64).complains(&["2s or more"]).out, "");
}

#[test]
fn broken_settings_are_refused() {
    let place = Place::new();
    for (text, why) in [
        ("nonsense = 1\n", "unknown setting \"nonsense\"; the settings are backend"),
        ("backend = \"redis://:hunter2@h\nttl = 3\n", "line 1 is not TOML"),
        ("ttl = \"soon\"\n", ".toml: ttl: expected a whole number"),
    ] {
        for write in [users, machines] {
            let place = Place::new();
            write(&place, text);
            for arguments in [&RUN[..], &["ls"], &["config"]] {
                let said = said(&mut bare(&place, arguments));
                said.expect(78).complains(&[".toml: ", why]);
                assert!(said.out.is_empty() && !said.err.contains("hunter2"), "{said:?}");
            }
            // Help and the manual need no settings.
            said(&mut bare(&place, &["man"])).expect(0);
        }
    }
    fs::create_dir_all(place.path("etc.toml")).unwrap();
    said(&mut bare(&place, &RUN)).expect(78).complains(&["cannot be read"]);
}

#[test]
fn a_backend_without_a_name_and_the_names_that_there_are() {
    let place = Place::new();
    users(&place, "[backends]\nprod = \"redis://db\"\n");
    for command in [
        &mut bare(&place, &["ls", "-b", "hunter2"]),
        bare(&place, &["ls"]).env("FENCEPOST_BACKEND", "hunter2"),
    ] {
        let said = said(command);
        said.expect(64).complains(&["neither a URL", "known names: prod, local"]);
        assert!(!said.err.contains("hunter2"), "{said:?}");
    }
}

#[test]
fn config_shows_no_password() {
    let place = Place::new();
    users(
        &place,
        "[backends]\nprod = \"redis://ann:hunter2@db\"\nmany = \"redlock:redis://:hunter2@a,redis://b?password=hunter2\"\n",
    );
    for arguments in [&["config"][..], &["config", "--json"], &["config", "-b", "prod"]] {
        let text = said(&mut bare(&place, arguments)).expect(0).out.clone();
        assert!(!text.contains("hunter2") && text.contains("redis://***@db"), "{text}");
    }
}

#[test]
fn options_of_every_verb_stand_before_or_behind_it() {
    let place = Place::new();
    let _holder = place.running(&[], "a", HOLD);
    for arguments in [["-b", "local", "ls"], ["ls", "-b", "local"], ["ls", "--backend", "local"]] {
        assert!(place.output(arguments).expect(0).out.contains("a  "), "{arguments:?}");
    }
    place.output(["-b", "memory:", "run", "a", "--", "echo", "ran"]).expect(0);
}
