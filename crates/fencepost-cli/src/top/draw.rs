//! The view on the terminal, drawn from its state alone.

use std::time::Instant;

use fencepost_core::{ClaimInfo, Info};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Clear;

use crate::show::{age, phrase, since, visible};
use crate::top::lock;
use crate::top::state::{Need, State, View};
use crate::verbs::ls;

/// The lines above and below what scrolls: the head, the title and the columns; and the sentence about the chosen lock, and the keys.
const ABOVE: u16 = 4;
const BELOW: u16 = 2;
/// The columns of the list: the least width of the terminal at which each is shown, and its own.
const COLUMNS: [(&str, u16, Constraint); 8] = [
    ("", 0, Constraint::Length(1)),
    ("NAME", 0, Constraint::Fill(3)),
    ("MODE", 64, Constraint::Length(9)),
    ("HOLDER", 0, Constraint::Fill(3)),
    ("HOST", 76, Constraint::Fill(1)),
    ("PID", 76, Constraint::Length(7)),
    ("HELD", 0, Constraint::Length(8)),
    ("WAIT", 0, Constraint::Length(4)),
];
/// The keys, in pairs of a key and what it does.
const KEYS: [(&str, &str); 11] = [
    ("↑ ↓ or k j", "choose a lock, or scroll"),
    ("PgUp PgDn", "a page up or down"),
    ("Home End", "to the first or the last lock"),
    ("Enter", "show one lock: its holders, its queue, its last runs"),
    ("Esc", "back to all locks; there: end the filter"),
    ("/", "filter by a part of a name, a holder, a host or a reason"),
    ("r", "look at the engine now"),
    ("Ctrl-Z", "suspend"),
    ("?", "this help"),
    ("q", "quit"),
    ("! and +", "mark an overdue holder, and a queue of five or more"),
];

/// Which styles are welcome. Without colours bold and reversed text remain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Palette {
    pub(crate) colour: bool,
}

impl Palette {
    fn of(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn long(self) -> Style {
        self.of(Color::Yellow)
    }

    fn faint(self) -> Style {
        if self.colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Returns the size of what scrolls.
pub(crate) fn body(size: Size) -> Size {
    Size { width: size.width.saturating_sub(2), height: size.height.saturating_sub(ABOVE + BELOW) }
}

/// Draws the view as it is at `now`.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State, now: Instant, palette: Palette) {
    let area = inset(frame.area());
    let [head, numbers, title, columns, body, sentence, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    put(frame, head, self::head(state));
    put(frame, numbers, self::numbers(state, now, palette));
    match &state.view {
        View::List => {
            put(frame, title, list_title(state, palette));
            list(frame, columns, body, state, palette);
            let (text, style) = about_chosen(state, palette);
            put(frame, sentence, Line::styled(cut(&text, usize::from(sentence.width)), style));
        }
        View::Lock(name, from) => {
            put(frame, title, Line::styled(format!("Lock {}", visible(name.as_str())), BOLD));
            let lines = state.lines(body.width);
            for (line, row) in lines.iter().skip(*from).zip(body.rows()) {
                let (text, style) = match line {
                    lock::Line::Heading(text) => (text, BOLD),
                    lock::Line::Head(text) => (text, palette.faint()),
                    lock::Line::Plain(text) => (text, Style::new()),
                    lock::Line::Bad(text) => (text, palette.bad()),
                };
                put(frame, row, Line::styled(text.as_str(), style));
            }
            let below = lines.len().saturating_sub(from + usize::from(body.height));
            if below > 0 {
                put(frame, sentence, Line::styled(format!("{below} more lines below"), palette.faint()));
            }
        }
    }
    let hint = match (&state.view, state.types) {
        (_, true) => "Enter: keep the filter   Esc: end it",
        (View::List, _) => "↑ ↓ choose   Enter open   / filter   ? help   q quit",
        (View::Lock(..), _) => "↑ ↓ scroll   Esc back   ? help   q quit",
    };
    put(frame, keys, Line::styled(hint, palette.faint()));
    if state.help {
        help(frame, area);
    }
}

/// Leaves a column free at each side.
fn inset(area: Rect) -> Rect {
    Rect { x: area.x + area.width.min(1), width: area.width.saturating_sub(2), ..area }
}

fn put<'a>(frame: &mut Frame<'_>, area: Rect, line: impl Into<Line<'a>>) {
    frame.render_widget(line.into(), area);
}

fn head(state: &State) -> Line<'static> {
    let engine = state.look.as_ref().and_then(|(look, _)| look.engine);
    let on = engine.map_or_else(String::new, |engine| format!(" on {engine}"));
    Line::from(vec![
        Span::styled("fencepost", BOLD),
        Span::raw(format!(" {}{on}  {}", env!("CARGO_PKG_VERSION"), state.address)),
    ])
}

/// The numbers of the last look, or why there is none.
fn numbers(state: &State, now: Instant, palette: Palette) -> Line<'static> {
    let Some((look, at)) = &state.look else {
        return match &state.away {
            Some(away) => away_line(state, now, &away.cause, palette),
            None => Line::raw("looking at the engine …"),
        };
    };
    if let Some(away) = &state.away {
        let old = age(now.duration_since(*at));
        return away_line(state, now, &format!("{} (what follows is {old} old)", away.cause), palette);
    }
    let waiting: usize = look.locks.iter().map(|info| info.waiters().count()).sum();
    let locks = match look.locks.len() {
        1 => "1 lock".to_owned(),
        count => format!("{count} locks"),
    };
    let rate = state.rate().map_or_else(String::new, |rate| format!(" · {rate:.1} grants a second"));
    Line::raw(format!("{locks} · {waiting} waiting{rate}"))
}

