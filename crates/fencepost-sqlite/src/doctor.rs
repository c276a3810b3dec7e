//! The findings of `doctor` about a database.

use std::io;

use fencepost_core::{Finding, Report};

use crate::checks::filesystem::{self, Filesystem};
use crate::db::Database;
use crate::error::Failure;

pub(crate) fn examine(database: &Database) -> Result<Report, Failure> {
    let path = database.path();
    let (journal, synchronous) = database.once(|db| {
        let journal: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        let synchronous: i64 = db.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        Ok((journal, synchronous))
    })?;
    let bytes = std::fs::metadata(path)?.len();
    let found = filesystem::detect(path).map_err(io::Error::from)?;
    Ok(vec![
        Finding::ok("file", format!("{}, {} kB", path.display(), bytes.div_ceil(1024))),
        Finding::ok("reach", "locks work between processes of the same user on this machine"),
        filesystem(&found),
        match &*journal {
            "wal" => Finding::ok("journal", "wal: listing locks does not wait for writers"),
            other => Finding::note("journal", format!("{other}: listing locks waits for writers")),
        },
        match synchronous {
            2.. => Finding::ok("durability", "full: every grant is on disk before it is reported"),
            _ => Finding::ok(
                "durability",
                "normal: after a power failure, the leases of 'acquire' from the last moments may be lost",
            ),
        },
    ]
    .into())
}

fn filesystem(found: &Filesystem) -> Finding {
    match found {
        Filesystem::Local(name) => Finding::ok("filesystem", format!("{name}, on this machine")),
        Filesystem::Fuse => Finding::warning("filesystem", "FUSE: unknown whether file locks work there")
            .advice("put the file on a local disk"),
        Filesystem::Network(name) => {
            let says = format!("{name}: file locks do not work between machines, so two may hold one lock");
            Finding::problem("filesystem", says).advice("put the file on a local disk, or use redis:")
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Severity;

    use super::*;

    #[test]
    fn a_filesystem_that_was_trusted_is_judged_all_the_same() {
        assert_eq!(filesystem(&Filesystem::Local("ext4".into())).severity, Severity::Ok);
        assert_eq!(filesystem(&Filesystem::Fuse).severity, Severity::Warning);
        assert_eq!(filesystem(&Filesystem::Network("NFS")).severity, Severity::Problem);
    }
}
