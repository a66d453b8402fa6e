//! A checkout of a commit, held in memory for concurrent checkouts of the same commit.
//!
//! ```text
//!   git fills a worktree ─▶ its index and files are read back ─▶ written to the other worktrees
//! ```
//!
//! Git inflates each object, evaluates attributes and filters, and writes it. Two thirds of the time pass
//! before the write. The snapshot contains the bytes that git wrote, and their hashes prove that they equal the
//! objects. Files that differ from their objects (another encoding, a replaced object) are left to git in each
//! worktree.

use std::{
    borrow::Cow,
    collections::HashSet,
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, readlinkat, statat, symlinkat};

use crate::{
    clock,
    error::Kind,
    fault,
    index::{EntryKind, FileStat, Index, is_object},
};

/// The most bytes of all snapshots in this process.
const MAX_BYTES: usize = 256 << 20;

/// The bookkeeping size of a file, besides its content and its entry in the index.
const ENTRY_BYTES: usize = 32;

/// The number of files between two calls of `check`.
const CHECK_INTERVAL: usize = 128;

static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A share of [`MAX_BYTES`], released on drop.
#[derive(Debug)]
struct MemoryShare(usize);

impl MemoryShare {
    fn take(bytes: usize) -> Option<MemoryShare> {
        let add = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= MAX_BYTES);
        USED_BYTES.fetch_update(Relaxed, Relaxed, add).ok().map(|_| MemoryShare(bytes))
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        USED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

/// All files of a commit, as git writes them.
#[derive(Debug)]
pub(crate) struct CheckoutSnapshot {
    index: Index,
    index_mode: u32,
    /// The contents of all files, one after the other, and the range of each entry.
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
    _memory: MemoryShare,
}

impl CheckoutSnapshot {
    /// Reads back a fresh checkout in which no process has worked. Returns `None` if a file differs from its
    /// object, if the snapshot would exceed the memory limit, or if `check` fails.
    pub(crate) fn read(
        folder: &Path,
        index: &Path,
        check: impl Fn() -> Result<(), Kind>,
    ) -> Option<CheckoutSnapshot> {
        let index_mode = fs::metadata(index).ok()?.mode() & 0o777;
        let bytes = crate::read::bytes(index).ok()?;
        let index_size = bytes.len();
        let index = Index::parse(bytes)?;
        if !has_distinct_folders(&index) {
            return None;
        }
        let size: usize = index.entries().map(|entry| entry.size()).sum();
        let memory = MemoryShare::take(size + index_size + index.entries().len() * ENTRY_BYTES)?;
        let root = open_folder(CWD, folder).ok()?;
        let mut bytes = Vec::with_capacity(size);
        let mut ranges = Vec::with_capacity(index.entries().len());
        for (number, entry) in index.entries().enumerate() {
            if number % CHECK_INTERVAL == 0 {
                check().ok()?;
            }
            let start = bytes.len();
            let path = OsStr::from_bytes(entry.path());
            let stat = match entry.kind()? {
                EntryKind::File { .. } => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let mut file = File::from(openat(&root, path, flags, Mode::empty()).ok()?);
                    let stat = FileStat::of(&fstat(&file).ok()?);
                    // Not more than the index says.
                    (&mut file).take(entry.size() as u64).read_to_end(&mut bytes).ok()?;
                    stat
                }
                EntryKind::Link => {
                    bytes.extend(readlinkat(&root, path, Vec::new()).ok()?.to_bytes());
                    FileStat::of(&stat_link(root.as_fd(), path).ok()?)
                }
                // The content of a submodule belongs to another repository.
                EntryKind::Submodule => {
                    ranges.push(start..start);
                    continue;
                }
            };
            if !entry.has_stat(&stat) || !is_content_of(entry.object(), &bytes[start..]) {
                return None;
            }
            ranges.push(start..bytes.len());
        }
        Some(CheckoutSnapshot { index, index_mode, bytes, ranges, _memory: memory })
    }

    /// Writes all files into a folder that contains none of them, and then the index. Calls `check` regularly.
    pub(crate) fn write(
        &self,
        folder: &Path,
        index: &Path,
        check: impl Fn() -> Result<(), Kind>,
    ) -> Result<(), Kind> {
        let root = open_folder(CWD, folder).map_err(Kind::io("open", folder))?;
        let mut folders = Folders { root: root.as_fd(), created: HashSet::new(), latest: None };
        let mut stats = Vec::with_capacity(self.ranges.len());
        for (number, (entry, range)) in self.index.entries().zip(&self.ranges).enumerate() {
            if number % CHECK_INTERVAL == 0 {
                check()?;
                fault::point("copying");
            }
            let path = entry.path();
            let bytes = &self.bytes[range.clone()];
            let written = entry.kind().map_or_else(
                || Err(io::ErrorKind::InvalidData.into()),
                |kind| {
                    let (here, name) = folders.of(path)?;
                    write_one(here, name, kind, bytes)
                },
            );
            stats.push(written.map_err(Kind::io("write", folder.join(OsStr::from_bytes(path))))?);
        }
        self.write_index(index, &stats)
    }

