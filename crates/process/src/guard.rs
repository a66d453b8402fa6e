//! Puts a guard between this program and a command that it starts for itself, such as git. The guard is a
//! forked process that waits for the command and kills everything the command leaves behind.
//!
//! ```text
//!   this program ──▶ guard (subreaper, own group) ──▶ the command, in its own session ──▶ hooks, filters, …
//! ```
//!
//! - The guard exits with the command's status once no process of the command's tree is left.
//! - TERM to the guard stops the tree: TERM, a grace, KILL.
//! - When this program dies, the guard stops the command at once or gives it a minute to finish.
//!
//! The guard executes no program. It runs between fork and exec of a process with several threads, so it only
//! makes system calls, and neither allocates nor locks.

use std::{io, mem::zeroed, os::unix::process::CommandExt, process::Command, ptr::null_mut};

use libc::{c_int, c_long, pid_t};

/// The time between TERM and KILL.
const GRACE_MS: i64 = 2_000;
/// The time to finish for a command with [`OnParentExit::Finish`] after this program died.
const ORPHAN_MS: i64 = 60_000;
/// The interval in which the guard checks whether this program is alive.
const CHECK_INTERVAL_MS: i64 = 500;
/// The interval of checks while processes are being killed.
const KILL_INTERVAL_MS: i64 = 20;

/// The treatment of a guarded command when this program dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnParentExit {
    /// The guard stops the command.
    Stop,
    /// The command may finish within a minute.
    Finish,
}

/// Makes a guard wait for the command. The child that `spawn` returns is the guard, the leader of its process
/// group.
pub fn guard(command: &mut Command, on_exit: OnParentExit) {
    let parent = std::process::id() as pid_t;
    command.process_group(0);
    // SAFETY: the closure makes system calls only.
    unsafe {
        command.pre_exec(move || fork_guard(parent, on_exit));
    }
}

/// Asks a guard to stop its command and everything that the command has started.
pub fn terminate(guard: u32) {
    let Ok(pid) = pid_t::try_from(guard) else { return };
    // SAFETY: sends a signal to one process, a child of this program that has not been reaped.
    unsafe {
        libc::kill(pid, libc::SIGTERM);
    }
}

/// Forks. The child returns and becomes the command; the parent becomes the guard and never returns.
fn fork_guard(parent: pid_t, on_exit: OnParentExit) -> io::Result<()> {
    // SAFETY: system calls whose arguments are plain numbers, or point to values of this function.
    unsafe {
        let mut signals: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        let mut before: libc::sigset_t = zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, &signals, &mut before);
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        if on_exit == OnParentExit::Stop {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0);
            if libc::getppid() != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        let guard = libc::getpid();
        // Bypasses the C library, whose fork runs handlers that take locks.
        match libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), 0, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
                // Its own session, so that a subreaper can distinguish adopted processes from its own children.
                libc::setsid();
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                if libc::getppid() != guard {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                libc::sigprocmask(libc::SIG_SETMASK, &before, null_mut());
                Ok(())
            }
            child => guard_main(child as pid_t, parent, &signals),
        }
    }
}

/// Waits for the command and everything it leaves behind, then exits with the command's status.
///
/// # Safety
///
/// Must run in a process that was forked for it.
unsafe fn guard_main(command: pid_t, parent: pid_t, signals: &libc::sigset_t) -> ! {
    close_all_files();
    let mut ended: Option<c_int> = None;
    let mut kill_at_ms: Option<i64> = None;
    let mut stop_requested = false;
    loop {
        // SAFETY: waits for children of this process; the status is a value of this function.
        let none_left = unsafe {
            loop {
                let mut status = 0;
                match libc::waitpid(-1, &mut status, libc::WNOHANG) {
                    0 => break false,
                    pid if pid == command => ended = Some(status),
                    pid if pid > 0 => {}
                    _ if errno() == libc::EINTR => {}
                    _ => break true,
                }
            }
        };
        if none_left {
            exit_with(ended.unwrap_or(0));
        }
        let now_ms = now_ms();
        // SAFETY: plain system calls.
        let orphaned = unsafe { libc::getppid() } != parent;
        if (ended.is_some() || stop_requested) && kill_at_ms.is_none() {
            if ended.is_none() {
                // SAFETY: a plain system call. The command was not waited for, so the group is its own.
                unsafe { libc::kill(-command, libc::SIGTERM) };
            }
            signal_children(libc::SIGTERM);
            kill_at_ms = Some(now_ms + GRACE_MS);
        }
        if orphaned && kill_at_ms.is_none() {
            kill_at_ms = Some(now_ms + ORPHAN_MS);
        }
        let mut wait_ms = CHECK_INTERVAL_MS;
        if let Some(at_ms) = kill_at_ms {
            if now_ms >= at_ms {
                // Children of killed processes become children of the guard, and the next round finds them.
                signal_children(libc::SIGKILL);
                wait_ms = KILL_INTERVAL_MS;
            } else {
                wait_ms = wait_ms.min(at_ms - now_ms);
            }
        }
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: (wait_ms.clamp(1, 999) * 1_000_000) as c_long };
        // SAFETY: the set and the time are values of this function, and a null pointer asks for no details.
        let signal = unsafe { libc::sigtimedwait(signals, null_mut(), &timeout) };
        if signal > 0 && signal != libc::SIGCHLD {
            kill_at_ms = if stop_requested { kill_at_ms } else { None };
            stop_requested = true;
        }
    }
}

/// Closes all files, so that the guard keeps no pipe open whose end other processes wait for.
fn close_all_files() {
    // SAFETY: the guard uses no descriptor after this.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, c_long::from(u32::MAX), 0) != 0 {
            for fd in 0..4096 {
                libc::close(fd);
            }
        }
    }
}

/// Sends a signal to every child of this process.
fn signal_children(signal: c_int) {
    const LIST: &std::ffi::CStr = c"/proc/thread-self/children";
    let mut buffer = [0_u8; 4096];
    // SAFETY: opens, reads into a buffer of this function and closes.
    let length = unsafe {
        let file = libc::open(LIST.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return;
        }
        let length = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(file);
        usize::try_from(length).unwrap_or(0)
    };
    let mut pid: pid_t = 0;
    // The next round finds the children that a full buffer cuts off.
    for byte in &buffer[..length] {
        match byte {
            b'0'..=b'9' => pid = pid.wrapping_mul(10).wrapping_add(pid_t::from(byte - b'0')),
            _ => {
                if pid > 1 {
                    // SAFETY: a child that was not waited for keeps its number.
                    unsafe { libc::kill(pid, signal) };
                }
                pid = 0;
            }
        }
    }
}

/// Ends this process with the wait status of another.
fn exit_with(status: c_int) -> ! {
    // SAFETY: plain system calls; the last one does not return.
    unsafe {
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            let mut all: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut all);
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            libc::signal(signal, libc::SIG_DFL);
            libc::sigprocmask(libc::SIG_SETMASK, &all, null_mut());
            libc::kill(libc::getpid(), signal);
            libc::_exit(128 + signal);
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}

fn now_ms() -> i64 {
    // SAFETY: the call writes only to the value of this function.
    let now = unsafe {
        let mut now: libc::timespec = zeroed();
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now);
        now
    };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

fn errno() -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}
