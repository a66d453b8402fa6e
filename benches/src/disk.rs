//! A new and empty file system, so that files deleted elsewhere do not slow down the benchmark.
//!
//! For some minutes ext4 does not reuse the inode of a deleted file, and each search for a free one inspects all of
//! them again. After the cleaning of a build folder, every program that creates files nearby is several times slower,
//! in an unpredictable way.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Result, files};

/// A folder on a private file system, or on the machine's own if mounting is not allowed.
pub(crate) struct Disk {
    folder: TempDir,
    mounted: Option<PathBuf>,
}

impl Disk {
    /// Creates a file system of this size. It takes only as much space as is written to it.
    pub(crate) fn make(bytes: u64) -> Result<Disk> {
        let folder = files::scratch()?;
        let image = folder.path().join("image");
        std::fs::File::create(&image)?.set_len(bytes)?;
        let place = folder.path().join("disk");
        std::fs::create_dir(&place)?;
        let mut disk = Disk { folder, mounted: None };
        // Initializes everything now, so that no background work runs during a measurement.
        let whole = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F", "-i", "4096"]).args(whole).arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        if made {
            disk.mounted = Some(place);
        } else {
            std::fs::remove_file(&image)?;
        }
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_deref().unwrap_or_else(|| self.folder.path())
    }

    /// Waits until everything written is on the disk, so that the next measurement does not pay for it.
    pub(crate) fn settle(&self) -> Result<()> {
        if run(&mut Command::new("sync")) { Ok(()) } else { Err("`sync` failed".into()) }
    }

    /// Returns whether it is a private file system.
    pub(crate) fn is_own(&self) -> bool {
        self.mounted.is_some()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted
            && !run(Command::new("umount").arg(place))
        {
            eprintln!(
                "{} could not be unmounted: umount it, and delete the folder it is in",
                place.display()
            );
        }
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
