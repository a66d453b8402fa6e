//! The sandbox of a step: from the bounds in the pipeline to the files, the network and the limits of its processes.
//!
//! A sandboxed command sees the folders of the system, the run's own folder, the parts of its repository that a commit
//! needs, and the paths that the pipeline names. Everything else does not exist for it: the data directory, the home
//! folder, and the worktrees of other runs.

use std::path::{Path, PathBuf};

use sprag_lifecycle::PlanStep;
use sprag_pipeline::{SandboxNetwork, SandboxSpec, StepSpec};
use sprag_process::{
    Limits, Mount, Network, Order, Sandbox, machine_secrets, make_private_folder, sandbox_support, variable,
};
use sprag_store::Assignment;
use sprag_worktree::SharedWorktree;

use crate::command::{Commands, failed};
use crate::control::{Control, Signal};
use crate::environment::RunEnvironment;
use crate::evidence::Places;
use crate::slots::Ended;

/// The folders of the system, which every sandbox has.
const SYSTEM: [&str; 4] = ["/usr", "/bin", "/opt", "/nix"];

/// The file in the folder of a sandbox that names the lease for which it was opened.
const OWNER: &str = "lease";
/// The most bytes of that file.
const MAX_OWNER_BYTES: u64 = 64;
/// The most folders of one attempt that are kept because their commits could not be taken over.
const MAX_SET_ASIDE: u32 = 100;

/// The access of a sandboxed command to the repository of its worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitAccess {
    /// It can commit.
    Commit,
    /// It can only read, as the command that verifies a landing.
    Read,
}

impl Commands {
    /// Fails a step if a sandbox that its run requires cannot be enforced here, its own or that of a later step for the same
    /// workers: such a run is refused before its first step.
    pub(crate) fn check_sandboxes(&self, assignment: &Assignment) -> Result<(), Ended> {
        let here = assignment.step();
        let same_workers = |step: &&PlanStep| step.queue == here.queue && step.labels == here.labels;
        let requires = |step: &&PlanStep| {
            // Most steps have none, and need not be read.
            step.spec.contains("\"sandbox\"")
                && serde_json::from_str::<StepSpec>(&step.spec)
                    .is_ok_and(|spec| spec.sandbox.is_some_and(|sandbox| sandbox.required))
        };
        let Some(step) = assignment.plan.steps.iter().filter(same_workers).find(requires) else {
            return Ok(());
        };
        sandbox_support().map_err(|why| {
            let message = format!("step `{}`: {}", step.id, not_enforced(&why));
            failed(&serde_json::json!({ "reason": "could_not_start", "message": message }), false)
        })
    }

    /// Adds the sandbox of a step to an order. Returns the reason if it cannot be enforced here and the step requires it;
    /// otherwise a warning is added to `places`.
    pub(crate) fn enclose(
        &self,
        order: &mut Order,
        places: &mut Places,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        access: GitAccess,
    ) -> Result<(), String> {
        let Some(wanted) = &spec.sandbox else { return Ok(()) };
        let limits = Limits {
            memory_bytes: wanted.memory_bytes,
            cpu_percent: wanted.cpu_percent,
            processes: wanted.processes,
        };
        let mut sandbox = Sandbox { limits, best_effort: !wanted.required, ..Sandbox::default() };
        match sandbox_support() {
            Ok(()) => {
                sandbox.isolated = true;
                sandbox.network = match wanted.network {
                    SandboxNetwork::None => Network::None,
                    SandboxNetwork::Loopback => Network::Loopback,
                    SandboxNetwork::All => Network::All,
                };
                sandbox.mounts = self.mounts(order, places, assignment, wanted, place, access)?;
                // The folder of the worker for temporary files need not exist there.
                order.env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
            }
            Err(why) if wanted.required => {
                return Err(not_enforced(&why));
            }
            Err(why) => {
                let warning = format!("it ran without its sandbox, which is not required: {why}");
                places.warnings.push(warning);
            }
        }
        order.sandbox = Some(sandbox);
        Ok(())
    }