fn away_line(state: &State, now: Instant, cause: &str, palette: Palette) -> Line<'static> {
    let since = state.away.as_ref().map_or(now, |away| away.since);
    let text = format!("engine away for {}: {}", age(now.duration_since(since)), visible(cause));
    Line::styled(text, palette.bad())
}

/// What the list has: the names, the filter, and what needs attention.
fn list_title(state: &State, palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    let count = |need: Need| state.rows.iter().filter(|(other, _)| *other == need).count();
    let attention =
        [(Need::Overdue, "overdue", palette.bad()), (Need::LongQueue, "with a long queue", palette.long())];
    for (need, word, style) in attention {
        let count = count(need);
        if count > 0 {
            let gap = if spans.is_empty() { "Needs attention: " } else { ", " };
            spans.push(Span::raw(gap));
            spans.push(Span::styled(format!("{count} {word}"), style));
        }
    }
    let covers = state.look.as_ref().and_then(|(look, _)| look.covers.as_ref());
    let names = match covers {
        Some(prefixes) => {
            let prefixes: Vec<String> =
                prefixes.iter().map(|prefix| format!("'{}'", visible(prefix))).collect();
            Some(format!("the token reads only names that begin with {}", prefixes.join(", ")))
        }
        None if !state.prefix.is_empty() => {
            Some(format!("names that begin with '{}'", visible(&state.prefix)))
        }
        None => None,
    };
    let filter = match (state.types, state.filter.is_empty()) {
        (true, _) => Some(format!("filter: {}▏", visible(&state.filter))),
        (false, false) => Some(format!("filter: {}", visible(&state.filter))),
        (false, true) => None,
    };
    for text in [names, filter].into_iter().flatten() {
        let gap = if spans.is_empty() { "" } else { "   " };
        spans.push(Span::raw(format!("{gap}{text}")));
    }
    Line::from(spans)
}

