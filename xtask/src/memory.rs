//! A folder in memory for the files of tests. A server that waits for a slow disk answers later than the tests allow, and all tests
//! together write some gigabytes.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use crate::workspace::fresh;

/// Where Linux keeps files in memory.
const PARENT: &str = "/dev/shm";

/// The free memory that the tests need: the servers that run at one time take up to 2 GiB.
const NEEDED: u64 = 4 << 30;

/// The folder, removed on drop.
pub(crate) struct Memory(PathBuf);

impl Memory {
    /// Makes the folder. None if the machine has too little memory for it: a container often gives 64 MiB.
    pub(crate) fn folder() -> Option<Memory> {
        let room = statvfs(PARENT).ok()?;
        if room.blocks_available() * room.fragment_size() < NEEDED || available()? < NEEDED {
            return None;
        }
        let folder = Path::new(PARENT).join(format!("fencepost-test-{}", std::process::id()));
        fresh(&folder).ok()?;
        Some(Memory(folder))
    }

    /// Its path.
    pub(crate) fn path(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A folder that stays takes memory until the machine restarts. Nothing else depends on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The memory in bytes that programs can still take.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_removed_with_its_owner() {
        let Some(memory) = Memory::folder() else { return };
        let path = PathBuf::from(memory.path());
        std::fs::write(path.join("file"), "content").unwrap();
        drop(memory);
        assert!(!path.exists());
    }
}
