//! The CPU time and memory of processes, from /proc.

use nix::unistd::Pid;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Processor time that all threads of a process have had, to the nanosecond; nothing if it is gone.
///
/// `schedstat` is exact where `stat` counts ticks of 10 ms, which would hide a hundred processes that use 1 ms each.
pub(crate) fn processor_time(pid: Pid) -> Duration {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let nanoseconds: u64 = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanoseconds)
}

/// Share of one core that the processes used over a span of time.
pub(crate) fn share(pids: &[Pid], span: Duration) -> f64 {
    let before: Vec<Duration> = pids.iter().map(|pid| processor_time(*pid)).collect();
    let start = Instant::now();
    std::thread::sleep(span);
    let used: Duration =
        pids.iter().zip(before).map(|(pid, before)| processor_time(*pid).saturating_sub(before)).sum();
    used.as_secs_f64() / start.elapsed().as_secs_f64()
}

/// Memory of this process that is in RAM, in bytes.
pub(crate) fn resident() -> u64 {
    resident_of(nix::unistd::getpid())
}

/// Memory of a process that is in RAM, in bytes.
pub(crate) fn resident_of(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes * 1024)
}

/// Whether a process still runs; one that has ended and was not yet waited for does not.
pub(crate) fn alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Whether a process is stopped, as by SIGSTOP.
pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// A child of a process.
pub(crate) fn child(parent: i32) -> Option<i32> {
    processes().find(|(_, found)| *found == parent).map(|(pid, _)| pid)
}

/// All processes, each with its parent.
fn processes() -> impl Iterator<Item = (i32, i32)> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, stat(pid)?.1)))
}

/// Every process below `roots`, and they themselves.
pub(crate) fn with_descendants(roots: &[Pid]) -> Vec<Pid> {
    let mut found: HashSet<i32> = roots.iter().map(|pid| pid.as_raw()).collect();
    let all: Vec<(i32, i32)> = processes().collect();
    loop {
        let before = found.len();
        found.extend(
            all.iter().filter(|(_, parent)| found.contains(parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found.into_iter().map(Pid::from_raw).collect();
        }
    }
}

/// A process's state and its parent.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may itself hold brackets and spaces.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_uses_the_machine() {
        let me = nix::unistd::getpid();
        assert!(alive(me.as_raw()) && resident() > 0 && processor_time(me) > Duration::ZERO);
        assert!(with_descendants(&[me]).contains(&me));
    }
}
