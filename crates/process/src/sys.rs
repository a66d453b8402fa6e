//! The few system calls that have no safe wrapper elsewhere, each in its own function.

use std::{
    ffi::{CStr, OsStr, OsString},
    io,
    mem::zeroed,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use rustix::{
    event::{PollFd, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::Usage;

/// The signals that wake the supervisor: a child ended, or a request to stop.
pub(crate) const WAKING: [i32; 4] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Blocks the signals of [`WAKING`] and returns a descriptor to read them from. Also ignores SIGPIPE, so that a
/// report to a dead worker does not kill the supervisor before it has stopped the tree.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: a sigset_t of zeroes is valid, the calls write only to it, and a null pointer means that the
    // previous mask is not wanted. The descriptor is new and has no other owner.
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

/// Returns the numbers of the signals since the last call.
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

/// Resets the signals of a child to the defaults: nothing blocked, nothing ignored.
///
/// Makes only calls that are allowed between fork and exec. Bypasses the C library, which reserves two signals
/// and would leave them ignored if a parent ignored them.
pub(crate) fn reset_signals() -> io::Result<()> {
    const SIGNALS: libc::c_int = 64;
    /// The size of the kernel's set of 64 signals. The zeroes below are larger than its struct for one of them.
    const SET_BYTES: usize = 8;
    let zeroes = [0_u64; 8];
    // SAFETY: all zeroes are the default action and the empty set. The kernel only reads them, and a null
    // pointer means that the previous value is not wanted. KILL and STOP refuse, and need no reset.
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

/// Forks into a cgroup of version 2, given by its folder. Returns the child's id, and `None` in the child.
///
/// # Safety
///
/// No other thread may run: the child has copies of its locks, and this call bypasses the C library, which would release
/// them.
pub(crate) unsafe fn fork_into(cgroup: &OwnedFd) -> io::Result<Option<i32>> {
    /// Starts the child in the cgroup of `clone_args.cgroup`; since Linux 5.7.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: all zeroes are valid arguments, and mean no flags, stacks or pointers.
    let mut arguments: libc::clone_args = unsafe { zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the kernel only reads the arguments. Without a flag for shared memory the child has a copy of everything,
    // and the caller guarantees that this is the only thread.
    match unsafe { libc::syscall(libc::SYS_clone3, &arguments, size_of::<libc::clone_args>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid as i32)),
    }
}

/// Ends this process at once, without running destructors or handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: the call does not return and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Returns the resources that all reaped children and their descendants used.
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

/// Takes over the two pipes that the worker passed on by number.
pub(crate) fn inherited_pipes(input: i32, output: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let take = |fd: i32| {
        // SAFETY: fstat only reads, and fills a struct of its own.
        let is_pipe = fd > 2
            && unsafe {
                let mut stat: libc::stat = zeroed();
                libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
            };
        // SAFETY: the worker opened it for this process alone, and nothing else here owns it.
        if is_pipe { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) } else { Err(io::ErrorKind::NotFound) }
    };
    if input == output {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((take(input)?, take(output)?))
}

/// Lets a descriptor survive `exec`. Makes one system call, which is allowed between fork and exec.
pub(crate) fn keep_over_exec(fd: i32) -> io::Result<()> {
    // SAFETY: the call changes only the flags of this process's descriptor.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes reads and writes return instead of blocking.
pub(crate) fn set_nonblocking(fd: impl std::os::fd::AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Waits until a descriptor is ready or the timeout has passed.
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], timeout_ms: u64) -> io::Result<()> {
    let timeout =
        Timespec { tv_sec: (timeout_ms / 1000) as i64, tv_nsec: (timeout_ms % 1000 * 1_000_000) as _ };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Pauses for a short time, where no event announces the awaited change.
pub(crate) fn pause(timeout_ms: u64) {
    // Without descriptors only the timeout ends the call, and it cannot fail.
    let _ = wait_ready(&mut [], timeout_ms);
}

unsafe extern "C" {
    /// The C library's list of pointers to `NAME=value` texts, terminated by a null pointer.
    static environ: *const *mut libc::c_char;
}

/// Removes the variables for which `stays` is false, and overwrites them in `/proc/PID/environ`.
///
/// # Safety
///
/// No other thread may run, and no code may hold a pointer into the environment.
pub(crate) unsafe fn erase_environment(stays: &dyn Fn(&OsStr) -> bool) {
    let mut gone: Vec<(*mut libc::c_char, usize, OsString)> = Vec::new();
    // SAFETY: the list and its texts belong to the C library, terminated by a null pointer and by zero bytes.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let bytes = CStr::from_ptr(*next).to_bytes();
            let name = OsStr::from_bytes(bytes.split(|&byte| byte == b'=').next().unwrap_or_default());
            if !stays(name) {
                gone.push((*next, bytes.len(), name.to_owned()));
            }
            next = next.add(1);
        }
    }
    for (_, _, name) in &gone {
        // SAFETY: the caller guarantees that no other thread runs.
        unsafe { std::env::remove_var(name) };
    }
    for (text, length, _) in gone {
        // SAFETY: the list no longer refers to this text. It is in the writable block that the kernel set up
        // for the process, or in memory that the C library allocated for it and never frees.
        unsafe { std::ptr::write_bytes(text, 0, length) };
    }
}

/// Overwrites the values of these options in `/proc/PID/cmdline`.
///
/// # Safety
///
/// No other thread may run, and no code may hold a pointer into the arguments.
pub(crate) unsafe fn erase_arguments(options: &[&str]) {
    /// The fields of `/proc/self/stat` with the addresses of the first argument and of the end of the last,
    /// counted from the field after the name.
    const START_AND_END: std::ops::RangeInclusive<usize> = 45..=46;
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    let fields: Vec<usize> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    let Some(&[start, end]) = fields.get(START_AND_END) else { return };
    if start == 0 || end <= start {
        return;
    }
    // SAFETY: the kernel reports that the arguments are there, in writable memory, and the caller guarantees
    // that no other code uses them.
    let arguments =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), end - start) };
    erase_values(arguments, options);
}

/// Overwrites the value of each option in a sequence of zero-terminated texts.
fn erase_values(arguments: &mut [u8], options: &[&str]) {
    let mut follows = false;
    for argument in arguments.split_mut(|&byte| byte == 0) {
        let name_end = argument.iter().position(|&byte| byte == b'=').unwrap_or(argument.len());
        let named = options.iter().any(|option| option.as_bytes() == &argument[..name_end]);
        if follows {
            argument.fill(b'*');
        } else if named && name_end < argument.len() {
            argument[name_end + 1..].fill(b'*');
        }
        follows = !follows && named && name_end == argument.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e06_values_of_credential_options_are_erased() {
        let mut arguments =
            b"sprag\0--token\0abc\0--store=postgres://u:p@h/d\0worker\0--queue\0--token\0".to_vec();
        erase_values(&mut arguments, &["--token", "--store"]);
        let expected = b"sprag\0--token\0***\0--store=******************\0worker\0--queue\0--token\0";
        assert_eq!(String::from_utf8_lossy(&arguments), String::from_utf8_lossy(expected));
    }
}
