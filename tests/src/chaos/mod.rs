//! Chaos: many `sprag` processes in one repository that are killed and stopped while people use Sprag and git beside them,
//! and checks from outside.
//!
//! ```text
//!   actors (threads) ──▶ sprag, git ──▶ steps write marks          ┐
//!   sprag events --follow ──▶ journal.jsonl                        ├──▶ checks ──▶ findings
//!   the remote's update hook records every move of its branch      ┘
//! ```
//!
//! A seed determines the actors' actions, not how the machine interleaves them: the same seed makes a similar storm.

mod actors;
mod checks;
mod marks;
mod pipelines;
mod scene;

use std::path::PathBuf;
use std::time::Duration;

use sprag_testkit::Postgres;

use crate::{Random, now_ms};
use scene::Scene;

/// The options of a chaos run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The time for which the actors act; the checks come after that.
    pub lasts: Duration,
    /// The seed that determines the actors' actions.
    pub seed: u64,
    /// The store of the runs.
    pub store: Kept,
}

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// A SQLite file.
    Sqlite,
    /// A private PostgreSQL server, started for this run.
    Postgres,
}

/// The result of a chaos run.
#[derive(Debug)]
pub struct Outcome {
    /// The violations, with the run and the expectation; empty if all checks passed.
    pub findings: Vec<String>,
    /// The figures, in one line.
    pub figures: String,
    /// The folder with all files, if it was kept because of findings.
    pub folder: Option<PathBuf>,
}

/// Makes chaos, waits until it has calmed down, and checks the result.
pub fn run(options: Options) -> Outcome {
    let server = (options.store == Kept::Postgres).then(|| Postgres::start(&[]));
    let database = server.as_ref().map(|server| server.database().url);
    let scene = Scene::new(options.lasts, database.as_deref());
    let began_ms = now_ms();
    let follower = scene.start(&["events", "--follow", "--json"]);
    std::thread::scope(|threads| {
        let mut nth = 0;
        for (name, how_many, act) in actors::ACTORS {
            for _ in 0..*how_many {
                nth += 1;
                let (scene, mut random) =
                    (&scene, Random::new(options.seed.wrapping_mul(1_000).wrapping_add(nth)));
                let thread = std::thread::Builder::new().name(format!("{name} {nth}"));
                let body = move || {
                    while scene.goes_on() {
                        act(scene, &mut random);
                    }
                };
                thread.spawn_scoped(threads, body).expect("a thread");
            }
        }
    });
    scene.stop();
    checks::calm_down(&scene);
    checks::check(&scene, follower);
    let findings = scene.findings();
    let figures = figures(&scene, options, now_ms() - began_ms, findings.len());
    let mut scene = scene;
    let folder = (!findings.is_empty()).then(|| scene.project.sandbox.keep());
    Outcome { findings, figures, folder }
}

/// Describes the figures of a chaos run in one line.
fn figures(scene: &Scene, options: Options, took_ms: u64, findings: usize) -> String {
    let counted = scene.counted();
    let counted: Vec<String> = counted.iter().map(|(what, times)| format!("{what} {times}")).collect();
    format!(
        "{} minutes on {} and {} s to calm down and check, seed {}: {}; findings {findings}",
        options.lasts.as_secs() / 60,
        match options.store {
            Kept::Sqlite => "SQLite",
            Kept::Postgres => "PostgreSQL",
        },
        took_ms.saturating_sub(options.lasts.as_millis() as u64) / 1_000,
        options.seed,
        counted.join(", "),
    )
}
