//! The checks after chaos, made from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::actors::{answer, synchronize};
use super::marks::{Mark, RunWithPlan, check_group, check_run};
use super::pipelines::Pipeline;
use super::scene::{LEASE, Scene};
use crate::journal::{Entry, Journal};
use crate::{Signal, Started, carrying, command_line, try_git, within};

/// The time in which a worker brings every run to its end, or at least some of them. A busy machine has a long backlog.
const CALM: Duration = Duration::from_secs(600);
/// The most workers that are started one after another to bring every run to its end.
const ROUNDS: usize = 6;
/// Processes that were told to end are gone by then.
const GONE: Duration = Duration::from_secs(60);

/// Merges people's branches, and lets workers finish the rest, until every run has ended.
pub(super) fn calm_down(scene: &Scene) {
    if within(Duration::from_secs(60), || synchronize(scene).then_some(())).is_none() {
        let said = try_git(&scene.project.repo(), ["status", "--short", "--branch", "--untracked-files=no"]);
        let said: Vec<String> =
            String::from_utf8_lossy(&said.stdout).lines().take(8).map(str::to_owned).collect();
        scene.finding("git", format!("expected a person to pull and push in the end; found {said:?}"));
    }
    for _ in 0..ROUNDS {
        let before = live(scene);
        for run in &before {
            if run.pipeline == "asks" {
                answer(scene, &run.id, true);
            }
        }
        let mut worker = scene.start(&[
            "worker",
            "--until-idle",
            "--queue",
            "default",
            "--queue",
            "other",
            LEASE[0],
            LEASE[1],
        ]);
        let is_slow = !worker.ends_within(CALM) && live(scene).len() < before.len();
        if is_slow {
            worker.kill();
        } else {
            scene.ended(worker, Duration::ZERO);
        }
        if live(scene).is_empty() {
            break;
        }
    }
    for run in live(scene) {
        let why = scene.sprag(&["explain", &run.id]).map(|told| told.stdout).unwrap_or_default();
        scene.finding(
            "end",
            format!("expected run {} of {} to end; it is {}: {why}", run.id, run.pipeline, run.status),
        );
    }
    synchronize(scene);
}

/// A run that has not ended.
pub(super) struct Live {
    id: String,
    pipeline: String,
    status: String,
}

/// Returns the runs that have not ended.
pub(super) fn live(scene: &Scene) -> Vec<Live> {
    let listed = scene.json(&["ls", "--json", "--limit", "100000"]).unwrap_or_default();
    let word = |run: &serde_json::Value, key: &str| run[key].as_str().unwrap_or_default().to_owned();
    let runs = listed.as_array().into_iter().flatten().filter(|run| run["ended_at"].is_null());
    runs.map(|run| Live { id: word(run, "id"), pipeline: word(run, "pipeline"), status: word(run, "status") })
        .collect()
}

/// Checks everything.
pub(super) fn check(scene: &Scene, follower: Started) {
    let journal = journal(scene, follower);
    let known = known(scene, &journal);
    let marks = marks(scene);
    for (run, marks) in &marks {
        for wrong in check_run(marks, known.get(run).unwrap_or(&RunWithPlan::default())) {
            scene.finding("marks", format!("run {run}: {wrong}"));
        }
    }
    groups(scene, &known);
    endings(scene, &journal, &marks, &known);
    lines(scene, &marks);
    remote(scene);
    leftovers(scene);
}

/// The journal as one who followed it has seen it; it must have no gap, each entry must follow the one before, and what is
/// still stored must be the same.
fn journal(scene: &Scene, follower: Started) -> Journal {
    let last = scene.sprag(&["events", "--json"]).map(|told| told.stdout).unwrap_or_default();
    let newest = last.lines().next_back().unwrap_or_default().to_owned();
    within(GONE, || follower.stdout().contains(&newest).then_some(()));
    let seen = follower.stdout();
    crate::signal(follower.pid(), Signal::TERM);
    scene.ended(follower, GONE);
    let seen: BTreeSet<&str> = seen.lines().collect();
    for line in last.lines().filter(|line| !seen.contains(line)).take(5) {
        scene.finding("journal", format!("expected one who follows the journal to have seen {line}"));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for line in &seen {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(error) => scene.finding("journal", format!("expected an entry; {error}: {line}")),
        }
    }
    entries.sort_by_key(|entry| entry.seq);
    scene.count_many("journal entries", entries.len());
    let journal = Journal { entries, whole: true };
    if let Err(wrong) = journal.try_replay() {
        scene.finding("journal", format!("expected each entry to follow the one before; {wrong}"));
    }
    journal
}

