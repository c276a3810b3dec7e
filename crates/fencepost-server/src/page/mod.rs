//! The page: all locks of the engine, readable without JavaScript and live with it.

mod charts;
pub(crate) mod confirm;
mod html;
pub(crate) mod live;
mod parts;
mod rows;
mod runs;
mod timeline;
pub(crate) mod views;

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use fencepost_core::Runs;

use crate::archive::Past;
use crate::page::confirm::check_origin;
use crate::page::html::{date_and_time, escaped, text};
use crate::page::parts::{Asked, OF_LOCK, Parts, Section, may_examine, parts};
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
    let kept = kept(&service, &asked).await?;
    let parts = parts(&service, &caller, &asked, &seen, &kept);
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

/// What others keep of the lock that is asked for: the engine its runs, and a file its grants.
#[derive(Clone, Default)]
struct Kept {
    runs: Option<Runs>,
    past: Past,
}

/// Returns what is kept of the lock that is asked for.
async fn kept(service: &Service, asked: &Asked) -> Answer<Kept> {
    let Some(name) = &asked.name else { return Ok(Kept::default()) };
    let past = match &service.archive {
        Some(archive) => archive.of_lock(lock_name(name)?, OF_LOCK).await,
        None => Past::default(),
    };
    Ok(Kept { runs: service.locks.inspect(name).await?.runs, past })
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

/// The name of the program, with its sign.
const BRAND: &str = "<a class=\"brand\" href=\"./\"><svg viewBox=\"0 0 16 16\" aria-hidden=\"true\"><path d=\"M2 4l1.5-3L5 4v11H2zM6.5 4L8 \
                     1l1.5 3v11h-3zM11 4l1.5-3L14 4v11h-3zM0 6h16v2H0zM0 11h16v2H0z\"/></svg>fencepost</a>";

/// Returns the head of the page. The address of the engine is for a caller that may read all names. The script shows the present time in
/// the zone of the reader, and names that zone for all times of the page.
fn top(service: &Service, caller: &Caller, at_micros: u64) -> String {
    let engine = text(service.locks.capabilities().engine);
    let address = service.address.as_deref().filter(|_| may_examine(caller));
    let address = address.map_or_else(String::new, |address| format!(" <code>{}</code>", text(address)));
    format!(
        "<header><div class=\"top\">{BRAND}<span class=\"where\">{} <b>on {engine}</b>{address}</span><span id=\"now\">{}, times are UTC</span><span \
         id=\"live\" role=\"status\">Reload the page to see changes.</span></div>",
        env!("CARGO_PKG_VERSION"),
        date_and_time(at_micros)
    )
}

/// Returns the page, as a browser without JavaScript shows it.
fn render(service: &Service, caller: &Caller, asked: &Asked, seen: &Seen, parts: &Parts<'_>) -> String {
    let mut main = top(service, caller, seen.at_micros);
    main.push_str("<div class=\"title\">");
    match &asked.name {
        Some(name) => {
            let _ = write!(
                main,
                "<p><a href=\"./\">← All locks</a></p><h1><span class=\"hidden\">Lock </span><bdi>{}</bdi></h1>",
                text(name)
            );
        }
        None => {
            main.push_str("<h1>Locks</h1>");
            main.push_str(&form(asked));
        }
    }
    main.push_str("</div></header><main id=\"main\" tabindex=\"-1\">");
    sections(&mut main, &parts.above);
    let head = head(caller);
    let _ = write!(
        main,
        "<table id=\"locks\"{}><caption class=\"hidden\">Locks and their holders</caption>{head}",
        if asked.name.is_some() { " class=\"one\"" } else { "" }
    );
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
    let title = asked
        .name
        .as_deref()
        .map_or_else(|| "fencepost".to_owned(), |name| format!("{} · fencepost", text(name)));
    frame(&title, &head, &main)
}

/// Returns the page for a caller that may read none of the names that it asks for. It tells nothing of them.
fn refused(caller: &Caller, asked: &Asked) -> String {
    // A caller without the right has nothing to search.
    let (rest, search) = match caller.readable("").is_empty() {
        true => ("", String::new()),
        false => (" for names that begin like this", form(asked)),
    };
    let main = format!(
        "<header><div class=\"top\">{BRAND}</div><div class=\"title\"><h1>Locks</h1>{search}</div></header><main id=\"main\" \
         tabindex=\"-1\"><p>This access token does not have the right \
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
        "<form role=\"search\"><label>Begins with <input type=\"search\" name=\"prefix\" placeholder=\"stock/\" \
         value=\"{}\"></label> <label>Contains <input type=\"search\" name=\"search\" placeholder=\"name, holder, host, reason\" \
         value=\"{}\"></label> <button>Show</button></form>",
        escaped(&asked.prefix),
        escaped(&asked.search)
    )
}

/// The sign of the program for the tab of a browser.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%230d8074' d='M2 \
                    4l1.5-3L5 4v11H2zM6.5 4L8 1l1.5 3v11h-3zM11 4l1.5-3L14 4v11h-3zM0 6h16v2H0zM0 11h16v2H0z'/%3E%3C/svg%3E";

/// Returns a whole page. `head` and `body` are HTML.
fn frame(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><link rel=\"icon\" href=\"{ICON}\"><link \
         rel=\"stylesheet\" href=\"page.css\">{head}</head><body><a class=\"skip\" href=\"#main\">Skip to the locks</a>{body}\
         </body></html>"
    )
}
