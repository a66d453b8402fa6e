//! The steps that each kind of folder gets.

use super::find::{Found, Manager, Python, Tests};

/// A step to write into the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) needs: Vec<String>,
    pub(crate) run: String,
    /// Lines of comment above it.
    pub(crate) about: Vec<&'static str>,
    /// Further lines of the step.
    pub(crate) more: Vec<&'static str>,
}

impl Task {
    fn new(id: &str, needs: &[&str], run: impl Into<String>) -> Task {
        Task {
            id: id.to_owned(),
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
            run: run.into(),
            about: Vec::new(),
            more: Vec::new(),
        }
    }

    fn about(mut self, line: &'static str) -> Task {
        self.about.push(line);
        self
    }

    /// Adds retries to a step that downloads, because networks fail.
    fn fetching(mut self) -> Task {
        self.about.push("Networks fail at times: up to three tries, 5 s, then 10 s apart.");
        self.more.push("retry: { attempts: 3, backoff: exponential, delay: 5s }");
        self
    }

    pub(crate) fn prefixed(mut self, prefix: &str) -> Task {
        self.id.insert_str(0, prefix);
        self.needs.iter_mut().for_each(|need| need.insert_str(0, prefix));
        self
    }
}

/// Returns the steps for one find; the first of them needs nothing.
pub(crate) fn tasks(found: &Found) -> Vec<Task> {
    match found {
        Found::Rust { workspace } => rust(*workspace),
        Found::Node { manager, locked, scripts } => node(*manager, *locked, scripts),
        Found::Python { python, tests } => python_tasks(*python, *tests),
        Found::Go => vec![
            Task::new("build", &[], "go build ./..."),
            Task::new("vet", &["build"], "go vet ./..."),
            Task::new("test", &["build"], "go test ./...")
                .about("Beside `go vet`: both need the build alone."),
        ],
        Found::Make { targets } => {
            // The targets run one after the other, because a target may use the output of the previous one.
            let before = |at: usize| at.checked_sub(1).map(|at| targets[at]);
            let task = |(at, target): (usize, &&str)| {
                Task::new(target, before(at).as_slice(), format!("make {target}"))
            };
            targets.iter().enumerate().map(task).collect()
        }
    }
}

fn rust(workspace: bool) -> Vec<Task> {
    let (all, every) = if workspace { (" --workspace", " --all") } else { ("", "") };
    vec![
        Task::new("format", &[], format!("cargo fmt{every} --check"))
            .about("The code is formatted as rustfmt would."),
        Task::new("build", &[], format!("cargo build{all} --all-targets")),
        Task::new("lint", &["build"], format!("cargo clippy{all} --all-targets -- -D warnings")),
        Task::new("test", &["build"], format!("cargo test{all}"))
            .about("Beside the lints: both need the build alone."),
    ]
}

fn node(manager: Manager, locked: bool, scripts: &[&'static str]) -> Vec<Task> {
    let (install, run) = match (manager, locked) {
        (Manager::Npm, true) => ("npm ci", "npm run"),
        (Manager::Npm, false) => ("npm install", "npm run"),
        (Manager::Pnpm, true) => ("pnpm install --frozen-lockfile", "pnpm run"),
        (Manager::Pnpm, false) => ("pnpm install", "pnpm run"),
        (Manager::Yarn, true) => ("yarn install --frozen-lockfile", "yarn run"),
        (Manager::Yarn, false) => ("yarn install", "yarn run"),
        (Manager::Bun, true) => ("bun install --frozen-lockfile", "bun run"),
        (Manager::Bun, false) => ("bun install", "bun run"),
    };
    let mut tasks = vec![Task::new("install", &[], install).fetching()];
    for (at, script) in scripts.iter().enumerate() {
        let task = Task::new(script, &["install"], format!("{run} {script}"));
        tasks.push(match at {
            0 if scripts.len() > 1 => {
                task.about("The scripts run beside each other: all need the packages alone.")
            }
            _ => task,
        });
    }
    tasks
}

fn python_tasks(python: Python, tests: Tests) -> Vec<Task> {
    let (mut tasks, run) = match python {
        Python::Uv => (vec![Task::new("install", &[], "uv sync").fetching()], "uv run python"),
        Python::Poetry => (vec![Task::new("install", &[], "poetry install").fetching()], "poetry run python"),
        Python::Requirements | Python::Project | Python::Bare => {
            let venv = Task::new("venv", &[], "python3 -m venv .venv")
                .about("The packages of this folder alone; have git ignore `.venv`.");
            let what = match python {
                Python::Requirements => Some("-r requirements.txt"),
                Python::Project => Some("-e ."),
                _ => None,
            };
            let install = what.map(|what| {
                Task::new("install", &["venv"], format!(".venv/bin/python -m pip install {what}")).fetching()
            });
            (std::iter::once(venv).chain(install).collect(), ".venv/bin/python")
        }
    };
    let last = tasks.last().map(|task| task.id.clone()).unwrap_or_default();
    if tests == Tests::Pytest && matches!(python, Python::Project | Python::Bare) {
        let task = Task::new("install-pytest", &[&last], format!("{run} -m pip install pytest")).fetching();
        tasks.push(task);
    }
    let last = tasks.last().map(|task| task.id.clone()).unwrap_or_default();
    tasks.push(match tests {
        Tests::Pytest => Task::new("test", &[&last], format!("{run} -m pytest")),
        Tests::Unittest => Task::new("test", &[&last], format!("{run} -m unittest discover")),
        Tests::None => Task::new("compile", &[&last], format!("{run} -m compileall -q -x '[.]venv' ."))
            .about("There are no tests yet; this finds what is no Python."),
    });
    tasks
}

/// Returns the step that joins all ends.
pub(crate) fn join(ends: Vec<String>) -> Task {
    let about = "Everything comes together here; a good place for what follows, such as a release.";
    Task { needs: ends, ..Task::new("done", &[], "echo \"all is well\"") }.about(about)
}

/// Returns four steps that show the language, for a folder in which nothing was found.
pub(crate) fn bare() -> Vec<Task> {
    vec![
        Task::new("prepare", &[], "echo \"this is run $SPRAG_RUN_ID, in $PWD\"")
            .about("What a step prints is kept: `sprag logs`."),
        Task {
            more: vec!["retry: { attempts: 3, backoff: exponential, delay: 1s }", "timeout: 5m"],
            ..Task::new("work", &["prepare"], "echo \"working\"")
        }
        .about("Tried up to three times, each try 5 minutes long at most."),
        Task::new("look", &["prepare"], "ls").about("Beside `work`: both need `prepare` alone."),
        Task { more: vec!["always: true"], ..Task::new("report", &["work", "look"], "echo \"it is over\"") }
            .about("`always`: even after a failure or a cancel, once what it needs is settled."),
    ]
}
