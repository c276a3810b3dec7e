//! Builds with other features, systems and compilers than those of the tests.

use crate::process::on_path;
use crate::runner::{Done, counted, passed};
use crate::workspace::Workspace;
use std::path::Path;

/// The version of cargo-deny.
const DENY: &str = "0.20.2";

/// Checks licences, sources and banned packages with cargo-deny and deny.toml. `install`: builds it first if it is missing. Advisories
/// are left out: their database is a download.
pub(crate) fn deny(workspace: &Workspace, install: bool) -> Result<Done, String> {
    let command = ["install", "cargo-deny", "--version", DENY, "--locked"];
    if !on_path("cargo-deny") {
        if !install {
            return Ok(Done::Skipped(format!("not checked; first run `cargo {}`", command.join(" "))));
        }
        workspace.cargo("cargo-deny is installed", &command).run()?;
    }
    workspace.cargo("licences and sources", &["deny", "check", "licenses", "bans", "sources"]).run()?;
    passed()
}

/// Checks that each crate that is published can be packaged: its dependencies have versions and form no circle. Nothing is compiled.
pub(crate) fn packages(workspace: &Workspace) -> Result<Done, String> {
    let command = ["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"];
    // These are not published.
    let others = ["fencepost-benches", "fencepost-testkit", "xtask"].map(|name| ["--exclude", name]);
    workspace.cargo("packages", &[&command[..], others.as_flattened()].concat()).run()?;
    passed()
}

/// A system other than Linux, for which the library's portable part is compiled.
const MACOS: &str = "x86_64-apple-darwin";

/// Checks that the facade compiles for macOS with the engines that run there. It needs no C compiler.
pub(crate) fn macos(workspace: &Workspace) -> Result<Done, String> {
    let libraries =
        workspace.program("macOS", "rustc", &["--print", "target-libdir", "--target", MACOS]).run()?;
    if !libraries.text.lines().any(|folder| Path::new(folder.trim()).is_dir()) {
        return Ok(Done::Skipped(format!(
            "no standard library for macOS here; `rustup target add {MACOS}` installs it"
        )));
    }
    let target = workspace.scratch("macos").to_string_lossy().into_owned();
    let arguments =
        ["check", "--quiet", "--target", MACOS, "--target-dir", &target, "--package", "fencepost"];
    let features = ["--no-default-features", "--features", "redis,etcd"];
    // A dependency that needs a C compiler fails.
    let cargo = workspace.cargo("macOS", &[&arguments[..], &features].concat());
    cargo.env("CC", "false").env("CXX", "false").run()?;
    passed()
}

/// Tests on Linux what other systems have: the library with its network engines, and the verbs that start no program.
pub(crate) fn portable(workspace: &Workspace) -> Result<Done, String> {
    let build = |step: &str, arguments: &[&str]| {
        let cargo = workspace.cargo(step, arguments);
        // A folder of its own, because the flags change each crate.
        let cargo = cargo.env("CARGO_TARGET_DIR", &workspace.scratch("portable").to_string_lossy());
        cargo.env("RUSTFLAGS", "--cfg fencepost_portable -D warnings").run()
    };
    let command = ["--package", "fencepost-cli", "--no-default-features", "--features"];
    let all =
        [&["check", "--quiet"], &command[..], &["etcd,http,mysql,object,postgres,redis,serve,top,zookeeper"]]
            .concat();
    build("portable command", &all)?;
    let tests = [
        [&["test"], &command[..], &["redis", "--test", "portable"]].concat(),
        ["test", "--package", "fencepost-testkit", "--test", "conformance"].to_vec(),
        ["test", "--package", "fencepost-redis", "--test", "conformance", "--", "one::"].to_vec(),
    ];
    let mut text = String::new();
    for test in &tests {
        text += &build("portable tests", test)?.text;
    }
    counted(&text)
}

