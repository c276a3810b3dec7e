//! One process behind a network of its own.

use super::Target;
use crate::command::{Place, Wrapper};
use crate::side::program;
use crate::usage::alive;
use fencepost_testkit::faults::{Fault, Faults};
use fencepost_testkit::server::Proxy;
use nix::sys::signal::{Signal, kill};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// A seat behind a network of its own to all servers, and the process that sits there.
pub(super) struct Far {
    proxies: Vec<Proxy>,
    process: Option<Wrapper>,
    name: u32,
    /// Where the histories are.
    folder: PathBuf,
    /// Counts the cycles of all processes in this seat: one byte for each 100.
    tally: PathBuf,
    /// The seat's share of the cycles.
    share: usize,
}

impl Far {
    /// A network, with nobody behind it yet.
    pub(super) fn start(target: &impl Target, place: &Place, seat: usize, share: usize) -> Far {
        let proxies = target.addresses().into_iter().map(|at| Proxy::start(at).expect("a proxy")).collect();
        let (folder, tally) = (place.file(""), place.file(&format!("{seat}.done")));
        Far { proxies, process: None, name: 0, folder, tally, share }
    }

    /// Seats a process behind it.
    pub(super) fn seat(&mut self, target: &impl Target, name: u32) {
        self.name = name;
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let mut command = program(&["side-torture", &target.url(&hosts.join(","))]);
        command.arg(self.folder.join(format!("{name}.history"))).arg(&self.tally);
        command.args([name.to_string(), self.share.to_string()]).stdin(Stdio::null());
        let mut side = Wrapper::start(command);
        assert_eq!(side.line(), "ready");
        self.process = Some(side);
    }

    /// The number of the process.
    pub(super) fn name(&self) -> u32 {
        self.name
    }

    /// Whether the seat has done its share.
    pub(super) fn is_done(&self) -> bool {
        // The rest of a hundred that a killed process had begun is done again.
        std::fs::metadata(&self.tally).map_or(0, |meta| meta.len() as usize * 100) + 100 > self.share
    }

    /// Whether nobody sits there any more.
    pub(super) fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|process| !alive(process.pid().as_raw()))
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the process for so long.
    pub(super) fn pause(&self, span: Duration) {
        let Some(pid) = self.process.as_ref().map(Wrapper::pid) else { return };
        let _ = kill(pid, Signal::SIGSTOP);
        std::thread::sleep(span);
        let _ = kill(pid, Signal::SIGCONT);
    }

    /// Makes its network bad for so long.
    pub(super) fn trouble(&mut self, span: Duration, mut make: impl FnMut(&mut Proxy) -> Result<(), Fault>) {
        for proxy in &mut self.proxies {
            make(proxy).expect("the proxy can do that");
        }
        std::thread::sleep(span);
        self.mend();
    }

    /// Lets the process end by itself.
    pub(super) fn finish(&mut self) {
        self.mend();
        if let Some(mut process) = self.process.take() {
            process.wait();
        }
    }

    fn mend(&mut self) {
        for proxy in &mut self.proxies {
            proxy.mend().expect("the proxy can do that");
        }
    }
}
