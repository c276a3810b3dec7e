//! Common mistakes on the command line, with all that each prints. The table is `mistakes.txt`: a command of the shell behind `$`, its
//! exit code, and its output.

use std::os::unix::fs::symlink;

use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{HOLD, Kid, Place};

const TABLE: &str = include_str!("mistakes.txt");

#[test]
fn each_mistake_gets_the_right_advice() {
    needs!(REDIS);
    let place = Place::new();
    let server = Redis::start(&Config::new()).unwrap();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    let _holder = place.running(&["--reason", "nightly"], "taken", HOLD);
    symlink(env!("CARGO_BIN_EXE_fencepost"), place.path("fencepost")).unwrap();
    place.file("text", "");
    let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap());
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let mut shown = String::new();
    for command in TABLE.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut shell = place.via("sh", ["-c", command]);
        let said = Kid::of(shell.env("PATH", &path).env("PORT", &port)).said();
        let folder = place.path("").display().to_string();
        let text = format!("{}{}", said.out, said.err)
            .replace(folder.trim_end_matches('/'), "PLACE")
            .replace(&format!(":{port}"), ":PORT")
            .replace(&host, "HOST");
        shown.push_str(&format!("$ {command}\n{}\n{}\n", said.code.unwrap(), masked(&text)));
    }
    let count = TABLE.lines().filter(|line| line.starts_with("$ ")).count();
    assert!(count >= 40, "only {count} mistakes are in the table");
    if shown != TABLE {
        let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/mistakes.txt");
        std::fs::write(file, &shown).unwrap();
        panic!("the output differs from the table; compare it with {file}");
    }
}

/// The text without what differs from run to run: times, tokens, process ids, ages and users.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for line in text.lines() {
        let mut words = Vec::new();
        let mut before = "";
        for word in line.split(' ') {
            let digits = word.chars().take_while(char::is_ascii_digit).count();
            let tail = &word[digits..];
            words.push(match before {
                _ if word.len() == 20 && word.ends_with('Z') && word.contains('T') => "TIME".to_owned(),
                "token" | "pid" if digits > 6 || before == "pid" => format!("N{tail}"),
                "for" if digits > 0 && line.contains("held by") => {
                    format!("AGE{}", &word[word.trim_end_matches([',', ';', '.']).len()..])
                }
                _ if word.contains("@HOST/") => format!("USER{}", &word[word.find('@').unwrap_or(0)..]),
                _ => word.to_owned(),
            });
            before = word;
        }
        masked.push_str(words.join(" ").trim_end());
        masked.push('\n');
    }
    masked
}
