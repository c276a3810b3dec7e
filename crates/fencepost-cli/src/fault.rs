//! Points at which a test pauses the command, to widen a window that it would hardly hit otherwise.

/// Stops this process if `FENCEPOST_STOP_AT` names `point`. Released builds have no such points.
#[cfg(any(debug_assertions, feature = "fault-points"))]
pub(crate) fn fault_point(point: &str) {
    if std::env::var_os("FENCEPOST_STOP_AT").is_some_and(|named| named == point) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}

#[cfg(not(any(debug_assertions, feature = "fault-points")))]
pub(crate) fn fault_point(_: &str) {}
