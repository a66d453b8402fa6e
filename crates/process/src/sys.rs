//! The few system calls that have no safe wrapper elsewhere, each in a function of its own.

use std::{
    io,
    mem::zeroed,
    os::fd::{FromRawFd, OwnedFd},
};

use rustix::{
    event::{PollFd, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::Usage;

/// Signals that wake the supervisor: a child ended, or it shall end itself.
pub(crate) const WAKING: [i32; 4] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// From now on the signals of [`WAKING`] are read from the returned descriptor, and SIGPIPE is an error
/// of the write: reporting to a dead worker must not kill the supervisor before the tree is ended.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: a sigset_t of zeroes is valid, the calls write only to it, and a null pointer says that
    // the former mask is not wanted. The descriptor is new and owned by nobody else.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut set);
        for signal in WAKING {
            libc::sigaddset(&mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The numbers of the signals that came since the last call.
pub(crate) fn take_signals(fd: &OwnedFd) -> Vec<i32> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut buffer = [0; SIZE * 8];
    let mut taken = Vec::new();
    while let Ok(length) = rustix::io::read(fd, &mut buffer) {
        // The number is the first field of each record.
        let records = buffer[..length].chunks_exact(SIZE);
        taken.extend(records.map(|record| i32::from_ne_bytes([record[0], record[1], record[2], record[3]])));
        if length < buffer.len() {
            break;
        }
    }
    taken
}

/// Gives a child the signal handling every program expects: nothing blocked, nothing ignored.
///
/// Only calls what is allowed between fork and exec. Past the C library, which keeps two signals to
/// itself and would leave them ignored if somebody above us ignored them.
pub(crate) fn reset_signals() -> io::Result<()> {
    const SIGNALS: libc::c_int = 64;
    /// The kernel's set of 64 signals, and more than its struct for one of them.
    const SET_BYTES: usize = 8;
    let zeroes = [0_u64; 8];
    // SAFETY: all zeroes are the default action and the empty set; the kernel only reads from them, and
    // a null pointer says that the former value is not wanted. KILL and STOP refuse, and need no reset.
    unsafe {
        let nothing = std::ptr::null_mut::<u64>();
        for signal in 1..=SIGNALS {
            libc::syscall(libc::SYS_rt_sigaction, signal, zeroes.as_ptr(), nothing, SET_BYTES);
        }
        let set = libc::SIG_SETMASK;
        match libc::syscall(libc::SYS_rt_sigprocmask, set, zeroes.as_ptr(), nothing, SET_BYTES) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// What all children that were waited for used, and their own children.
pub(crate) fn children_usage(wall_ms: u64) -> Usage {
    // SAFETY: a rusage of zeroes is valid, and the call writes only to it.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let millis = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    Usage {
        user_ms: millis(usage.ru_utime),
        sys_ms: millis(usage.ru_stime),
        max_rss_kb: usage.ru_maxrss as u64,
        wall_ms,
    }
}

/// Makes reads and writes return instead of waiting.
pub(crate) fn set_nonblocking(fd: impl std::os::fd::AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Waits until a descriptor is ready or the time is over.
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], timeout_ms: u64) -> io::Result<()> {
    let timeout =
        Timespec { tv_sec: (timeout_ms / 1000) as i64, tv_nsec: (timeout_ms % 1000 * 1_000_000) as _ };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets a short time pass, where nothing announces what is waited for.
pub(crate) fn pause(timeout_ms: u64) {
    // With no descriptors nothing but the time can end it, and nothing can fail.
    let _ = wait_ready(&mut [], timeout_ms);
}
