//! What clients asked and what they were told, in an order that can be judged afterwards.
//!
//! A [`Recorder`] takes [`Event`]s as they happen; a [`History`] is what it has taken, or several of them merged.
//! All recorders of one history read one clock: `CLOCK_BOOTTIME` across processes, the manual clock in a
//! simulation.

mod event;
mod recorder;

pub use event::{Event, Key, Mode, Patience, What};
pub use recorder::{Recorder, boottime};

use std::io::{self, BufRead, Write};
use std::path::Path;

/// Events in the order in which they happened, as far as that is known.
///
/// One recorder's events are totally ordered, even at one instant of a clock that stands still. Events of different
/// recorders are ordered by their time alone, and equal times tell nothing.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Vec<Event>,
    positions: Vec<u64>,
}

impl History {
    /// The events of one recorder, in its order.
    pub fn of_one(events: Vec<Event>) -> History {
        let positions = (0..events.len() as u64).collect();
        History { events, positions }
    }

    /// The events of several recorders, put in the order of their times.
    pub fn merge(streams: Vec<Vec<Event>>) -> History {
        if streams.len() == 1 {
            return History::of_one(streams.into_iter().next().unwrap_or_default());
        }
        let mut events: Vec<Event> = streams.into_iter().flatten().collect();
        events.sort_by_key(|event| event.at);
        let mut positions: Vec<u64> = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let tie = index > 0 && events[index - 1].at == event.at;
            positions.push(if tie { positions[index - 1] } else { index as u64 });
        }
        History { events, positions }
    }

    /// Reads histories that [`Recorder::to_file`] or [`write`](History::write) wrote, one file a recorder.
    ///
    /// # Errors
    /// A file cannot be read, or a line other than a torn last one is no event.
    pub fn read<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> io::Result<History> {
        let mut streams = Vec::new();
        for file in files {
            let path = file.as_ref();
            let mut lines = io::BufReader::new(std::fs::File::open(path)?).lines().enumerate().peekable();
            let mut events = Vec::new();
            while let Some((number, line)) = lines.next() {
                match serde_json::from_str(&line?) {
                    Ok(event) => events.push(event),
                    // A killed process may have been in the middle of its last line.
                    Err(_) if lines.peek().is_none() => {}
                    Err(err) => {
                        let text = format!("{}:{}: {err}", path.display(), number + 1);
                        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                }
            }
            streams.push(events);
        }
        Ok(History::merge(streams))
    }

    /// Writes the events as JSON, one a line.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        for event in &self.events {
            serde_json::to_writer(&mut out, event)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// The events in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Each event with its position; of two events the one with the smaller position was first, equal ones cannot
    /// be told apart.
    pub fn positioned(&self) -> impl Iterator<Item = (u64, &Event)> {
        self.positions.iter().copied().zip(&self.events)
    }

    /// The position of the first event that is not before `at`; past the last position if there is none.
    pub fn position_of(&self, at: u64) -> u64 {
        let index = self.events.partition_point(|event| event.at < at);
        self.positions.get(index).copied().unwrap_or(self.events.len() as u64)
    }

    /// The time of the last event.
    pub fn end(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at)
    }
}
