//! Access to files in folders that a step can write to, and files that only this user may read.
//!
//! A step can replace a file by anything: a link to another file, a pipe without a writer, a device. The
//! functions here open only regular files, follow no link, and never block while opening. The files that they
//! create are readable by this user alone, whatever the umask.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;

/// The flags with which opening neither follows a link nor blocks.
const SAFE_OPEN: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Opens a regular file for reading. Refuses a link at the path itself; follows links in its folders.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(SAFE_OPEN.bits() as i32).open(path);
    regular(file.map_err(explain_link)?)
}

/// Returns a short path of a socket, because one has at most 107 bytes. It is valid in this process while the descriptor
/// of its folder is open.
pub fn short_socket_path(socket: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path of the socket has no folder"));
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
    let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((folder, short))
}

/// Opens a regular file below a folder for reading. The kernel refuses to leave the folder and to follow any
/// link, even if the path changes meanwhile.
pub fn open_below(folder: &Path, name: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let base = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&base, name, OFlags::RDONLY | SAFE_OPEN, Mode::empty(), beneath) {
        Ok(file) => regular(File::from(file)),
        // An old kernel, or a sandbox that forbids the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_component(base.into(), name),
        Err(error) => Err(explain_link(error.into())),
    }
}

/// Does the same as `openat2`, one folder at a time.
fn open_by_component(base: File, name: &Path) -> io::Result<File> {
    let mut parts: Vec<OsString> = Vec::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir => {}
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it leads out of the folder")),
        }
    }
    let last = parts.pop().ok_or_else(not_regular)?;
    let mut folder = base;
    for part in parts {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | SAFE_OPEN;
        folder = File::from(rustix::fs::openat(&folder, &part, flags, Mode::empty())?);
    }
    let file = rustix::fs::openat(&folder, &last, OFlags::RDONLY | SAFE_OPEN, Mode::empty());
    regular(File::from(file.map_err(|error| explain_link(error.into()))?))
}

/// Reads a regular file of at most `max_bytes`.
pub fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {max_bytes} bytes"),
        ));
    }
    Ok(bytes)
}

/// Returns options that create or open a file of this user alone. The caller chooses between appending and
/// replacing, and must check the opened file with [`regular`].
pub fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(SAFE_OPEN.bits() as i32);
    options
}

/// Returns the file if it is a regular file, else an error.
pub fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Creates a folder and its missing parents, for this user alone.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file of this user alone to `beside`, and renames it to `path`.
pub fn write_private(path: &Path, beside: &Path, text: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = private_options().write(true).create_new(true).open(beside)?;
        io::Write::write_all(&mut file, text)?;
        std::fs::rename(beside, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(beside);
    })
}

/// Atomically replaces a file by one of this user alone. Writes the new file beside it, under a name that no
/// other writer uses. Skips names that a crash left behind.
pub fn replace_private(path: &Path, text: &[u8]) -> io::Result<()> {
    /// More leftovers than this are no accident.
    const TRIES: u32 = 100;
    static WRITES: AtomicU32 = AtomicU32::new(0);
    let mut written = Ok(());
    for _ in 0..TRIES {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}-{}~", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
        written = write_private(path, Path::new(&beside), text);
        if !matches!(&written, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    written
}

/// Copies an open file to a new file of this user alone; holes stay holes. Calls `look` with each piece before it is
/// written and stops at its first error. Removes an unfinished copy.
pub fn copy_private(from: &File, to: &Path, look: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let file = regular(private_options().write(true).create(true).truncate(true).open(to)?)?;
    copy_data(from, &file, look).inspect_err(|_| {
        let _ = std::fs::remove_file(to);
    })
}

fn copy_data(from: &File, to: &File, look: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    /// The number of bytes copied at once.
    const PIECE: usize = 1 << 20;
    let length = from.metadata()?.len();
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        // A file system without this information reports everything as data.
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(_) => at,
        };
        let hole = rustix::fs::seek(from, SeekFrom::Hole(at)).unwrap_or(length);
        let most = PIECE.min(usize::try_from(hole.saturating_sub(at)).unwrap_or(PIECE));
        let read = from.read_at(&mut piece[..most], at)?;
        if read == 0 {
            break;
        }
        look(&piece[..read])?;
        to.write_all_at(&piece[..read], at)?;
        at += read as u64;
    }
    to.set_len(length)
}

