//! xtask in the place of `rustdoc`, where `cargo test --doc` calls it: it documents a library instead of testing its examples.

use std::process::{Command, ExitCode};

/// The variable with the folder for the pages. Without it xtask is no rustdoc.
pub(crate) const FOLDER: &str = "FENCEPOST_DOCUMENTATION";

/// Runs rustdoc with the arguments of this process, but for those that are about tests. None if xtask was called for itself.
pub(crate) fn in_place_of_rustdoc() -> Option<ExitCode> {
    let folder = std::env::var(FOLDER).ok()?;
    let given: Vec<String> = std::env::args().skip(1).collect();
    let mut rustdoc = Command::new("rustdoc");
    if given.iter().any(|argument| argument == "--test") {
        rustdoc.args(without_test(&given)).args([
            "--document-private-items",
            "-Dwarnings",
            "--out-dir",
            &folder,
        ]);
    } else {
        // Cargo asks for its version.
        rustdoc.args(&given);
    }
    let status = rustdoc.env_remove(FOLDER).status();
    let code = status.ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    Some(ExitCode::from(code.unwrap_or(1)))
}

/// The arguments for the documentation of the library whose examples these ones test.
fn without_test(given: &[String]) -> Vec<&str> {
    let mut rest = given.iter();
    let mut kept = Vec::new();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--test" | "--no-run" => {}
            "--test-run-directory" | "--test-args" => drop(rest.next()),
            other => kept.push(other),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::without_test;

    #[test]
    fn only_what_is_about_tests_is_left_out() {
        let given =
            ["--crate-name", "a", "--test", "src/lib.rs", "--test-run-directory", "/w", "--extern", "b=c"];
        let given = given.map(str::to_owned);
        assert_eq!(without_test(&given), ["--crate-name", "a", "src/lib.rs", "--extern", "b=c"]);
    }
}
