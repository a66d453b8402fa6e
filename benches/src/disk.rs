//! A file system of its own, new and empty: what was deleted elsewhere does not slow down what is made in it.
//!
//! ext4 does not give a deleted file's inode away for the next minutes, and looks at each of them again and again until it
//! finds another. A build folder that was cleaned a moment ago makes all who create files nearby several times as slow,
//! and whom it hits is chance.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Result, files};

/// A folder on a file system that nobody else uses, or on the machine's own where it may not be mounted.
pub(crate) struct Disk {
    folder: TempDir,
    mounted: Option<PathBuf>,
}

impl Disk {
    /// Makes one that holds this many bytes. It takes as much as is written to it.
    pub(crate) fn make(bytes: u64) -> Result<Disk> {
        let folder = files::scratch()?;
        let image = folder.path().join("image");
        std::fs::File::create(&image)?.set_len(bytes)?;
        let place = folder.path().join("disk");
        std::fs::create_dir(&place)?;
        let mut disk = Disk { folder, mounted: None };
        // Nothing of it is left to be made while somebody is measured.
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

    /// Waits until everything that was written is on the disk: who comes next does not pay for it.
    pub(crate) fn settle(&self) -> Result<()> {
        match run(&mut Command::new("sync")) {
            true => Ok(()),
            false => Err("`sync` failed".into()),
        }
    }

    /// Whether it is a file system of its own.
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
