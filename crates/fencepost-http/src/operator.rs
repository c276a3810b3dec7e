//! Looks at locks, and evicts holders.

use std::time::Duration;

use fencepost_core::{
    ClaimInfo, Error, Eviction, HolderInfo, Info, Listing, Mode, Name, Page, Result, Token,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::client::HttpClient;
use crate::conn::call::{Answer, Ask};
use crate::error::strange_answer;

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(crate) async fn inspect(client: &HttpClient, name: &Name) -> Result<Info> {
    let answer = client.call(Ask::get(format!("/v1/lock?name={}", encoded(name.as_str())))).await?;
    info(&answer.body).ok_or_else(|| strange(client))
}

pub(crate) async fn list(client: &HttpClient, prefix: &str, page: &Page) -> Result<Listing> {
    let after = page.after.as_ref().map(|after| format!("&after={}", encoded(after.as_str())));
    let query = format!("/v1/locks?prefix={}{}", encoded(prefix), after.unwrap_or_default());
    let answer = client.call(Ask::get(query)).await?;
    let locks = answer.body.get("locks").and_then(Value::as_array).ok_or_else(|| strange(client))?;
    let mut listing = Listing::default();
    let texts = |list: &Value| list.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect();
    listing.covers = answer.body.get("covers").and_then(texts);
    for lock in locks {
        if !listing.add(info(lock).ok_or_else(|| strange(client))?, page) {
            return Ok(listing);
        }
    }
    listing.next = text(&answer.body, "next").map(Name::new).transpose()?;
    Ok(listing)
}

pub(crate) async fn evict(client: &HttpClient, name: &Name, token: Token, how: &Eviction) -> Result<()> {
    let reason = how.reason.clone().map(HolderInfo::cut);
    let body = json!({ "name": name.as_str(), "token": token.get(), "reason": reason, "now": how.now });
    match client.call(Ask::post("/v1/evict", body)).await {
        Ok(Answer { status: 204, .. }) => Ok(()),
        Ok(answer) => Err(strange_answer(client.connections.url(), answer.status)),
        Err(failed) if failed.is("mismatch") => Err(Error::no_grant(name.clone(), token)),
        Err(failed) => Err(failed.into()),
    }
}

fn strange(client: &HttpClient) -> Error {
    strange_answer(client.connections.url(), 200).without_effect()
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field)?.as_str()
}

fn number(value: &Value, field: &str) -> Option<u64> {
    value.get(field)?.as_u64()
}

fn info(lock: &Value) -> Option<Info> {
    let claims = |field: &str| lock.get(field)?.as_array()?.iter().map(claim).collect::<Option<Vec<_>>>();
    let all = [claims("holders")?, claims("waiters")?].concat();
    let name = Name::new(text(lock, "name")?).ok()?;
    Some(Info::new(name, number(lock, "last_token").map(Token::new), all))
}

fn claim(claim: &Value) -> Option<ClaimInfo> {
    let small = |field: &str| number(claim, field).and_then(|number| u32::try_from(number).ok());
    let flag = |field: &str| claim.get(field).and_then(Value::as_bool).unwrap_or(false);
    let time = |field: &str| number(claim, field).map(Duration::from_millis);
    let mode = match text(claim, "mode")? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permits" => Mode::Permits { n: small("permits")?, of: small("permits_of")? },
        _ => return None,
    };
    let holder = HolderInfo::new(text(claim, "holder")?, text(claim, "host")?, small("pid")?);
    let mut info = ClaimInfo::new(holder, mode);
    info.token = number(claim, "token").map(Token::new);
    info.since_micros = number(claim, "since_micros").unwrap_or(0);
    info.from_arrival = info.token.is_some() && text(claim, "since") == Some("arrival");
    info.age = time("age_ms").unwrap_or_default();
    info.expires_in = time("expires_in_ms");
    info.reason = text(claim, "reason").map(str::to_owned);
    (info.max_hold, info.max_wait) = (time("max_hold_ms"), time("max_wait_ms"));
    info.later_format = number(claim, "later_format");
    (info.evicted, info.detached, info.unconfirmed) =
        (flag("evicted"), flag("detached"), flag("unconfirmed"));
    Some(info)
}
