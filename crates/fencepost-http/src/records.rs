//! The records of runs, which the engine behind the service keeps.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Name, Record, RecordKind, RecordStore, Reply, Result, StoredRecord};
use serde_json::{Value, json};

use crate::client::HttpClient;
use crate::conn::call::Ask;
use crate::error::{failure, strange_answer};
use crate::operator::encoded;

pub(crate) struct HttpRecords {
    pub(crate) client: Arc<HttpClient>,
}

impl HttpRecords {
    async fn read(&self, name: &Name) -> Result<StoredRecord> {
        let answer = self.client.call(Ask::get(format!("/v1/runs?name={}", encoded(name.as_str())))).await?;
        let strange = || strange_answer(self.client.connections.url(), answer.status).without_effect();
        let number = |field: &str| answer.body.get(field).and_then(Value::as_u64).ok_or_else(strange);
        let (keep, version) = (Duration::from_millis(number("keep_ms")?), number("version")?);
        let record = answer.body.get("record").filter(|record| record.is_object());
        let record = record.map(|record| Record { text: record.to_string(), keep });
        Ok(StoredRecord { record, version, now_micros: number("now_micros")? })
    }

    async fn write(&self, name: &Name, record: Option<&Record>, version: u64) -> Result<Option<u64>> {
        let object = record.map(Record::object).transpose()?;
        let keep = record.map_or(0, |record| u64::try_from(record.keep.as_millis()).unwrap_or(u64::MAX));
        let body = json!({ "name": name.as_str(), "record": object, "keep_ms": keep, "version": version });
        match self.client.call(Ask::post("/v1/runs", body).runs_on()).await {
            Ok(answer) => {
                let written = answer.body.get("version").and_then(Value::as_u64);
                let strange = || strange_answer(self.client.connections.url(), answer.status);
                written.map(Some).ok_or_else(strange)
            }
            Err(failed) if failed.is("mismatch") => Ok(None),
            Err(failed) => Err(failed.into()),
        }
    }
}

fn other_kind<T>() -> Reply<'static, Result<T>> {
    let error: Error =
        failure(ErrorKind::Unsupported, "the lock service passes on the records of runs alone");
    Reply::ready(Err(error))
}

impl RecordStore for HttpRecords {
    fn read<'a>(&'a self, kind: RecordKind, name: &'a Name) -> Reply<'a, Result<StoredRecord>> {
        match kind {
            RecordKind::Run => Reply::coming(self.read(name)),
            _ => other_kind(),
        }
    }

    fn write<'a>(
        &'a self,
        kind: RecordKind,
        name: &'a Name,
        record: Option<&'a Record>,
        version: u64,
    ) -> Reply<'a, Result<Option<u64>>> {
        match kind {
            RecordKind::Run => Reply::coming(self.write(name, record, version)),
            _ => other_kind(),
        }
    }
}
