//! Checks that every engine and every layer runs the suite. A crate that has an engine and no conformance
//! test fails here.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the types that implement `Backend` in the sources of a crate.
fn engines(krate: &Path) -> Vec<String> {
    let mut engines = Vec::new();
    for source in sources(&krate.join("src")) {
        for line in fs::read_to_string(source).unwrap().lines() {
            let Some((start, name)) = line.trim().split_once(" Backend for ") else { continue };
            if start.split('<').next() == Some("impl") {
                engines.push(name.split(['<', ' ']).next().unwrap_or_default().to_owned());
            }
        }
    }
    engines
}

#[test]
fn every_engine_and_layer_is_under_the_suite() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |file: &str| fs::read_to_string(crates.join("fencepost-testkit/tests").join(file)).unwrap();
    let own = read("conformance.rs") + &read("toy.rs");
    let of_postgres = |test: &str| {
        let test = crates.join("fencepost-postgres/tests").join(test);
        fs::read_to_string(test).unwrap_or_default().contains("conformance!(")
    };
    let mut seen = 0;
    for krate in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let name = krate.file_name().unwrap().to_str().unwrap().to_owned();
        for engine in engines(&krate) {
            seen += 1;
            let covered = match engine.as_str() {
                // Layers of the suite itself: every case uses the first, and one case uses the second.
                "Witness" | "Deaf" => name == "fencepost-testkit",
                // They need an engine's driver: PostgreSQL's modes put them under the suite.
                "LocksBackend" => of_postgres("conformance.rs"),
                "LeaseTable" => of_postgres("conformance_table.rs"),
                _ if ["fencepost-core", "fencepost-testkit"].contains(&name.as_str()) => {
                    own.contains(&engine)
                }
                _ => {
                    let test = fs::read_to_string(krate.join("tests/conformance.rs")).unwrap_or_default();
                    test.contains("fencepost_testkit::conformance!") || test.contains("conformance!(")
                }
            };
            assert!(
                covered,
                "`{engine}` of {name} is not put under the suite: see fencepost_testkit::conformance"
            );
        }
    }
    assert!(
        seen >= 5,
        "only {seen} engines and layers were found: does this test still know how they are written?"
    );
}
