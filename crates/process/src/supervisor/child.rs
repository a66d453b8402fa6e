//! Starts the command: in a session of its own, with nothing on stdin, bound to its supervisor's life.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use crate::{NotStarted, Order, Reason, Started, sys, table::Stat};

/// The running command, and what it writes to.
pub(super) struct Child {
    pub(super) started: Started,
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
}

/// Starts the command of the order, or says why it could not.
pub(super) fn start(order: &Order) -> Result<Child, Reason> {
    let Some((program, arguments)) = order.argv.split_first() else {
        return Err(not_started(NotStarted::NotFound, "the command is empty".to_owned()));
    };
    if let Some(dir) = &order.dir {
        check_dir(dir)?;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if order.clear_env {
        command.env_clear();
    }
    command.envs(&order.env);
    if let Some(dir) = &order.dir {
        command.current_dir(dir);
    }
    let supervisor = getpid();
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A supervisor that died before the line above sends no signal any more.
            if getppid() != Some(supervisor) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            sys::reset_signals()
        });
    }
    let child = command.spawn().map_err(|error| explain(order, program, &error))?;
    let pid = child.id() as i32;
    // It was not waited for, so it is in the table, be it as a zombie.
    let start_time = Stat::of(pid).ok().flatten().map_or(0, |stat| stat.start_time);
    let (Some(out), Some(err)) = (child.stdout, child.stderr) else {
        return Err(not_started(NotStarted::Other, "the output pipes are missing".to_owned()));
    };
    Ok(Child { started: Started { pid, start_time }, out: out.into(), err: err.into() })
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
        // The system says the same when the interpreter in a script's first line is missing.
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
