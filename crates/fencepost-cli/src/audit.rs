//! The audit lines of evictions.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fencepost_core::HolderInfo;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::log;
use crate::show::visible;
use fencepost_check::utc;

/// An eviction, as the audit line tells it.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) holder: String,
    pub(crate) reason: Option<String>,
    /// Why the engine denied it.
    pub(crate) denied: Option<String>,
}

/// Prints the audit line: who did what to whom, when and why. `what` is "evicted", for example.
pub(crate) fn line(what: &str, evicted: &Evicted) {
    let time = utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let by = visible(&HolderInfo::this_process().to_string());
    let (name, token, holder) = (visible(&evicted.name), evicted.token, visible(&evicted.holder));
    let reason = evicted.reason.as_deref().map_or_else(|| "none given".to_owned(), visible);
    let text = format!("audit: {time} {by} {what}: {name} token {token}, held by {holder}; reason: {reason}");
    log::line(log::Level::Audit, &text, &[]);
}

/// Prints an audit line for each eviction that a request makes while it waits. The library tells it as an event of `tracing`.
pub(crate) fn watch() {
    // It fails only if a subscriber is set, and then that one is this one.
    let _ = tracing::subscriber::set_global_default(Watch { warned: AtomicBool::new(false) });
}

struct Watch {
    /// A denied eviction was reported. The request tries again and again.
    warned: AtomicBool,
}

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Only the events about holders that are overdue have this field.
        metadata.is_event() && metadata.fields().field("max_hold_seconds").is_some()
    }

    fn event(&self, event: &Event<'_>) {
        let mut evicted = Evicted::default();
        event.record(&mut evicted);
        let Some(denied) = &evicted.denied else { return line("evicted", &evicted) };
        if !self.warned.swap(true, Ordering::Relaxed) {
            let (name, token, denied) = (visible(&evicted.name), evicted.token, visible(denied));
            warning!(
                "{name}: the holder with token {token} is overdue, and the engine denies its eviction: {denied}"
            );
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Evicted {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "token" {
            self.token = value;
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "max_hold_seconds" {
            self.reason = Some(format!("overdue: held for longer than its limit of {value} s"));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "lock" => drop(write!(self.name, "{value:?}")),
            "holder" => drop(write!(self.holder, "{value:?}")),
            "error" => self.denied = Some(format!("{value:?}")),
            _ => {}
        }
    }
}
