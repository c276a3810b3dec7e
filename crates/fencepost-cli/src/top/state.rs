//! What the view shows, and what the reader chose.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fencepost_core::{Info, Name};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Size;

use crate::top::lock::{self, Line};
use crate::top::looks::Look;

/// The time of which the grants a second are told.
const MINUTE: Duration = Duration::from_secs(60);

/// Why a lock needs attention, the more urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// A holder holds it for longer than it said.
    Overdue,
    /// Many wait for it.
    LongQueue,
    None,
}

impl Need {
    pub(crate) fn of(info: &Info) -> Need {
        if info.holders().any(fencepost_core::ClaimInfo::is_overdue) {
            Need::Overdue
        } else if info.waiters().count() >= Info::LONG_QUEUE {
            Need::LongQueue
        } else {
            Need::None
        }
    }
}

/// What a key asks of the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To draw.
    Draw,
    /// To look at the engine at once.
    Look,
    Quit,
    /// Ctrl-C, which a terminal without line discipline does not make a signal.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
}

/// What is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum View {
    List,
    /// One lock, from this line on.
    Lock(Name, usize),
}

/// The engine is away.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) since: Instant,
    pub(crate) cause: String,
}

/// The state of the view.
#[derive(Debug)]
pub(crate) struct State {
    /// The engine's address without credentials.
    pub(crate) address: String,
    pub(crate) prefix: String,
    pub(crate) view: View,
    pub(crate) filter: String,
    /// The filter is being typed.
    pub(crate) types: bool,
    pub(crate) help: bool,
    /// The last look that succeeded, and when.
    pub(crate) look: Option<(Look, Instant)>,
    pub(crate) away: Option<Away>,
    /// The grants of the last minute: how many, in which time, and when they were seen.
    grants: VecDeque<(usize, Duration, Instant)>,
    /// The locks that the filter lets through, as indices of the look: those that need attention first.
    pub(crate) rows: Vec<(Need, usize)>,
    /// The row that is chosen.
    pub(crate) chosen: usize,
}

impl State {
    pub(crate) fn new(address: String, prefix: String) -> State {
        State {
            address,
            prefix,
            view: View::List,
            filter: String::new(),
            types: false,
            help: false,
            look: None,
            away: None,
            grants: VecDeque::new(),
            rows: Vec::new(),
            chosen: 0,
        }
    }

    /// Takes over what a look has found, or why it failed.
    pub(crate) fn take(&mut self, found: Result<Look, String>, now: Instant) {
        match found {
            Ok(look) => {
                self.away = None;
                if let Some((count, time)) = look.grants {
                    self.grants.push_back((count, time, now));
                }
                while self.grants.front().is_some_and(|(_, _, at)| now.duration_since(*at) > MINUTE) {
                    self.grants.pop_front();
                }
                let chosen = self.chosen().map(|info| info.name.clone());
                self.look = Some((look, now));
                self.arrange(chosen.as_ref());
            }
            Err(cause) => {
                let since = self.away.take().map_or(now, |away| away.since);
                self.away = Some(Away { since, cause });
            }
        }
    }

    /// The locks of the last look.
    pub(crate) fn locks(&self) -> &[Info] {
        self.look.as_ref().map_or(&[], |(look, _)| &look.locks)
    }

    /// The lock that is chosen.
    pub(crate) fn chosen(&self) -> Option<&Info> {
        self.locks().get(self.rows.get(self.chosen)?.1)
    }

    /// The grants a second of the last minute. `None`: one look does not tell.
    pub(crate) fn rate(&self) -> Option<f64> {
        let (count, time) = self
            .grants
            .iter()
            .fold((0, Duration::ZERO), |(count, time), (more, longer, _)| (count + more, time + *longer));
        (time > Duration::ZERO).then(|| count as f64 / time.as_secs_f64())
    }