    fn mounts(
        &self,
        order: &mut Order,
        places: &mut Places,
        assignment: &Assignment,
        wanted: &SandboxSpec,
        place: Option<&RunEnvironment>,
        access: GitAccess,
    ) -> Result<Vec<Mount>, String> {
        let id = assignment.lease.execution;
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let data = real(self.files.data());
        let home =
            variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute()).map(|home| real(&home));
        let mut mounts = machine_secrets().to_vec();
        mounts.extend(home.clone().filter(|home| home.parent().is_some()).map(Mount::Empty));
        mounts.push(Mount::Empty(data.clone()));
        for path in &wanted.read {
            mounts.push(Mount::ReadOnly(named(path, home.as_deref())?));
        }
        if let Some(program) = order.argv.first().map(Path::new).filter(|program| is_elsewhere(program)) {
            mounts.push(Mount::ReadOnly(real(program)));
            mounts.push(Mount::ReadOnly(program.to_owned()));
        }
        let base = match (place, &places.base) {
            (Some(place), _) => Some(real(&place.dir)),
            (None, Some(started_in)) => Some(real(started_in)),
            (None, None) => None,
        };
        if let Some(base) = &base {
            for (inside, name) in [(home.as_deref(), "the home folder"), (Some(&*data), "the data directory")]
            {
                if inside.is_some_and(|inside| inside.starts_with(base)) {
                    return Err(format!(
                        "its sandbox would contain {name}, because the run works in {}: start it in a folder of its own, \
                         or give it `environment: {{ worktree: {{}} }}`",
                        base.display()
                    ));
                }
            }
            mounts.push(if wanted.write_worktree {
                Mount::Writable(base.clone())
            } else {
                Mount::ReadOnly(base.clone())
            });
            order.dir = order.dir.as_deref().map(real);
        }
        for path in &wanted.write {
            mounts.push(Mount::Writable(named(path, home.as_deref())?));
        }
        let folder = self.files.enclosure(id, &assignment.name);
        let owner = assignment.lease.guard().to_string();
        let is_open = sprag_process::read_regular(&folder.join(OWNER), MAX_OWNER_BYTES)
            .is_ok_and(|found| found == owner.as_bytes());
        if !is_open {
            clear(&folder);
        }
        let outputs = folder.join("outputs");
        make_private_folder(&outputs)
            .map_err(|error| format!("cannot make {}: {error}", outputs.display()))?;
        match place.and_then(|place| place.guest.as_ref()) {
            // An agent that was started before in this attempt may have committed.
            Some(worktree) if access == GitAccess::Commit && wanted.write_worktree && is_open => {
                mounts.extend(worktree.reopen_sandbox(&folder).map_err(|error| error.to_string())?);
            }
            Some(worktree) if access == GitAccess::Commit && wanted.write_worktree => {
                mounts.extend(worktree.open_sandbox(&folder).map_err(|error| error.to_string())?);
                let noted = std::fs::write(folder.join(OWNER), owner);
                noted.map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
            }
            Some(worktree) => {
                mounts.extend(worktree.read_only_sandbox().map_err(|error| error.to_string())?);
            }
            None => mounts
                .extend(base.map(|base| base.join(".git")).filter(|git| git.exists()).map(Mount::ReadOnly)),
        }
        let scratch = self.files.scratch(id, &assignment.name);
        mounts.extend(Some(scratch).filter(|folder| folder.is_dir()).map(Mount::ReadOnly));
        places.written = outputs.join("values");
        mounts.push(Mount::Writable(outputs));
        Ok(mounts)
    }

    /// Takes over the commits that the step made in its sandbox, and removes the files of the sandbox. A step that belongs
    /// to another worker by now moves no branch; its commits stay under a salvage ref.
    pub(crate) async fn open_up(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &Control,
        ended: Ended,
    ) -> Ended {
        if spec.sandbox.is_none() {
            return ended;
        }
        let folder = self.files.enclosure(assignment.lease.execution, &assignment.name);
        let worktree = place.and_then(|place| place.guest.clone());
        let is_ours = {
            let (control, ended_elsewhere) =
                (control.clone(), matches!(ended, Ended::Lost | Ended::Returned));
            move || !ended_elsewhere && holds_lease(&control)
        };
        let closing = tokio::task::spawn_blocking(move || take_over(worktree.as_ref(), &folder, is_ours));
        let failure = |message: String| {
            let message =
                format!("{message}; steps of one run that commit at the same time need `environment: own`");
            failed(&serde_json::json!({ "reason": "sandbox", "message": message }), true)
        };
        match closing.await {
            _ if matches!(ended, Ended::Lost | Ended::Returned) => ended,
            Ok(Ok(TakenOver::Lost)) => Ended::Lost,
            Ok(Ok(TakenOver::Done(None))) => ended,
            Ok(Ok(TakenOver::Done(Some(warning)))) => crate::command::with_warning(ended, warning),
            Ok(Err(message)) => failure(message),
            Err(error) => failure(error.to_string()),
        }
    }
}

