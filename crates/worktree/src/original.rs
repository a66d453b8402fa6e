//! What git has checked out once, held in memory for others who want the same.
//!
//! ```text
//!   git fills a worktree ─▶ its index and files are read back ─▶ written as often as they are wanted
//! ```
//!
//! Git inflates each object, asks for its attributes and filters and writes it: two thirds of its time are spent before the
//! writing. What is read back is what git made; that it is what the objects hold is checked by their hashes. So whatever
//! differs from them (another encoding, a replaced object) is left to git, for each worktree anew.

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
    index::{Index, Known, What, is_object},
};

/// What all originals of this process may hold together.
const MOST_BYTES: usize = 256 << 20;

/// What is kept about a file besides its content and its entry in the index.
const ENTRY_BYTES: usize = 32;

/// How many files are read or written between two looks at whether it is still wanted.
const LOOK_EVERY: usize = 128;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A part of what may be held.
#[derive(Debug)]
struct Room(usize);

impl Room {
    fn take(bytes: usize) -> Option<Room> {
        let add = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= MOST_BYTES);
        HELD_BYTES.fetch_update(Relaxed, Relaxed, add).ok().map(|_| Room(bytes))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        HELD_BYTES.fetch_sub(self.0, Relaxed);
    }
}

/// All files of a commit, as git writes them.
#[derive(Debug)]
pub(crate) struct Original {
    index: Index,
    index_mode: u32,
    /// All contents, one after the other, and where that of each entry is.
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
    _room: Room,
}

impl Original {
    /// Reads back what git has just checked out and nobody has worked in; none if it is not what the objects hold, if it is
    /// more than may be held, or if `go_on` says so.
    pub(crate) fn read(
        folder: &Path,
        index: &Path,
        go_on: impl Fn() -> Result<(), Kind>,
    ) -> Option<Original> {
        let index_mode = fs::metadata(index).ok()?.mode() & 0o777;
        let bytes = fs::read(index).ok()?;
        let index_size = bytes.len();
        let index = Index::parse(bytes)?;
        if !has_distinct_folders(&index) {
            return None;
        }
        let size: usize = index.entries().map(|entry| entry.size()).sum();
        let room = Room::take(size + index_size + index.entries().len() * ENTRY_BYTES)?;
        let root = open_folder(CWD, folder).ok()?;
        let mut bytes = Vec::with_capacity(size);
        let mut places = Vec::with_capacity(index.entries().len());
        for (number, entry) in index.entries().enumerate() {
            if number % LOOK_EVERY == 0 {
                go_on().ok()?;
            }
            let begin = bytes.len();
            let path = OsStr::from_bytes(entry.path());
            let known = match entry.what()? {
                What::File { .. } => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let mut file = File::from(openat(&root, path, flags, Mode::empty()).ok()?);
                    let known = Known::of(&fstat(&file).ok()?);
                    // Not more than was said to be there.
                    (&mut file).take(entry.size() as u64).read_to_end(&mut bytes).ok()?;
                    known
                }
                What::Link => {
                    bytes.extend(readlinkat(&root, path, Vec::new()).ok()?.to_bytes());
                    Known::of(&stat_link(root.as_fd(), path).ok()?)
                }
                // Whatever is in it is not of this repository.
                What::Submodule => {
                    places.push(begin..begin);
                    continue;
                }
            };
            if !entry.knows(&known) || !is_kept_as(entry.object(), &bytes[begin..]) {
                return None;
            }
            places.push(begin..bytes.len());
        }
        Some(Original { index, index_mode, bytes, places, _room: room })
    }

    /// Writes all files into a folder that has none of them, and then the index. `go_on` is asked from time to time.
    pub(crate) fn write(
        &self,
        folder: &Path,
        index: &Path,
        go_on: impl Fn() -> Result<(), Kind>,
    ) -> Result<(), Kind> {
        let root = open_folder(CWD, folder).map_err(Kind::io("open", folder))?;
        let mut folders = Folders { root: root.as_fd(), made: HashSet::new(), here: None };
        let mut known = Vec::with_capacity(self.places.len());
        for (number, (entry, place)) in self.index.entries().zip(&self.places).enumerate() {
            if number % LOOK_EVERY == 0 {
                go_on()?;
                fault::point("copying");
            }
            let path = entry.path();
            let bytes = &self.bytes[place.clone()];
            let written = entry.what().map_or_else(
                || Err(io::ErrorKind::InvalidData.into()),
                |what| {
                    let (here, name) = folders.of(path)?;
                    write_one(here, name, what, bytes)
                },
            );
            known.push(written.map_err(Kind::io("write", folder.join(OsStr::from_bytes(path))))?);
        }
        self.write_index(index, &known)
    }

    /// As git does it: under its lock, and in one step.
    fn write_index(&self, path: &Path, files: &[Known]) -> Result<(), Kind> {
        let lock = path.with_extension("lock");
        let mut file = match File::options().write(true).create_new(true).open(&lock) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Kind::StaleGitLock { path: lock });
            }
            other => other.map_err(Kind::io("make", &lock))?,
        };
        let written = file
            .write_all(&self.index.about(files))
            .and_then(|()| file.set_permissions(Permissions::from_mode(self.index_mode)))
            .and_then(|()| fs::rename(&lock, path));
        written.map_err(|source| {
            let _ = fs::remove_file(&lock);
            Kind::Io { doing: "write", path: path.to_owned(), source }
        })
    }
}

