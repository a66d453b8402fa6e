//! The leader of a board: adds tasks with needs, cancels some, retries some, and closes the board.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{RunId, StepNo};
use sprag_store::{Created, NewBoard, NewTask, Store};

use super::super::draw::{Scenario, TASK_QUEUE};
use super::super::record::Acknowledged;
use super::super::world::ProgramHandle;
use crate::graphs::Chance;

/// Leads one board until it is closed.
pub async fn lead(handle: Arc<ProgramHandle>, scenario: Arc<Scenario>) {
    let mut chance = handle.world.chance(0x1e ^ handle.node as u64 ^ (u64::from(handle.life) << 8));
    let store = handle.store();
    let Some(board) = make(&handle, &store, &scenario).await else { return };
    let mut tasks: Vec<StepNo> = Vec::new();
    let wanted = 2 + chance.below(6);
    loop {
        let ms = 1 + chance.below(8_000) as u64;
        handle.world.pause(Duration::from_millis(ms)).await;
        let quiet = handle.world.state().quiet;
        if tasks.len() < wanted && !quiet {
            add(&handle, &store, board, &mut tasks, &mut chance).await;
            continue;
        }
        match chance.below(8) {
            0 if !quiet && !tasks.is_empty() => {
                let no = *chance.pick(&tasks);
                let _ = until_known!(handle, store.person().cancel_task(board, no));
            }
            1 | 2 if !quiet && !tasks.is_empty() => {
                let no = *chance.pick(&tasks);
                let _ = until_known!(handle, store.person().retry_task(board, no));
            }
            3 if !quiet => {}
            _ if quiet || chance.one_in(4) => {
                let cancel = chance.one_in(3);
                let _ = until_known!(handle, store.person().close_board(board, cancel));
                return;
            }
            _ => {}
        }
    }
}

async fn make(handle: &ProgramHandle, store: &Store, scenario: &Scenario) -> Option<RunId> {
    let mut run = store.person().new_run(Arc::clone(&scenario.board));
    run.open = true;
    // A leader that restarts after a crash continues with its board.
    run.idempotency_key = Some(format!("board-{}", handle.node).into());
    let name: Arc<str> = format!("board-{}", handle.node).into();
    let new = NewBoard { run, name, goal: "".into(), plan: "".into(), queue: TASK_QUEUE.into() };
    match until_known!(handle, find_or_make(store, &new))? {
        Created::New(run) | Created::Existing(run) => {
            handle.world.state().record.acknowledged.push(Acknowledged::Run(run));
            Some(run)
        }
        Created::NameTaken => None,
    }
}

async fn find_or_make(store: &Store, new: &NewBoard) -> sprag_store::Result<Created> {
    match store.queries().board_called(&new.name)? {
        Some(board) => Ok(Created::Existing(board.run)),
        None => store.person().create_board(new.clone()).await,
    }
}

async fn add(
    handle: &ProgramHandle,
    store: &Store,
    board: RunId,
    tasks: &mut Vec<StepNo>,
    chance: &mut Chance,
) {
    let many = 1 + chance.below(3);
    let new: Vec<NewTask> = (0..many)
        .map(|at| {
            let needs = if tasks.is_empty() || chance.one_in(2) {
                Vec::new()
            } else {
                vec![chance.pick(tasks).to_string().into()]
            };
            let key = format!("{}-{}-{at}", handle.life, tasks.len());
            NewTask { key: Some(key.into()), needs, tolerant: chance.one_in(4), value: "{}".into() }
        })
        .collect();
    for added in until_known!(handle, store.person().add_tasks(board, new.clone())).unwrap_or_default() {
        tasks.push(added.no);
        handle.world.state().record.acknowledged.push(Acknowledged::Task(board, added.no));
    }
}
