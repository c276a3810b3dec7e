//! A subscriber that keeps the events on locks and sessions.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::page;

/// An event that was told.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    level: String,
    fields: BTreeMap<String, String>,
}

impl Seen {
    pub(crate) fn value(&self, field: &str) -> &str {
        &self.fields[field]
    }

    /// Returns the row of the page that it belongs in.
    pub(crate) fn row(self) -> page::Event {
        page::Event { name: self.name, level: self.level, fields: self.fields.into_keys().collect() }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.name = format!("{value:?}"),
            name => drop(self.fields.insert(name.to_owned(), format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

/// Keeps the events of the module `telemetry`.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Seen>>>);

impl Events {
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Subscriber for Events {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        if metadata.target() == "fencepost_core::telemetry" {
            // An optional field that is absent is a field of the event all the same.
            let absent = metadata.fields().iter().filter(|field| field.name() != "message");
            let fields = absent.map(|field| (field.name().to_owned(), String::new())).collect();
            let mut seen = Seen { name: String::new(), level: metadata.level().to_string(), fields };
            event.record(&mut seen);
            self.0.lock().unwrap().push(seen);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
