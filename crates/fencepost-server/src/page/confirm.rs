//! The page that asks before it evicts a holder. It works without JavaScript.

use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, Redirect};
use serde::Deserialize;

use crate::operator::{Evict, evict_holder};
use crate::page::html::{encoded, escaped, text, who};
use crate::page::{BRAND, frame};
use crate::problem::{Answer, Problem};
use crate::request::lock_name;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;

/// A holder, named by its token: a later holder is not evicted in its place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chosen {
    name: String,
    token: u64,
    #[serde(default)]
    reason: String,
}

/// Shows the holder and a form.
pub(crate) async fn ask(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Chosen>, QueryRejection>,
) -> Answer<Html<String>> {
    let Query(chosen) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let name = lock_name(&chosen.name)?;
    service.check(&caller, Verb::Evict, &name)?;
    let mut held_by = String::new();
    if caller.may(Verb::Read, &name) {
        let info = service.locks.inspect(name.as_str()).await?;
        let claim = info.holders().find(|claim| claim.token.is_some_and(|token| token.get() == chosen.token));
        held_by = claim.map_or_else(
            || "<p>It is no longer held with this token.</p>".to_owned(),
            |claim| format!("<p>Held by {}</p>", who(&claim.into(), None, true)),
        );
    }
    let body = format!(
        "<header><div class=\"top\">{BRAND}</div></header><main id=\"main\" class=\"ask\"><h1>Evict the holder of <bdi>{name}</bdi>?</h1>{held_by}\
         <p>Token <code>{token}</code></p><p>The holder is told with its next renewal. The next waiter gets the lock when the holder has \
         stopped, or when its lease has ended.</p><form method=\"post\" \
         action=\"evict\"><input type=\"hidden\" name=\"name\" value=\"{value}\"><input type=\"hidden\" name=\"token\" \
         value=\"{token}\"><label>Reason <input name=\"reason\" maxlength=\"200\" placeholder=\"hangs since 02:00, deploy\" required \
         autofocus></label><p><button class=\"evict\">Evict</button> <a href=\"./\">Cancel</a></p></form></main>",
        name = text(name.as_str()),
        value = escaped(name.as_str()),
        token = chosen.token,
    );
    Ok(Html(frame("fencepost: evict", "", &body)))
}

/// Refuses a form without an origin. The origin was compared with this service before. A browser that names none could send a form of
/// another site.
pub(crate) fn check_origin(headers: &HeaderMap) -> Answer<()> {
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return Ok(());
    }
    let detail = "a form needs the header Origin; a program uses POST /v1/evict";
    Err(Problem::new(StatusCode::FORBIDDEN, "wrong-origin", detail))
}

/// Evicts the holder, and shows the lock.
pub(crate) async fn evict(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
    form: Result<Form<Chosen>, FormRejection>,
) -> Answer<Redirect> {
    check_origin(&headers)?;
    let Form(chosen) = form.map_err(|error| Problem::invalid(error.body_text()))?;
    let name = lock_name(&chosen.name)?;
    let reason = Some(chosen.reason).filter(|reason| !reason.is_empty());
    let evict = Evict { name: chosen.name, token: chosen.token, reason, now: false };
    let to = match caller.may(Verb::Read, &name) {
        true => format!("./?name={}", encoded(name.as_str())),
        false => "./".to_owned(),
    };
    evict_holder(service, caller, name, evict).await?;
    Ok(Redirect::to(&to))
}
