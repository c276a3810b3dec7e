//! No export of traces, in builds without the feature `otlp`.

use fencepost_core::Result;

use crate::events::Log;

pub(crate) struct Traces;

impl Traces {
    /// Prints the warnings and errors of the service from now on.
    #[expect(clippy::unnecessary_wraps, reason = "the export of traces can fail")]
    pub(crate) fn set_up() -> Result<Traces> {
        Log::set_up();
        Ok(Traces)
    }

    #[expect(clippy::unused_async, reason = "the export of traces waits")]
    pub(crate) async fn end(self) {}
}
