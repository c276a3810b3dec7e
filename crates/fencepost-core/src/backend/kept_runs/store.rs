//! The contract of an engine that keeps runs apart.

use crate::backend::Reply;
use crate::backend::record::LaterFormat;
use crate::error::Result;
use crate::name::Name;
use crate::operator::run::Runs;

/// One write of `SWEEP_EVERY` is followed by a deletion of old records.
const SWEEP_EVERY: u64 = 100;

/// The place where an engine keeps the runs of its resources: one record for each name, apart from the claims. No grant depends on it.
///
/// The layer [`KeptRuns`](crate::KeptRuns) reads a record, changes it, and writes it if nobody has written it meanwhile. So an engine
/// needs a read and a conditional write, and nothing else. The engine's requests have a time limit.
pub trait RunStore: Send + Sync + 'static {
    /// Reads the record of a name.
    ///
    /// # Errors
    /// The engine's error. A place for records that was never made is no error here: there are no runs.
    ///
    /// # Cancel safety
    /// Safe.
    fn read<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<StoredRuns>>;

    /// Writes the record of a name if its version is still `version`. Returns the new version, which no record of the name had before.
    /// `None`: the record has another version, and nothing was written.
    ///
    /// # Errors
    /// The engine's error. The write may have taken effect, now or later.
    ///
    /// # Cancel safety
    /// As after an error. The first poll sends.
    fn write<'a>(
        &'a self,
        name: &'a Name,
        record: &'a RunRecord,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>>;

    /// Closes what only runs use.
    fn close(&self) {}
}

/// The record of a name as it is stored, and when it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoredRuns {
    /// The record. `None`: there is none.
    pub record: Option<RunRecord>,
    /// Its version; zero: there is none.
    pub version: u64,
    /// Wall-clock microseconds since 1970, by the engine's clock if it has one.
    pub now_micros: u64,
}

impl StoredRuns {
    /// Whether the engine deletes old records after the write that made this version: after one write of 100. The versions of a
    /// client's writes may be evenly spaced, so their remainders alone do not decide.
    pub fn is_followed_by_sweep(version: u64) -> bool {
        (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(SWEEP_EVERY)
    }
}

/// The runs of a name, and until when they are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunRecord {
    /// The runs.
    pub runs: Runs,
    /// Until when the engine keeps them: wall-clock microseconds since 1970.
    pub keep_until: u64,
}

impl RunRecord {
    /// Reads what [`to_text`](RunRecord::to_text) wrote. Odd parts are left out.
    ///
    /// # Errors
    /// A record of a later format.
    pub fn read(text: &str) -> std::result::Result<RunRecord, LaterFormat> {
        let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        LaterFormat::check(value.get("fencepost"))?;
        let keep_until = value.get("keep_until").and_then(serde_json::Value::as_u64).unwrap_or(0);
        Ok(RunRecord { runs: Runs::read(text), keep_until })
    }

    /// Writes it as compact JSON.
    pub fn to_text(&self) -> String {
        let mut value: serde_json::Value = serde_json::from_str(&self.runs.to_text()).unwrap_or_default();
        value["fencepost"] = LaterFormat::KNOWN.into();
        value["keep_until"] = self.keep_until.into();
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::operator::holder::HolderInfo;
    use crate::operator::run::Run;
    use crate::token::Token;

    #[test]
    fn one_write_of_a_hundred_is_followed_by_a_sweep() {
        for (first, distance) in [(1, 1), (2, 4), (7, 100), (1 << 62, 2), (5, 1 << 20)] {
            let versions = (0..10_000).map(|number| first + number * distance);
            let count = versions.filter(|version| StoredRuns::is_followed_by_sweep(*version)).count();
            assert!((50..200).contains(&count), "{count} of 10,000 from {first} by {distance}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let running = Some(Run::new(Token::new(7), HolderInfo::new("me", "h", 1), None, 5));
        let record = RunRecord { runs: Runs { running, ..Runs::default() }, keep_until: u64::MAX };
        assert_eq!(RunRecord::read(&record.to_text()), Ok(record));
        assert_eq!(RunRecord::read("odd"), Ok(RunRecord::default()));
        let later = Error::from(RunRecord::read(r#"{"fencepost":2}"#).unwrap_err());
        assert!(later.is_configuration() && later.to_string().contains("format 2"), "{later}");
    }
}
