//! The latency of live steps while `sprag gc`, in a separate process, deletes all finished runs of a file.
//!
//! The finished runs are those of [`crate::growth`], with interleaved journal entries: the whole journal is between a
//! run's first and last entry, as after many runs were submitted at once. Live steps are reports to the store that wait
//! for their commit and receive the next step, with a pause in between, because commands take time.
//!
//! Live steps continue until `gc` has ended. It gives way to them, so a million runs take a good part of an hour.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use sprag_store::{FILE_NAME, Store};

use crate::board::Target::AtMost;
use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::growth::{JournalOrder, fill};
use crate::load::{STEPS, claimer, sequence, success};
use crate::{Effort, Result};

const WORKLOAD: &str = "retention";
const CALLERS: usize = 4;
/// The duration of a live step's command.
const COMMAND: Duration = Duration::from_millis(5);
/// The longest time for which live steps run beside `gc`. A `gc` that takes longer continues alone, and the note says so.
const BESIDE_AT_MOST: Duration = Duration::from_secs(3600);
const USUAL: &str = "usual";
const BESIDE: &str = "beside gc";

/// Fills a file, measures live steps, then measures them again during `sprag gc`.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let (many, called) = effort.pick((1_000_000, "1 M finished"), (50_000, "50 k finished"));
    let usual_for = effort.pick(Duration::from_secs(60), Duration::from_secs(10));
    let program = std::env::current_exe()?.with_file_name("sprag");
    if !program.exists() {
        return Err("build the program first: cargo build --release -p sprag-cli".into());
    }
    let mut board = Board::default();
    // A round of a million runs takes most of an hour, and has tens of thousands of live steps.
    for _ in 0..effort.pick(1, effort.rounds) {
        let watch = Stopwatch::start();
        let filled = fill(many, called, JournalOrder::Interleaved).await?;
        board.note(format!("{called}: filled within {:.0} s", watch.elapsed().as_secs_f64()));
        let data = filled.folder.path();
        let path = data.join(FILE_NAME);
        let newest = newest_run(&path)?;
        let store = Store::open(data)?;
        let stop = Arc::new(AtomicBool::new(false));
        let usual = live_steps(&store, Until::Time(usual_for), &stop).await?;
        note(&mut board, USUAL, usual);

        let watch = Stopwatch::start();
        let mut gc = start_gc(&program, data)?;
        let steps = async {
            let steps = live_steps(&store, Until::StoppedOr(BESIDE_AT_MOST), &stop).await;
            (steps, watch.elapsed(), runs_up_to(&path, newest))
        };
        let ended = tokio::task::spawn_blocking({
            let stop = Arc::clone(&stop);
            move || {
                let status = gc.wait();
                stop.store(true, Ordering::Release);
                status
            }
        });
        let (steps, status) = tokio::join!(steps, ended);
        if !status??.success() {
            return Err("sprag gc failed".into());
        }
        let took = watch.elapsed();
        let (steps, beside, left) = steps;
        let steps = steps?;
        board.note(format!(
            "{} live steps in {:.0} s beside gc, in which it forgot {} of {many} runs; it took {:.0} s in all",
            steps.len(),
            beside.as_secs_f64(),
            many - left?,
            took.as_secs_f64()
        ));
        note(&mut board, BESIDE, steps);
        drop(store);
        board
            .add(key(WORKLOAD, filled.system, CALLERS, "runs forgotten/s"), many as f64 / took.as_secs_f64());
        check(&path, many)?;
    }
    for (unit, target) in [("ms step p50", None), ("ms step p99", Some(AtMost(2.0)))] {
        let (beside, usual) = (key(WORKLOAD, BESIDE, CALLERS, unit), key(WORKLOAD, USUAL, CALLERS, unit));
        board.ratio(unit, &beside, &usual, target);
    }
    Ok(board)
}

fn start_gc(program: &PathBuf, data: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(["gc", "--keep", "0s", "--data"]).arg(data).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.spawn()?)
}

fn note(board: &mut Board, system: &'static str, mut steps: Vec<Duration>) {
    let mut ms = |percent| percentile(&mut steps, percent).as_secs_f64() * 1e3;
    let (p50, p99, longest) = (ms(50), ms(99), ms(100));
    board.add(key(WORKLOAD, system, CALLERS, "ms step p50"), p50);
    board.add(key(WORKLOAD, system, CALLERS, "ms step p99"), p99);
    board.add(key(WORKLOAD, system, CALLERS, "ms step longest"), longest);
}

#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    StoppedOr(Duration),
}

/// Executes runs one after the other with several callers. Returns the latency of each report.
async fn live_steps(store: &Store, until: Until, stop: &Arc<AtomicBool>) -> Result<Vec<Duration>> {
    let plan = sequence(STEPS)?;
    let watch = Stopwatch::start();
    let tasks: Vec<_> = (1..=CALLERS as i64)
        .map(|worker| {
            let (store, plan, stop) = (store.clone(), Arc::clone(&plan), Arc::clone(stop));
            let goes_on = move || match until {
                Until::Time(time) => watch.elapsed() < time,
                Until::StoppedOr(time) => watch.elapsed() < time && !stop.load(Ordering::Acquire),
            };
            tokio::spawn(async move {
                let mut steps = Vec::new();
                while goes_on() {
                    let mut new = store.person().new_run(Arc::clone(&plan));
                    new.pin = Some(worker);
                    store.person().create_run(new).await?;
                    let mut next = store.claims().claim(claimer(worker), 1).await?.pop();
                    while let Some(assignment) = next {
                        store.runtime().pause(COMMAND).await;
                        let watch = Stopwatch::start();
                        let answer =
                            store.worker(assignment.lease).finish(success(), Some(claimer(worker))).await?;
                        steps.push(watch.elapsed());
                        answer.outcome.require_applied()?;
                        next = answer.next;
                    }
                }
                Result::Ok(steps)
            })
        })
        .collect();
    let mut steps = Vec::new();
    for task in tasks {
        steps.extend(task.await??);
    }
    Ok(steps)
}

/// Returns the newest run of a file.
fn newest_run(path: &Path) -> Result<i64> {
    Ok(Connection::open(path)?.query_row("SELECT max(id) FROM runs", [], |columns| columns.get(0))?)
}

/// Returns how many of the runs up to this one are left.
fn runs_up_to(path: &Path, newest: i64) -> Result<i64> {
    let sql = "SELECT count(*) FROM runs WHERE id <= ?1";
    Ok(Connection::open(path)?.query_row(sql, [newest], |columns| columns.get(0))?)
}

/// Checks that nothing of the finished runs is left, and that nothing else was deleted.
fn check(path: &Path, forgotten: i64) -> Result<()> {
    let conn = Connection::open(path)?;
    let count = |sql: &str| -> Result<i64> { Ok(conn.query_row(sql, [], |columns| columns.get(0))?) };
    let runs = count("SELECT count(*) FROM runs")?;
    let steps = count("SELECT count(*) FROM steps")?;
    let strangers = count("SELECT count(*) FROM journal_packs WHERE run NOT IN (SELECT id FROM runs)")?;
    let listed = count("SELECT count(*) FROM forgotten")?;
    // The last entry of the journal is always kept.
    if runs == 0 || steps != runs * STEPS as i64 || strangers > 1 || listed != 0 {
        return Err(format!(
            "of {forgotten} runs something is left: {runs} runs, {steps} steps, {strangers} entries, {listed} listed"
        )
        .into());
    }
    Ok(())
}
