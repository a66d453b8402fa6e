//! Starts the command: in its own session, with an empty stdin or the worker's pipes, and killed when its supervisor
//! dies.

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, setsid, waitpid,
};

use crate::{
    NotStarted, Order, Reason, Started, cgroup::Cgroup, limits::LimitGroup, sandbox, sys, table::Stat,
};

/// The exit code of a child that could not start its program. Its reason is reported separately.
const EXEC_FAILED: i32 = 127;

/// The running command and its output pipes.
pub(super) struct Child {
    pub(super) started: Started,
    /// The command's stdout; absent if it goes to the worker.
    pub(super) out: Option<OwnedFd>,
    pub(super) err: OwnedFd,
}

/// Starts the command of the order in its cgroups and its sandbox, or returns why that failed. `lock` is the descriptor of
/// the owner lock.
pub(super) fn start(
    order: &Order,
    cgroup: Option<&Cgroup>,
    limits: Option<&LimitGroup>,
    lock: Option<i32>,
) -> Result<Child, Reason> {
    let Some((program, arguments)) = order.argv.split_first() else {
        return Err(not_started(NotStarted::NotFound, "the command is empty".to_owned()));
    };
    if let Some(dir) = &order.dir {
        check_dir(dir)?;
    }
    let isolated = order.sandbox.as_ref().filter(|sandbox| sandbox.isolated);
    let in_sandbox = |error: io::Error| {
        let message = format!("could not make the sandbox: {error}");
        not_started(NotStarted::Sandbox, message)
    };
    let filter = match isolated {
        Some(sandbox) => sandbox::filter_file(sandbox.network).map_err(in_sandbox)?,
        None => None,
    };
    let (program, arguments) = match isolated {
        Some(sandbox) => {
            let filter = filter.as_ref().map(AsRawFd::as_raw_fd);
            sandbox::command_line(sandbox, &order.argv, order.dir.as_deref(), filter, lock)
        }
        None => (program.clone(), arguments.to_vec()),
    };
    let no_pipes = |error: io::Error| {
        not_started(NotStarted::Other, format!("could not make the output pipes: {error}"))
    };
    let mut command = Command::new(&program);
    let (err, their_err) = io::pipe().map_err(no_pipes)?;
    // The command owns their ends from here on: when it is dropped, this process does not hold them.
    command.args(arguments).stdin(Stdio::null()).stderr(their_err);
    let out = match order.wire {
        Some(wire) => {
            let (input, output) = sys::inherited_pipes(wire.stdin, wire.stdout).map_err(|error| {
                not_started(NotStarted::Other, format!("the pipes to the worker are missing: {error}"))
            })?;
            command.stdin(input).stdout(output);
            None
        }
        None => {
            let (out, theirs) = io::pipe().map_err(no_pipes)?;
            command.stdout(theirs);
            Some(OwnedFd::from(out))
        }
    };
    command.envs(&order.env);
    if let Some(dir) = &order.dir {
        command.current_dir(dir);
    }
    let supervisor = getpid();
    // Without the cgroup the supervisor can still stop the tree, but a limit of it must hold.
    let is_limited = limits.and_then(LimitGroup::tree).is_some();
    let procs_file = match cgroup.map(Cgroup::procs_file).transpose() {
        Err(error) if is_limited => return Err(in_sandbox(error)),
        file => file.unwrap_or_default(),
    };
    let limit_files =
        limits.map(LimitGroup::procs_files).transpose().map_err(in_sandbox)?.unwrap_or_default();
    let best_effort = order.sandbox.as_ref().is_some_and(|sandbox| sandbox.best_effort);
    let is_inside = Arc::new(AtomicBool::new(false));
    let starts_inside = Arc::clone(&is_inside);
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A supervisor that died before the call above sends no signal, so check the parent.
            if getppid() != Some(supervisor) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if let Some(procs_file) = &procs_file
                && !starts_inside.load(Ordering::Relaxed)
                && let Err(error) = rustix::io::write(procs_file, b"0")
                && is_limited
                && !best_effort
            {
                return Err(error.into());
            }
            for file in &limit_files {
                if let Err(error) = rustix::io::write(file, b"0")
                    && !best_effort
                {
                    return Err(error.into());
                }
            }
            sys::reset_signals()
        });
    }
    let pid = match cgroup.and_then(|cgroup| start_inside(&mut command, cgroup, &is_inside)) {
        Some(started) => started,
        None => command.spawn().map(|child| child.id() as i32),
    };
    let pid = pid.map_err(|error| explain(order, &program, &error))?;
    // It has not been reaped yet, so it is in the table, at least as a zombie.
    let start_time = Stat::of(pid).ok().flatten().map_or(0, |stat| stat.start_time);
    Ok(Child { started: Started { pid, start_time }, out, err: err.into() })
}

/// Starts a command in a cgroup, without the pause of a move. Returns `None` if this kernel cannot, or a filter of a
/// container does not let it; the command then moves itself. Sets `is_inside` for the child.
fn start_inside(command: &mut Command, cgroup: &Cgroup, is_inside: &AtomicBool) -> Option<io::Result<i32>> {
    let folder = cgroup.folder().ok()?;
    // It closes when the child starts its program, or tells why it could not.
    let (mut failure, mut their_failure) = io::pipe().ok()?;
    is_inside.store(true, Ordering::Relaxed);
    // SAFETY: the supervisor has one thread.
    let forked = unsafe { sys::fork_into(&folder) };
    let Ok(forked) = forked else {
        is_inside.store(false, Ordering::Relaxed);
        return None;
    };
    let Some(pid) = forked else {
        let code = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
        let _ = their_failure.write_all(&code.to_ne_bytes());
        sys::exit_now(EXEC_FAILED);
    };
    drop(their_failure);
    let mut code = [0; 4];
    Some(match failure.read_exact(&mut code) {
        Ok(()) => {
            // It has ended; the error below says why.
            let _ = Pid::from_raw(pid).map(|pid| waitpid(Some(pid), WaitOptions::empty()));
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code)))
        }
        Err(_) => Ok(pid),
    })
}

fn check_dir(dir: &Path) -> Result<(), Reason> {
    let problem = match fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a folder".to_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("could not enter the working folder {}: {problem}", dir.display());
    Err(not_started(NotStarted::NoDir, message))
}

fn explain(order: &Order, program: &str, error: &io::Error) -> Reason {
    let path = order.dir.as_deref().unwrap_or(Path::new("")).join(program);
    let (kind, why) = match error.kind() {
        // The error is the same when the interpreter in a script's first line is missing.
        io::ErrorKind::NotFound if program.contains('/') && path.exists() => {
            (NotStarted::NotExecutable, "the interpreter or loader that it names was not found".to_owned())
        }
        io::ErrorKind::NotFound if program.contains('/') => {
            (NotStarted::NotFound, "there is no such file".to_owned())
        }
        io::ErrorKind::NotFound => (NotStarted::NotFound, "it is not in PATH".to_owned()),
        io::ErrorKind::PermissionDenied => {
            (NotStarted::NotExecutable, "it is not executable for this user".to_owned())
        }
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => (
            NotStarted::NotExecutable,
            "it is neither a program of this machine nor a script with `#!`".to_owned(),
        ),
        _ => (NotStarted::Other, error.to_string()),
    };
    not_started(kind, format!("could not start `{program}`: {why}"))
}

fn not_started(kind: NotStarted, message: String) -> Reason {
    Reason::CouldNotStart { kind, message }
}
