//! The parts of a request: names, bodies, leases and durations.

use std::fmt;
use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use fencepost_core::{DetachedLease, Error, Name};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::IntoParams;

use crate::problem::{Answer, Problem};

/// The query of a request about one lock. A name never stands in a path, because proxies decode and normalise paths: they would turn
/// `a/../b` into `b`, which is another lock.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Named {
    /// The name of the lock
    #[param(min_length = 1, max_length = 255)]
    name: String,
}

pub(crate) type Body = Result<Json<Fields>, JsonRejection>;

/// The fields of an object, and the first that is there twice: whoever reads its first value would see another request than whoever reads
/// its last.
#[derive(Default)]
pub(crate) struct Fields {
    all: Map<String, Value>,
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Fields, D::Error> {
        input.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some((name, value)) = input.next_entry::<String, Value>()? {
            if fields.all.insert(name.clone(), value).is_some() {
                fields.twice.get_or_insert(name);
            }
        }
        Ok(fields)
    }
}

/// Reads the name of a lock from the query.
pub(crate) fn name_of(query: Result<Query<Named>, QueryRejection>) -> Answer<Name> {
    let Query(Named { name }) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    lock_name(&name)
}

/// Reads the name of a lock.
pub(crate) fn lock_name(name: &str) -> Answer<Name> {
    Ok(Name::new(name)?)
}

/// Reads an object. An array would count as the fields in their order.
pub(crate) fn body_of<T: DeserializeOwned>(body: Body) -> Answer<T> {
    let Json(fields) = body.map_err(|error| match error {
        // Its own status is that of another problem: see `key-reused`.
        JsonRejection::JsonDataError(_) => Problem::invalid("the body is no JSON object"),
        error => Problem::new(error.status(), "invalid", error.body_text()),
    })?;
    if let Some(name) = fields.twice {
        return Err(Problem::invalid(format!("duplicate field `{name}`")));
    }
    let body = serde_path_to_error::deserialize(Value::Object(fields.all));
    body.map_err(|error| Problem::invalid(error.to_string()))
}

/// The beginning of the text of a stream's lease. The stream extends the lease, so its text can end it and nothing else: if somebody else
/// extended the lease, the end of the stream would end it at a time that nobody expects.
const HOLD: &str = "hold-";

/// Returns the text of a stream's lease. It is a secret.
pub(crate) fn hold_lease(lease: &DetachedLease) -> String {
    format!("{HOLD}{}", lease.to_secret())
}

/// Returns the lease in the text of a lease that may be that of a stream.
pub(crate) fn releasable(text: &str) -> &str {
    text.strip_prefix(HOLD).unwrap_or(text)
}

/// Reads a lease. The error does not repeat the text, which is a secret.
pub(crate) fn lease_of(text: &str) -> Answer<DetachedLease> {
    if text.starts_with(HOLD) {
        let detail = "this is the lease of a stream, which extends it; /v1/leases/release ends it, and no other request takes it";
        return Err(Problem::invalid(detail));
    }
    text.parse().map_err(|error: Error| Problem::from(error))
}

/// Reads a duration such as `30s`.
pub(crate) fn duration(field: &str, text: Option<&str>) -> Answer<Option<Duration>> {
    let Some(text) = text else { return Ok(None) };
    let parsed = humantime::parse_duration(text);
    parsed.map(Some).map_err(|error| Problem::invalid(format!("{field}: {error}; write 500ms, 30s or 1m30s")))
}