    /// Sorts the rows anew. The same lock stays chosen, as long as it is shown.
    fn arrange(&mut self, chosen: Option<&Name>) {
        let locks = self.locks().iter().enumerate().filter(|(_, info)| info.mentions(&self.filter));
        let mut rows: Vec<(Need, usize)> = locks.map(|(index, info)| (Need::of(info), index)).collect();
        let waiters = |index: usize| self.locks().get(index).map_or(0, |info| info.waiters().count());
        // Listings are sorted by name, and so is what is equal.
        rows.sort_by_key(|(need, index)| {
            (*need, std::cmp::Reverse(if *need == Need::LongQueue { waiters(*index) } else { 0 }))
        });
        let found = chosen.and_then(|name| {
            rows.iter().position(|(_, index)| self.locks().get(*index).is_some_and(|info| info.name == *name))
        });
        self.chosen = found.unwrap_or(self.chosen).min(rows.len().saturating_sub(1));
        self.rows = rows;
    }

    /// The name of the lock that is shown alone.
    pub(crate) fn open(&self) -> Option<&Name> {
        match &self.view {
            View::Lock(name, _) => Some(name),
            View::List => None,
        }
    }

    /// The lines of the lock that is shown alone, on a terminal of this width.
    pub(crate) fn lines(&self, width: u16) -> Vec<Line> {
        let (Some(name), Some((look, _))) = (self.open(), &self.look) else { return Vec::new() };
        let opened = look.opened.as_ref().filter(|opened| opened.info.name == *name);
        let listed = look.locks.iter().find(|info| info.name == *name);
        let info = opened.map(|opened| &opened.info).or(listed);
        lock::lines(info, opened.and_then(|opened| opened.not_kept.as_deref()), width)
    }

    /// Does what a key asks for. `body`: the size of what scrolls.
    pub(crate) fn press(&mut self, key: KeyEvent, body: Size) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Interrupt,
                KeyCode::Char('z') => Wish::Suspend,
                KeyCode::Char('l') => Wish::Look,
                _ => Wish::Draw,
            };
        }
        if self.types {
            self.edit(key.code);
            return Wish::Draw;
        }
        let page = isize::try_from(body.height.max(2) - 1).unwrap_or(isize::MAX);
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('r') => return Wish::Look,
            _ if self.help => self.help = false,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => return self.back(),
            KeyCode::Enter | KeyCode::Right => return self.enter(),
            KeyCode::Char('/') => (self.view, self.types) = (View::List, true),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1, body),
            KeyCode::Down | KeyCode::Char('j') => self.go(1, body),
            KeyCode::PageUp => self.go(-page, body),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(page, body),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN, body),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX, body),
            _ => {}
        }
        Wish::Draw
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.types = false,
            KeyCode::Esc => (self.types, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        let chosen = self.chosen().map(|info| info.name.clone());
        self.arrange(chosen.as_ref());
    }

    fn back(&mut self) -> Wish {
        if self.view == View::List {
            self.filter.clear();
            let chosen = self.chosen().map(|info| info.name.clone());
            self.arrange(chosen.as_ref());
            return Wish::Draw;
        }
        self.view = View::List;
        Wish::Look
    }

    fn enter(&mut self) -> Wish {
        let chosen = self.chosen().map(|info| info.name.clone());
        if let (View::List, Some(name)) = (&self.view, chosen) {
            self.view = View::Lock(name, 0);
            return Wish::Look;
        }
        Wish::Draw
    }

    /// Moves by so many rows or lines.
    fn go(&mut self, by: isize, body: Size) {
        let lines = self.lines(body.width).len();
        match &mut self.view {
            View::List => {
                self.chosen = self.chosen.saturating_add_signed(by).min(self.rows.len().saturating_sub(1));
            }
            View::Lock(_, from) => {
                let last = lines.saturating_sub(usize::from(body.height));
                *from = from.saturating_add_signed(by).min(last);
            }
        }
    }
}
