//! Points at which a test pauses the command, to widen a window that it would hardly hit otherwise.

/// Stops this process if `FENCEPOST_STOP_AT` names `point`. Released builds have no such points.
#[cfg(any(debug_assertions, feature = "fault-points"))]
pub(crate) fn fault_point(point: &str) {
    if std::env::var_os("FENCEPOST_STOP_AT").is_some_and(|named| named == point) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
        // Signals that were sent meanwhile are heard by another thread of the wrapper. It is to have them before this one goes on, or a test
        // would not know which of the two is first. The guardian and its child have no such thread, so the wait has a limit.
        for _ in 0..40 {
            if !has_pending_signals() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Returns whether a signal was sent to this process that no thread has received. Systems without `/proc` cannot tell.
#[cfg(any(debug_assertions, feature = "fault-points"))]
fn has_pending_signals() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.is_some_and(|mask| mask.trim().bytes().any(|digit| digit != b'0'))
}

#[cfg(not(any(debug_assertions, feature = "fault-points")))]
pub(crate) fn fault_point(_: &str) {}
