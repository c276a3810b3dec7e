//! The wall clock of one of the demo's own servers, which the demo can set forward.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::stage::Failure;

/// A library that a server loads before the C library. It adds the offset in a file to the wall clock.
const SOURCE: &str = include_str!("clock.c");

pub(crate) struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// Compiles the library in this folder. `None`: there is no C compiler.
    pub(crate) fn make(folder: &Path) -> Result<Option<Clock>, Failure> {
        let [source, library, offset] = ["clock.c", "clock.so", "clock"].map(|name| folder.join(name));
        std::fs::write(&source, SOURCE)?;
        // Seconds to add, and a number that the demo does not use.
        std::fs::write(&offset, [0; 16])?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        let compiled = compiler.output().is_ok_and(|output| output.status.success());
        Ok(compiled.then_some(Clock { library, offset }))
    }

    /// Makes the program that this command starts see the clock.
    pub(crate) fn show_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FENCEPOST_CLOCK", &self.offset);
    }

    /// Sets the clock forward.
    pub(crate) fn set_forward(&self, by: Duration) -> Result<(), Failure> {
        use std::os::unix::fs::FileExt as _;
        // In place, because the server has the file mapped.
        let file = std::fs::OpenOptions::new().write(true).open(&self.offset)?;
        Ok(file.write_all_at(&by.as_secs().to_ne_bytes(), 0)?)
    }
}
