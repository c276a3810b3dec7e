//! The page: all locks of the engine, readable without JavaScript and live with it.

use std::fmt::Write as _;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{Html, IntoResponse};
use fencepost_core::{ClaimInfo, Info, Name, visible};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::operator::{Listed, listing};
use crate::problem::{Answer, Problem};
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::service::Service;

/// The most locks that the page shows.
const SHOWN: usize = 500;

pub(crate) async fn locks(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Listed>, QueryRejection>,
) -> Answer<Html<String>> {
    let Query(Listed { prefix, after }) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let after = after.as_deref().map(Name::new).transpose()?;
    let (locks, next) = listing(&service, &caller, &prefix, after, SHOWN).await?;
    Ok(Html(render(service.locks.capabilities().engine, &caller, &prefix, &locks, next.as_ref())))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css"))
}

fn render(engine: &str, caller: &Caller, prefix: &str, locks: &[Info], next: Option<&Name>) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>fencepost</title><link rel=\"stylesheet\" href=\"/page.css\">\
         <script src=\"/page.js\" defer></script></head><body><header><h1>fencepost</h1><p>{} on {}</p>\
         <form role=\"search\"><label>Names that begin with <input type=\"search\" \
         name=\"prefix\" value=\"{}\"></label> <button>Show</button></form></header><main>",
        match locks.len() {
            1 => "1 lock".to_owned(),
            count => format!("{count}{} locks", if next.is_some() { " of more" } else { "" }),
        },
        text(engine),
        text(prefix)
    );
    if locks.is_empty() {
        page.push_str(match (next, caller.readable("").is_empty()) {
            (_, true) => "<p>Your access token does not have the right to read any name.</p>",
            (Some(_), _) => "<p>No lock is on this page.</p>",
            (None, _) => "<p>Nothing is held or waited for.</p>",
        });
    } else {
        page.push_str(
            "<table><thead><tr><th>Lock<th>Holder<th>For<th>Lease left<th>Token<th>Reason<th>Waiting<th>\
             <span class=\"hidden\">Actions</span></tr></thead><tbody>",
        );
        locks.iter().for_each(|info| rows(&mut page, caller, info));
        page.push_str("</tbody></table>");
    }
    if let Some(next) = next {
        let (prefix, after) = (encoded(prefix), encoded(next.as_str()));
        let _ = write!(page, "<p><a href=\"/?prefix={prefix}&amp;after={after}\">Next page</a></p>");
    }
    page.push_str("</main></body></html>");
    page
}

/// A row for each holder, or one for a lock that is only waited for.
fn rows(page: &mut String, caller: &Caller, info: &Info) {
    let (name, waiting) = (text(info.name.as_str()), info.waiters().count());
    let may_evict = caller.may(Verb::Evict, &info.name);
    let mut holders = info.holders().peekable();
    if holders.peek().is_none() {
        let _ = write!(page, "<tr><th scope=\"row\">{name}<td>–<td>–<td>–<td>–<td><td>{waiting}<td></tr>");
    }
    for claim in holders {
        let _ = write!(
            page,
            "<tr{}><th scope=\"row\">{name}<td>{}<td data-step=\"1\">{}{}<td>{}<td>{}<td>{waiting}<td>{}</tr>",
            if claim.is_overdue() { " class=\"overdue\"" } else { "" },
            holder(claim),
            seconds(claim.age),
            claim
                .expires_in
                .map_or_else(|| "<td>–".to_owned(), |left| format!("<td data-step=\"-1\">{}", seconds(left))),
            claim.token.map_or_else(|| "–".to_owned(), |token| token.to_string()),
            claim.reason.as_deref().map(text).unwrap_or_default(),
            if may_evict { action(info, claim) } else { String::new() },
        );
    }
}

/// Returns the link to the question whether to evict a holder.
fn action(info: &Info, claim: &ClaimInfo) -> String {
    let Some(token) = claim.token.filter(|_| !claim.evicted) else { return String::new() };
    let name = info.name.as_str();
    let label = text(name);
    format!(
        "<a href=\"/evict?name={}&amp;token={token}\" aria-label=\"evict from {label}\">evict</a>",
        encoded(name)
    )
}

fn encoded(part: &str) -> impl std::fmt::Display {
    utf8_percent_encode(part, NON_ALPHANUMERIC)
}

/// Returns the holder for HTML.
pub(crate) fn holder(claim: &ClaimInfo) -> String {
    let how = if claim.detached { "lease" } else { "process" };
    format!(
        "{} <small>{how} of pid {} on {}</small>",
        text(&claim.holder.label),
        claim.holder.pid,
        text(&claim.holder.host)
    )
}

fn seconds(time: std::time::Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Returns an untrusted text for HTML. Characters that hide or turn text are shown as such.
pub(crate) fn text(text: &str) -> String {
    escaped(&visible(text))
}

/// Returns a text for HTML as it is.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn untrusted_texts_are_texts() {
        assert_eq!(text("<b onclick='x'>&\"</b>"), "&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;&lt;/b&gt;");
        assert!(!text("a\u{202e}b").contains('\u{202e}'));
    }
}
