//! Transitions per second of the store alone, against the machine's floors in the same rounds.

use std::time::Duration;

use sprag_store::Store;

use crate::board::{Board, key};
use crate::load::{STEPS, Until, Written, whole_runs};
use crate::{Effort, Result, files, floors};

const WORKLOAD: &str = "store";
/// The numbers of concurrent callers.
const CALLERS: [usize; 3] = [1, 8, 64];

/// The number of alternations of floor and store in a round, because the speed of a disk can change within a second.
const SLICES: u32 = 4;

/// Measures floors and store alternately.
pub(crate) async fn measure(effort: Effort) -> Result<Board> {
    let time = effort.pick(Duration::from_millis(1000), Duration::from_millis(300));
    let mut board = Board::default();
    let mut last = None;
    for _ in 0..effort.rounds {
        let folder = files::scratch()?;
        board.add(
            key(WORKLOAD, "fdatasync", 1, "syncs/s"),
            floors::fdatasync(folder.path(), time)?.per_second,
        );
        board.add(key(WORKLOAD, "one row", 1, "updates/s"), floors::one_row(folder.path(), time)?);
        for callers in CALLERS {
            let floor = key(WORKLOAD, "group commit", callers, "updates/s");
            let (transitions, steps) = (
                key(WORKLOAD, "sprag", callers, "transitions/s"),
                key(WORKLOAD, "sprag", callers, "steps/s"),
            );
            let data = tempfile::tempdir_in(folder.path())?;
            let store = Store::open(data.path())?;
            let (mut floored, mut runs, mut elapsed) = (0.0, 0, Duration::ZERO);
            for _ in 0..SLICES {
                floored += floors::group_commit(folder.path(), callers, time / SLICES).await?;
                let done = whole_runs(&store, callers, Until::Time(time / SLICES)).await?;
                runs += done.runs.len();
                elapsed += done.elapsed;
            }
            drop(store);
            let written = Written::read(data.path())?.check(runs, STEPS)?;
            board.add(floor.clone(), floored / f64::from(SLICES));
            board.add(transitions.clone(), written.journal as f64 / elapsed.as_secs_f64());
            board.add(steps.clone(), written.completed as f64 / elapsed.as_secs_f64());
            board.compare(&transitions, floor.clone());
            board.compare(&steps, floor);
            last = Some(written);
        }
    }
    if let Some(written) = last {
        board.note(rows_written(written));
    }
    Ok(board)
}

/// Describes the rows that one transition writes.
fn rows_written(written: Written) -> String {
    let each = |rows: i64| rows as f64 / written.journal as f64;
    let per_run = |rows: i64| rows as f64 / written.runs as f64;
    format!(
        "\nA run of {STEPS} steps: {:.1} transitions in {} commits' worth of answers.\n\
         Rows written for a transition: {:.2} of runs, steps and executions,\n\
         {:.2} of the journal, {:.3} of the outbox; {:.2} in all.",
        per_run(written.journal),
        STEPS + 2,
        each(written.row_writes),
        each(written.packs),
        each(written.outbox),
        each(written.row_writes + written.packs + written.outbox),
    )
}
