//! The actors of chaos: processes that come and go, people who use Sprag and git, and clean-up at the same time.

use std::time::Duration;

use serde_json::Value;

use super::checks::live;
use super::pipelines::Pipeline;
use super::scene::{LEASE, Scene, between, chance};
use crate::{Random, Signal, Started, signal, try_git};

/// A process that was asked to stop may finish the step that it does.
const DRAINS: Duration = Duration::from_secs(180);

/// The number of live runs above which starts pause. A machine that is busy with other things would not finish the backlog.
const MOST_LIVE: usize = 200;

/// One who acts until chaos ends.
pub(super) type Actor = fn(&Scene, &mut Random);

/// All of them; several of a kind are several threads.
pub(super) const ACTORS: &[(&str, usize, Actor)] = &[
    ("runs", 5, start_runs),
    ("worker", 2, come_and_go_as_worker),
    ("server", 1, come_and_go_as_server),
    ("far server", 1, come_and_go_as_far_server),
    ("far worker", 2, come_and_go_as_far_worker),
    ("person", 2, use_sprag),
    ("gates", 1, answer_gates),
    ("git", 1, use_git),
    ("colleague", 1, push_from_elsewhere),
    ("clean-up", 1, clean_up),
];

/// Starts runs, and kills, stops or interrupts their processes.
fn start_runs(scene: &Scene, random: &mut Random) {
    // Looking costs time as well, so most starts do without it.
    if chance(random, 10) && live(scene).len() > MOST_LIVE {
        scene.pause(5_000);
        return;
    }
    let pipeline = Pipeline::draw(random);
    let file = format!("../{}.yaml", pipeline.name);
    scene.count("runs started");
    if chance(random, 35) {
        if let Some(told) = scene.json(&["run", &file, "--detach", "--json"])
            && let Some(run) = told["run"].as_str()
        {
            scene.note("acknowledged", run);
        }
        scene.pause(between(random, 50, 800));
        return;
    }
    let process = scene.start(&["run", &file, LEASE[0], LEASE[1]]);
    let process = suffer(scene, random, process, 3_000);
    // A run may wait for a group or a question for as long as chaos lasts.
    if let Some(mut process) = process {
        for _ in 0..between(random, 10, 100) {
            if process.ends_within(Duration::from_millis(200)) || !scene.goes_on() {
                break;
            }
        }
        if process.ends_within(Duration::ZERO) {
            scene.ended(process, Duration::ZERO);
        } else {
            scene.kill(process);
        }
    }
}

/// Harms a process within its first time; returns it if it was left alone or still runs.
fn suffer(scene: &Scene, random: &mut Random, process: Started, within_ms: u64) -> Option<Started> {
    let at_ms = random.below(within_ms);
    match random.below(10) {
        0..=2 => {
            scene.pause(at_ms);
            scene.kill(process);
            None
        }
        3..=4 => {
            scene.pause(at_ms);
            scene.stop_for(&process, between(random, 100, 8_000));
            Some(process)
        }
        5 => {
            scene.pause(at_ms);
            signal(process.pid(), Signal::TERM);
            scene.count("SIGTERM");
            scene.ended(process, DRAINS);
            None
        }
        _ => Some(process),
    }
}

fn come_and_go_as_worker(scene: &Scene, random: &mut Random) {
    let args = ["worker", "--slots", "3", "--queue", "default", "--queue", "other", LEASE[0], LEASE[1]];
    scene.count("workers started");
    come_and_go(scene, random, scene.start(&args));
}

fn come_and_go_as_server(scene: &Scene, random: &mut Random) {
    let args = ["serve", "--listen", "127.0.0.1:0", "--slots", "2", LEASE[0], LEASE[1]];
    scene.count("servers started");
    come_and_go(scene, random, scene.start(&args));
}

/// Plays the server whose address workers without a database have.
fn come_and_go_as_far_server(scene: &Scene, random: &mut Random) {
    let address = scene.address();
    scene.count("servers started");
    come_and_go(scene, random, scene.start(&["serve", "--listen", &address, "--no-worker"]));
}

/// Plays a worker without a database. Other workers may serve its queue too.
fn come_and_go_as_far_worker(scene: &Scene, random: &mut Random) {
    let args = ["--slots", "2", "--queue", "other", LEASE[0], LEASE[1]];
    match scene.start_elsewhere(&args) {
        Some(process) => {
            scene.count("workers without a database started");
            come_and_go(scene, random, process);
        }
        None => scene.pause(200),
    }
}

/// Leaves a process alone for a few seconds, stops it perhaps, and ends it one way or another.
fn come_and_go(scene: &Scene, random: &mut Random, process: Started) {
    scene.pause(between(random, 500, 12_000));
    if chance(random, 40) {
        scene.stop_for(&process, between(random, 100, 8_000));
        scene.pause(between(random, 0, 3_000));
    }
    if chance(random, 60) {
        scene.kill(process);
    } else {
        signal(process.pid(), Signal::TERM);
        scene.count("SIGTERM");
        scene.ended(process, DRAINS);
    }
}

