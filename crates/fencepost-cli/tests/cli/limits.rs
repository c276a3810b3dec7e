//! A limit on the size of files, which `ulimit -f` sets.

use crate::kit::{Kid, Place};

/// Runs the command under a limit of so many blocks of 512 bytes.
fn limited(place: &Place, blocks: u32, arguments: &str) -> Kid {
    let script = format!("ulimit -f {blocks}; exec \"$FENCEPOST\" {arguments}");
    Kid::of(&mut place.via("sh", ["-c", &script]))
}

#[test]
fn a_file_size_limit_is_an_error_of_the_configuration() {
    let (new, used) = (Place::new(), Place::new());
    used.output(["run", "a", "--", "true"]).expect(0);
    for place in [&new, &used] {
        for blocks in [0, 1, 8] {
            let said = limited(place, blocks, "run -n a -- echo ran").said();
            said.expect(78).complains(&["the file size limit", "ulimit -f"]);
            assert_eq!(said.out, "", "{blocks}");
        }
        limited(place, 20_000, "run -n a -- true").said().expect(0);
    }
}

#[test]
fn the_program_has_the_callers_setting_of_sigxfsz() {
    let place = Place::new();
    let bit = 1_u64 << 24;
    for (option, is_ignored) in [("--default-signal=XFSZ", false), ("--ignore-signal=XFSZ", true)] {
        let script = "grep -E 'Sig(Ign|Cgt|Blk)' /proc/self/status";
        let command = env!("CARGO_BIN_EXE_fencepost");
        let run = [option, command, "run", "a", "--", "sh", "-c", script];
        let said = Kid::of(&mut place.via("env", run)).said();
        let sets = |name: &str| {
            let mask = said.expect(0).out.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap() & bit != 0
        };
        assert_eq!(
            (sets("SigIgn:"), sets("SigCgt:"), sets("SigBlk:")),
            (is_ignored, false, false),
            "{option}"
        );
    }
}
