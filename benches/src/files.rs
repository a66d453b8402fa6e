//! The folder of the benchmarks: on a real disk, removed afterwards.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::Result;

/// The kernel's magic number of tmpfs, on which a sync costs nothing.
const TMPFS: i64 = 0x0102_1994;

/// Returns a new folder in `$TMPDIR` or, without one, next to the program.
pub(crate) fn scratch() -> Result<TempDir> {
    let parent = match std::env::var_os("TMPDIR") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::current_exe()?.parent().ok_or("the program is in no folder")?.to_owned(),
    };
    let kind = rustix::fs::statfs(&parent)?.f_type as i64;
    if kind == TMPFS {
        let parent = parent.display();
        return Err(format!("{parent} is memory, where a sync costs nothing: set TMPDIR to a disk").into());
    }
    Ok(tempfile::Builder::new().prefix("sprag-bench-").tempdir_in(parent)?)
}
