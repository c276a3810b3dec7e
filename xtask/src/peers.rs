//! Other libraries, as programs to measure fencepost beside: built from benches/peers into the build folder where their
//! tools are, with pinned versions. Only `bench` and `prove` do that, never `test`.

use crate::process::on_path;
use crate::workspace::Workspace;
use std::path::PathBuf;

/// The engine, the script in benches/peers, what it builds, and the tools that it needs.
const SCRIPTS: [(&str, &str, &str, &str); 9] = [
    ("redis", "rust", "rslock, redlock and distributed-lock", "cargo"),
    ("redis", "redsync", "redsync", "go"),
    ("redis", "java", "Redisson", "java mvn"),
    ("redis", "python", "redis-py and python-redis-lock", "python3"),
    ("redis", "node", "redlock for Node.js", "node npm"),
    ("etcd", "etcd", "etcd's own lock", "go"),
    ("zookeeper", "curator", "Curator", "java javac"),
    ("zookeeper", "kazoo", "kazoo", "python3"),
    ("zookeeper", "go-zookeeper", "go-zookeeper", "go"),
];

/// Builds what can be built for the wanted engines. Returns the folder with a `NAME.command` for each program, one argument a line.
/// Prints a line for each program that is left out.
pub(crate) fn build(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, String> {
    let place = workspace.scratch("peers");
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    std::fs::create_dir_all(&place).map_err(failed)?;
    for entry in std::fs::read_dir(&place).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "command") {
            // A program that cannot be built now is left out.
            std::fs::remove_file(path).map_err(failed)?;
        }
    }
    for (_, script, name, tools) in SCRIPTS.into_iter().filter(|script| wanted(script.0)) {
        if let Some(missing) = tools.split(' ').find(|tool| !on_path(tool)) {
            println!("peers: {name} left out: no `{missing}` here");
            continue;
        }
        let path = workspace.root().join("benches/peers").join(script).with_extension("sh");
        let arguments = [path.to_string_lossy(), place.to_string_lossy()];
        let arguments = arguments.each_ref().map(|argument| &**argument);
        if let Err(error) = workspace.program(&format!("peers {script}"), "sh", &arguments).run() {
            println!("peers: {name} left out: {}", error.lines().next().unwrap_or_default());
        }
    }
    Ok(place)
}
