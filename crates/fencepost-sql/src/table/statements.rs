//! The statements of the lease table. A statement about a claim has its name as `$1` and its owner as `$2`. No statement uses what MySQL
//! lacks: MySQL reads the table that a statement writes only in a derived table, and returns nothing of a changed row but the value of
//! `LAST_INSERT_ID`.

use std::sync::Arc;

use crate::database::Statement;
use crate::dialect::{Dialect, fill};
use crate::names::TableName;
use crate::table::claim::record::ANY_MODE;

/// The texts of all statements. The row of a holder is the lock's own row or a row of the queue, so the statements about a holder are pairs:
/// the first is for the lock's own row, the second for a row of the queue. `cut_session`, `cut` and `purge` are steps instead, which run
/// one after the other.
pub(crate) struct Statements {
    pub(crate) layout: Statement,
    pub(crate) reach: Arc<str>,
    pub(crate) acquire: Arc<str>,
    pub(crate) release: Arc<str>,
    pub(crate) lock_name: Arc<str>,
    pub(crate) make_name: Arc<str>,
    /// Reads all holders and waiters of a name: the lock's own row first, then the queue in the order of arrival.
    pub(crate) line: Arc<str>,
    /// Deletes a session if its lease has expired.
    pub(crate) purge_session: Arc<str>,
    /// Locks the row of a session, then cuts an end of it that comes from an earlier clock. The second statement waits for nobody, so its
    /// time is later than that of each renewal that has committed.
    pub(crate) cut_session: [Arc<str>; 2],
    /// The same for all rows of a name, whose lock's own row is locked already.
    pub(crate) cut: [Arc<str>; 3],
    /// Removes dead claims of a name: those in the queue, then the one in the lock's own row.
    pub(crate) purge: [Arc<str>; 2],
    pub(crate) fill_lock_row: Arc<str>,
    pub(crate) clear_lock_row: Arc<str>,
    /// Adds a row to the queue: a waiter if the token is zero, else a holder.
    pub(crate) join: Arc<str>,
    pub(crate) leave: Arc<str>,
    /// Gives a waiter in the queue its token.
    pub(crate) grant: Arc<str>,
    pub(crate) convert: Arc<str>,
    /// Copies the exclusive holder in the lock's own row to the queue, as a shared holder.
    pub(crate) copy_to_queue: Arc<str>,
    /// Writes the last token of a name, and whether the queue has rows for it. It ends a transaction that changed the line.
    pub(crate) write_token: Arc<str>,
    /// Reads a claim's token from the queue. Zero: it still waits.
    pub(crate) collect: Arc<str>,
    pub(crate) extend: [Arc<str>; 2],
    pub(crate) evicted: [Arc<str>; 2],
    pub(crate) detach: [Arc<str>; 2],
    pub(crate) evict: [Arc<str>; 2],
    /// Counts an eviction in the row of the session, with its reason.
    pub(crate) count_eviction: Arc<str>,
    pub(crate) notify: Option<Arc<str>>,
    pub(crate) open_session: Arc<str>,
    pub(crate) renew: Arc<str>,
    /// Returns the owners of the rows of a session's claims, where `renew` cannot. `{0}` stands for a list of names, `{1}` for the session.
    pub(crate) owners: Option<String>,
    /// Reads the reason of the last eviction from the row of the session.
    pub(crate) eviction: Arc<str>,
    pub(crate) end_session: Arc<str>,
    /// Reads the owners of all rows of a session, and which of them are evicted.
    pub(crate) owned: Arc<str>,
    pub(crate) claims: Arc<str>,
    pub(crate) names: Arc<str>,
    pub(crate) claims_of_names: Arc<str>,
    pub(crate) stored_permits: Arc<str>,
    pub(crate) set_permits: Arc<str>,
    /// Removes the sessions that have expired before `$1`.
    pub(crate) remove_sessions: Arc<str>,
    /// Reads the next names behind `$1`: the last of them, their greatest token, and their number. The last page ends with the last name of
    /// all, also if that has rows in the queue alone, because its own row was deleted by hand.
    pub(crate) page_of_names: Arc<str>,
    /// Removes names that nobody has used since `$3` if the watermark has been above their tokens since `$4`: those behind `$1`, up to `$2`.
    pub(crate) remove_names: Arc<str>,
    /// Raises the watermark to `$1`, unless somebody has done so since `$2`.
    pub(crate) raise_watermark: Arc<str>,
    /// Returns the names behind `$1`, up to `$2`, with rows of claims that have been dead since `$3`. No index finds these rows, because each
    /// grant and release would have to write it.
    pub(crate) names_of_dead: Arc<str>,
}

