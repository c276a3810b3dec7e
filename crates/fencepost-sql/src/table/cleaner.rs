//! Removes rows that nobody needs any more: sessions and claims of dead clients, and locks that nobody has used for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_core::CleaningTimes;

use crate::database::{Lane, Row, Value, with};
use crate::failure::{Failure, past_conflicts};
use crate::table::claim::line::Line;
use crate::table::client::{TableClient, micros};
use crate::table::statements::PAGE;

/// How long the session of a dead client stays after its lease.
const KEEP_SESSION: Duration = Duration::from_secs(24 * 3600);

/// How long a name stays after its last use.
const KEEP_NAME: Duration = Duration::from_secs(30 * 24 * 3600);

/// How old the watermark has to be before names are removed whose last tokens are not above it. Names that were removed begin again above the
/// watermark, and a statement that began before it was raised may still read the one before. No statement lasts as long as this.
const KEEP_WATERMARK: Duration = Duration::from_secs(24 * 3600);

/// How long the client pauses after each page of names: claims come first.
const PAUSE: Duration = Duration::from_millis(10);

/// Cleans until the client is dropped.
pub(crate) async fn run(client: Weak<TableClient>) {
    let Some(mut times) = client.upgrade().map(|client| CleaningTimes::of(&client.runtime)) else { return };
    while times.next().await {
        if client.strong_count() == 0 {
            return;
        }
        // A step that fails skips no other one.
        let steps =
            [remove_sessions(&client).await, clean_names(&client).await, remove_claims(&client).await];
        for failure in steps.into_iter().filter_map(Result::err) {
            tracing::debug!(%failure, "old rows of the lease table stay");
        }
    }
}

/// Returns the client, if it is still in use.
fn in_use(client: &Weak<TableClient>) -> Option<Arc<TableClient>> {
    client.upgrade().filter(|client| !client.runtime.clock().is_stopped())
}

fn ago(duration: Duration) -> Value {
    (-micros(duration)).into()
}

async fn remove_sessions(client: &Weak<TableClient>) -> Result<(), Failure> {
    let Some(client) = in_use(client) else { return Ok(()) };
    run_one(&client, &client.statements.remove_sessions, vec![ago(KEEP_SESSION)]).await.map(drop)
}

/// Removes names, and then raises the watermark for the next cleaning. A watermark that was raised after a failure would put off by a day
/// what has failed.
async fn clean_names(client: &Weak<TableClient>) -> Result<(), Failure> {
    let greatest = remove_names(client).await?;
    raise_watermark(client, greatest).await
}

/// Removes names that nobody has used for long. Returns the greatest token of all names.
async fn remove_names(client: &Weak<TableClient>) -> Result<i64, Failure> {
    let (mut pages, mut greatest) = (Pages::new(client), 0);
    while let Some(page) = pages.next().await? {
        greatest = page.greatest.max(greatest);
        let values = vec![page.after.into(), page.end.into(), ago(KEEP_NAME), ago(KEEP_WATERMARK)];
        run_one(&page.client, &page.client.statements.remove_names, values).await?;
    }
    Ok(greatest)
}

async fn raise_watermark(client: &Weak<TableClient>, greatest: i64) -> Result<(), Failure> {
    let Some(client) = in_use(client) else { return Ok(()) };
    let values = vec![greatest.into(), ago(KEEP_WATERMARK)];
    run_one(&client, &client.statements.raise_watermark, values).await.map(drop)
}

/// Removes the claims of dead clients for names that nobody asks for any more.
async fn remove_claims(client: &Weak<TableClient>) -> Result<(), Failure> {
    let mut pages = Pages::new(client);
    while let Some(NamesPage { client, after, end, .. }) = pages.next().await? {
        // A session is removed a day after its lease, so a claim without a session has been dead for as long as one whose own lease expired a
        // day ago.
        let values = vec![after.into(), end.into(), ago(KEEP_SESSION)];
        let dead = run_one(&client, &client.statements.names_of_dead, values).await?;
        for name in dead.iter().filter_map(|row| row.text(0)) {
            past_conflicts(&client.runtime, || remove_dead(&client, name)).await?;
        }
    }
    Ok(())
}

/// Reads all names page by page, because a statement for all of them could take longer than its time limit, and the server would undo it.
struct Pages<'a> {
    client: &'a Weak<TableClient>,
    /// The last name of the page before. `None` behind the last page.
    last: Option<Arc<str>>,
}

/// The names behind `after`, up to `end`.
struct NamesPage {
    client: Arc<TableClient>,
    after: Arc<str>,
    end: Arc<str>,
    /// The greatest of their tokens.
    greatest: i64,
}

impl<'a> Pages<'a> {
    fn new(client: &'a Weak<TableClient>) -> Pages<'a> {
        Pages { client, last: Some("".into()) }
    }

    /// Returns the next page. `None`: there is none, or the client is not in use any more.
    async fn next(&mut self) -> Result<Option<NamesPage>, Failure> {
        let Some(after) = self.last.take() else { return Ok(None) };
        if !after.is_empty()
            && let Some(clock) = in_use(self.client).map(|client| client.runtime.clock().clone())
        {
            clock.sleep_until(clock.now() + PAUSE).await;
        }
        let Some(client) = in_use(self.client) else { return Ok(None) };
        let read =
            run_one(&client, &client.statements.page_of_names, vec![Arc::clone(&after).into()]).await?;
        let Some((row, end)) = read.first().and_then(|row| Some((row, Arc::clone(row.text(0)?)))) else {
            return Ok(None);
        };
        if row.int(2) == PAGE {
            self.last = Some(Arc::clone(&end));
        }
        Ok((end > after).then(|| NamesPage { client, after, end, greatest: row.int(1) }))
    }
}

/// Runs a statement that is rare. Returns its rows.
async fn run_one(client: &TableClient, text: &Arc<str>, values: Vec<Value>) -> Result<Vec<Row>, Failure> {
    Ok(client.run_all(vec![with(text, values)], Lane::Claims).await?.pop().unwrap_or_default())
}

/// Removes the claims of dead clients for a name that nobody asks for any more. A claim that is still there is granted if it is its turn.
async fn remove_dead(client: &TableClient, name: &Arc<str>) -> Result<(), Failure> {
    let mut transaction = client.database.begin().await?;
    let mut line = Line::read(client, &mut *transaction, name).await?;
    line.admit(client, None);
    line.commit(client, transaction, false).await.map(drop)
}
