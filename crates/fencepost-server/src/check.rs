//! The check of a job for monitoring.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use fencepost_check::{Limit, Limits, Verdict};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::{Answer, Problem};
use crate::request::{duration, lock_name};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;
use crate::view::{RunsView, millis};

/// The query of a check.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Checked {
    /// The name of the lock
    #[param(min_length = 1, max_length = 255)]
    name: String,
    /// A run has succeeded within this time, such as `26h`
    max_age: Option<String>,
    /// Nobody has held the lock for longer than this time
    max_held: Option<String>,
}

/// The verdict on a job: what `fencepost check --json` prints.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Check {
    name: String,
    /// `ok`; `warning`: the lock is held for too long; `critical`: no run has succeeded lately, or the last one failed; or `unknown`.
    status: String,
    /// The exit code of monitoring plugins: 0 for `ok` to 3 for `unknown`.
    code: u8,
    message: String,
    /// How long ago the last run with the exit code 0 ended.
    good_age_ms: Option<u64>,
    /// How long the lock has been held; 0 if it is free.
    held_ms: Option<u64>,
    runs: Option<RunsView>,
}

/// Checks that a job has succeeded lately.
#[utoipa::path(
    get,
    path = "/v1/check",
    tag = "locks",
    params(Checked),
    responses(
        (status = 200, description = "The verdict, a bad one as well", body = Check),
        Problem,
    )
)]
pub(crate) async fn check(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Checked>, QueryRejection>,
) -> Answer<Json<Check>> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let name = lock_name(&query.name)?;
    service.check(&caller, Verb::Read, &name)?;
    let limit = |field: &str, text: Option<String>| {
        let length = duration(field, text.as_deref())?;
        Ok::<_, Problem>(length.map(|length| Limit { length, text: text.unwrap_or_default() }))
    };
    let limits = Limits { age: limit("max_age", query.max_age)?, held: limit("max_held", query.max_held)? };
    if limits.age.is_none() && limits.held.is_none() {
        return Err(Problem::invalid("nothing to check: give max_age, max_held, or both"));
    }
    let info = service.locks.inspect(name.as_str()).await?;
    let verdict = Verdict::of(&info, service.locks.capabilities(), &limits);
    Ok(Json(Check {
        name: name.as_str().to_owned(),
        status: verdict.status.word().to_lowercase(),
        code: verdict.status.code(),
        message: verdict.text,
        good_age_ms: verdict.age.map(millis),
        held_ms: verdict.held.map(millis),
        runs: info.runs.as_ref().map(RunsView::from),
    }))
}
