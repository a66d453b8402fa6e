//! Starts the command: in its own session, with an empty stdin or the worker's pipes, and killed when its supervisor
//! dies.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use crate::{
    NotStarted, Order, Reason, Started, cgroup::Cgroup, limits::LimitGroup, sandbox, sys, table::Stat,
};

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
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(wire) = order.wire {
        let (input, output) = sys::inherited_pipes(wire.stdin, wire.stdout).map_err(|error| {
            not_started(NotStarted::Other, format!("the pipes to the worker are missing: {error}"))
        })?;
        // The command owns them from here on: when it is dropped, this process holds neither end.
        command.stdin(input).stdout(output);
    }
    command.envs(&order.env);
    if let Some(dir) = &order.dir {
        command.current_dir(dir);
    }
    let supervisor = getpid();
    // A cgroup with limits contains the tree as well.
    let procs_file = match limits.and_then(LimitGroup::tree) {
        Some(_) => None,
        None => cgroup.and_then(|cgroup| cgroup.procs_file().ok()),
    };
    let limit_files =
        limits.map(LimitGroup::procs_files).transpose().map_err(in_sandbox)?.unwrap_or_default();
    let best_effort = order.sandbox.as_ref().is_some_and(|sandbox| sandbox.best_effort);
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A supervisor that died before the call above sends no signal, so check the parent.
            if getppid() != Some(supervisor) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Without the cgroup the supervisor can still stop the tree, so an error is ignored.
            if let Some(procs_file) = &procs_file {
                let _ = rustix::io::write(procs_file, b"0");
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
    let child = command.spawn().map_err(|error| explain(order, &program, &error))?;
    let pid = child.id() as i32;
    // It has not been reaped yet, so it is in the table, at least as a zombie.
    let start_time = Stat::of(pid).ok().flatten().map_or(0, |stat| stat.start_time);
    let out = child.stdout.map(OwnedFd::from);
    let (Some(err), true) = (child.stderr, out.is_some() || order.wire.is_some()) else {
        return Err(not_started(NotStarted::Other, "the output pipes are missing".to_owned()));
    };
    Ok(Child { started: Started { pid, start_time }, out, err: err.into() })
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
