//! How resources and claims are shown: to people as text, to programs as JSON.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

pub(crate) use fencepost_core::visible;
use fencepost_core::{ClaimInfo, Info, Mode};
use serde_json::{Value, json};

use crate::duration;
use crate::exit::{Failure, OWN};

/// Characters of a cell: what other programs wrote about themselves may be a kilobyte long.
const CELL: usize = 100;

/// The beginning of a text that is too long for a table.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(CELL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether standard output may be coloured: a terminal, and no NO_COLOR (<https://no-color.org>).
pub(crate) fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `text` in bold, where colours are welcome.
pub(crate) fn bold(text: &str) -> String {
    if colour() { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Writes to standard output.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Prints to standard output. A reader that has gone (`| head`) is no error; a full disk is. Returns whether there is a reader.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    match write(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(OWN, format!("cannot write to standard output: {error}"))),
    }
}

/// Prints one line.
pub(crate) fn line(text: &str) -> Result<bool, Failure> {
    print(&format!("{text}\n"))
}

/// Returns the claim's owner as one phrase: `ann@web1/backup (host web1, pid 12)`.
pub(crate) fn who(claim: &ClaimInfo) -> String {
    visible(&claim.holder.to_string())
}

/// A holder as one phrase: `held by`, and [`phrase`]. A lease that belongs to no process has only its taker.
pub(crate) fn held(claim: &ClaimInfo) -> String {
    if !claim.detached {
        return format!("held by {}", phrase(claim));
    }
    let (label, host) = (&claim.holder.label, &claim.holder.host);
    // Of `user@host/program` the program has ended.
    let taker = label.rsplit_once('/').map(|(place, _)| place);
    let taker = taker.filter(|place| place.ends_with(&format!("@{host}"))).unwrap_or(label);
    format!("lease taken by {}, no process{}", visible(taker), details(claim))
}

/// A claim as one phrase: who, since when, how, what for.
pub(crate) fn phrase(claim: &ClaimInfo) -> String {
    format!("{}{}", who(claim), details(claim))
}

fn details(claim: &ClaimInfo) -> String {
    let mut text = String::new();
    if let Some(since) = since(claim) {
        let comma = if claim.detached { "," } else { "" };
        text.push_str(&format!("{comma} for {since}"));
    }
    if claim.mode != Mode::Exclusive {
        text.push_str(&format!(", {}", mode(claim.mode)));
    }
    if let Some(max_hold) = claim.max_hold {
        let overdue = if claim.is_overdue() { " (overdue)" } else { "" };
        text.push_str(&format!(", limit {}{overdue}", age(max_hold)));
    }
    if let Some(count) = claim.entered.filter(|count| *count > 1) {
        text.push_str(&format!(", entered {count} times"));
    }
    if claim.evicted {
        text.push_str(", evicted");
    }
    if claim.unconfirmed {
        text.push_str(", not confirmed by enough nodes");
    }
    if claim.endless {
        text.push_str(", never expires: it has no lease");
    }
    if let Some(reason) = &claim.reason {
        text.push_str(&format!(", reason: {}", visible(reason)));
    }
    text
}

/// How long it has held or waited, as a person reads it; "up to" so long where the engine does not keep when it was granted.
/// `None`: nobody says.
pub(crate) fn since(claim: &ClaimInfo) -> Option<String> {
    let at_most = if claim.from_arrival { "up to " } else { "" };
    (claim.since_micros > 0).then(|| format!("{at_most}{}", age(claim.age)))
}

/// An age as a person reads it.
pub(crate) fn age(age: Duration) -> String {
    duration::show(age)
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { n, of } => format!("{n} of {of} permits"),
        other => other.to_string(),
    }
}

/// A claim for programs.
pub(crate) fn claim_json(claim: &ClaimInfo) -> Value {
    let (mode, permits) = match claim.mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permits { n, of } => ("permits", Some(json!({ "n": n, "of": of }))),
    };
    let known = (claim.since_micros > 0).then_some(claim.since_micros);
    let since = if claim.holds() && !claim.from_arrival { "grant" } else { "arrival" };
    let mut fields = json!({
        "holder": claim.holder.label,
        "host": claim.holder.host,
        "pid": claim.holder.pid,
        "mode": mode,
        "permits": permits,
        "token": claim.token.map(|token| token.get()),
        "since": known.map(|_| since),
        "since_micros": known,
        "age_ms": known.map(|_| duration::millis(claim.age)),
        "expires_in_ms": claim.expires_in.map(duration::millis),
        "reason": claim.reason,
        "max_hold_ms": claim.max_hold.map(duration::millis),
        "max_wait_ms": claim.max_wait.map(duration::millis),
        "overdue": claim.is_overdue(),
        "evicted": claim.evicted,
        "detached": claim.detached,
    });
    // Few claims have these.
    let rare = [
        ("entered", claim.entered.map(Value::from)),
        ("endless", claim.endless.then(|| true.into())),
        ("unconfirmed", claim.unconfirmed.then(|| true.into())),
        ("later_format", claim.later_format.map(Value::from)),
    ];
    for (name, value) in rare {
        if let Some(value) = value {
            fields[name] = value;
        }
    }
    fields
}

