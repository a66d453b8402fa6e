//! A disk layer between SQLite and the real disk: it records every request, and fails on demand.
//!
//! It is the default of this test program, so the store opens its files through it without knowing.
//! It passes every request on except syncs: the test computes afterwards, from the recording, which writes they
//! made durable.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};

use rusqlite::ffi;

/// A request to the disk, in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Bytes are written.
    Write { file: String, offset: u64, data: Vec<u8> },
    /// A file gets a new size.
    Truncate { file: String, size: u64 },
    /// All that was written to a file before is on disk once this is done.
    Sync { file: String },
    /// A file is removed.
    Delete { file: String },
    /// Nothing for the disk: a caller was told that something is done.
    Answered(usize),
}

/// An operation that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk has no room.
    Full,
    /// The disk fails.
    Broken,
}

#[derive(Default)]
struct Disk {
    /// The folder whose files are looked at.
    folder: PathBuf,
    ops: Vec<Op>,
    /// The number of operations that could have failed so far.
    asked: u64,
    /// The operation that fails, and how.
    failing: Option<(u64, Fault)>,
}

static DISK: Mutex<Option<Disk>> = Mutex::new(None);

fn disk() -> MutexGuard<'static, Option<Disk>> {
    DISK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Looks at the files of this folder from now on; `failing` is the number of the operation that fails, and how.
pub fn watch(folder: &Path, failing: Option<(u64, Fault)>) {
    install();
    *disk() = Some(Disk { folder: folder.to_owned(), failing, ..Disk::default() });
}

/// Stops watching. Returns the requests, and how many operations could have failed.
pub fn unwatch() -> (Vec<Op>, u64) {
    disk().take().map_or_else(|| (Vec::new(), 0), |disk| (disk.ops, disk.asked))
}

/// Records that a caller got an answer.
pub fn answered(what: usize) {
    if let Some(disk) = &mut *disk() {
        disk.ops.push(Op::Answered(what));
    }
}

/// Notes an operation on a watched file, unless it is the one that fails.
fn ask(path: &Path, broken: c_int, op: impl FnOnce(String) -> Option<Op>) -> Result<(), c_int> {
    let mut disk = disk();
    let Some(disk) = disk.as_mut().filter(|disk| path.starts_with(&disk.folder)) else { return Ok(()) };
    disk.asked += 1;
    match disk.failing {
        Some((number, Fault::Full)) if number == disk.asked && broken == ffi::SQLITE_IOERR_WRITE => {
            return Err(ffi::SQLITE_FULL);
        }
        Some((number, Fault::Broken)) if number == disk.asked => return Err(broken),
        _ => {}
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    disk.ops.extend(op(name));
    Ok(())
}

/// An open file: SQLite's part, the path, and behind both the real disk's part.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    path: *mut PathBuf,
}

fn real_vfs() -> *mut ffi::sqlite3_vfs {
    static REAL: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for the platform's own file system, which SQLite keeps for the life of the process.
    *REAL.get_or_init(|| unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) as usize }) as *mut ffi::sqlite3_vfs
}

/// The real disk's part of an open file.
///
/// # Safety
/// `file` was made by `open` below.
unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: SQLite allocates `szOsFile` bytes, of which ours come first.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// # Safety
/// `file` was made by `open` below and is open.
unsafe fn path<'a>(file: *mut ffi::sqlite3_file) -> &'a Path {
    // SAFETY: set by `open`, and freed only by `close`.
    unsafe { &*(*file.cast::<File>()).path }
}

/// Calls the real disk's method of this name.
macro_rules! pass_on {
    ($file:expr, $method:ident $(, $arg:expr)*) => {{
        // SAFETY: the real disk's part was opened by the real disk, which has all of a version 2's methods.
        unsafe {
            let real = real($file);
            ((*(*real).pMethods).$method.expect("a version 2 has it"))(real $(, $arg)*)
        }
    }};
}

/// Methods that nothing is known about.
macro_rules! passed_on {
    ($($name:ident = $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)+) => {$(
        unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $arg: $type)*) -> $result {
            pass_on!(file, $method $(, $arg)*)
        }
    )+};
}

