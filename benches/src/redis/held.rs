//! Locks that are held with renewal: what they cost the client and the server.

use super::server::{pid, start};
use crate::client::connect;
use crate::command::Wrapper;
use crate::figure::Measured;
use crate::side::{program, run, words};
use crate::usage::share;
use std::process::Stdio;
use std::time::Duration;

/// Four rounds of renewal at the default lease of 30 s.
const SPAN: Duration = Duration::from_secs(40);

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
    let mut command = program(&["redis-side-held", &server.url(), &count.to_string()]);
    command.stdin(Stdio::piped());
    let mut side = Wrapper::start(command);
    assert_eq!(side.line(), "held");
    let (mine, theirs) = (side.pid(), pid(&server));
    let (client, servers) = std::thread::scope(|scope| {
        let other = scope.spawn(move || share(&[theirs], SPAN));
        (share(&[mine], SPAN) * 100.0, other.join().expect("a share") * 100.0)
    });
    let memory = resident(mine);
    side.say("check");
    let lost: usize = side.line().parse().unwrap_or(count);
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

/// MB of a process that are in RAM.
fn resident(pid: nix::unistd::Pid) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kilobytes.map_or(f64::NAN, |kilobytes: f64| kilobytes * 1024.0 / 1e6)
}

/// The one that holds them.
pub(crate) fn side(url: &str, count: usize) {
    run(async {
        let locks = connect(url).await;
        let mut guards = Vec::with_capacity(count);
        for number in 0..count {
            let lock = locks.mutex(&format!("held/{number}")).expect("a good name");
            guards.push(lock.lock().await.expect("nobody else wants it"));
        }
        println!("held");
        words().recv().await;
        println!("{}", guards.iter().filter(|guard| guard.ensure_held().is_err()).count());
    });
}