/// The folders of a worktree that is being written. What belongs to one folder mostly comes together.
struct Folders<'a> {
    root: BorrowedFd<'a>,
    made: HashSet<&'a [u8]>,
    here: Option<(&'a [u8], OwnedFd)>,
}

impl<'a> Folders<'a> {
    /// The folder of a path, made if need be, and the path's name in it.
    fn of(&mut self, path: &'a [u8]) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let Some(end) = path.iter().rposition(|&byte| byte == b'/') else {
            return Ok((self.root, OsStr::from_bytes(path)));
        };
        let (folder, name) = (&path[..end], OsStr::from_bytes(&path[end + 1..]));
        if self.here.as_ref().is_none_or(|(here, _)| *here != folder) {
            self.make(folder)?;
            self.here = Some((folder, open_folder(self.root, OsStr::from_bytes(folder))?));
        }
        let here = self.here.as_ref().map_or(self.root, |(_, folder)| folder.as_fd());
        Ok((here, name))
    }

    fn make(&mut self, folder: &'a [u8]) -> io::Result<()> {
        let ends = folder.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([folder.len()]) {
            if self.made.insert(&folder[..end]) {
                mkdirat(self.root, OsStr::from_bytes(&folder[..end]), Mode::from_raw_mode(0o777))?;
            }
        }
        Ok(())
    }
}

/// Makes what was not there, and says where on the disk it is.
fn write_one(folder: BorrowedFd<'_>, name: &OsStr, what: What, bytes: &[u8]) -> io::Result<Known> {
    let stat = match what {
        What::File { executable } => {
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
        What::Link => {
            symlinkat(OsStr::from_bytes(bytes), folder, name)?;
            stat_link(folder, name)?
        }
        What::Submodule => {
            mkdirat(folder, name, Mode::from_raw_mode(0o777))?;
            stat_link(folder, name)?
        }
    };
    Ok(Known::of(&stat))
}

/// A process that another thread of ours starts has all our files until it becomes another program; and what somebody may
/// write to, nobody can run. The kernel grants a lease for reading once nobody may.
fn wait_until_runnable(folder: BorrowedFd<'_>, name: &OsStr) {
    const TRIES: u32 = 200;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return };
    for _ in 0..TRIES {
        // SAFETY: a call with three numbers, one of them a file that is open.
        let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        if granted == 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            // Closing it gives the lease back. Not all file systems have leases.
            return;
        }
        clock::pause_ms(1);
    }
}

/// Whether no two folders have names that some file systems take for one: git puts both into the same.
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

/// As they are, or with ends of lines that git made out of the object's.
fn is_kept_as(object: &[u8], bytes: &[u8]) -> bool {
    is_object(object, bytes)
        || matches!(with_plain_ends(bytes), Cow::Owned(plain) if is_object(object, &plain))
}

fn with_plain_ends(bytes: &[u8]) -> Cow<'_, [u8]> {
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