    /// Writes the index as git does: under its lock file, then renamed.
    fn write_index(&self, path: &Path, files: &[FileStat]) -> Result<(), Kind> {
        let lock = path.with_extension("lock");
        let mut file = match File::options().write(true).create_new(true).open(&lock) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Kind::StaleGitLock { path: lock });
            }
            other => other.map_err(Kind::io("create", &lock))?,
        };
        let written = file
            .write_all(&self.index.with_stats(files))
            .and_then(|()| file.set_permissions(Permissions::from_mode(self.index_mode)))
            .and_then(|()| fs::rename(&lock, path));
        written.map_err(|source| {
            let _ = fs::remove_file(&lock);
            Kind::Io { doing: "write", path: path.to_owned(), source }
        })
    }
}

/// The folders of a worktree that is being written. Keeps the latest one open, because its files mostly come
/// together.
struct Folders<'a> {
    root: BorrowedFd<'a>,
    created: HashSet<&'a [u8]>,
    latest: Option<(&'a [u8], OwnedFd)>,
}

impl<'a> Folders<'a> {
    /// Returns the folder of a path, created if necessary, and the path's name in it.
    fn of(&mut self, path: &'a [u8]) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let Some(end) = path.iter().rposition(|&byte| byte == b'/') else {
            return Ok((self.root, OsStr::from_bytes(path)));
        };
        let (folder, name) = (&path[..end], OsStr::from_bytes(&path[end + 1..]));
        if self.latest.as_ref().is_none_or(|(here, _)| *here != folder) {
            self.make(folder)?;
            self.latest = Some((folder, open_folder(self.root, OsStr::from_bytes(folder))?));
        }
        let here = self.latest.as_ref().map_or(self.root, |(_, folder)| folder.as_fd());
        Ok((here, name))
    }

    fn make(&mut self, folder: &'a [u8]) -> io::Result<()> {
        let ends = folder.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([folder.len()]) {
            if self.created.insert(&folder[..end]) {
                mkdirat(self.root, OsStr::from_bytes(&folder[..end]), Mode::from_raw_mode(0o777))?;
            }
        }
        Ok(())
    }
}

/// Creates a file, link or folder, and returns its stat data for the index.
fn write_one(folder: BorrowedFd<'_>, name: &OsStr, kind: EntryKind, bytes: &[u8]) -> io::Result<FileStat> {
    let stat = match kind {
        EntryKind::File { executable } => {
            let mode = Mode::from_raw_mode(if executable { 0o777 } else { 0o666 });
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(folder, name, flags, mode)?);
            file.write_all(bytes)?;
            let stat = fstat(&file)?;
            drop(file);
            if executable {
                wait_until_runnable(folder, name);
            }
            stat
        }
        EntryKind::Link => {
            symlinkat(OsStr::from_bytes(bytes), folder, name)?;
            stat_link(folder, name)?
        }
        EntryKind::Submodule => {
            mkdirat(folder, name, Mode::from_raw_mode(0o777))?;
            stat_link(folder, name)?
        }
    };
    Ok(FileStat::of(&stat))
}

/// Waits until no process can write to an executable file, because such a file cannot be run. A process that
/// another thread forks inherits the open file until its exec. The kernel grants a read lease once no writer is
/// left.
fn wait_until_runnable(folder: BorrowedFd<'_>, name: &OsStr) {
    const TRIES: u32 = 200;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return };
    for _ in 0..TRIES {
        // SAFETY: a system call with plain numbers, one of them an open file.
        let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        if granted == 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            // Closing the file releases the lease. Some file systems have no leases.
            return;
        }
        clock::pause_ms(1);
    }
}

/// Returns whether all folder names differ even without regard to case. On some file systems git puts both into
/// the same folder otherwise.
fn has_distinct_folders(index: &Index) -> bool {
    let folders: HashSet<&[u8]> = index
        .entries()
        .flat_map(|entry| {
            let path = entry.path();
            path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(move |(end, _)| &path[..end])
        })
        .collect();
    let folded: HashSet<String> =
        folders.iter().map(|folder| String::from_utf8_lossy(folder).to_lowercase()).collect();
    folded.len() == folders.len()
}

/// Returns whether the bytes equal the object, literally or after git's conversion of line ends.
fn is_content_of(object: &[u8], bytes: &[u8]) -> bool {
    is_object(object, bytes)
        || matches!(with_unix_line_ends(bytes), Cow::Owned(plain) if is_object(object, &plain))
}

fn with_unix_line_ends(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.windows(2).any(|two| two == b"\r\n") {
        return Cow::Borrowed(bytes);
    }
    let is_kept = |at: usize| bytes[at] != b'\r' || bytes.get(at + 1) != Some(&b'\n');
    Cow::Owned((0..bytes.len()).filter(|&at| is_kept(at)).map(|at| bytes[at]).collect())
}

fn open_folder(at: impl AsFd, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

fn stat_link(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<rustix::fs::Stat> {
    Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
}
