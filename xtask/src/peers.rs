//! Other libraries, as programs to measure fencepost beside: built from benches/peers into the build folder where their
//! tools are, with pinned versions. Only `bench` and `prove` do that, never `test`.

use crate::process::on_path;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

/// Builds what can be built for the wanted engines. Returns the folder with a `NAME.command` for each program, one argument a line.
/// Prints a line for each program that is left out.
pub(crate) fn build(workspace: &Workspace, wanted: impl Fn(&str) -> bool) -> Result<PathBuf, String> {
    let place = workspace.scratch("peers");
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    forget(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let source = workspace.root().join("benches/peers");
    let families: [(&str, &str, &[&str], Family); 9] = [
        ("redis", "rslock, redlock and distributed-lock", &["cargo"], rust),
        ("redis", "redsync", &["go"], go),
        ("redis", "Redisson", &["java", "mvn"], java),
        ("redis", "redis-py and python-redis-lock", &["python3"], python),
        ("redis", "redlock for Node.js", &["node", "npm"], node),
        ("etcd", "etcd's own lock", &["go"], etcd),
        ("zookeeper", "Curator", &["java", "javac"], curator),
        ("zookeeper", "kazoo", &["python3"], kazoo),
        ("zookeeper", "go-zookeeper", &["go"], go_zookeeper),
    ];
    for (_, name, tools, family) in families.into_iter().filter(|family| wanted(family.0)) {
        if let Some(missing) = tools.iter().find(|tool| !on_path(tool)) {
            println!("peers: {name} left out: no `{missing}` here");
            continue;
        }
        if let Err(error) = family(workspace, &source, &place) {
            println!("peers: {name} left out: {}", error.lines().next().unwrap_or_default());
        }
    }
    Ok(place)
}

type Family = fn(&Workspace, &Path, &Path) -> Result<(), String>;

fn rust(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let target = place.join("rust");
    let arguments = ["build", "--release", "--locked", "--target-dir", &shown(&target)];
    workspace.cargo_in(&source.join("rust"), "peers in Rust", &arguments).run()?;
    ["rslock", "redlock", "distributed-lock"]
        .into_iter()
        .try_for_each(|name| command(place, name, &[&shown(&target.join("release").join(name))]))
}

fn go(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let program = shown(&place.join("redsync-program"));
    let folder = shown(&source.join("go"));
    workspace.program("peers in Go", "go", &["build", "-C", &folder, "-o", &program, "."]).run()?;
    command(place, "redsync", &[&program])
}

fn etcd(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let program = shown(&place.join("etcd-program"));
    let folder = shown(&source.join("etcd"));
    workspace.program("etcd's own lock", "go", &["build", "-C", &folder, "-o", &program, "."]).run()?;
    command(place, "etcd", &[&program])
}

fn java(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let (pom, out) = (shown(&source.join("java/pom.xml")), shown(&place.join("java")));
    let arguments = [
        "--quiet",
        "--batch-mode",
        "--file",
        &pom,
        &format!("-Dout={out}"),
        &format!("-DoutputDirectory={out}/lib"),
        "package",
        "dependency:copy-dependencies",
    ];
    workspace.program("peers in Java", "mvn", &arguments).run()?;
    let classes = format!("{out}/peers.jar:{out}/lib/*");
    command(place, "redisson", &["java", "-cp", &classes, "Redisson", "plain"])?;
    command(place, "redisson-long-work", &["java", "-cp", &classes, "LongWork"])?;
    command(place, "redisson-fair", &["java", "-cp", &classes, "Redisson", "fair"])
}

fn python(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let (folder, source) = (shown(&place.join("python")), source.join("python"));
    workspace.program("peers in Python, place", "python3", &["-m", "venv", &folder]).run()?;
    let python = format!("{folder}/bin/python");
    let needed = shown(&source.join("requirements.txt"));
    let arguments = ["-m", "pip", "install", "--quiet", "--requirement", &needed];
    workspace.program("peers in Python", &python, &arguments).run()?;
    let program = shown(&source.join("peers.py"));
    ["redis-py", "python-redis-lock"]
        .into_iter()
        .try_for_each(|name| command(place, name, &[&python, &program, name]))
}

fn node(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let (folder, source) = (place.join("node"), source.join("node"));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(file), folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
    }
    let arguments = ["ci", "--no-audit", "--no-fund", "--prefix", &shown(&folder)];
    workspace.program("peers in JavaScript", "npm", &arguments).run()?;
    command(place, "node-redlock", &["node", &shown(&source.join("peers.js"))])
}

/// From the jars of the system's packages, as the servers of the tests are.
fn curator(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    const JARS: [&str; 7] = [
        "curator-recipes",
        "curator-framework",
        "curator-client",
        "zookeeper",
        "zookeeper-jute",
        "slf4j-simple",
        "guava",
    ];
    let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar")).join(":");
    let out = shown(&place.join("curator"));
    let [program, soak] = ["Curator", "CuratorSoak"]
        .map(|name| shown(&source.join("zookeeper").join(name).with_extension("java")));
    workspace
        .program("Curator", "javac", &["-proc:none", "-cp", &jars, "-d", &out, &program, &soak])
        .run()?;
    let quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off";
    let line = |class| ["java", quiet, "-cp", &format!("{jars}:{out}"), class].map(str::to_owned);
    for (name, class) in [("curator", "Curator"), ("curator-soak", "CuratorSoak")] {
        command(place, name, &line(class).each_ref().map(String::as_str))?;
    }
    Ok(())
}

fn kazoo(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let (folder, source) = (shown(&place.join("kazoo")), source.join("zookeeper"));
    workspace.program("kazoo, place", "python3", &["-m", "venv", &folder]).run()?;
    let python = format!("{folder}/bin/python");
    let needed = shown(&source.join("requirements.txt"));
    let arguments = ["-m", "pip", "install", "--quiet", "--requirement", &needed];
    workspace.program("kazoo", &python, &arguments).run()?;
    command(place, "kazoo", &[&python, &shown(&source.join("peers.py"))])?;
    command(place, "kazoo-soak", &[&python, &shown(&source.join("soak.py"))])
}

fn go_zookeeper(workspace: &Workspace, source: &Path, place: &Path) -> Result<(), String> {
    let program = shown(&place.join("go-zookeeper-program"));
    let folder = shown(&source.join("zookeeper/go"));
    workspace.program("go-zookeeper", "go", &["build", "-C", &folder, "-o", &program, "."]).run()?;
    command(place, "go-zookeeper", &[&program])
}

/// Removes the command lines of an earlier build: a program that cannot be built now is left out.
fn forget(place: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(place)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "command") {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Leaves the command line of a program.
fn command(place: &Path, name: &str, line: &[&str]) -> Result<(), String> {
    let file = place.join(name).with_extension("command");
    std::fs::write(&file, line.join("\n")).map_err(|error| format!("{}: {error}", file.display()))
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
