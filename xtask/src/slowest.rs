//! The list of the slowest tests of a run.

use std::path::Path;

/// How many tests the list names.
const COUNT: usize = 50;

/// The arguments with which the test harness prints each test's time. They are not stable, so it wants [`VARIABLE`].
pub(crate) const ARGUMENTS: [&str; 2] = ["-Zunstable-options", "--report-time"];

/// Lets the harness of a stable Rust take unstable arguments.
pub(crate) const VARIABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// The time of one test, in seconds.
pub(crate) type Test = (f64, String);

/// Reads the tests from the output of the program of that name.
pub(crate) fn read(program: &str, output: &str) -> Vec<Test> {
    let times = output.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let (_, time) = rest.split_once('<')?;
        Some((time.split_once("s>")?.0.parse().ok()?, format!("{program} {name}")))
    });
    times.collect()
}

/// Writes the slowest tests to a file, the slowest first.
pub(crate) fn write(mut tests: Vec<Test>, file: &Path) -> Result<(), String> {
    tests.sort_by(|one, other| other.0.total_cmp(&one.0));
    let lines = tests.iter().take(COUNT).map(|(time, name)| format!("{time:8.3} s  {name}\n"));
    std::fs::write(file, lines.collect::<String>()).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_the_harness() {
        let text = "running 3 tests\ntest a::b ... ok <1.250s>\ntest c ... ok\ntest d ... FAILED <0.001s>\n";
        let found = read("x", text);
        assert_eq!(found, [(1.25, "x a::b".to_owned()), (0.001, "x d".to_owned())]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("list");
        write(found.into_iter().rev().collect(), &file).unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "   1.250 s  x a::b\n   0.001 s  x d\n");
    }
}
