//! The runs of a layer without a fallback.

use std::sync::Arc;
use std::time::Duration;

use super::engines::{Engines, Role};
use fencepost_core::{
    Error, ErrorKind, Name, Record, RecordKind, RecordStore, Reply, Result, Runtime, StoredRecord,
};

/// The runs at the primary, or in the client's own memory while the primary is away. Records of other kinds have to be the same for all
/// clients, so the layer has none.
pub(super) struct DegradeRecords {
    pub(super) engines: Arc<Engines>,
    pub(super) runtime: Runtime,
}

impl DegradeRecords {
    fn store(&self, kind: RecordKind) -> Result<Arc<dyn RecordStore>> {
        if kind != RecordKind::Run {
            let why =
                "a client with a degrade policy keeps no records but runs; use a client without the policy";
            return Err(Error::new(ErrorKind::Unsupported, why).on(self.engines.primary.name()));
        }
        let primary = self.engines.get(Role::Primary).filter(|_| !self.engines.is_open());
        let engine = primary.or_else(|| self.engines.get(Role::Second));
        engine.and_then(|engine| engine.operator().records(&self.runtime)).ok_or_else(|| {
            let away = "no engine that keeps records is reached; check the engine";
            Error::new(ErrorKind::Unreachable, away).on(self.engines.primary.name()).transient(true)
        })
    }
}

impl RecordStore for DegradeRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        Reply::coming(async move { self.store(kind)?.read(kind, name).await })
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        Reply::coming(async move { self.store(kind)?.write(kind, name, record, version).await })
    }

    fn sweep(&self) -> Reply<'_, Result<Option<Duration>>> {
        Reply::coming(async move { self.store(RecordKind::Run)?.sweep().await })
    }
}