/// Returns the facts about each run besides its marks.
fn known(scene: &Scene, journal: &Journal) -> BTreeMap<String, RunWithPlan> {
    let mut known: BTreeMap<String, RunWithPlan> = BTreeMap::new();
    for run in scene.lines("again") {
        known.entry(run).or_default().again += 1;
    }
    for run in scene.lines("approved") {
        known.entry(run).or_default().approved = true;
    }
    for entry in journal.entries.iter().filter(|entry| entry.event == "step.inherited") {
        if let (Some(run), Some(step)) = (&entry.run, &entry.step) {
            known.entry(run.clone()).or_default().inherited.push(step.clone());
        }
    }
    known
}

/// Returns the marks of every run.
fn marks(scene: &Scene) -> BTreeMap<String, Vec<Mark>> {
    let mut marks = BTreeMap::new();
    for file in fs::read_dir(scene.path("marks")).into_iter().flatten().flatten() {
        let run = file.file_name().to_string_lossy().into_owned();
        let mut of_run = Vec::new();
        for line in scene.lines(&format!("marks/{run}")) {
            match Mark::read(&line) {
                Some(mark) => of_run.push(mark),
                None => scene.finding("marks", format!("run {run}: expected a mark; found {line:?}")),
            }
        }
        scene.count_many("step starts", of_run.iter().filter(|mark| mark.what == "begin").count());
        marks.insert(run, of_run);
    }
    marks
}

fn groups(scene: &Scene, known: &BTreeMap<String, RunWithPlan>) {
    for file in fs::read_dir(scene.path("groups")).into_iter().flatten().flatten() {
        let group = file.file_name().to_string_lossy().into_owned();
        let lines = scene.lines(&format!("groups/{group}"));
        let marks: Vec<(&str, &str)> = lines
            .iter()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.next()?))
            })
            .collect();
        for wrong in check_group(&marks, |run| known.get(run).map_or(0, |known| known.again)) {
            scene.finding("group", format!("group {group}: {wrong}"));
        }
    }
}

/// Checks that every acknowledged run exists and has ended, and that a completed one ran all its steps.
fn endings(
    scene: &Scene,
    journal: &Journal,
    marks: &BTreeMap<String, Vec<Mark>>,
    known: &BTreeMap<String, RunWithPlan>,
) {
    let mut runs: BTreeMap<&str, &str> = BTreeMap::new();
    for entry in journal.entries.iter().filter(|entry| entry.entity == "run") {
        runs.insert(&entry.id, &entry.to);
    }
    for run in scene.lines("acknowledged").iter().filter(|run| !runs.contains_key(run.as_str())) {
        scene.finding("lost", format!("expected run {run}, which was acknowledged, in the journal"));
    }
    scene.count_many("runs", runs.len());
    for (run, status) in runs {
        let ended = ["completed", "failed", "cancelled"].contains(&status);
        if !ended {
            scene.finding("end", format!("expected run {run} to have ended; the journal says {status}"));
        }
        if status != "completed" {
            continue;
        }
        let Some(of_run) = marks.get(run) else {
            // A fork may have inherited all steps that write marks. Every other completed run has written some.
            if known.get(run).is_none_or(|known| known.inherited.is_empty()) {
                scene.finding(
                    "done",
                    format!("expected the completed run {run} to have left marks; found none"),
                );
            }
            continue;
        };
        let Some(pipeline) = of_run.first().and_then(|mark| Pipeline::named(&mark.pipeline)) else {
            continue;
        };
        for (step, _) in pipeline.steps {
            let inherited = known.get(run).is_some_and(|known| known.inherited.iter().any(|id| id == step));
            let of_step = |mark: &&Mark| mark.step.split('[').next() == Some(step);
            let done = of_run.iter().rfind(of_step).is_some_and(|mark| mark.what == "end");
            if !done && !inherited {
                scene.finding(
                    "done",
                    format!("expected the completed run {run} to have done {step}; its marks do not say so"),
                );
            }
        }
    }
}

/// Checks that every landed line, and every line of the people, is on the branch locally and on the remote.
fn lines(scene: &Scene, marks: &BTreeMap<String, Vec<Mark>>) {
    let mut expected: Vec<(String, &str)> = Vec::new();
    for (run, marks) in marks {
        let mut work = None;
        for mark in marks.iter().filter(|mark| Pipeline::named(&mark.pipeline).is_some_and(Pipeline::lands)) {
            match (mark.what.as_str(), mark.step.as_str()) {
                ("end", "work") => work = Some(mark.start.attempt),
                ("begin", "after") => {
                    expected.extend(work.map(|attempt| (format!("{run}-{attempt}"), "landed")))
                }
                _ => {}
            }
        }
    }
    scene.count_many("landings", expected.len());
    expected.extend(scene.lines("person").into_iter().map(|line| (line, "committed by a person")));
    expected.extend(scene.lines("colleagues").into_iter().map(|line| (line, "pushed by a colleague")));
    for (place, folder) in
        [("main here", scene.project.repo()), ("main of the remote", scene.path("remote.git"))]
    {
        let files = try_git(&folder, ["grep", "-h", "-e", "-", "main", "--"]);
        let there: BTreeSet<String> =
            String::from_utf8_lossy(&files.stdout).lines().map(str::to_owned).collect();
        for (line, how) in expected.iter().filter(|(line, _)| !there.contains(line)) {
            scene.finding("line", format!("expected {line}, {how}, on {place}"));
        }
    }
    let tip = |folder| try_git(folder, ["rev-parse", "main"]).stdout;
    if tip(&scene.project.repo()) != tip(&scene.path("remote.git")) {
        scene.finding("git", "expected main here and on the remote to be the same after the last push");
    }
}