passed_on! {
    file_size = xFileSize(size: *mut i64) -> c_int;
    lock = xLock(level: c_int) -> c_int;
    unlock = xUnlock(level: c_int) -> c_int;
    reserved = xCheckReservedLock(out: *mut c_int) -> c_int;
    control = xFileControl(op: c_int, arg: *mut c_void) -> c_int;
    sector_size = xSectorSize() -> c_int;
    characteristics = xDeviceCharacteristics() -> c_int;
    shm_map = xShmMap(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) -> c_int;
    shm_lock = xShmLock(offset: c_int, n: c_int, flags: c_int) -> c_int;
    shm_barrier = xShmBarrier() -> ();
    shm_unmap = xShmUnmap(delete: c_int) -> c_int;
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let code = pass_on!(file, xClose);
    // SAFETY: made by `open`; the file is not used after this.
    drop(unsafe { Box::from_raw((*file.cast::<File>()).path) });
    code
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, into: *mut c_void, n: c_int, offset: i64) -> c_int {
    // SAFETY: called by SQLite with a file of ours.
    match ask(unsafe { path(file) }, ffi::SQLITE_IOERR_READ, |_| None) {
        Ok(()) => pass_on!(file, xRead, into, n, offset),
        Err(code) => code,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    n: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: SQLite hands over `n` bytes, and a file of ours.
    let (data, path) = unsafe { (std::slice::from_raw_parts(from.cast::<u8>(), n as usize), path(file)) };
    let op = |file| Some(Op::Write { file, offset: offset as u64, data: data.to_vec() });
    match ask(path, ffi::SQLITE_IOERR_WRITE, op) {
        Ok(()) => pass_on!(file, xWrite, from, n, offset),
        Err(code) => code,
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: called by SQLite with a file of ours.
    let path = unsafe { path(file) };
    match ask(path, ffi::SQLITE_IOERR_TRUNCATE, |file| Some(Op::Truncate { file, size: size as u64 })) {
        Ok(()) => pass_on!(file, xTruncate, size),
        Err(code) => code,
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: called by SQLite with a file of ours.
    let path = unsafe { path(file) };
    match ask(path, ffi::SQLITE_IOERR_FSYNC, |file| Some(Op::Sync { file })) {
        Ok(()) => ffi::SQLITE_OK,
        Err(code) => code,
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let vfs = real_vfs();
    // SAFETY: SQLite allocated room for both parts, and the name is its own.
    unsafe {
        let code = ((*vfs).xOpen.expect("it opens"))(vfs, name, real(file), flags, out_flags);
        (*file).pMethods = if (*real(file)).pMethods.is_null() { std::ptr::null() } else { &METHODS };
        let path = if name.is_null() { PathBuf::new() } else { to_path(name) };
        if !(*file).pMethods.is_null() {
            (*file.cast::<File>()).path = Box::into_raw(Box::new(path));
        }
        code
    }
}

/// # Safety
/// `name` is a text of C's.
unsafe fn to_path(name: *const c_char) -> PathBuf {
    // SAFETY: as promised by the caller.
    PathBuf::from(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    let vfs = real_vfs();
    // SAFETY: SQLite's own name.
    let path = unsafe { to_path(name) };
    match ask(&path, ffi::SQLITE_IOERR_DELETE, |file| Some(Op::Delete { file })) {
        // SAFETY: passed on as it came.
        Ok(()) => unsafe { ((*vfs).xDelete.expect("it deletes"))(vfs, name, sync_dir) },
        Err(code) => code,
    }
}

/// Makes it the disk that files are opened on, once.
fn install() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the structure is a copy of the real one with three fields changed, and lives for ever.
        unsafe {
            let real = real_vfs();
            let mut ours = *real;
            ours.zName = c"watched".as_ptr();
            ours.pNext = std::ptr::null_mut();
            ours.szOsFile = (*real).szOsFile + size_of::<File>() as c_int;
            ours.xOpen = Some(open);
            ours.xDelete = Some(delete);
            let code = ffi::sqlite3_vfs_register(Box::into_raw(Box::new(ours)), 1);
            assert_eq!(code, ffi::SQLITE_OK);
        }
    });
}
