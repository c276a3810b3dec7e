//! The record of a lock's runs, for clients that keep it themselves, as the library does over any engine.

use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use fencepost_core::{Error, Record, RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::problem::{Answer, Problem};
use crate::process::BY_SERVICE;
use crate::request::{Body, Named, body_of, lock_name, name_of};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::view::millis;

/// The fields of a record that have runs.
const RUNS: [&str; 3] = ["running", "last", "good"];
/// The fields of a run that say who held the lock. Whoever notes the end of another's run does not change them.
const OF_HOLDER: [&str; 4] = ["holder", "host", "pid", "reason"];
/// The longest time for which the engine keeps runs: ten years, as with the option `history` of an engine's URL.
const LONGEST_KEEP: Duration = Duration::from_secs(3_660 * 86_400);

/// The record of a lock's runs, as the engine keeps it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeptRuns {
    /// The object with the runs `running`, `last` and `good`. Null: the engine keeps none.
    record: Option<Value>,
    /// For how much longer the engine keeps it.
    keep_ms: u64,
    /// A write has to name it. Zero: there is no record.
    version: u64,
    /// The engine's clock, in microseconds since 1970.
    now_micros: u64,
}

/// The body of a request to write the record of a lock's runs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotedRuns {
    /// The name of the lock.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// The object with the runs. Null deletes the record.
    record: Option<Map<String, Value>>,
    /// For how long the engine keeps it, counted from now, at most 3660 days.
    #[schema(format = "uint64")]
    #[serde(default)]
    keep_ms: u64,
    /// The version that was read.
    #[schema(format = "uint64")]
    version: u64,
}

/// The answer to a write.
#[derive(Serialize, ToSchema)]
pub(crate) struct Written {
    version: u64,
}

/// Reads the record of a lock's runs.
#[utoipa::path(
    get,
    path = "/v1/runs",
    tag = "service",
    params(Named),
    responses(
        (status = 200, description = "The record, or that there is none", body = KeptRuns),
        Problem,
    )
)]
pub(crate) async fn read(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Named>, QueryRejection>,
) -> Answer<Json<KeptRuns>> {
    let name = name_of(query)?;
    let may_read = caller.may(Verb::Read, &name);
    // Whoever takes the lock may note its runs, and so has to read the record. The service keeps the holders of runs when it is written.
    service.check(&caller, if may_read { Verb::Read } else { Verb::Acquire }, &name)?;
    let stored = service.records.read(RecordKind::Run, &name).await?;
    let keep_ms = stored.record.as_ref().map_or(0, |record| millis(record.keep));
    let mut record = stored.record.as_ref().map(Record::object).transpose().map_err(Error::from)?;
    for run in record.iter_mut().flat_map(runs_of) {
        let host = run.get("host").and_then(Value::as_str).and_then(|host| host.strip_suffix(BY_SERVICE));
        match host.map(str::to_owned) {
            _ if !may_read => {
                (run["holder"], run["host"], run["pid"], run["reason"]) =
                    ("".into(), "".into(), 0.into(), Value::Null);
            }
            Some(host) => run["host"] = host.into(),
            None => {}
        }
    }
    Ok(Json(KeptRuns { record, keep_ms, version: stored.version, now_micros: stored.now_micros }))
}

/// Writes the record of a lock's runs, unless it was written since it was read.
#[utoipa::path(
    post,
    path = "/v1/runs",
    tag = "service",
    request_body = NotedRuns,
    responses(
        (status = 200, description = "It is written", body = Written),
        Problem,
    )
)]
pub(crate) async fn write(
    State(service): State<Service>,
    caller: Caller,
    body: Body,
) -> Answer<Json<Written>> {
    let body: NotedRuns = body_of(body)?;
    let name = lock_name(&body.name)?;
    service.check(&caller, Verb::Acquire, &name)?;
    let keep = Duration::from_millis(body.keep_ms);
    if keep > LONGEST_KEEP {
        return Err(Problem::invalid("keep_ms is at most 3660 days"));
    }
    let record = match body.record {
        None => None,
        Some(fields) => {
            let stored = service.records.read(RecordKind::Run, &name).await?;
            let known = stored.record.as_ref().map(Record::object).transpose().map_err(Error::from)?;
            Some(Record::new(attributed(fields, known.unwrap_or_default(), &caller)?, keep))
        }
    };
    let written = service.records.write(RecordKind::Run, &name, record.as_ref(), body.version).await?;
    let version = written.ok_or_else(|| {
        Problem::new(StatusCode::CONFLICT, "mismatch", "the record has another version: read it again")
    })?;
    Ok(Json(Written { version }))
}

/// Returns the runs of a record.
fn runs_of(record: &mut Value) -> impl Iterator<Item = &mut Value> {
    let fields = record.as_object_mut().into_iter().flatten();
    fields.filter(|(field, run)| RUNS.contains(&field.as_str()) && run.is_object()).map(|(_, run)| run)
}

/// Takes the runs of a caller. A run that the engine knows keeps its holder, and another one gets the caller's name, so that no caller
/// writes runs in the name of another one.
fn attributed(fields: Map<String, Value>, mut known: Value, caller: &Caller) -> Answer<Value> {
    let runs = fields.into_iter().filter(|(field, _)| RUNS.contains(&field.as_str()));
    let mut record = Value::Object(runs.collect());
    for run in runs_of(&mut record) {
        let token = run.get("token").and_then(Value::as_u64);
        let token = token.ok_or_else(|| Problem::invalid("each run has the token of its grant"))?;
        let same = runs_of(&mut known).find(|run| run.get("token").and_then(Value::as_u64) == Some(token));
        match same {
            Some(same) => {
                for field in OF_HOLDER {
                    match same.get(field) {
                        Some(value) => run[field] = value.clone(),
                        None => drop(run.as_object_mut().and_then(|run| run.remove(field))),
                    }
                }
            }
            None => {
                let text =
                    |field: &str| run.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
                let (label, host) = (text("holder"), text("host"));
                run["holder"] = caller.label(Some(&label)).unwrap_or_default().into();
                run["host"] = format!("{host}{BY_SERVICE}").into();
            }
        }
    }
    Ok(record)
}
