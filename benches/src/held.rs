//! A process whose locks are held with renewal, while nobody else asks for them.

use crate::client::connect;
use crate::command::Wrapper;
use crate::side::{program, run, words};
use crate::usage::{resident_of, share};
use nix::unistd::Pid;
use std::process::Stdio;
use std::time::Duration;

/// Four rounds of renewal at the default lease of 30 s.
pub(crate) const SPAN: Duration = Duration::from_secs(40);

/// The process. It ends with this.
pub(crate) struct Held {
    side: Wrapper,
    count: usize,
}

impl Held {
    /// Returns when the process holds so many locks.
    pub(crate) fn start(url: &str, count: usize) -> Held {
        let mut command = program(&["side-held", url, &count.to_string()]);
        command.stdin(Stdio::piped());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "held");
        Held { side, count }
    }

    /// Percent of a core that the process and the server use over the span.
    pub(crate) fn shares(&self, server: Pid) -> (f64, f64) {
        std::thread::scope(|scope| {
            let other = scope.spawn(move || share(&[server], SPAN));
            (share(&[self.side.pid()], SPAN) * 100.0, other.join().expect("a share") * 100.0)
        })
    }

    /// MB of the process that are in RAM.
    pub(crate) fn megabytes(&self) -> f64 {
        resident_of(self.side.pid()) as f64 / 1e6
    }

    /// How many locks it has lost.
    pub(crate) fn lost(mut self) -> usize {
        self.side.say("check");
        self.side.line().parse().unwrap_or(self.count)
    }
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
