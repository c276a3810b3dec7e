//! The process of a caller that extends a lease.

use std::time::Duration;

use fencepost_core::HolderInfo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest name of a host.
const HOST_BYTES: usize = 255;
/// Follows the host of a process that extends its lease through a service. The engine knows no process of such a lease.
pub(crate) const BY_SERVICE: &str = "/http";

/// A process of a caller.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    /// The name of its host.
    #[schema(max_length = 255, pattern = r"^[^\s]*$")]
    host: String,
    #[schema(value_type = u64, maximum = 4294967295_u64)]
    pid: u32,
    /// The longest time, in milliseconds, for which the process keeps the lock, as others see it. The process itself ends it then.
    #[schema(format = "uint64")]
    max_hold_ms: Option<u64>,
    /// How long, in milliseconds, the process waits for the lock at most, as others see it.
    #[schema(format = "uint64")]
    max_wait_ms: Option<u64>,
}

impl Process {
    /// Returns whether engines can store its host.
    pub(crate) fn is_plain(&self) -> bool {
        self.host.len() <= HOST_BYTES && !self.host.contains(|c: char| c.is_whitespace() || c.is_control())
    }

    /// Returns the longest hold and the longest wait.
    pub(crate) fn limits(&self) -> [Option<Duration>; 2] {
        [self.max_hold_ms, self.max_wait_ms].map(|millis| millis.map(Duration::from_millis))
    }

    /// Makes the holder that the engine stores.
    pub(crate) fn holder(&self, label: Option<&str>) -> HolderInfo {
        let label = label.map_or_else(|| format!("{}/{}", self.host, self.pid), str::to_owned);
        HolderInfo::new(label, format!("{}{BY_SERVICE}", self.host), self.pid)
    }
}
