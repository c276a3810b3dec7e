//! Locks that are held with renewal: what they cost the client and the server.

use super::server::{pid, start};
use crate::figure::Measured;
use crate::held::{Held, SPAN};

/// The quantity that is measured of held locks.
#[derive(Clone, Copy)]
pub(crate) enum Question {
    /// Percent of a core that the client uses.
    Client,
    /// MB of the client's memory.
    Memory,
    /// Percent of a core that the server uses.
    Server,
    /// How many did not survive it.
    Lost,
}

/// The answer for so many locks, with the others in the note.
pub(crate) fn locks(count: usize, question: Question) -> Measured {
    let server = start();
    let held = Held::start(&server.url(), count);
    let (client, servers) = held.shares(pid(&server));
    let memory = held.megabytes();
    let lost = held.lost();
    let note = format!(
        "{count} locks over {} s: client {client:.2} % of a core and {memory:.1} MB in all, server {servers:.2} %; {lost} lost",
        SPAN.as_secs()
    );
    let figure = match question {
        Question::Lost => lost as f64,
        _ if lost > 0 => f64::NAN,
        Question::Client => client,
        Question::Memory => memory,
        Question::Server => servers,
    };
    Measured { figure, note }
}
