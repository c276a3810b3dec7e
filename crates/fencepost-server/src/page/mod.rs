//! The page: all locks of the engine, readable without JavaScript and live with it.

pub(crate) mod confirm;
mod html;
pub(crate) mod live;
mod parts;
mod rows;
pub(crate) mod views;

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use fencepost_core::Runs;

use crate::page::confirm::check_origin;
use crate::page::html::{escaped, text};
use crate::page::parts::{Asked, Parts, Section, may_examine, parts};
use crate::page::rows::{head, rows};
use crate::problem::{Answer, Problem};
use crate::request::lock_name;
use crate::rights::caller::Caller;
use crate::rights::entry::Verb;
use crate::seen::Seen;
use crate::service::Service;

/// How long a look at the engine may take.
const LOOK: Duration = Duration::from_secs(10);

/// Shows all locks, or one.
pub(crate) async fn show(
    State(service): State<Service>,
    caller: Caller,
    query: Result<Query<Asked>, QueryRejection>,
) -> Answer<Response> {
    let asked = checked(&service, &caller, query)?;
    if asked.name.is_none() && service.listable(&caller, &asked.prefix).is_err() {
        return Ok((StatusCode::FORBIDDEN, Html(refused(&caller, &asked))).into_response());
    }
    let mut looks = service.snapshots.subscribe();
    let look = tokio::time::timeout(LOOK, looks.next()).await;
    let away = |detail: &str| Problem::unavailable("unreachable", detail);
    let seen = look.map_err(|_| away("the engine does not list its locks within 10 s; try again"))?;
    let seen = seen.ok_or_else(|| away("the service ends"))?.map_err(away)?;
    let runs = runs(&service, &asked).await?;
    let parts = parts(&service, &caller, &asked, &seen, runs.as_ref());
    Ok(Html(render(&service, &caller, &asked, &seen, &parts)).into_response())
}

/// Checks what a caller asks for.
fn checked(service: &Service, caller: &Caller, query: Result<Query<Asked>, QueryRejection>) -> Answer<Asked> {
    let Query(asked) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    if let Some(name) = &asked.name {
        service.check(caller, Verb::Read, &lock_name(name)?)?;
    }
    Ok(asked)
}

/// Returns the runs that the engine keeps of the lock that is asked for.
async fn runs(service: &Service, asked: &Asked) -> Answer<Option<Runs>> {
    let Some(name) = &asked.name else { return Ok(None) };
    Ok(service.locks.inspect(name).await?.runs)
}

/// Examines the engine, and shows the page again.
pub(crate) async fn examine(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
) -> Answer<Redirect> {
    check_origin(&headers)?;
    if !may_examine(&caller) {
        let detail = "the report of doctor needs the right to read all names";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail));
    }
    service.doctor.examine(&service.locks).await?;
    Ok(Redirect::to("./#doctor"))
}

pub(crate) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("page.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("page.css"))
}

/// Returns the page, as a browser without JavaScript shows it.
fn render(service: &Service, caller: &Caller, asked: &Asked, seen: &Seen, parts: &Parts<'_>) -> String {
    let (title, search) = match &asked.name {
        Some(name) => {
            (format!("Lock <bdi>{}</bdi>", text(name)), "<p><a href=\"./\">All locks</a></p>".to_owned())
        }
        None => ("Locks".to_owned(), form(asked)),
    };
    let engine = text(service.locks.capabilities().engine);
    let mut main = format!(
        "<header><h1>{title}</h1><p>on {engine}</p>{search}<p id=\"live\" role=\"status\">Reload the page to see changes.</p>\
         </header><main id=\"main\" tabindex=\"-1\">"
    );
    sections(&mut main, &parts.above);
    let head = head(caller);
    let _ =
        write!(main, "<table id=\"locks\"><caption class=\"hidden\">Locks and their holders</caption>{head}");
    for info in &parts.locks {
        main.push_str(&rows(caller, info, seen, parts.waiters));
    }
    main.push_str("</table>");
    sections(&mut main, &parts.below);
    main.push_str("</main>");
    let head = format!(
        "<script src=\"page.js\" defer></script><meta name=\"now\" content=\"{}\">",
        seen.at_micros / 1000
    );
    frame("fencepost", &head, &main)
}

/// Returns the page for a caller that may read none of the names that it asks for. It tells nothing of them.
fn refused(caller: &Caller, asked: &Asked) -> String {
    // A caller without the right has nothing to search.
    let (rest, search) = match caller.readable("").is_empty() {
        true => ("", String::new()),
        false => (" for names that begin like this", form(asked)),
    };
    let main = format!(
        "<header><h1>Locks</h1>{search}</header><main id=\"main\" tabindex=\"-1\"><p>This access token does not have the right \
         <code>read</code>{rest}.</p></main>"
    );
    frame("fencepost: no right to read", "", &main)
}

fn sections(page: &mut String, sections: &[Section]) {
    for (id, section) in sections {
        page.push_str(&in_section(id, section));
    }
}

/// Returns a section that the script can put in the place of an earlier one.
fn in_section(id: &str, section: &str) -> String {
    format!("<section id=\"{id}\">{section}</section>")
}

fn form(asked: &Asked) -> String {
    format!(
        "<form role=\"search\"><label>Begins with <input type=\"search\" name=\"prefix\" value=\"{}\"></label> <label>Contains \
         <input type=\"search\" name=\"search\" value=\"{}\"></label> <button>Show</button></form>",
        escaped(&asked.prefix),
        escaped(&asked.search)
    )
}

/// Returns a whole page. `head` and `body` are HTML.
fn frame(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><link \
         rel=\"stylesheet\" href=\"page.css\">{head}</head><body><a class=\"skip\" href=\"#main\">Skip to the locks</a>{body}\
         </body></html>"
    )
}
