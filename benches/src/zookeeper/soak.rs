//! Curator, kazoo and fencepost on the same names, each name with the locks of one kind.

use super::server::start;
use crate::client::{connect, threads};
use crate::figure::Measured;
use crate::peers::bounded;
use fencepost::{Kind, Locks};
use fencepost_testkit::server::TempDir;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The limit of the other libraries' programs, in seconds.
const LIMIT: &str = "1500";
/// The number of permits.
const PERMITS: u32 = 3;

/// The library, the lock that it takes, and its share of a hundred cycles. Curator's names are below `/mixed`, kazoo's below `/kazoo`.
const SHARES: [(&str, &str, &str, usize); 14] = [
    ("curator", "mutex", "/mixed/mutex", 12),
    ("curator", "read", "/mixed/pair", 8),
    ("curator", "write", "/mixed/pair", 8),
    ("curator", "permits", "/mixed/permits", 10),
    ("kazoo", "mutex", "/kazoo/mutex", 6),
    ("kazoo", "read", "/kazoo/pair", 4),
    ("kazoo", "write", "/kazoo/pair", 4),
    ("ours", "mutex", "/mixed/mutex", 12),
    ("ours", "read", "/mixed/pair", 8),
    ("ours", "write", "/mixed/pair", 8),
    ("ours", "permits", "/mixed/permits", 10),
    ("ours", "mutex", "/kazoo/mutex", 4),
    ("ours", "read", "/kazoo/pair", 3),
    ("ours", "write", "/kazoo/pair", 3),
];

/// Counts overlaps, cycles that are missing, and exclusive cycles that the counters do not have.
pub(crate) fn cycles(wanted: usize) -> Measured {
    let server = start();
    let folder = TempDir::new("mixed-soak").expect("a folder");
    let mut exclusive = 0;
    for (_, kind, path, share) in SHARES {
        let place = place(folder.path(), path);
        fs::create_dir_all(place.join("in")).expect("a folder");
        fs::write(place.join("count"), "0").expect("a counter");
        exclusive += if alone(kind) { cycles_of(wanted, share) } else { 0 };
    }
    let began = Instant::now();
    let peers: Option<Vec<_>> = ["curator", "kazoo"]
        .into_iter()
        .map(|library| {
            let specs = SHARES.iter().filter(|share| share.0 == library);
            let specs =
                specs.map(|(_, kind, path, share)| format!("{kind}:{path}:{}", cycles_of(wanted, *share)));
            let mut command = bounded(&format!("{library}-soak"), &[], LIMIT)?;
            command.arg(server.url()).arg(folder.path()).args(specs);
            Some((library, running(command)))
        })
        .collect();
    let Some(peers) = peers else {
        return Measured { figure: f64::NAN, note: "Curator or kazoo is not here".to_owned() };
    };
    let (mut done, mut overlaps) = threads().block_on(ours_of(&server.url(), folder.path(), wanted));
    let mut silent = Vec::new();
    for (library, child) in peers {
        let output = child.wait_with_output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let json: Option<Value> = said.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let field = |name| json.as_ref().and_then(|json| json.get(name)?.as_u64());
        match (field("cycles"), field("overlaps")) {
            (Some(cycles), Some(over)) => (done, overlaps) = (done + cycles, overlaps + over),
            _ => silent.push(library),
        }
    }
    let total: u64 = SHARES.iter().map(|share| cycles_of(wanted, share.3) as u64).sum();
    let paths = ["/mixed/mutex", "/mixed/pair", "/kazoo/mutex", "/kazoo/pair"];
    let counted: u64 = paths.iter().map(|path| count(&place(folder.path(), path))).sum();
    let wrong = overlaps + total.abs_diff(done) + counted.abs_diff(exclusive as u64);
    let mut note = format!(
        "{done} cycles of {total} in {:.0} s by Curator (mutex, read-write lock, semaphore), kazoo (Lock, ReadLock, WriteLock) and ours on 5 names; \
         {overlaps} overlaps; {counted} exclusive cycles counted of {exclusive}",
        began.elapsed().as_secs_f64()
    );
    if !silent.is_empty() {
        note.push_str(&format!("; without an answer: {}", silent.join(", ")));
    }
    Measured { figure: if silent.is_empty() { wrong as f64 } else { f64::NAN }, note }
}

fn cycles_of(wanted: usize, share: usize) -> usize {
    wanted * share / 100
}

fn alone(kind: &str) -> bool {
    matches!(kind, "mutex" | "write")
}

fn place(folder: &Path, path: &str) -> PathBuf {
    folder.join(path[1..].replace('/', "-"))
}

fn count(place: &Path) -> u64 {
    fs::read_to_string(place.join("count")).expect("a counter").trim().parse().expect("a number")
}

fn running(mut command: Command) -> std::process::Child {
    command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("it was there just now")
}

/// Ours, in two sessions for each path; cycles and overlaps.
async fn ours_of(url: &str, folder: &Path, wanted: usize) -> (u64, u64) {
    let overlaps = Arc::new(AtomicU64::new(0));
    let (mut tasks, mut done) = (Vec::new(), 0);
    for session in 0..2 {
        let curator = connect(&format!("{url}/mixed")).await;
        let kazoo = connect(&format!("{url}/kazoo?layout=kazoo")).await;
        for (number, (_, kind, path, share)) in
            SHARES.into_iter().enumerate().filter(|(_, share)| share.0 == "ours")
        {
            let locks = if path.starts_with("/kazoo") { &kazoo } else { &curator };
            let all = cycles_of(wanted, share);
            let cycles = if session == 0 { all / 2 } else { all - all / 2 };
            let (place, overlaps) = (place(folder, path), Arc::clone(&overlaps));
            let name = format!("ours-{session}-{number}");
            tasks.push(tokio::spawn(soak(locks.clone(), kind, path, cycles, place, name, overlaps)));
        }
    }
    for task in tasks {
        done += task.await.expect("no panic") as u64;
    }
    (done, overlaps.load(Ordering::Relaxed))
}

async fn soak(
    locks: Locks,
    kind: &'static str,
    path: &'static str,
    cycles: usize,
    place: PathBuf,
    name: String,
    overlaps: Arc<AtomicU64>,
) -> usize {
    let as_kind = match kind {
        "mutex" => Kind::Mutex,
        "read" => Kind::Read,
        "write" => Kind::Write,
        _ => Kind::Permits { n: 1, of: PERMITS },
    };
    let lock = locks.multi([path.rsplit('/').next().expect("a name")]).expect("a good name").kind(as_kind);
    for _ in 0..cycles {
        let guard = lock.lock().await.expect("its turn comes");
        if is_beside(&place, kind, &name) {
            overlaps.fetch_add(1, Ordering::Relaxed);
        }
        guard.release().await.expect("it was held");
    }
    cycles
}

/// Leaves a file as long as it holds, and looks whose files are there.
fn is_beside(place: &Path, kind: &str, name: &str) -> bool {
    let own = place.join("in").join(format!("{kind}.{name}"));
    fs::File::create_new(&own).expect("a file of its own");
    let there = fs::read_dir(place.join("in")).expect("the folder");
    let there: Vec<_> =
        there.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    let over = match kind {
        "permits" => there.len() > PERMITS as usize,
        "read" => there.iter().any(|file| !file.starts_with("read.")),
        _ => there.len() > 1,
    };
    if alone(kind) {
        let next = count(place) + 1;
        fs::write(place.join("count"), next.to_string()).expect("a counter");
    }
    fs::remove_file(own).expect("its own file");
    over
}
