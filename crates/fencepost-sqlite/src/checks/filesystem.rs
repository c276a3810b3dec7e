//! Which file systems the database may lie on.
//!
//! SQLite's locks and shared memory, and the side files' locks, are only good between processes under one kernel. On a
//! network file system two machines can both believe that they hold the write lock, so such a place is refused.

use std::path::Path;

use nix::sys::statfs::statfs;

/// `statfs` types that reach over a network or between kernels. Sources: `linux/magic.h`, `man 2 statfs`, and the kernel's
/// own file systems for those that are missing there.
const REFUSED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x564c, "NCP"),
    (0x7375_7245, "Coda"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x2003_0528, "OrangeFS"),
    (0x4750_4653, "GPFS"),
    (0xaad7_aaea, "PanFS"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0xbacb_acbc, "a VMware shared folder"),
];

/// Files served by a program: sshfs and s3fs, but ntfs-3g too. Nobody can tell from here.
const FUSE: u32 = 0x6573_5546;

/// Those that are common under a database, by name.
const LOCAL: &[(u32, &str)] = &[
    (0xef53, "ext4"),
    (0x0102_1994, "tmpfs"),
    (0x5846_5342, "XFS"),
    (0x9123_683e, "Btrfs"),
    (0x2fc1_2fc1, "ZFS"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "F2FS"),
];

/// The kind of file system that a file is on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filesystem {
    Local(String),
    Fuse,
    Network(&'static str),
}

/// Returns the kind of the file system of `path`, which must exist.
pub(crate) fn detect(path: &Path) -> nix::Result<Filesystem> {
    let kind = kind(path)?;
    Ok(match refusal(kind) {
        Some(Refusal::Fuse) => Filesystem::Fuse,
        Some(Refusal::Network(name)) => Filesystem::Network(name),
        None => {
            let known = LOCAL.iter().find(|(magic, _)| *magic == kind);
            Filesystem::Local(known.map_or_else(|| format!("type {kind:#x}"), |(_, name)| (*name).to_owned()))
        }
    })
}

/// Why a path is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Network(&'static str),
    Fuse,
}

/// Looks at the file system below `path`, which must exist.
pub(crate) fn check(path: &Path, trusted: bool) -> nix::Result<Option<Refusal>> {
    let kind = kind(path)?;
    Ok(if trusted { None } else { refusal(kind) })
}

/// The type is a signed long on some platforms, an unsigned int on others; the numbers are of 32 bits.
fn kind(path: &Path) -> nix::Result<u32> {
    Ok(statfs(path)?.filesystem_type().0 as u32)
}

fn refusal(kind: u32) -> Option<Refusal> {
    if kind == FUSE {
        return Some(Refusal::Fuse);
    }
    REFUSED.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| Refusal::Network(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_named() {
        assert_eq!(refusal(0x6969), Some(Refusal::Network("NFS")));
        assert_eq!(refusal(0xff53_4d42), Some(Refusal::Network("CIFS")));
        assert_eq!(refusal(0x6573_5546), Some(Refusal::Fuse));
        assert_eq!(refusal(0xef53), None, "ext4");
        assert_eq!(refusal(0x0102_1994), None, "tmpfs");
    }

    #[test]
    fn the_local_disk_is_taken() {
        assert_eq!(check(&std::env::temp_dir(), false), Ok(None));
        assert!(check(Path::new("/no/such/place"), false).is_err());
    }
}
