//! The log of the service: the warnings and errors that the library and the service report as events of `tracing`.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::log;
use crate::show::visible;

/// Prints the events, each as a line.
pub(crate) struct Log;

impl Log {
    /// Prints them from now on.
    pub(crate) fn set_up() {
        // It fails only if a subscriber is set. A verb sets one at most.
        let _ = tracing::subscriber::set_global_default(Log);
    }

    fn prints(metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("fencepost")
    }

    fn print(event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level =
            if *event.metadata().level() == Level::ERROR { log::Level::Error } else { log::Level::Warning };
        log::line(level, &visible(&format!("{}{}", text.message, text.fields)), &[]);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Log::prints(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        Log::print(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Beside the export of spans.
#[cfg(feature = "otlp")]
impl<S: Subscriber> tracing_subscriber::Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if Log::prints(event.metadata()) {
            Log::print(event);
        }
    }
}

/// The text of an event.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, ", {}: {value}", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
}
