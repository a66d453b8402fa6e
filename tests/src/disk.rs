//! A small private disk, for tests with a full disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory; unmounted when it is dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one; none, with a word to the test's output, where this user may not mount.
    pub fn mount(path: &Path, size: &str) -> Option<Disk> {
        fs::create_dir_all(path).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "sprag-test"]).arg(path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            println!("skipped: this user may not mount a tmpfs");
        }
        mounted.then(|| Disk(path.to_owned()))
    }

    /// Gives it another size.
    pub fn resize(&self, size: &str) {
        let remount =
            Command::new("mount").args(["-o", &format!("remount,size={size}")]).arg(&self.0).status();
        assert!(remount.is_ok_and(|status| status.success()), "it gets another size");
    }

    /// Fills it to the last byte with a file, which is returned.
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = File::create(&path).expect("a file");
        for chunk in [1 << 16, 1 << 12, 1 << 8, 1] {
            // Ends: the disk is small.
            while file.write_all(&vec![b'x'; chunk]).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