/// A resource for programs.
pub(crate) fn info_json(info: &Info) -> Value {
    json!({
        "name": info.name.as_str(),
        "last_token": info.last_token.map(|token| token.get()),
        "holders": info.holders().map(claim_json).collect::<Vec<_>>(),
        "waiters": info.waiters().map(claim_json).collect::<Vec<_>>(),
    })
}

/// Rows under a head, in columns as wide as their widest cell; the last column is as wide as it likes.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines = columns(head, rows).into_iter();
    let mut text = format!("{}\n", bold(&lines.next().unwrap_or_default()));
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The lines of a table, the head first.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let pad = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    std::iter::once(&head).chain(rows).map(|row| pad(row)).collect()
}

/// Cuts cells until the table is at most `width` wide: of the columns in `cut`, each down to its length, the first one first.
pub(crate) fn fit(head: &[&str], rows: &mut [Vec<String>], width: usize, cut: &[(&str, usize)]) {
    let wide = |rows: &[Vec<String>], column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    for (name, least) in cut {
        let Some(column) = head.iter().position(|head| head == name) else { continue };
        let total: usize = (0..head.len()).map(|column| wide(rows, column) + 2).sum();
        let excess = (total - 2).saturating_sub(width);
        let limit = wide(rows, column).saturating_sub(excess).max(*least);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
            if cell.chars().count() > limit {
                let kept: String = cell.chars().take(limit - 1).collect();
                *cell = format!("{kept}…");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost_core::HolderInfo;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["N", "T"], &rows), "N     T\na     1\nlong  2\n");
    }

    #[test]
    fn a_table_is_cut_to_its_width() {
        let mut rows = [vec!["n".repeat(40), "3s".to_owned(), "h".repeat(30), "r".repeat(200)]];
        let head = ["NAME", "HELD", "HOLDER", "REASON"];
        fit(&head, &mut rows, 80, &[("REASON", 8), ("HOLDER", 12), ("NAME", 12)]);
        let lengths: Vec<usize> = rows[0].iter().map(|cell| cell.chars().count()).collect();
        assert_eq!(lengths, [40, 2, 22, 8]);
        assert!(
            rows[0][3].ends_with('…') && table(&head, &rows).lines().all(|line| line.chars().count() <= 80)
        );
        let before = rows.clone();
        fit(&head, &mut rows, 80, &[("REASON", 8)]);
        assert_eq!(rows, before, "it fits already");
    }

    #[test]
    fn a_claim_says_how_often_it_was_entered() {
        let mut claim = ClaimInfo::new(HolderInfo::new("me", "h", 7), Mode::Exclusive);
        for (entered, text) in [(None, ""), (Some(1), ""), (Some(3), ", entered 3 times")] {
            claim.entered = entered;
            assert_eq!(phrase(&claim), format!("me (host h, pid 7){text}"));
            assert_eq!(claim_json(&claim)["entered"].as_u64(), entered.map(u64::from));
        }
    }

    #[test]
    fn a_lease_has_a_taker_and_no_process() {
        for (label, taker) in [("ann@h/fencepost", "ann@h"), ("deploy", "deploy"), ("a/b", "a/b")] {
            let mut claim = ClaimInfo::new(HolderInfo::new(label, "h", 7), Mode::Exclusive);
            claim.detached = true;
            assert_eq!(held(&claim), format!("lease taken by {taker}, no process"));
            claim.detached = false;
            assert_eq!(held(&claim), format!("held by {label} (host h, pid 7)"));
        }
    }

    #[test]
    fn cells_are_cut() {
        assert_eq!(short(&"ä".repeat(CELL)), "ä".repeat(CELL));
        assert_eq!(short(&"ä".repeat(CELL + 1)), format!("{}…", "ä".repeat(CELL)));
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(visible("pay\u{202e}or\u{200b}ll कि"), "pay\\u{202e}or\\u{200b}ll कि");
    }
}
