//! Full and read-only disks, on small file systems in memory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sprag_worktree::{Error, Kind};

use crate::common::*;

/// A small separate file system, unmounted on drop.
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts it; an error tells why mounting is not allowed here.
    pub fn mount(path: &Path, size: &str) -> Option<Disk> {
        fs::create_dir_all(path).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "sprag-test"]).arg(path);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Disk { path: path.to_owned() }),
            other => {
                println!("skipped: cannot mount a file system here: {other:?}");
                None
            }
        }
    }

    fn remount(&self, how: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.path).status();
        assert!(status.expect("mount").success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

pub fn is_full(error: &Error) -> bool {
    let said = error.to_string();
    said.contains("No space left") && said.contains("free some space")
}

pub fn big_repository(repo: &Path) {
    init(repo, 0);
    for number in 0..8_u32 {
        // All blocks differ, so that nothing is compressed.
        let bytes: Vec<u8> =
            (0..100_000_u32).map(|i| (i.wrapping_mul(2_654_435_761 + number) >> 13) as u8).collect();
        fs::write(repo.join(format!("big{number}")), bytes).expect("a file");
    }
    git(repo, &["add", "--all"]);
    git(repo, &["commit", "--quiet", "--message=big"]);
}

#[test]
fn wt13_a_full_disk_under_the_worktree_is_rolled_back_and_others_are_fine() {
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    big_repository(&place.repo());
    let Some(_disk) = Disk::mount(&place.data(), "1200k") else { return };
    let worktrees = place.worktrees();
    let first = create(&worktrees, "first", "first").expect("there is room for one");
    let error = create(&worktrees, "second", "second").expect_err("full");
    assert!(is_full(&error), "{error}");
    assert!(is_clean(first.path()));
    remove(&worktrees, first);
    place.assert_nothing_left();
    let second = create(&worktrees, "second", "second").expect("there is room again");
    assert!(is_clean(second.path()));
}

#[test]
fn wt14_a_full_disk_under_the_repository_publishes_nothing() {
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    let Some(_disk) = Disk::mount(&place.repo(), "4m") else { return };
    init(&place.repo(), 20);
    let worktrees = place.worktrees();
    remove(&worktrees, create(&worktrees, "before", "before").expect("room"));
    let filler = place.repo().join("filler");
    let mut file = fs::File::create(&filler).expect("a file");
    let block = [1; 4096];
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    let error = create(&worktrees, "work", "work").expect_err("full");
    assert!(error.to_string().contains("No space left"), "{error}");
    // A process that another test starts at this moment may still hold the file open, and with it the space.
    file.set_len(0).expect("ours");
    fs::remove_file(&filler).expect("ours");
    recover(&worktrees);
    place.assert_nothing_left();
    assert!(is_clean(create(&worktrees, "work", "work").expect("room again").path()));
}

#[test]
fn wt15_a_read_only_disk_is_named_and_leaves_no_branch() {
    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    let Some(data) = Disk::mount(&place.data(), "4m") else { return };
    init(&place.repo(), 5);
    let worktrees = place.worktrees();
    data.remount("ro");
    let error = create(&worktrees, "work", "work").expect_err("read-only");
    let said = error.to_string();
    assert!(said.contains("Read-only") && said.contains(place.data().to_str().expect("text")), "{said}");
    assert!(said.contains("make") && said.contains("writable"), "{said}");
    data.remount("rw");
    place.assert_nothing_left();

    let place = Place { folder: tempfile::tempdir().expect("a folder") };
    let Some(repo) = Disk::mount(&place.repo(), "4m") else { return };
    init(&place.repo(), 5);
    let worktrees = place.worktrees();
    repo.remount("ro");
    let error = create(&worktrees, "work", "work").expect_err("read-only");
    assert!(matches!(&error.kind, Kind::Io { path, .. } if path.starts_with(place.repo())), "{error}");
    repo.remount("rw");
    place.assert_nothing_left();
}
