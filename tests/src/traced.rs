//! A process that is killed before its Nth operation that other processes can notice.
//!
//! An operation is a system call that writes to a file, a named pipe or a socket, syncs a file, or changes a folder. The
//! process is traced (`ptrace`), so it stops before each of its system calls, and the kill hits exactly there. With N from
//! one upward, a test hits every point at which the process can die.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::{Sandbox, nightly, until, until_some};

/// The number of a kill that never comes.
const NEVER: usize = usize::MAX;
/// The number after the kill.
const KILLED: usize = usize::MAX - 1;
/// The mark of a stop at a system call, with `PTRACE_O_TRACESYSGOOD`.
const AT_SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// Calls whose first argument is the descriptor that they change.
const ON_DESCRIPTORS: [i64; 11] = [
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
];

/// Calls that change a folder.
const ON_FOLDERS: [i64; 5] =
    [libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_mkdirat, libc::SYS_linkat];

/// The same calls by their older names.
#[cfg(target_arch = "x86_64")]
const ON_FOLDERS_TOO: [i64; 5] =
    [libc::SYS_unlink, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_link, libc::SYS_rmdir];
#[cfg(not(target_arch = "x86_64"))]
const ON_FOLDERS_TOO: [i64; 0] = [];

/// The end of a traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Whether the Nth operation came, and with it the kill.
    pub was_killed: bool,
    /// The exit code; the negative number of the signal otherwise.
    pub code: i32,
    /// The number of operations that were counted.
    pub operations: usize,
}

/// The numbers that the tracing thread shares with the test.
#[derive(Debug)]
struct Shared {
    pid: AtomicI32,
    /// The number of operations so far.
    operations: AtomicUsize,
    /// The number of the operation before which the process is killed.
    fatal: AtomicUsize,
    /// The numbers of the operations that make others durable or send them to another process.
    borders: Mutex<Vec<usize>>,
}

/// A traced process; killed when this is dropped.
#[derive(Debug)]
pub struct Traced {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<End>>,
    out: PathBuf,
}

