//! Where a run's files lie in the data directory.
//!
//! ```text
//!   runs/RUN/STEP.ATTEMPT.log    what the attempt printed
//!   runs/RUN/files/STEP.ATTEMPT/NAME/FILE    what it hands on as a file
//!   runs/RUN/STEP.lock           held by the processes of the step's present attempt
//! ```
//!
//! An item of a fan-out is `STEP[N]-NO` there, with its number in the run: a list that was made anew has items
//! with the names of former ones.

use std::path::{Path, PathBuf};

use sprag_lifecycle::{ExecutionId, RunId};

/// The data directory's layout. Step ids are checked when a pipeline is loaded; they hold no `/`. An item
/// of a fan-out is `STEP[N]`.
#[derive(Debug, Clone)]
pub struct Files {
    data: PathBuf,
}

impl Files {
    /// The files under this data directory.
    pub fn new(data: &Path) -> Self {
        Files { data: data.to_owned() }
    }

    /// The run's folder.
    pub fn run(&self, run: RunId) -> PathBuf {
        self.data.join("runs").join(run.to_string())
    }

    /// What an attempt printed.
    pub fn log(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.log", name(id, step)))
    }

    /// What an attempt wrote to stdout, until it is read.
    pub fn stdout(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join(format!("{}.stdout", name(id, step)))
    }

    /// Where the files that an attempt hands on are kept.
    pub fn kept(&self, id: ExecutionId, step: &str) -> PathBuf {
        self.run(id.run).join("files").join(name(id, step))
    }

    /// Held by whoever works on the step.
    pub fn lock(&self, run: RunId, step: &str) -> PathBuf {
        self.run(run).join(format!("{step}.lock"))
    }
}

fn name(id: ExecutionId, step: &str) -> String {
    match step.ends_with(']') {
        true => format!("{step}-{}.{}", id.step, id.attempt),
        false => format!("{step}.{}", id.attempt),
    }
}
