//! Records the requests of clients and their answers, in an order that can be checked later.
//!
//! A [`Recorder`] takes [`Event`]s as they happen. A [`History`] has the events of one recorder, or of
//! several. All recorders of one history read the same clock: `CLOCK_BOOTTIME` across processes, and the
//! manual clock in a simulation.

mod event;
mod recorder;

pub use event::{Event, Key, Mode, Patience, What};
pub use recorder::{Recorder, boottime};

use std::io::{self, BufRead, Write};
use std::path::Path;

/// How many events before and after a position are near it.
const NEAR: u64 = 150;

/// Events in the order in which they happened, as far as that is known.
///
/// The events of one recorder are totally ordered, even at one instant of a clock that does not move. Events
/// of different recorders are ordered by their times alone, and equal times give no order.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Vec<Event>,
    positions: Vec<u64>,
}

impl History {
    /// Makes a history of one recorder's events, in its order.
    pub fn of_one(events: Vec<Event>) -> History {
        let positions = (0..events.len() as u64).collect();
        History { events, positions }
    }

    /// Makes a history of several recorders' events, in the order of their times.
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

    /// Reads histories that [`Recorder::to_file`] or [`write`](History::write) wrote, one file per recorder.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if a line is no event. The last line of a file may be
    /// incomplete.
    pub fn read<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> io::Result<History> {
        let mut streams = Vec::new();
        for file in files {
            let path = file.as_ref();
            let mut lines = io::BufReader::new(std::fs::File::open(path)?).lines().enumerate().peekable();
            let mut events = Vec::new();
            while let Some((number, line)) = lines.next() {
                match serde_json::from_str(&line?) {
                    Ok(event) => events.push(event),
                    // A killed process may not have finished its last line.
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

    /// Writes the events as JSON, one per line.
    ///
    /// # Errors
    /// Returns the error of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        for event in &self.events {
            serde_json::to_writer(&mut out, event)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Returns the events near a position, as [`write`](History::write) writes them: what a failed test shows.
    pub fn excerpt(&self, position: u64) -> String {
        let near = self.positioned().filter(|(at, _)| at.abs_diff(position) <= NEAR);
        let lines =
            near.map(|(at, event)| format!("{at} {}\n", serde_json::to_string(event).unwrap_or_default()));
        lines.collect()
    }

    /// Returns the events in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns each event with its position. An event with a smaller position was earlier. Equal positions
    /// give no order.
    pub fn positioned(&self) -> impl Iterator<Item = (u64, &Event)> {
        self.positions.iter().copied().zip(&self.events)
    }

    /// Returns the position of the first event that is not before `at`, or one past the last position.
    pub fn position_of(&self, at: u64) -> u64 {
        let index = self.events.partition_point(|event| event.at < at);
        self.positions.get(index).copied().unwrap_or(self.events.len() as u64)
    }

    /// Returns the time of the last event.
    pub fn end(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at)
    }
}
