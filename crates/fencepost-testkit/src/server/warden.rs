//! A process that ends a server whose test process ended first.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for the end of its standard input. That is the end of the process that holds the other side of the
/// pipe. Then it kills the group, waits until the group is empty, because no process may write into the
/// folder while it is removed, and removes the folder. A server of PostgreSQL that is killed leaves a segment of shared memory: the
/// seventh line of `postmaster.pid` has its key and its id.
const SCRIPT: &str = r#"
read -r _
kill -s KILL -- "-$1" 2>/dev/null
tries=0
while kill -s 0 -- "-$1" 2>/dev/null && [ $tries -lt 100 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
segment=$(sed -n '7s/.* //p' "$2/data/postmaster.pid" 2>/dev/null)
[ -z "$segment" ] || ipcrm -m "$segment"
rm -rf -- "$2"
"#;

/// A small process that runs a moment longer than ours. It clears up where nothing is dropped: after a kill,
/// and for statics. When it is dropped, it ends without doing anything.
pub(super) struct Warden(Child);

impl Warden {
    /// Starts a warden. It kills the process group `group` and removes `folder` as soon as this process ends.
    pub(super) fn over(group: u32, folder: &Path) -> io::Result<Warden> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh", &group.to_string()]).arg(folder);
        // A group of its own, so that the Ctrl-C that ends the test does not end the warden.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Warden(command.spawn()?))
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // Killed before its pipe is closed, which happens when `Child` is dropped.
        let _ = self.0.kill();
        let stdin = self.0.stdin.take();
        let _ = self.0.wait();
        drop(stdin);
    }
}
