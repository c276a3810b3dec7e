//! Reads INFO and CONFIG of a server.

use std::collections::HashMap;

use fencepost_core::Error;

use super::probe::Probe;
use crate::conn::info::{fields, run};

/// The settings that matter, as CONFIG GET knows them.
const SETTINGS: &[&str] = &[
    "appendfsync",
    "maxclients",
    "min-replicas-to-write",
    "notify-keyspace-events",
    "save",
    "stop-writes-on-bgsave-error",
];

/// The fields of INFO and the settings of CONFIG.
#[derive(Default)]
pub(crate) struct Facts {
    info: HashMap<String, String>,
    /// None where this user may not read them, as on most hosted servers.
    settings: Option<HashMap<String, String>>,
}

impl Facts {
    pub(crate) async fn gather(probe: &mut Probe) -> Result<Facts, Error> {
        let text: String = match probe.ask(&["INFO"]).await {
            Err(failure) if failure.is_denied() => String::new(),
            answer => answer?,
        };
        let mut settings = HashMap::new();
        let mut readable = true;
        // One by one: before 7.0 CONFIG GET takes one name.
        for name in SETTINGS {
            match probe.ask::<HashMap<String, String>>(&["CONFIG", "GET", name]).await {
                Ok(found) => settings.extend(found),
                Err(failure) if !failure.is_transient() => {
                    readable = false;
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(Facts { info: fields(&text), settings: readable.then_some(settings) })
    }

    /// A field of INFO; empty if there is none.
    pub(crate) fn info(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    /// The run of a node of a quorum.
    pub(crate) fn run(&self) -> Option<String> {
        run(&self.info)
    }

    /// A field of INFO that is a number; 0 if there is none.
    pub(crate) fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or(0)
    }

    /// A setting, if it may be read and is known.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    /// May INFO be read?
    pub(crate) fn has_info(&self) -> bool {
        !self.info.is_empty()
    }

    /// May settings be read?
    pub(crate) fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    #[cfg(test)]
    pub(crate) fn of(info: &str, settings: Option<&[(&str, &str)]>) -> Facts {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        Facts { info: fields(info), settings: settings.map(pairs) }
    }
}
