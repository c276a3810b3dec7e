//! `fencepost copy-to`: puts the program into a folder that another container mounts.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Failure, OWN};

/// Copy this program to DIR/fencepost.
///
/// An image without a shell copies itself so into a volume, and another image runs its job by the copy.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "fencepost copy-to DIR",
    after_help = "Example:
  fencepost copy-to shared && shared/fencepost run hello -- echo hi"
)]
pub(crate) struct Args {
    /// Folder, which has to exist
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(folder: &Path) -> Result<u8, Failure> {
    let file = folder.join("fencepost");
    copy(folder, &file)
        .map(|()| 0)
        .map_err(|error| Failure::new(OWN, format!("{} cannot be written: {error}", file.display())))
}

/// Replaces the file in one step. An earlier copy may be running, so its file is not written to.
fn copy(folder: &Path, file: &Path) -> io::Result<()> {
    let mut own = File::open(std::env::current_exe()?)?;
    let mut new = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempfile_in(folder)?;
    io::copy(&mut own, &mut new)?;
    // The umask has taken bits away.
    new.as_file().set_permissions(Permissions::from_mode(0o755))?;
    // It is closed before it gets its name: a file that is open for writing cannot be started.
    new.into_temp_path().persist(file)?;
    Ok(())
}
