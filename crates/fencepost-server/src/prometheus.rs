//! The metrics of this process as text for Prometheus.

use std::fmt;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// The upper ends of the buckets of times, in seconds: from a release in memory to a long wait.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];
/// How often the samples are put into their buckets, so that they do not pile up between two scrapes.
const EVERY: Duration = Duration::from_secs(5);

/// The recorder of the metrics of this process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder of this process. Install it before the first client is made.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) if the process has a recorder.
    pub fn install() -> Result<Metrics> {
        let wrong = |error| Error::new(ErrorKind::Internal, "the metrics cannot be recorded").because(error);
        let builder = PrometheusBuilder::new().set_buckets(&SECONDS).map_err(wrong)?;
        let installed = builder.install_recorder();
        installed.map(Metrics).map_err(|error| {
            Error::invalid("this process has a recorder of metrics; do not install another one")
                .because(error)
        })
    }

    /// Returns the metrics as text.
    pub(crate) fn text(&self) -> String {
        self.0.render()
    }

    /// Keeps the samples few. It never completes.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.0.run_upkeep();
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
