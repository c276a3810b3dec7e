//! What a server says of itself.

use std::collections::HashMap;

use super::Visit;
use crate::error::Failure;

/// The settings that matter, as CONFIG GET knows them.
const SETTINGS: &[&str] = &[
    "appendfsync",
    "maxclients",
    "min-replicas-to-write",
    "notify-keyspace-events",
    "save",
    "stop-writes-on-bgsave-error",
];

/// What INFO and CONFIG say.
#[derive(Default)]
pub(super) struct Facts {
    info: HashMap<String, String>,
    /// None where this user may not read them, as on most hosted servers.
    settings: Option<HashMap<String, String>>,
}

impl Facts {
    pub(super) async fn gather(visit: &mut Visit) -> Result<Facts, Failure> {
        let text: String = match visit.ask(&["INFO"]).await {
            Err(failure) if failure.is_denial() => String::new(),
            answer => answer?,
        };
        let mut settings = HashMap::new();
        let mut readable = true;
        // One by one: before 7.0 CONFIG GET takes one name.
        for name in SETTINGS {
            match visit.ask::<HashMap<String, String>>(&["CONFIG", "GET", name]).await {
                Ok(found) => settings.extend(found),
                Err(failure) if failure.lasts() => {
                    readable = false;
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(Facts { info: fields(&text), settings: readable.then_some(settings) })
    }

    /// A field of INFO; empty if there is none.
    pub(super) fn info(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    /// The run of a node of a quorum.
    pub(super) fn run(&self) -> Option<String> {
        run(&self.info)
    }

    /// A field of INFO that is a number; 0 if there is none.
    pub(super) fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or(0)
    }

    /// A setting, if it may be read and is known.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    /// May INFO be read?
    pub(super) fn has_info(&self) -> bool {
        !self.info.is_empty()
    }

    /// May settings be read?
    pub(super) fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    #[cfg(test)]
    pub(super) fn of(info: &str, settings: Option<&[(&str, &str)]>) -> Facts {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        Facts { info: fields(info), settings: settings.map(pairs) }
    }
}

/// What a node of a quorum calls its run, as scripts/run.lua does: by these fields of INFO.
pub(crate) fn run(facts: &HashMap<String, String>) -> Option<String> {
    let taken = facts.get("master_replid2").filter(|id| id.bytes().any(|digit| digit != b'0'));
    Some([facts.get("run_id")?.as_str(), taken.map_or("", String::as_str)].concat())
}

/// `name:value`, a line each.
pub(crate) fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}