/// Checks the workspace with the oldest Rust that it promises, where rustup has that toolchain.
pub(crate) fn oldest_rust(workspace: &Workspace) -> Result<Done, String> {
    let manifest = workspace.manifest("Cargo.toml")?;
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().ok_or("no rust-version")?;
    let Ok(installed) = workspace.program("toolchains", "rustup", &["toolchain", "list"]).run() else {
        return Ok(Done::Skipped("rustup is not here to ask for toolchains".to_owned()));
    };
    let mut names = installed.text.lines().filter_map(|line| line.split_whitespace().next());
    let Some(toolchain) = names.find(|name| name.starts_with(oldest)) else {
        return Ok(Done::Skipped(format!("the toolchain {oldest} is not installed")));
    };
    // A folder of its own: cargo takes another compiler's builds for stale ones and would build all of it twice.
    let target = workspace.scratch("oldest-rust");
    let arguments = ["run", toolchain, "cargo", "check", "--quiet", "--workspace", "--all-features"];
    let check = workspace.program("oldest Rust", "rustup", &arguments);
    check.env("CARGO_TARGET_DIR", &target.to_string_lossy()).run()?;
    Ok(Done::Passed(toolchain.to_owned()))
}

/// Checks every library of the workspace without features, and with each of its features alone. Tests what the facade says without any.
pub(crate) fn alone(workspace: &Workspace) -> Result<Done, String> {
    let mut builds: Vec<Vec<String>> = Vec::new();
    for path in
        workspace.files()?.iter().filter(|path| path.starts_with("crates") && path.ends_with("src/lib.rs"))
    {
        let folder = path.ancestors().nth(2).unwrap_or(path);
        let manifest = workspace.manifest(&folder.join("Cargo.toml").to_string_lossy())?;
        let name = manifest["package"]["name"].as_str().unwrap_or_default();
        let check =
            ["check", "--quiet", "--package", name, "--lib", "--no-default-features"].map(str::to_owned);
        builds.push(check.to_vec());
        let features = manifest.get("features").and_then(|features| features.as_table());
        // Another engine has switched on TLS, which this one lacks.
        if features.is_some_and(|features| features.contains_key("tls")) && name != "fencepost" {
            let beside =
                ["--package", "fencepost-tls", "--features", "fencepost-tls/rustls"].map(str::to_owned);
            builds.push([&check[..], &beside].concat());
        }
        let features =
            features.into_iter().flat_map(|features| features.keys()).filter(|name| *name != "default");
        builds
            .extend(features.map(|name| [&check[..], &["--features".to_owned(), name.to_owned()]].concat()));
    }
    // The errors that name the feature that is off can be seen only where it is off.
    let test = ["test", "--quiet", "--package", "fencepost", "--no-default-features", "--test", "schemes"];
    let engines = "redis,etcd,zookeeper,http,mysql,postgres";
    let no_tls = ["--features", engines];
    let qualified: Vec<String> = engines.split(',').map(|engine| format!("fencepost/{engine}")).collect();
    // As in a program in which another engine has switched on TLS.
    let features = format!("{},fencepost-tls/rustls", qualified.join(","));
    let beside = ["--package", "fencepost-tls", "--features", &features];
    let tests = [test.to_vec(), [&test[..], &no_tls].concat(), [&test[..], &beside].concat()];
    builds.extend(tests.iter().map(|test| test.iter().map(|word| (*word).to_owned()).collect()));
    let mut failures = Vec::new();
    for build in &builds {
        let arguments: Vec<&str> = build.iter().map(String::as_str).collect();
        match workspace.cargo("features alone", &arguments).run() {
            Ok(output) if arguments[0] == "test" && !output.text.contains("test result: ok. 3 passed") => {
                failures.push(format!("`cargo {}` ran another number of tests than 3", arguments.join(" ")));
            }
            Ok(output) if output.text.contains("warning") => {
                failures.push(format!("`cargo {}` warns:\n{}", arguments.join(" "), output.text));
            }
            Ok(_) => {}
            Err(message) => failures.push(message),
        }
    }
    let count = builds.len();
    if failures.is_empty() { Ok(Done::Passed(format!("{count} builds"))) } else { Err(failures.join("\n")) }
}