/// Checks that no move of the remote's branch dropped a commit.
fn remote(scene: &Scene) {
    let moves = scene.lines("remote.git/moves");
    scene.count_many("moves of the remote's main", moves.len());
    for rewound in moves.iter().filter(|line| line.starts_with("rewound")) {
        scene.finding("remote", format!("expected every push to keep what was there; found {rewound}"));
    }
    for (name, folder) in [("the repository", scene.project.repo()), ("the remote", scene.path("remote.git"))]
    {
        let checked = try_git(&folder, ["fsck", "--connectivity-only", "--no-dangling", "--no-progress"]);
        if !checked.status.success() {
            let said = String::from_utf8_lossy(&checked.stderr);
            scene.finding("git", format!("expected {name} to be whole: {said}"));
        }
    }
}

/// Checks that no process, worktree or folder is left after `env gc` and `gc`, and that `doctor` succeeds.
fn leftovers(scene: &Scene) {
    let data = scene.project.sandbox.data();
    let data_text = data.to_string_lossy().into_owned();
    let elsewhere = scene.elsewhere().to_string_lossy().into_owned();
    let processes = || [carrying("SPRAG_DATA", &data_text), carrying("SPRAG_DATA", &elsewhere)].concat();
    if within(GONE, || processes().is_empty().then_some(())).is_none() {
        for pid in processes() {
            scene.finding(
                "process",
                format!("expected no process to be left; found {pid} {:?}", command_line(pid)),
            );
        }
    }
    let said = clean_up(scene);
    let listed = try_git(&scene.project.repo(), ["worktree", "list", "--porcelain"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for worktree in listed.lines().filter_map(|line| line.strip_prefix("worktree ")).skip(1) {
        let why = scene.sprag(&["env", "ls"]).map(|told| told.stdout).unwrap_or_default();
        scene.finding("worktree", format!("expected none to be left; found {worktree}\n{why}"));
    }
    for folder in ["worktrees/.staging", "worktrees/.trash", "worktrees/.pool", "runs"] {
        for left in fs::read_dir(data.join(folder)).into_iter().flatten().flatten() {
            // A folder for the pool of a repository stays, empty. A file beside the folders of runs belongs to none of them.
            let empty = fs::read_dir(left.path()).is_ok_and(|mut inside| inside.next().is_none());
            let stays = match folder {
                "worktrees/.pool" => empty,
                "runs" => !left.path().is_dir(),
                _ => false,
            };
            if !stays {
                scene.finding("folder", describe(scene, folder, &left.path(), &said));
            }
        }
    }
    if let Some(told) = scene.sprag(&["doctor"]).filter(|told| told.code != 0) {
        scene.finding("doctor", format!("expected a healthy store: {}{}", told.stdout, told.stderr));
    }
}

/// Removes and forgets everything; what `gc` said. What is to be done after a run's end, and could not be done at first, is tried
/// again after a while, and `gc` keeps the run until then.
fn clean_up(scene: &Scene) -> String {
    let mut said = String::new();
    let all_gone = within(GONE, || {
        for args in [["env", "gc"].as_slice(), &["gc", "--keep", "0s"]] {
            let told = scene.sprag(args)?;
            said = told.stdout.clone();
            if told.code != 0 {
                scene.finding("clean-up", format!("expected {args:?} to succeed: {told:?}"));
                return Some(());
            }
        }
        (!said.contains(" kept: ")).then_some(())
    });
    if all_gone.is_none() {
        scene.finding(
            "clean-up",
            format!("expected every run to be forgotten within {GONE:?}; gc said {said}"),
        );
    }
    said
}

/// Describes the leftovers in a folder that must be empty and, for the folder of a run, what Sprag says about the run.
fn describe(scene: &Scene, folder: &str, left: &Path, clean_up_said: &str) -> String {
    let inside: Vec<_> =
        fs::read_dir(left).into_iter().flatten().flatten().map(|file| file.file_name()).collect();
    let mut text = format!("expected {folder} to be empty; found {} with {inside:?}", left.display());
    let name = left.file_name().unwrap_or_default().to_string_lossy();
    if folder == "runs"
        && let Some(status) = scene.sprag(&["status", &name])
    {
        text += &format!("\nclean-up said: {clean_up_said}\nstatus says: {}{}", status.stdout, status.stderr);
    }
    text
}