fn not_enforced(why: &str) -> String {
    format!("its sandbox cannot be enforced on this machine: {why}; or write `required: false`")
}

/// The result of closing the sandbox of a step.
enum TakenOver {
    /// Its branch has its commits, perhaps with a warning.
    Done(Option<String>),
    /// The step belongs to another worker, so no branch has moved.
    Lost,
}

/// Closes the sandbox of a step: takes over its commits, and removes its folder. If that fails, the folder is the only
/// copy of the commits, and stays.
fn take_over(
    worktree: Option<&SharedWorktree>,
    folder: &Path,
    is_ours: impl FnOnce() -> bool,
) -> Result<TakenOver, String> {
    let Some(worktree) = worktree.filter(|_| folder.join("git").exists()) else {
        let _ = std::fs::remove_dir_all(folder);
        return Ok(TakenOver::Done(None));
    };
    let closed = if is_ours() {
        worktree.close_sandbox(folder).map(TakenOver::Done)
    } else {
        worktree.abandon_sandbox(folder).map(|_| TakenOver::Lost)
    };
    closed.inspect(|_| drop(std::fs::remove_dir_all(folder))).map_err(|error| {
        let kept = set_aside(folder);
        tracing::warn!(folder = %kept.display(), %error, "the commits of a sandboxed step were not taken over");
        format!("{error}; its commits are only in the git folder {}", kept.join("git").display())
    })
}

/// Returns whether this worker holds the lease of an execution, by its own clock. A worker that was stopped for a while
/// learns late that another one has the execution.
fn holds_lease(control: &Control) -> bool {
    match control.now() {
        Signal::Renewed { until_ms } => sprag_process::boot_ms() < until_ms,
        // Nothing renews a cancelled execution, and no worker repeats it.
        Signal::Cancel => true,
        Signal::Lost => false,
    }
}

/// Removes what an earlier owner of an attempt has left, unless it may contain commits.
fn clear(folder: &Path) {
    if folder.join(OWNER).exists() {
        set_aside(folder);
    } else {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Renames a folder, so that no later owner of the attempt uses it. Returns its new path.
fn set_aside(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let free = (1..MAX_SET_ASIDE)
        .map(|number| folder.with_file_name(format!("{name}-kept-{number}")))
        .find(|path| !path.exists());
    match free {
        Some(path) if std::fs::rename(folder, &path).is_ok() => path,
        _ => folder.to_owned(),
    }
}

/// Returns a path as the pipeline names it. It must exist.
fn named(path: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    let full = match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        (Some(_), None) => {
            return Err(format!("its sandbox names {path}, and the worker has no home folder"));
        }
        (None, _) => PathBuf::from(path),
    };
    if full.exists() {
        Ok(full)
    } else {
        Err(format!(
            "its sandbox names {path}, which does not exist on this machine: create it, or remove it there"
        ))
    }
}

/// Returns whether a program is outside of the folders that every sandbox has.
fn is_elsewhere(program: &Path) -> bool {
    program.is_absolute() && program.is_file() && !SYSTEM.iter().any(|folder| program.starts_with(folder))
}
