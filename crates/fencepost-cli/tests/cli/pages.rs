//! The examples for a shell on the pages: each block runs as a script and ends with 0.

use fencepost_testkit::needs;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fencepost_testkit::redis::{Config, Redis};

use crate::kit::{Kid, Place};

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The programs of the reader that the examples start.
const PROGRAMS: [&str; 3] = ["backup.sh", "report.sh", "scheduler"];

#[test]
fn shell_examples_of_the_pages_run() {
    needs!(REDIS);
    let servers = [(); 2].map(|()| Redis::start(&Config::new()).unwrap());
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in shell_blocks(&text) {
            let place = Place::new();
            for program in PROGRAMS {
                let file = place.file(program, "#!/bin/sh\n");
                fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
            }
            symlink(env!("CARGO_BIN_EXE_fencepost"), place.path("fencepost")).unwrap();
            let script = here(&block, servers.each_ref().map(Redis::url));
            let path = format!("{}:{}", place.path("").display(), std::env::var("PATH").unwrap());
            let mut shell = place.via("bash", ["-euc", &script]);
            let said = Kid::of(shell.env("PATH", path)).said();
            assert_eq!(said.code, Some(0), "{}:\n{script}\n{said:?}", page.display());
            count += 1;
        }
    }
    assert!(count >= 3, "only {count} examples were found");
}

/// The example as it runs here: the servers listen on other ports. Lines that build or test the project are left out;
/// the step `README's commands` of `cargo xtask test` runs those of README.
fn here(block: &str, [first, second]: [String; 2]) -> String {
    let builds = ["cargo ", "git clone "];
    let lines = block.lines().filter(|line| !builds.iter().any(|build| line.starts_with(build)));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text.replace("redis://127.0.0.1", &first);
    text.replace("redis://first", &first).replace("redis://second", &second)
}

/// README in both languages, and all pages below `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut pages = ["README.md", "README.zh-CN.md"].map(|page| Path::new(ROOT).join(page)).to_vec();
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

fn shell_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            blocks.push(block.map(|line| format!("{line}\n")).collect());
        }
    }
    blocks
}