impl Traced {
    /// Starts a command that is killed before its Nth operation; never without a number. None where processes may not be
    /// traced, which the results of the tests then show.
    pub fn start(sandbox: &Sandbox, mut command: Command, nth: Option<usize>) -> Option<Traced> {
        let out = sandbox.record_output(&mut command);
        let shared = Arc::new(Shared {
            pid: AtomicI32::new(0),
            operations: AtomicUsize::new(0),
            fatal: AtomicUsize::new(nth.unwrap_or(NEVER)),
            borders: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        // The kernel ties a traced process to the thread that started it.
        let thread = std::thread::spawn(move || trace(command, &theirs));
        let started = until_some("the traced process starts or cannot be traced", || {
            let pid = shared.pid.load(Ordering::SeqCst);
            (pid != 0).then_some(pid > 0)
        });
        if !started {
            // Standard error itself: the harness hides what a passed test prints.
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(std::io::stderr(), "{test}: skipped: this user may not trace processes");
        }
        started.then_some(Traced { shared, thread: Some(thread), out })
    }

    /// Returns its standard output until now.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Counts from now on, and kills it before its Nth operation.
    pub fn kill_before(&self, nth: usize) {
        // The new number is set last: an operation in between counts for neither.
        self.shared.fatal.store(NEVER, Ordering::SeqCst);
        self.shared.operations.store(0, Ordering::SeqCst);
        self.shared.borders.lock().expect("a list").clear();
        self.shared.fatal.store(nth, Ordering::SeqCst);
    }

    /// Returns the operations to kill it at, by what it has done since it is counted: all of them in the nightly run,
    /// otherwise those before and after each sync and each message, and some of the others, but not more than `most`.
    pub fn points(&self, most: usize) -> Vec<usize> {
        /// One in this many of the operations between two borders.
        const SOME: usize = 9;
        let last = self.shared.operations.load(Ordering::SeqCst) + 1;
        let borders = self.shared.borders.lock().expect("a list");
        let is_near = |nth: usize| borders.iter().any(|border| nth == *border || nth == border + 1);
        let is_chosen = |nth: &usize| nightly(nth % SOME == 1 || *nth == last || is_near(*nth), true);
        let chosen: Vec<usize> = (1..=last).filter(is_chosen).collect();
        let kept = nightly(most, usize::MAX).min(chosen.len());
        (1..=kept).map(|nth| chosen[nth * chosen.len() / kept - 1]).collect()
    }

    /// Takes the kill back. Returns whether that was in time: the process has not been killed, and will not be.
    pub fn spare(&self) -> bool {
        self.shared.fatal.swap(NEVER, Ordering::SeqCst) != KILLED
    }

    /// Returns whether it was killed, or ended in another way.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end.
    pub fn end(mut self) -> End {
        until("the traced process ends", || self.has_ended());
        self.thread
            .take()
            .expect("it was not asked before")
            .join()
            .expect("the tracing thread has not panicked")
    }

    /// Kills it now, and waits until it is gone.
    pub fn kill(mut self) {
        self.kill_now();
    }

    fn kill_now(&mut self) {
        if let Some(thread) = self.thread.take() {
            if !thread.is_finished() {
                crate::signal(self.shared.pid.load(Ordering::SeqCst), crate::Signal::KILL);
            }
            let _ = thread.join();
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.kill_now();
    }
}

/// Starts the command and follows all its threads to their end.
fn trace(mut command: Command, shared: &Shared) -> End {
    // SAFETY: `ptrace` is a system call, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0_usize, 0_usize) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let failed = End { was_killed: false, code: -1, operations: 0 };
    let Ok(pid) = command.spawn().map(process_of) else {
        shared.pid.store(-1, Ordering::SeqCst);
        return failed;
    };
    let (first, status) = wait_for(pid);
    if first != pid || !libc::WIFSTOPPED(status) {
        shared.pid.store(-1, Ordering::SeqCst);
        return failed;
    }
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    // SAFETY: the child is stopped and traced by this thread.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0_usize, options as usize) };
    let mut threads = std::collections::BTreeSet::from([pid]);
    let mut was_killed = false;
    go_on(pid, 0);
    shared.pid.store(pid, Ordering::SeqCst);
    loop {
        let (thread, status) = wait_for(-1);
        if thread < 0 {
            return End { was_killed, code: -1, operations: shared.operations.load(Ordering::SeqCst) };
        }
        if !libc::WIFSTOPPED(status) {
            if thread == pid {
                let code =
                    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
                return End { was_killed, code, operations: shared.operations.load(Ordering::SeqCst) };
            }
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let is_new = threads.insert(thread);
        let delivered = if signal == AT_SYSTEM_CALL {
            if !was_killed && let Some(is_border) = operation_of(thread) {
                let nth = shared.operations.fetch_add(1, Ordering::SeqCst) + 1;
                if is_border {
                    shared.borders.lock().expect("a list").push(nth);
                }
                let fatal = &shared.fatal;
                if fatal.compare_exchange(nth, KILLED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    was_killed = true;
                    crate::signal(pid, crate::Signal::KILL);
                }
            }
            0
        } else if status >> 16 != 0 || (is_new && signal == libc::SIGSTOP) {
            // A new thread, and its first stop.
            0
        } else {
            signal
        };
        go_on(thread, delivered);
    }
}

/// Returns the number of a process. The tracing thread waits for it, and no other code may.
fn process_of(child: Child) -> i32 {
    child.id() as i32
}

/// Waits for this process, or for any process or thread that this thread traces.
fn wait_for(pid: i32) -> (i32, i32) {
    let mut status = 0;
    // SAFETY: the status is a number of ours. Children of other threads are left to these.
    let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    (found, status)
}

/// Lets a stopped thread continue to its next system call, with this signal.
fn go_on(thread: i32, signal: i32) {
    // SAFETY: the thread is stopped and traced by this one. If it was killed meanwhile, the call fails.
    unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0_usize, signal as usize) };
}

/// Returns whether the operation that a thread is about to begin is a sync or a message; none if it begins none.
fn operation_of(thread: i32) -> Option<bool> {
    // SAFETY: all zeros is a value of this structure, and the kernel writes no more than its size.
    let (size, info) = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        (libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info), info)
    };
    if size <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: this kind of stop fills this part.
    let (number, descriptor) = unsafe { (info.u.entry.nr as i64, info.u.entry.args[0]) };
    if ON_FOLDERS.contains(&number) || ON_FOLDERS_TOO.contains(&number) {
        return Some(false);
    }
    if !ON_DESCRIPTORS.contains(&number) || descriptor <= 2 {
        return None;
    }
    // Descriptors that lead out of the process: to files, named pipes and sockets.
    let target = std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).unwrap_or_default();
    let target = target.to_string_lossy();
    let is_socket = target.starts_with("socket:");
    let is_sync = [libc::SYS_fsync, libc::SYS_fdatasync].contains(&number);
    let is_outside = is_socket || (target.starts_with('/') && !target.starts_with("/memfd:"));
    is_outside.then_some(is_socket || is_sync)
}
