//! Finds the descendants of a process in /proc, and sends signals to all of them.
//!
//! A subreaper inherits every orphan below it, so a program that daemonizes itself (`setsid` and a double
//! fork) is still found here. One walk is a snapshot: callers repeat it until nothing is left to be reaped.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpid};

/// One process as /proc shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// It has ended, and waits to be reaped.
    zombie: bool,
}

impl Process {
    /// Reads a line of /proc/PID/stat. The name stands in brackets and may itself hold brackets and blanks.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split(' ').next()?.parse().ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let zombie = fields.next()? == "Z";
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Self { pid, parent, group, zombie })
    }
}

/// Every process that this one may see.
fn snapshot() -> Vec<Process> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    folder
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| Process::parse(&stat))
        .collect()
}

/// The processes below `root`, parents before their children, without those below (and at) `except`.
fn below(all: &[Process], root: i32, except: &HashSet<i32>) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = Vec::new();
    let mut at = vec![root];
    while let Some(parent) = at.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if !except.contains(&child.pid) {
                at.push(child.pid);
                found.push(child);
            }
        }
    }
    found
}

/// Returns the names of the live processes below this one, as `ps` shows them.
pub(super) fn names_of_descendants() -> Vec<String> {
    let all = snapshot();
    let live = below(&all, getpid().as_raw(), &HashSet::new()).into_iter().filter(|process| !process.zombie);
    live.filter_map(|process| fs::read_to_string(format!("/proc/{}/comm", process.pid)).ok())
        .map(|name| name.trim_end().to_owned())
        .collect()
}

/// The direct children of this process.
pub(crate) fn own_children() -> HashSet<i32> {
    if let Some(children) = listed_children() {
        return children;
    }
    let own = getpid().as_raw();
    snapshot().iter().filter(|process| process.parent == own).map(|process| process.pid).collect()
}

/// The same from the list that most kernels keep (CONFIG_PROC_CHILDREN), without reading all of /proc.
fn listed_children() -> Option<HashSet<i32>> {
    let mut children = HashSet::new();
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let list = fs::read_to_string(thread.path().join("children")).ok()?;
        children.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

/// Sends `signal` to everything below this process but what is at or below `except`. A process that is gone by then needs none.
///
/// A group that lies wholly below this process is signalled at once: the kernel does that without a gap,
/// so that a program which forks and ends in a loop cannot run ahead of the walk. A process that looks dead is signalled as well: its
/// main thread may have ended while others run on. Children are signalled although /proc may not show them
/// (`hidepid`): what is below them comes to us when they end.
pub(crate) fn signal_descendants(signal: Signal, except: &HashSet<i32>) {
    let all = snapshot();
    let targets = below(&all, getpid().as_raw(), except);
    let ours: HashSet<i32> = targets.iter().map(|process| process.pid).collect();
    let shared: HashSet<i32> =
        all.iter().filter(|process| !ours.contains(&process.pid)).map(|process| process.group).collect();
    let mut done = HashSet::new();
    for process in &targets {
        if shared.contains(&process.group) {
            let _ = kill(Pid::from_raw(process.pid), signal);
        } else if done.insert(process.group) {
            let _ = killpg(Pid::from_raw(process.group), signal);
        }
    }
    let hidden = own_children().into_iter().filter(|pid| !ours.contains(pid) && !except.contains(pid));
    for pid in hidden {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_hostile_names() {
        let process = Process::parse("12 (a) b (c) S 7 12 3 0 -1").unwrap();
        assert_eq!(process, Process { pid: 12, parent: 7, group: 12, zombie: false });
        assert!(Process::parse("12 (a) Z 7 12 3 0 -1").unwrap().zombie);
        assert_eq!(Process::parse("13 (x"), None);
    }

    #[test]
    fn the_walk_goes_down_and_leaves_out() {
        let process = |pid, parent| Process { pid, parent, group: pid, zombie: false };
        let all = [process(1, 0), process(2, 1), process(3, 2), process(4, 3), process(5, 2), process(6, 1)];
        let pids = |except: &[i32]| {
            let mut found: Vec<i32> =
                below(&all, 2, &except.iter().copied().collect()).iter().map(|process| process.pid).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(pids(&[]), [3, 4, 5]);
        assert_eq!(pids(&[3]), [5]);
    }

    #[test]
    fn own_children_are_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(own_children().contains(&child.id().try_into().unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
