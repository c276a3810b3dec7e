//! The page: all locks of the engine, readable without JavaScript and live with it.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use fencepost_core::{ClaimInfo, Info, visible};

use crate::operator::listing;
use crate::problem::Answer;
use crate::rights::caller::Caller;
use crate::service::Service;

/// The most locks that the page shows.
const SHOWN: usize = 500;

pub(crate) async fn locks(State(service): State<Service>, caller: Caller) -> Answer<Html<String>> {
    let (locks, next) = listing(&service, &caller, "", None, SHOWN).await?;
    Ok(Html(render(service.locks.capabilities().engine, &locks, next.is_some())))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css"))
}

fn render(engine: &str, locks: &[Info], has_more: bool) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>fencepost</title><link rel=\"stylesheet\" href=\"/page.css\">\
         <script src=\"/page.js\" defer></script></head><body><header><h1>fencepost</h1><p>{} on {}</p></header><main>",
        match locks.len() {
            1 => "1 lock".to_owned(),
            count => format!("{count}{} locks", if has_more { " of more" } else { "" }),
        },
        text(engine)
    );
    if locks.is_empty() {
        page.push_str("<p>Nothing is held or waited for.</p>");
    } else {
        page.push_str(
            "<table><thead><tr><th>Lock<th>Holder<th>For<th>Lease left<th>Token<th>Reason<th>Waiting</tr></thead><tbody>",
        );
        locks.iter().for_each(|info| rows(&mut page, info));
        page.push_str("</tbody></table>");
    }
    page.push_str("</main></body></html>");
    page
}

/// A row for each holder, or one for a lock that is only waited for.
fn rows(page: &mut String, info: &Info) {
    let (name, waiting) = (text(info.name.as_str()), info.waiters().count());
    let mut holders = info.holders().peekable();
    if holders.peek().is_none() {
        let _ = write!(page, "<tr><th scope=\"row\">{name}<td>–<td>–<td>–<td>–<td><td>{waiting}</tr>");
    }
    for claim in holders {
        let _ = write!(
            page,
            "<tr{}><th scope=\"row\">{name}<td>{}<td data-step=\"1\">{}{}<td>{}<td>{}<td>{waiting}</tr>",
            if claim.is_overdue() { " class=\"overdue\"" } else { "" },
            holder(claim),
            seconds(claim.age),
            claim
                .expires_in
                .map_or_else(|| "<td>–".to_owned(), |left| format!("<td data-step=\"-1\">{}", seconds(left))),
            claim.token.map_or_else(|| "–".to_owned(), |token| token.to_string()),
            claim.reason.as_deref().map(text).unwrap_or_default(),
        );
    }
}

fn holder(claim: &ClaimInfo) -> String {
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

/// Returns a stranger's text for HTML. Characters that hide or turn text are shown as such.
fn text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in visible(text).chars() {
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
    fn texts_of_strangers_are_texts() {
        assert_eq!(text("<b onclick='x'>&\"</b>"), "&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;&lt;/b&gt;");
        assert!(!text("a\u{202e}b").contains('\u{202e}'));
    }
}
