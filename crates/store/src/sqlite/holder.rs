//! The process that holds the write lock of a file.
//!
//! SQLite locks bytes of the file `-shm` with POSIX locks, which the kernel lists in `/proc/locks`. As long as a
//! database has no write-ahead log, SQLite locks bytes of the database itself. This module does not open the files:
//! closing one would drop the locks that this process has on it.

use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The byte of `-shm` that a writer locks.
const LOG_BYTES: RangeInclusive<u64> = 120..=120;
/// The bytes of a database without a write-ahead log. A writer locks one of them.
const DATABASE_BYTES: RangeInclusive<u64> = 0x4000_0000..=0x4000_01ff;
/// The most characters of a command line that are shown.
const LONGEST_COMMAND: usize = 80;

/// Returns the process that holds the write lock of this file now, with its command line; none if no process holds it,
/// or if the holder is not visible to this process.
pub(super) fn lock_holder(database: &Path) -> Option<String> {
    let mut shm = database.as_os_str().to_owned();
    shm.push("-shm");
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let places = [(PathBuf::from(shm), LOG_BYTES), (database.to_owned(), DATABASE_BYTES)];
    let pid = places.into_iter().find_map(|(path, bytes)| {
        let inode = std::fs::metadata(path).ok()?.ino();
        writer_in(&locks, inode, &bytes)
    })?;
    let command = shown(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    Some(if command.is_empty() { format!("process {pid}") } else { format!("process {pid} ({command})") })
}

/// Returns a command line in one line. It comes from another program, so no character in it may control a terminal.
fn shown(command: &[u8]) -> String {
    let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let plain = words.join(" ").replace(char::is_control, " ");
    plain.trim().chars().take(LONGEST_COMMAND).collect()
}

/// Returns the process with a write lock on one of these bytes of a file, from the kernel's list of locks. The device
/// is not compared, because some file systems have another number here than `stat` returns.
fn writer_in(locks: &str, inode: u64, wanted: &RangeInclusive<u64>) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A line with an arrow is about a process that waits.
        let [_, "POSIX", _, "WRITE", pid, file, first, last] = words[..] else { return None };
        let of_inode: u64 = file.rsplit(':').next()?.parse().ok()?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().unwrap_or(u64::MAX));
        let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
        (of_inode == inode && first <= *wanted.end() && *wanted.start() <= last).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_shown_in_one_plain_line() {
        assert_eq!(shown(b"python3\0-c\0\nimport os\x1b[2J\n\0"), "python3 -c  import os [2J");
        assert_eq!(shown(b""), "");
        assert_eq!(shown("x".repeat(200).as_bytes()).len(), LONGEST_COMMAND);
    }

    #[test]
    fn the_writer_is_found_among_the_locks() {
        let locks = "1: POSIX  ADVISORY  READ  77 fe:00:4242 124 124\n\
                     2: POSIX  ADVISORY  WRITE 78 fe:00:4243 120 120\n\
                     3: FLOCK  ADVISORY  WRITE 79 fe:00:4242 0 EOF\n\
                     4: POSIX  ADVISORY  WRITE 80 fe:00:4242 120 120\n\
                     4: -> POSIX  ADVISORY  WRITE 81 fe:00:4242 120 120\n";
        assert_eq!(writer_in(locks, 4242, &LOG_BYTES), Some(80));
        assert_eq!(writer_in(locks, 4243, &LOG_BYTES), Some(78));
        assert_eq!(writer_in(locks, 4243, &DATABASE_BYTES), None);
        assert_eq!(writer_in(locks, 1, &LOG_BYTES), None);
        let outside = "1: POSIX ADVISORY WRITE 0 fe:00:7 120 120";
        assert_eq!(writer_in(outside, 7, &LOG_BYTES), None, "a process outside of the namespace");
    }
}
