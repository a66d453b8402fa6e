//! The layout of a run's files in the data directory.
//!
//! ```text
//!   runs/RUN/STEP.ATTEMPT.log    the attempt's log
//!   runs/RUN/STEP.ATTEMPT.log.owed    the host that has the rest of it; removed once that has arrived
//!   runs/RUN/files/STEP.ATTEMPT/NAME/FILE    an output file
//!   runs/RUN/withheld/STEP.ATTEMPT/NAME/FILE    an output file that contains a secret; no server serves it
//!   runs/RUN/STEP.ATTEMPT.events    the events of an agent, one line of JSON each
//!   runs/RUN/STEP.session        the session of an agent step
//!   runs/RUN/agent/STEP.ATTEMPT    files that an agent reads at its start; removed at its end
//!   runs/RUN/sandbox/STEP.ATTEMPT    the private refs and the outputs of a sandboxed step; removed at its end
//!   runs/RUN/STEP.lock           held by the processes of the step's present attempt
//! ```
//!
//! An item of a fan-out is named `STEP[N]-NO` there, with its number in the run: when a fan-out's list is created
//! again, its items have the same names as the earlier ones.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{ExecutionId, RunId};

/// The missing rest of a log, which another host has not sent yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// The size of the whole log, in bytes.
    pub size: u64,
    /// The host with the complete log.
    pub host: String,
    /// The path of the log on that host.
    pub path: String,
}

/// The largest size of a note about a log: it holds a path, a host and a number.
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// The paths in a data directory. Step ids contain no `/`, which is checked when a pipeline is loaded. An item of a
/// fan-out is `STEP[N]`.
#[derive(Debug, Clone)]
pub struct Files {
    data: PathBuf,
}

impl Files {
    /// Returns the layout under this data directory.
    pub fn new(data: &Path) -> Self {
        Files { data: data.to_owned() }
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the run's folder.
    pub fn run(&self, run: RunId) -> PathBuf {
        self.data.join("runs").join(run.to_string())
    }

    /// Returns the path of an attempt's log.
    pub fn log(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.log", name(id, step)))
    }

    /// Returns the path of the note about the missing rest of a log, beside the log itself.
    fn owed_path(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.log.owed", name(id, step)))
    }

    /// Returns the note about the part of an attempt's log that another host has not sent yet, and the number of
    /// bytes that are here. Returns none if the log is complete.
    pub fn owed(&self, id: ExecutionId, step: &str) -> Option<(Owed, u64)> {
        let noted = sprag_process::read_regular(&self.owed_path(id, step), MAX_NOTE_BYTES).ok()?;
        let owed: Owed = serde_json::from_slice(&noted).ok()?;
        let received = std::fs::metadata(self.log(id, step)).map_or(0, |found| found.len());
        (received < owed.size).then_some((owed, received))
    }

    /// Whether a part of any log of a run is still missing.
    pub fn owes_anything(&self, run: RunId) -> bool {
        let files = std::fs::read_dir(self.run(run)).into_iter().flatten().flatten();
        files
            .into_iter()
            .any(|file| Path::new(&file.file_name()).extension().is_some_and(|ending| ending == "owed"))
    }

    /// Writes the note that another host has the rest of a log.
    pub fn note_owed(&self, id: ExecutionId, step: &str, owed: &Owed) -> std::io::Result<()> {
        sprag_process::replace_private(&self.owed_path(id, step), &serde_json::to_vec(owed)?)
    }

    /// Removes the note that another host has the rest of a log, because the log is complete.
    pub fn forget_owed(&self, id: ExecutionId, step: &str) {
        let _ = std::fs::remove_file(self.owed_path(id, step));
    }

    /// Returns the path of the events of an attempt's agent.
    pub fn events(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.events", name(id, step)))
    }

    /// Returns the path of the session of an agent step, which all its attempts continue.
    pub(crate) fn session(&self, id: ExecutionId, step: &str) -> PathBuf {
        let of_item = if step.ends_with(']') { format!("-{}", id.step) } else { String::new() };
        self.run(id.run).join(format!("{step}{of_item}.session"))
    }

    /// Returns the path of the session that an agent of the step has left to another one.
    pub(crate) fn session_of(&self, id: ExecutionId, step: &str, agent: &str) -> PathBuf {
        self.session(id, step).with_extension(format!("{agent}.session"))
    }

    /// Returns the folder for files that an attempt's agent reads at its start.
    pub(crate) fn scratch(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join("agent").join(name(id, step))
    }

    /// Returns the folder for the private files of an attempt's sandbox.
    pub(crate) fn enclosure(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join("sandbox").join(name(id, step))
    }

    /// Returns the path of an attempt's captured stdout. The file is removed once it is read.
    pub fn stdout(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.stdout", name(id, step)))
    }

    /// Returns the path of the file to which an attempt's command writes its outputs. It is removed once it is read.
    pub fn written(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.outputs", name(id, step)))
    }

    /// Returns the folder for an attempt's output files.
    pub fn kept(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join("files").join(name(id, step))
    }

    /// Returns the folder for an attempt's output files that contain a secret.
    pub fn withheld(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join("withheld").join(name(id, step))
    }

    /// Returns the path of a step's lock, which the processes of its present attempt hold.
    pub fn lock(&self, run: RunId, step: &str) -> PathBuf {
        self.run(run).join(format!("{step}.lock"))
    }
}

fn name(id: ExecutionId, step: &str) -> String {
    if step.ends_with(']') {
        format!("{step}-{}.{}", id.step, id.attempt)
    } else {
        format!("{step}.{}", id.attempt)
    }
}