/// How many names a cleaner looks at in one statement.
pub(crate) const PAGE: i64 = 1_000;

/// Columns that a new grant or waiter fills.
const NEW: &str = "owner, mode, session, ttl, fixed, record";

impl Statements {
    pub(crate) fn new(dialect: &Dialect, table: &TableName) -> Statements {
        let names = table.quote(dialect.quote);
        let (lock, queue, session) = (&names.lock, &names.queue, &names.session);
        let now = dialect.now;
        let floor = &fill(dialect.since_1970, &[now]);
        // When the lease of a row ends. Whoever sets another end leaves it that long at least, because somebody may have been told of it.
        // MySQL reads a column that the same statement has set before with its new value, so `session` is set after `expires`.
        let end =
            format!("coalesce(expires, (SELECT s.expires FROM {session} s WHERE s.id = session), {now})");
        let returned = |value: &str| fill(dialect.returned, &[value]);
        let returning = |column: &str| fill(dialect.returning, &[column]);
        let after = |micros: &str| fill(dialect.after, &[micros]);
        let pair = |text: &str| [lock, queue].map(|table| Arc::<str>::from(text.replace("{table}", table)));
        // Whether a row is dead, once the dead sessions are gone.
        let dead = format!(
            "CASE WHEN expires IS NOT NULL THEN expires <= {now} \
             ELSE NOT EXISTS (SELECT 1 FROM {session} s WHERE s.id = session) END"
        );
        let cleared = format!(
            "owner = NULL, session = NULL, expires = NULL, evicted = NULL, count = 0, modified = {now}"
        );
        let taken = format!(
            "owner = $2, mode = $3, session = $4, ttl = $5, fixed = $6, record = $7, \
             expires = CASE WHEN $6 = 1 THEN {} END, evicted = NULL, count = 1, since = {now}, modified = {now}",
            after("$5")
        );
        // How long the lease of a row lasts at most.
        let length = "CASE WHEN c.expires IS NULL THEN s.ttl ELSE c.ttl END AS length";
        let cut = |table: &str, key: &str| {
            let end = after("ttl");
            format!(
                "UPDATE {table} SET expires = {end}, modified = {now} WHERE {key} = $1 AND expires > {end}"
            )
        };
        // Everything that judges a line, for the lock's own row and for those of the queue.
        let judged = |id: &str, table: &str| {
            let left = fill(dialect.left, &["coalesce(c.expires, s.expires)"]);
            format!(
                "SELECT {id} AS id, c.owner, c.session, c.mode, c.token, {left} AS micros, s.client, \
                 CASE WHEN c.evicted IS NULL THEN 0 ELSE 1 END AS evicted, \
                 (SELECT p.permits FROM {lock} p WHERE p.name = $1) AS permits, {length} \
                 FROM {table} c LEFT JOIN {session} s ON s.id = c.session WHERE c.name = $1 AND c.owner IS NOT NULL"
            )
        };
        let shown = |id: &str, table: &str| {
            let left = fill(dialect.left, &["coalesce(c.expires, s.expires)"]);
            let since = fill(dialect.since_1970, &["c.since"]);
            let age = fill(dialect.left, &["c.since"]);
            format!(
                "SELECT c.name, {id} AS id, c.mode, c.token, {left} AS micros, {since} AS since, c.record, \
                 CASE WHEN c.evicted IS NULL THEN 0 ELSE 1 END AS evicted, \
                 CASE WHEN c.session IS NULL THEN 1 ELSE 0 END AS detached, \
                 CASE WHEN c.token > 0 THEN 0 ELSE 1 END AS waits, -{age} AS age, {length} \
                 FROM {table} c LEFT JOIN {session} s ON s.id = c.session \
                 WHERE c.owner IS NOT NULL AND coalesce(c.expires, s.expires) > {now}"
            )
        };
        let begins = fill(dialect.begins, &["c.name", "$1"]);
        let named = |table: &str| {
            format!(
                "SELECT c.name FROM {table} c LEFT JOIN {session} s ON s.id = c.session WHERE c.owner IS NOT NULL \
                 AND coalesce(c.expires, s.expires) > {now} AND c.name >= $1 AND c.name > $2 AND {begins}"
            )
        };
        // The owners of the rows whose name is among `{0}` and whose session is `{1}`.
        let held = [lock, queue]
            .map(|table| format!("SELECT owner FROM {table} WHERE name {{0}} AND session = {{1}}"))
            .join(" UNION ALL ");
        let text = |text: String| Arc::<str>::from(text);
        Statements {
            layout: (dialect.layout)(table),
            reach: "SELECT 1".into(),
            acquire: text(match dialect.upserts {
                true => format!(
                    // The row may have been deleted by hand: the queue tells whether others hold or wait.
                    "INSERT INTO {lock} AS l (name, token, {NEW}, count, expires) \
                     SELECT $1, greatest(coalesce((SELECT token FROM {lock} WHERE name = ''), 0) + 1, {floor}), \
                     $2, $3, $4, $5, $6, $7, 1, CASE WHEN $6 = 1 THEN {} END \
                     WHERE NOT EXISTS (SELECT 1 FROM {queue} q WHERE q.name = $1) \
                     ON CONFLICT (name) DO UPDATE SET token = greatest(l.token + 1, {floor}), {taken} \
                     WHERE l.owner IS NULL AND l.contended = 0 {}",
                    after("$5"),
                    returning("token")
                ),
                false => format!(
                    "UPDATE {lock} SET token = {}, {taken} WHERE name = $1 AND owner IS NULL AND contended = 0 {}",
                    returned(&format!("greatest(token + 1, {floor})")),
                    returning("token")
                ),
            }),
            release: text(format!(
                "UPDATE {lock} SET token = {}, {cleared} WHERE name = $1 AND owner = $2 AND contended = 0 \
                 AND (expires IS NULL OR expires > {now}) {}",
                returned("token"),
                returning("token")
            )),
            lock_name: text(format!(
                "SELECT token, contended, {floor}, permits FROM {lock} WHERE name = $1 FOR UPDATE"
            )),
            make_name: text(format!(
                "INSERT INTO {lock} (name, token) SELECT $1, coalesce(max(m.token), 0) FROM {lock} m WHERE m.name = '' {}",
                fill(dialect.or_nothing, &[lock])
            )),
            line: text(format!("{} UNION ALL {} ORDER BY 1", judged("0", lock), judged("c.id", queue))),
            cut_session: [
                text(format!("SELECT id FROM {session} WHERE id = $1 FOR UPDATE")),
                text(cut(session, "id")),
            ],
            cut: [
                text(format!("SELECT id FROM {queue} WHERE name = $1 ORDER BY id FOR UPDATE")),
                text(cut(queue, "name")),
                text(cut(lock, "name")),
            ],
            purge_session: text(format!("DELETE FROM {session} WHERE id = $1 AND expires <= {now}")),
            purge: [
                text(format!("DELETE FROM {queue} WHERE name = $1 AND {dead}")),
                text(format!("UPDATE {lock} SET {cleared} WHERE name = $1 AND owner IS NOT NULL AND {dead}")),
            ],
            fill_lock_row: text(format!("UPDATE {lock} SET token = $8, {taken} WHERE name = $1")),
            clear_lock_row: text(format!("UPDATE {lock} SET {cleared} WHERE name = $1 AND owner = $2")),
            join: text(format!(
                "INSERT INTO {queue} (name, {NEW}, token, count, expires) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, \
                 CASE WHEN $6 = 1 AND $8 > 0 THEN {} END) {}",
                after("$5"),
                returning("id")
            )),
            leave: text(format!("DELETE FROM {queue} WHERE name = $1 AND owner = $2")),
            grant: text(format!(
                "UPDATE {queue} SET token = $2, expires = CASE WHEN fixed = 1 THEN {} END, since = {now}, modified = {now} \
                 WHERE id = $1",
                after("ttl")
            )),
            convert: text(format!(
                "UPDATE {queue} SET mode = $3, token = $4, modified = {now} WHERE name = $1 AND owner = $2"
            )),
            copy_to_queue: text(format!(
                "INSERT INTO {queue} (name, owner, mode, session, ttl, fixed, record, token, count, expires, since) \
                 SELECT name, owner, 1, session, ttl, fixed, record, token, count, expires, since \
                 FROM {lock} WHERE name = $1 AND owner = $2"
            )),
            write_token: text(format!(
                "UPDATE {lock} SET token = $2, contended = $3, modified = {now} WHERE name = $1"
            )),
            collect: text(format!("SELECT token FROM {queue} WHERE name = $1 AND owner = $2")),
            extend: pair(&format!(
                "UPDATE {{table}} SET token = {}, expires = greatest({end}, {}), ttl = greatest(ttl, $3), \
                 modified = {now} \
                 WHERE name = $1 AND owner = $2 AND (mode = $4 OR $4 = {ANY_MODE}) AND token > 0 AND evicted IS NULL \
                 AND (expires IS NULL OR expires > {now}) {}",
                returned("token"),
                after("$3"),
                returning("token")
            )),
            evicted: pair("SELECT evicted FROM {table} WHERE name = $1 AND owner = $2"),
            detach: pair(&format!(
                "UPDATE {{table}} SET token = {}, expires = greatest({end}, {}), ttl = greatest(ttl, $3), session = NULL, \
                 modified = {now} \
                 WHERE name = $1 AND owner = $2 AND token > 0 AND evicted IS NULL \
                 AND (expires IS NULL OR expires > {now}) {}",
                returned("token"),
                after("$3"),
                returning("token")
            )),
            evict: pair(&format!(
                "UPDATE {{table}} SET evicted = $3, expires = {end}, modified = {now} WHERE name = $1 AND owner = $2"
            )),
            count_eviction: text(format!(
                "UPDATE {session} SET evictions = evictions + 1, evicted = $2 WHERE id = $1"
            )),
            notify: dialect.notify.map(Into::into),
            open_session: text(format!(
                "INSERT INTO {session} (id, client, host, process, ttl, expires) VALUES ($1, $2, $3, $4, $5, {}) {}",
                after("$5"),
                returning("id")
            )),
            renew: text(format!(
                "UPDATE {session} SET evictions = {} - 1, expires = greatest(expires, {}), modified = {now} WHERE id = $1 {}",
                returned("(evictions + 1)"),
                after("$2"),
                returning(&match dialect.names {
                    Some(names) => format!(
                        "evictions + 1, (SELECT string_agg(owner, ',') FROM ({}) AS mine)",
                        fill(&held, &[&fill(names, &["$3"]), "$1"])
                    ),
                    None => "evictions + 1".to_owned(),
                })
            )),
            owners: dialect.names.is_none().then(|| fill(&held, &["IN ({0})", "{1}"])),
            eviction: text(format!("SELECT evicted FROM {session} WHERE id = $1")),
            end_session: text(format!("DELETE FROM {session} WHERE id = $1")),
            owned: text(format!(
                "SELECT owner, evicted FROM {lock} WHERE session = $1 UNION ALL SELECT owner, evicted FROM {queue} \
                 WHERE session = $1"
            )),
            claims: text(format!(
                "{} AND c.name = $1 UNION ALL {} AND c.name = $1 ORDER BY waits, id",
                shown("0", lock),
                shown("c.id", queue)
            )),
            names: text(format!("{} UNION {} ORDER BY name LIMIT $3", named(lock), named(queue))),
            claims_of_names: text(format!(
                "{} AND c.name >= $1 AND c.name <= $2 UNION ALL {} AND c.name >= $1 AND c.name <= $2 \
                 ORDER BY name, waits, id",
                shown("0", lock),
                shown("c.id", queue)
            )),
            stored_permits: text(format!("SELECT permits FROM {lock} WHERE name = $1")),
            set_permits: text(format!("UPDATE {lock} SET permits = $2, modified = {now} WHERE name = $1")),
            names_of_dead: text({
                let long_dead = format!(
                    "name > $1 AND name <= $2 AND CASE WHEN expires IS NOT NULL THEN expires <= {} \
                     ELSE NOT EXISTS (SELECT 1 FROM {session} s WHERE s.id = session) END",
                    after("$3")
                );
                format!(
                    "SELECT name FROM {lock} WHERE owner IS NOT NULL AND {long_dead} \
                     UNION SELECT name FROM {queue} WHERE {long_dead}"
                )
            }),
            remove_sessions: text(format!("DELETE FROM {session} WHERE expires <= {}", after("$1"))),
            page_of_names: text(format!(
                "SELECT CASE WHEN count(*) < {PAGE} THEN \
                 greatest(coalesce(max(name), ''), coalesce((SELECT max(name) FROM {queue}), '')) ELSE max(name) END, \
                 max(token), count(*) FROM (SELECT name, token FROM {lock} WHERE name > $1 ORDER BY name LIMIT {PAGE}) AS page"
            )),
            // The watermark has to be old, because a statement that began before it was raised may still read the one before.
            remove_names: text(format!(
                "DELETE FROM {lock} WHERE name > $1 AND name <= $2 \
                 AND owner IS NULL AND contended = 0 AND permits IS NULL AND modified <= {} \
                 AND token <= (SELECT token FROM (SELECT max(token) AS token FROM {lock} \
                 WHERE name = '' AND modified <= {}) AS watermark)",
                after("$3"),
                after("$4")
            )),
            raise_watermark: text(format!(
                "UPDATE {lock} SET token = greatest(token, $1), modified = {now} WHERE name = '' AND modified <= {}",
                after("$2")
            )),
        }
    }
}
