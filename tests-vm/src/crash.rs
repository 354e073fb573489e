//! Every state of a disk that a power cut could have left, from the record of its writes.
//!
//! Ending a machine loses only what its own page cache held: what it wrote without a flush survives in this machine's.
//! So the writes and flushes of a data disk are recorded as they come ([`crate::Vm::plug_logged`]), and laid on a copy
//! one by one; each state is mounted, with the file system's own recovery, and checked.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{Checked, command};

/// The kernel's dm-log-writes format (Documentation/admin-guide/device-mapper/log-writes.rst), which qemu writes too.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const DISCARD: u64 = 4;

/// Checks each state between `base` (the disk before) and the end of `log`; gives how many there were. `check` gets the
/// number of the state and where it is mounted. `work` is a directory for the copies.
pub fn states(base: &Path, log: &Path, work: &Path, mut check: impl FnMut(u64, &Path) -> Result<()>) -> Result<u64> {
    let log = File::open(log)?;
    let mut header = [0u8; 32];
    log.read_exact_at(&mut header, 0)?;
    if field(&header, 0) != MAGIC {
        bail!("not a log of writes");
    }
    let entries = field(&header, 16);
    let sector = field(&header, 24) & 0xffff_ffff;
    let (state, copy, mounted) = (work.join("state.img"), work.join("copy.img"), work.join("mounted"));
    fs::create_dir_all(&mounted)?;
    command("cp", ["--sparse=always"]).args([base, &state]).checked()?;
    let disk = OpenOptions::new().write(true).open(&state)?;
    let mut at = sector;
    for entry in 0..entries {
        log.read_exact_at(&mut header, at)?;
        let (to, count, flags) = (field(&header, 0), field(&header, 8), field(&header, 16));
        at += sector;
        if count > 0 && flags & DISCARD == 0 {
            let mut content = vec![0u8; usize::try_from(count * sector)?];
            log.read_exact_at(&mut content, at)?;
            disk.write_all_at(&content, to * sector)?;
            at += count * sector;
        }
        command("cp", ["--sparse=always"]).args([&state, &copy]).checked()?;
        command("mount", ["-o", "loop"]).args([&copy, &mounted]).checked().with_context(|| format!("state {entry}"))?;
        let checked = check(entry, &mounted);
        command("umount", [&mounted]).checked()?;
        checked.with_context(|| format!("state {entry} of {entries}"))?;
    }
    Ok(entries)
}

fn field(bytes: &[u8; 32], at: usize) -> u64 {
    let mut field = [0u8; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}