/// The part of the list around the chosen row.
fn list(frame: &mut Frame<'_>, head: Rect, body: Rect, state: &State, palette: Palette) {
    let shown: Vec<usize> = (0..COLUMNS.len()).filter(|column| COLUMNS[*column].1 <= body.width).collect();
    let widths: Vec<Constraint> = shown.iter().map(|column| COLUMNS[*column].2).collect();
    let layout = Layout::horizontal(widths).spacing(1);
    if state.rows.is_empty() {
        put(frame, head, empty(state));
        return;
    }
    for (column, area) in shown.iter().zip(layout.split(head).iter()) {
        let (title, ..) = COLUMNS[*column];
        put(frame, *area, Line::styled(title, palette.faint()));
    }
    let height = usize::from(body.height);
    let last = state.rows.len().saturating_sub(height);
    let from = state.chosen.saturating_sub(height / 2).min(last);
    let cells = layout.split(Rect { height: 1, ..body });
    for (row, area) in (from..state.rows.len()).zip(body.rows()) {
        let (need, index) = state.rows[row];
        let Some(info) = state.locks().get(index) else { continue };
        let style = match need {
            Need::Overdue => palette.bad(),
            Need::LongQueue => palette.long(),
            Need::None => Style::new(),
        };
        let texts = row_of(need, info);
        for (column, cell) in shown.iter().zip(cells.iter()) {
            let text = cut(&texts[*column], usize::from(cell.width));
            put(frame, Rect { y: area.y, ..*cell }, Line::styled(text, style));
        }
        if row == state.chosen {
            frame.buffer_mut().set_style(area, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
}

fn empty(state: &State) -> Line<'static> {
    Line::raw(match (&state.look, state.filter.is_empty(), state.prefix.is_empty()) {
        (None, ..) => "",
        (_, false, _) => "No lock matches the filter. A free lock is in no list.",
        (_, _, false) => "No lock whose name begins like this is held or waited for.",
        _ => "Nothing is held or waited for. To see a lock here: fencepost run hello -- sleep 60",
    })
}

/// The cells of a lock. Of several holders it has the first.
fn row_of(need: Need, info: &Info) -> [String; 8] {
    let mark = match need {
        Need::Overdue => "!",
        Need::LongQueue => "+",
        Need::None => " ",
    };
    let overdue = info.holders().find(|claim| claim.is_overdue());
    let claim = overdue.or_else(|| info.holders().next());
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let more = info.holders().count().saturating_sub(1);
    let holder = claim.map(|claim| {
        let label = visible(&claim.holder.label);
        if more > 0 { format!("{} holders: {label}", more + 1) } else { label }
    });
    // The process that took a lease has most likely ended.
    let pid = claim.filter(|claim| !claim.detached && claim.holder.pid > 0);
    [
        mark.to_owned(),
        visible(info.name.as_str()),
        cell(claim.map(|claim| ls::mode(claim.mode))),
        cell(holder),
        cell(claim.map(|claim| visible(&claim.holder.host)).filter(|host| !host.is_empty())),
        cell(pid.map(|claim| claim.holder.pid.to_string())),
        cell(claim.and_then(held)),
        info.waiters().count().to_string(),
    ]
}

/// For how long it is held, without the words that a narrow cell has no room for.
fn held(claim: &ClaimInfo) -> Option<String> {
    since(claim).map(|text| text.replace("up to ", "≤"))
}

/// A sentence about the chosen lock, the part that matters first.
fn about_chosen(state: &State, palette: Palette) -> (String, Style) {
    let Some(info) = state.chosen() else { return Default::default() };
    if let Some(claim) = info.holders().find(|claim| claim.is_overdue()) {
        let holder = &claim.holder;
        let limit = claim.max_hold.map_or_else(String::new, age);
        let text = format!(
            "overdue: held {}, limit {limit}, by {}, pid {} on {}",
            age(claim.age),
            visible(&holder.label),
            holder.pid,
            visible(&holder.host)
        );
        return (text, palette.bad());
    }
    match (info.holders().next(), info.waiters().next()) {
        (Some(claim), _) => (crate::show::held(claim), Style::new()),
        (None, Some(claim)) => (format!("waiting: {}", phrase(claim)), Style::new()),
        (None, None) => Default::default(),
    }
}

/// The beginning of a text that is wider than its cell.
fn cut(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        if Span::raw(format!("{kept}{c}…")).width() > width {
            break;
        }
        kept.push(c);
    }
    format!("{kept}…")
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let height = u16::try_from(KEYS.len() + 2).unwrap_or(u16::MAX);
    let area =
        Rect { y: area.y + area.height.min(2), height: area.height.saturating_sub(2).min(height), ..area };
    frame.render_widget(Clear, area);
    let mut rows = area.rows();
    if let Some(row) = rows.next() {
        put(frame, row, Line::styled("Keys", BOLD));
    }
    for ((key, what), row) in KEYS.iter().zip(rows) {
        put(frame, row, Line::raw(format!("{key:<12}{what}")));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::{HolderInfo, Mode, Name, Token};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::top::looks::{Look, Opened};
    use crate::top::state::Wish;

    const PLAIN: Palette = Palette { colour: false };
    const SIZE: Size = Size { width: 80, height: 14 };

    fn claim(label: &str, host: &str, pid: u32, age_s: u64) -> ClaimInfo {
        let mut claim = ClaimInfo::new(HolderInfo::new(label, host, pid), Mode::Exclusive);
        (claim.since_micros, claim.age) = (951_782_400_000_000, Duration::from_secs(age_s));
        claim
    }

    fn held(label: &str, host: &str, pid: u32, age_s: u64) -> ClaimInfo {
        let mut claim = claim(label, host, pid, age_s);
        claim.token = Some(Token::new(u64::from(pid)));
        claim
    }

    fn lock(name: &str, claims: Vec<ClaimInfo>) -> Info {
        Info::new(Name::new(name).unwrap(), None, claims)
    }

    fn locks() -> Vec<Info> {
        let mut late = held("cron@app-2/report", "app-2", 21_498, 12_000);
        late.max_hold = Some(Duration::from_secs(3_600));
        let waiters = (0..6).map(|pid| claim("cart@app-1/shop", "app-1", 100 + pid, 7));
        vec![
            lock(
                "backup",
                vec![held("root@db-1/backup.sh", "db-1", 7, 61), claim("ann@db-2/x", "db-2", 8, 3)],
            ),
            lock("report/weekly", vec![late]),
            lock("stock/4711", [held("cart@app-1/shop", "app-1", 9, 1)].into_iter().chain(waiters).collect()),
        ]
    }

    fn look(locks: Vec<Info>) -> Look {
        Look { engine: Some("redis"), locks, ..Look::default() }
    }

    fn shown(state: &State, now: Instant, palette: Palette, size: Size) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(size.width, size.height)).unwrap();
        terminal.draw(|frame| draw(frame, state, now, palette)).unwrap();
        terminal.backend().buffer().clone()
    }

    /// The lines of the screen without the blanks at their ends.
    fn text(state: &State, now: Instant, size: Size) -> Vec<String> {
        let buffer = shown(state, now, PLAIN, size);
        let line = |y| (0..size.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..size.height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    fn press(state: &mut State, key: KeyCode) -> Wish {
        state.press(KeyEvent::new(key, KeyModifiers::NONE), body(SIZE))
    }

    fn state() -> (State, Instant) {
        let (mut state, now) = (State::new("redis://***@db".to_owned(), String::new()), Instant::now());
        state.take(Ok(Look { grants: Some((3, Duration::from_secs(2))), ..look(locks()) }), now);
        (state, now)
    }

    #[test]
    fn what_needs_attention_comes_first() {
        let (state, now) = state();
        let lines = text(&state, now, SIZE);
        assert_eq!(
            lines,
            [
                format!(" fencepost {} on redis  redis://***@db", env!("CARGO_PKG_VERSION")).as_str(),
                " 3 locks · 7 waiting · 1.5 grants a second",
                " Needs attention: 1 overdue, 1 with a long queue",
                "   NAME               MODE      HOLDER             HOST   PID     HELD     WAIT",
                " ! report/weekly      exclusive cron@app-2/report  app-2  21498   3h20m    0",
                " + stock/4711         exclusive cart@app-1/shop    app-1  9       1s       6",
                "   backup             exclusive root@db-1/backup.… db-1   7       1m1s     1",
                "",
                "",
                "",
                "",
                "",
                " overdue: held 3h20m, limit 1h, by cron@app-2/report, pid 21498 on app-2",
                " ↑ ↓ choose   Enter open   / filter   ? help   q quit",
            ]
        );
        // A narrow terminal has the columns that matter.
        let narrow = text(&state, now, Size { width: 50, height: 12 });
        assert!(narrow[3].contains("NAME") && !narrow[3].contains("HOST"), "{narrow:?}");
        for size in [(1, 1), (3, 5), (20, 3)] {
            shown(&state, now, PLAIN, Size { width: size.0, height: size.1 });
        }
    }

    #[test]
    fn an_engine_that_is_away_leaves_the_last_state_with_its_age() {
        let (mut state, now) = state();
        let later = |secs| now + Duration::from_secs(secs);
        state.take(Err("connection refused".to_owned()), later(5));
        state.take(Err("connection refused".to_owned()), later(6));
        let lines = text(&state, later(17), SIZE);
        assert_eq!(lines[1], " engine away for 12s: connection refused (what follows is 17s old)");
        assert!(lines.iter().any(|line| line.contains("report/weekly")));
        state.take(Ok(look(locks())), later(18));
        assert!(text(&state, later(18), SIZE)[1].starts_with(" 3 locks"));
        let mut unseen = State::new("redis://db".to_owned(), String::new());
        unseen.take(Err("connection refused".to_owned()), now);
        assert_eq!(text(&unseen, later(3), SIZE)[1], " engine away for 3s: connection refused");
    }

    #[test]
    fn a_lock_has_its_holder_its_queue_and_its_runs() {
        let (mut state, now) = state();
        assert_eq!(press(&mut state, KeyCode::Enter), Wish::Look);
        let lines = text(&state, now, SIZE);
        assert_eq!(lines[2], " Lock report/weekly");
        let all = lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "held by cron@app-2/report (host app-2, pid 21498) for 3h20m, limit 1h (overdue); token 21498; since 2000-02-29T00:00:00Z",
            "Look at pid 21498 on the host app-2.",
            "fencepost evict 'report/weekly' --token 21498",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert_eq!(press(&mut state, KeyCode::Esc), Wish::Look);
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Enter);
        let opened =
            Opened { info: locks().remove(2), not_kept: Some("this engine does not record runs".to_owned()) };
        state.take(Ok(Look { opened: Some(opened), ..look(locks()) }), now);
        let lines = text(&state, now, Size { height: 30, ..SIZE });
        let queue = lines.iter().position(|line| line == " Queue: 6 waiting, the next one first").unwrap();
        assert_eq!(lines[queue + 2], " 1      7s     exclusive  cart@app-1/shop (host app-1, pid 100)  -");
        assert!(lines.contains(&" last run: this engine does not record runs".to_owned()), "{lines:?}");
        // It scrolls as far as there is more.
        assert!(text(&state, now, SIZE)[12].contains("more lines below"));
        press(&mut state, KeyCode::End);
        let end = text(&state, now, SIZE);
        assert_eq!((end[11].as_str(), end[12].as_str()), (" last run: this engine does not record runs", ""));
        // A lock that is free meanwhile.
        state.take(Ok(look(Vec::new())), now);
        press(&mut state, KeyCode::Home);
        assert_eq!(text(&state, now, SIZE)[4], " free");
    }

    #[test]
    fn a_filter_hides_other_locks_and_the_choice_follows_its_lock() {
        let (mut state, now) = state();
        press(&mut state, KeyCode::End);
        assert_eq!(state.chosen().unwrap().name.as_str(), "backup");
        state.take(Ok(look(locks().into_iter().take(1).collect())), now);
        assert_eq!(state.chosen().unwrap().name.as_str(), "backup");
        state.take(Ok(look(locks())), now);
        assert_eq!(state.chosen().unwrap().name.as_str(), "backup");
        for key in ['/', 'a', 'p', 'p', '-', '1', 'q'] {
            assert_eq!(press(&mut state, KeyCode::Char(key)), Wish::Draw);
        }
        assert!(text(&state, now, SIZE)[3].starts_with(" No lock matches the filter."));
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Enter);
        let lines = text(&state, now, SIZE);
        assert!(
            lines[2].ends_with("filter: app-1") && lines[4].contains("stock/4711") && lines[5].is_empty()
        );
        press(&mut state, KeyCode::Esc);
        assert_eq!(state.rows.len(), 3);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Wish::Quit);
    }

    #[test]
    fn the_chosen_row_of_many_is_on_the_screen() {
        let (mut state, now) = (State::new("memory:".to_owned(), String::new()), Instant::now());
        let many = (0..10_000).map(|n| lock(&format!("lock-{n:05}"), vec![held("me", "h", n + 1, 1)]));
        state.take(Ok(look(many.collect())), now);
        for (key, name) in
            [(KeyCode::End, "lock-09999"), (KeyCode::PageUp, "lock-09992"), (KeyCode::Home, "lock-00000")]
        {
            press(&mut state, key);
            assert_eq!(state.chosen().unwrap().name.as_str(), name);
            assert!(text(&state, now, SIZE).iter().any(|line| line.contains(name)), "{name}");
        }
    }

    #[test]
    fn without_colours_nothing_is_coloured() {
        let (mut state, now) = state();
        let colours = |palette| {
            let buffer = shown(&state, now, palette, SIZE);
            buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colours(Palette { colour: true }) && !colours(PLAIN));
        // And the chosen row is seen all the same.
        let buffer = shown(&state, now, PLAIN, SIZE);
        assert!(buffer[(5, 4)].modifier.contains(Modifier::REVERSED));
        press(&mut state, KeyCode::Char('?'));
        assert!(text(&state, now, SIZE).iter().any(|line| line.contains("Ctrl-Z")));
    }
}