/// Cancels, resumes, rewinds and forks runs from the list, as a person does.
fn use_sprag(scene: &Scene, random: &mut Random) {
    scene.pause(between(random, 100, 1_500));
    let Some(run) = draw_run(scene, random) else { return };
    let (id, pipeline) =
        (run["id"].as_str().unwrap_or_default(), run["pipeline"].as_str().unwrap_or_default());
    let Some(pipeline) = Pipeline::named(pipeline) else { return };
    let live = run["ended_at"].is_null();
    if live && chance(random, 50) {
        scene.count("cancelled");
        scene.sprag(&["cancel", id]);
        return;
    }
    if !pipeline.may_run_again {
        return;
    }
    let (step, _) = pipeline.steps[random.below(pipeline.steps.len() as u64) as usize];
    let (what, args): (_, Vec<&str>) = match random.below(3) {
        0 => ("resumed", vec!["resume", id]),
        1 => ("rewound", vec!["rewind", id, "--to", step]),
        _ => ("forked", vec!["fork", id, "--from", step]),
    };
    // Noted first: the process may be killed after Sprag did it.
    if what != "forked" {
        scene.note("again", id);
    }
    let detached = chance(random, 60);
    let more: &[&str] = if detached { &["--detach"] } else { &[] };
    let process = scene.start(&[args.as_slice(), more].concat());
    scene.count(what);
    if let Some(mut process) = suffer(scene, random, process, 2_000) {
        if process.ends_within(Duration::from_secs(20)) {
            scene.ended(process, Duration::ZERO);
        } else {
            scene.kill(process);
        }
    }
}

/// Returns one of the newest runs.
fn draw_run(scene: &Scene, random: &mut Random) -> Option<Value> {
    let runs = scene.json(&["ls", "--json", "--limit", "40"])?;
    let runs = runs.as_array()?;
    runs.get(random.below(runs.len() as u64) as usize).cloned()
}

/// Answers questions, most of them with yes.
fn answer_gates(scene: &Scene, random: &mut Random) {
    scene.pause(between(random, 200, 1_000));
    let Some(runs) = scene.json(&["ls", "--json", "--limit", "60"]) else { return };
    for run in runs.as_array().into_iter().flatten() {
        if scene.goes_on() && run["pipeline"] == "asks" && run["status"] == "running" && chance(random, 30) {
            answer(scene, run["id"].as_str().unwrap_or_default(), chance(random, 80));
        }
    }
}

/// Answers the question of a run.
pub(super) fn answer(scene: &Scene, run: &str, yes: bool) {
    // Noted first: a process that sees the answer may be quicker than this one.
    if yes {
        scene.note("approved", run);
    }
    scene.count("answered");
    let mut process = scene.start(&[if yes { "approve" } else { "reject" }, run]);
    // Who answers goes on with the run, which may have to wait.
    if process.ends_within(Duration::from_secs(10)) {
        scene.ended(process, Duration::ZERO);
    } else {
        scene.kill(process);
    }
}

/// Plays a person who works in the main checkout during the landings.
fn use_git(scene: &Scene, random: &mut Random) {
    let repo = scene.project.repo();
    scene.pause(between(random, 100, 1_000));
    let line = format!("person-{}", random.draw());
    match random.below(6) {
        0 => {
            // The checkout has changes for a while, some of them staged.
            scene.note("repo/notes.txt", &line);
            scene.pause(between(random, 0, 1_500));
            scene.git(&repo, &["add", "notes.txt"]);
            scene.pause(between(random, 0, 1_500));
            if commit(scene, &["commit", "--quiet", "--message", "notes", "--", "notes.txt"]) {
                scene.note("person", &line);
            }
        }
        1 => {
            scene.note("repo/notes.txt", &line);
            if scene.git(&repo, &["add", "notes.txt"]) && scene.git(&repo, &["stash"]) {
                scene.pause(between(random, 0, 1_000));
                scene.git(&repo, &["stash", "pop"]);
            }
        }
        2 => {
            scene.git(&repo, &["fetch", "--quiet"]);
        }
        3 => {
            scene.git(&repo, &["gc", "--quiet", "--auto"]);
        }
        _ => {
            synchronize(scene);
        }
    }
    scene.count("git by a person");
}

/// Commits, again if the index was locked. Returns whether it succeeded.
fn commit(scene: &Scene, args: &[&str]) -> bool {
    (0..5).any(|_| scene.git(&scene.project.repo(), args))
}

/// Pulls and pushes, as a person does. Returns whether both branches are the same afterwards.
pub(super) fn synchronize(scene: &Scene) -> bool {
    let repo = scene.project.repo();
    let pulled = try_git(&repo, ["pull", "--quiet", "--no-rebase", "--no-edit", "--autostash"]);
    if !pulled.status.success() {
        scene.git(&repo, &["merge", "--abort"]);
        return false;
    }
    scene.git(&repo, &["push", "--quiet", "origin", "main"])
}

/// Plays a colleague who pushes from a clone.
fn push_from_elsewhere(scene: &Scene, random: &mut Random) {
    scene.pause(between(random, 500, 5_000));
    let colleague = scene.path("colleague");
    let line = format!("colleague-{}", random.draw());
    scene.note("colleague/colleague.txt", &line);
    let committed = scene.git(&colleague, &["add", "."])
        && scene.git(&colleague, &["commit", "--quiet", "--message", &line]);
    for _ in 0..5 {
        let pulled = scene.git(&colleague, &["pull", "--quiet", "--rebase"]);
        if committed && pulled && scene.git(&colleague, &["push", "--quiet", "origin", "HEAD:main"]) {
            scene.note("colleagues", &line);
            scene.count("pushed by a colleague");
            return;
        }
    }
}

/// Cleans up while everything runs, and is killed meanwhile.
fn clean_up(scene: &Scene, random: &mut Random) {
    scene.pause(between(random, 500, 4_000));
    let args: &[&str] = match random.below(5) {
        0 => &["env", "gc"],
        1 => &["gc", "--keep", "20s"],
        2 => &["env", "ls"],
        3 => &["doctor"],
        _ => &["ls", "--limit", "100"],
    };
    let process = scene.start(args);
    scene.count("cleaned up");
    if chance(random, 25) {
        scene.pause(random.below(400));
        scene.kill(process);
    } else {
        scene.ended(process, DRAINS);
    }
}