/// Resolves `.` and `..` in the path without reading the disk. The result is exact if no part of the path is a
/// link.
pub fn normalized(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some() => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// Replaces the kernel's "too many levels" by a message that names the cause.
fn explain_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, or behind one")
        }
        // A pipe without a reader, or a socket.
        Some(code) if code == Errno::NXIO.raw_os_error() => not_regular(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn fifo(path: &Path) {
        rustix::fs::mkfifoat(CWD, path, Mode::from_raw_mode(0o600)).expect("a pipe");
    }

    #[test]
    fn e03_only_regular_files_are_opened_and_nothing_blocks() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "yes").expect("a file");
        fifo(&at("pipe"));
        symlink(at("file"), at("link")).expect("a link");
        symlink("/dev/zero", at("zero")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        assert_eq!(read_regular(&at("file"), 3).expect("a file"), b"yes");
        assert_eq!(read_regular(&at("file"), 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(open_regular(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        for wrong in ["pipe", "link", "zero", "socket", "."] {
            let error = open_regular(&at(wrong)).expect_err(wrong);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong}: {error}");
            assert!(open_below(folder.path(), Path::new(wrong)).is_err(), "{wrong}");
        }
        assert!(open_regular(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn e03_nothing_leads_out_of_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("inside");
        std::fs::create_dir_all(inside.join("a/b")).expect("folders");
        std::fs::write(inside.join("a/b/file"), "yes").expect("a file");
        std::fs::write(folder.path().join("secret"), "no").expect("a file");
        symlink("..", inside.join("up")).expect("a link");
        symlink("a", inside.join("same")).expect("a link");
        let base = || File::open(&inside).expect("a folder");
        for (name, there) in [
            ("a/b/file", true),
            ("a/../a/b/file", true),
            ("up/secret", false),
            ("same/b/file", false),
            ("../secret", false),
            ("a/b", false),
            ("a/b/none", false),
        ] {
            assert_eq!(open_below(&inside, Path::new(name)).is_ok(), there, "{name}");
            // This way refuses `..` altogether.
            let by_component = open_by_component(base(), Path::new(name)).is_ok();
            assert_eq!(by_component, there && !name.contains(".."), "{name}");
        }
    }

    #[test]
    fn new_files_are_private_to_this_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a/b");
        make_private_folder(&deep).expect("folders");
        let file = deep.join("file");
        private_options().write(true).create(true).truncate(true).open(&file).expect("a file");
        write_private(&deep.join("whole"), &deep.join("beside"), b"text").expect("a file");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!([mode(&deep), mode(deep.parent().expect("a"))], [0o700; 2]);
        assert_eq!([mode(&file), mode(&deep.join("whole"))], [0o600; 2]);
        assert!(!deep.join("beside").exists());
    }

    #[test]
    fn a_replaced_file_is_complete_and_leftovers_are_skipped() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("note");
        std::thread::scope(|scope| {
            for writer in ["first", "second"] {
                let path = &path;
                scope.spawn(move || {
                    (0..50).for_each(|_| replace_private(path, writer.as_bytes()).expect("written"));
                });
            }
        });
        let text = read_regular(&path, 100).expect("a file");
        assert!(text == b"first" || text == b"second");
        assert_eq!(path.metadata().expect("a file").mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn e03_a_copy_is_complete_keeps_holes_and_stops_on_request() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let file = File::create(at("from")).expect("a file");
        file.write_all_at(b"begin", 0).expect("written");
        file.write_all_at(b"end", 1 << 40).expect("a sparse file");
        let from = File::open(at("from")).expect("a file");
        let mut seen = Vec::new();
        let mut look = |piece: &[u8]| {
            seen.extend(piece.iter().filter(|byte| **byte != 0));
            Ok(())
        };
        copy_private(&from, &at("to"), &mut look).expect("copied");
        assert_eq!(String::from_utf8_lossy(&seen), "beginend");
        let to = at("to").metadata().expect("a copy");
        assert_eq!((to.len(), to.blocks() < 1_000, to.mode() & 0o777), ((1 << 40) + 3, true, 0o600));
        let mut end = [0; 3];
        File::open(at("to")).expect("a copy").read_exact_at(&mut end, 1 << 40).expect("its end");
        assert_eq!(&end, b"end");
        let mut stop = |_: &[u8]| Err(io::Error::from(io::ErrorKind::TimedOut));
        let late = copy_private(&from, &at("late"), &mut stop).expect_err("too late");
        assert_eq!((late.kind(), at("late").exists()), (io::ErrorKind::TimedOut, false));
        let empty = File::create(at("empty")).and_then(|_| File::open(at("empty"))).expect("a file");
        copy_private(&empty, &at("to"), &mut |_| Ok(())).expect("copied");
        assert_eq!(at("to").metadata().expect("a copy").len(), 0);
    }

    #[test]
    fn a_path_is_normalized_without_reading_the_disk() {
        for (path, plain) in [
            ("/a/./b/../c", "/a/c"),
            ("a/../../b", "../b"),
            ("/..", "/.."),
            ("./x", "x"),
            ("/a/b/../../c", "/c"),
        ] {
            assert_eq!(normalized(Path::new(path)), Path::new(plain), "{path}");
        }
    }
}
