//! Tools of the fake agent: commands in separate sessions, as real agents start them.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

use rustix::process::{Pid, Signal, kill_process_group};

use super::actor::Inbox;

/// The most bytes of output that are kept.
const MAX_OUTPUT: u64 = 1 << 20;

/// A running command. Its end arrives as [`Inbox::ToolEnded`].
pub(super) struct Tool {
    group: Option<Pid>,
}

/// The end of a command.
#[derive(Debug)]
pub(super) struct ToolEnd {
    pub(super) is_ok: bool,
    pub(super) output: String,
}

impl Tool {
    /// Starts a command. `number` identifies it in the report of its end.
    pub(super) fn start(
        command: &str,
        env: &[(&str, String)],
        number: u64,
        inbox: Sender<Inbox>,
    ) -> std::io::Result<Tool> {
        let mut child = spawn(command, env, true)?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        std::thread::spawn(move || {
            let read = |pipe: Option<Box<dyn Read + Send>>| {
                let mut bytes = Vec::new();
                if let Some(pipe) = pipe {
                    // After an error, the bytes read so far are all there is.
                    pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).ok();
                }
                bytes
            };
            let errors =
                std::thread::spawn(move || read(stderr.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>)));
            let mut output = read(stdout.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
            output.extend(errors.join().unwrap_or_default());
            let is_ok = child.wait().is_ok_and(|status| status.success());
            let end = ToolEnd { is_ok, output: String::from_utf8_lossy(&output).into_owned() };
            // The actor may have stopped, and then the end does not matter.
            inbox.send(Inbox::ToolEnded(number, end)).ok();
        });
        Ok(Tool { group })
    }

    /// Kills the command and all processes in its group.
    pub(super) fn kill(&self) {
        if let Some(group) = self.group {
            // The group may have exited already.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// Starts a command that nothing waits for and that outlives the agent.
pub(super) fn leave_behind(command: &str) -> std::io::Result<()> {
    spawn(command, &[], false).map(drop)
}

fn spawn(command: &str, env: &[(&str, String)], is_heard: bool) -> std::io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    let pipe = || if is_heard { Stdio::piped() } else { Stdio::null() };
    shell.stdout(pipe()).stderr(pipe());
    shell.envs(env.iter().map(|(name, value)| (*name, value)));
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor locks.
    unsafe {
        shell.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    shell.spawn()
}
