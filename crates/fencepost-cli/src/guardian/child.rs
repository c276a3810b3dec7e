//! The last step before the program: a process that prepares itself and then becomes it.
//!
//! This is a hidden subcommand and no hook between fork and exec, because such a hook needs `unsafe`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, getppid};

use super::CHILD;
use crate::terminal::Terminal;

/// What the guardian hands to the process it starts.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) guardian: i32,
    pub(super) foreground: bool,
    pub(super) blocked: Vec<i32>,
}

impl Setup {
    /// The command line under which this binary becomes the program.
    pub(super) fn arguments(&self, program: &[OsString]) -> Vec<OsString> {
        let blocked: Vec<String> = self.blocked.iter().map(i32::to_string).collect();
        let own = [
            CHILD.to_owned(),
            self.guardian.to_string(),
            u8::from(self.foreground).to_string(),
            blocked.join(","),
        ];
        own.into_iter().map(OsString::from).chain(program.iter().cloned()).collect()
    }

    /// The reverse of [`Setup::arguments`], without the subcommand itself.
    fn parse(arguments: &[OsString]) -> Option<(Self, &[OsString])> {
        let [guardian, foreground, blocked, program @ ..] = arguments else { return None };
        let blocked = blocked.to_str()?;
        let blocked: Result<_, _> =
            blocked.split(',').filter(|number| !number.is_empty()).map(str::parse).collect();
        let setup = Self {
            guardian: guardian.to_str()?.parse().ok()?,
            foreground: foreground == "1",
            blocked: blocked.ok()?,
        };
        (!program.is_empty()).then_some((setup, program))
    }
}

/// Becomes the program; returns only with the exit code of a failure.
pub(crate) fn main(arguments: &[OsString]) -> u8 {
    let Some((setup, program)) = Setup::parse(arguments) else {
        say!("fencepost: {CHILD} is for fencepost's own use: try 'fencepost run --help'");
        return 125;
    };
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        say!("fencepost: cannot tie the program's life to its guardian: {error}");
        return 125;
    }
    // The guardian may have died before the call above; the kernel then tells nobody.
    if getppid().as_raw() != setup.guardian {
        return 125;
    }
    if setup.foreground
        && let Some(terminal) = Terminal::open()
    {
        // SIGTTOU is blocked by the wrapper, so a background group may do this.
        terminal.give(getpgrp());
    }
    let unblock: SigSet = setup.blocked.iter().filter_map(|number| Signal::try_from(*number).ok()).collect();
    if let Err(error) = unblock.thread_unblock() {
        say!("fencepost: cannot restore the signal mask: {error}");
        return 125;
    }
    let [name, rest @ ..] = program else { return 125 };
    let error = Command::new(name).args(rest).exec();
    let name = name.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            say!(
                "fencepost: cannot run '{name}': not found. Check the spelling and PATH; for a script, check \
                 that the interpreter in its first line exists."
            );
            127
        }
        io::ErrorKind::PermissionDenied => {
            say!("fencepost: cannot run '{name}': not executable. Try 'chmod +x {name}'.");
            126
        }
        _ => {
            say!("fencepost: cannot run '{name}': {error}");
            126
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setup_survives_the_command_line() {
        let setup = Setup { guardian: 42, foreground: true, blocked: vec![1, 15] };
        let program = [OsString::from("echo"), OsString::from("1")];
        let arguments = setup.arguments(&program);
        let (parsed, rest) = Setup::parse(&arguments[1..]).unwrap();
        assert_eq!((parsed.guardian, parsed.foreground, &parsed.blocked), (42, true, &setup.blocked));
        assert_eq!(rest, program);
        assert!(Setup::parse(&arguments[1..4]).is_none());
    }
}
