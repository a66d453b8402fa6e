//! Who leads a board: adds tasks that need each other, takes some back, has some tried again, closes it.

use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{RunId, StepNo};
use sprag_store::Store;
use sprag_store::ops::{Created, NewBoard, NewTask};

use super::super::draw::{Cast, TASK_QUEUE};
use super::super::record::Acknowledged;
use super::super::world::Place;
use crate::graphs::Chance;

/// Leads one board to its end.
pub async fn lead(place: Arc<Place>, cast: Arc<Cast>) {
    let mut chance = place.world.chance(0x1e ^ place.node as u64 ^ (u64::from(place.life) << 8));
    let store = place.store();
    let Some(board) = make(&place, &store, &cast).await else { return };
    let mut tasks: Vec<StepNo> = Vec::new();
    let wanted = 2 + chance.below(6);
    loop {
        let ms = 1 + chance.below(8_000) as u64;
        place.world.pause(Duration::from_millis(ms)).await;
        let quiet = place.world.state().quiet;
        if tasks.len() < wanted && !quiet {
            add(&place, &store, board, &mut tasks, &mut chance).await;
            continue;
        }
        match chance.below(8) {
            0 if !quiet && !tasks.is_empty() => {
                let no = *chance.pick(&tasks);
                let _ = insist!(place, store.person().cancel_task(board, no));
            }
            1 | 2 if !quiet && !tasks.is_empty() => {
                let no = *chance.pick(&tasks);
                let _ = insist!(place, store.person().retry_task(board, no));
            }
            3 if !quiet => {}
            _ if quiet || chance.one_in(4) => {
                let cancel = chance.one_in(3);
                let _ = insist!(place, store.person().close_board(board, cancel));
                return;
            }
            _ => {}
        }
    }
}

async fn make(place: &Place, store: &Store, cast: &Cast) -> Option<RunId> {
    let mut run = store.person().new_run(Arc::clone(&cast.board));
    run.open = true;
    // One that starts again after a crash goes on with its board.
    run.idempotency_key = Some(format!("board-{}", place.node).into());
    let name: Arc<str> = format!("board-{}", place.node).into();
    let new = NewBoard { run, name, goal: "".into(), plan: "".into(), queue: TASK_QUEUE.into() };
    match insist!(place, find_or_make(store, &new))? {
        Created::New(run) | Created::Existing(run) => {
            place.world.state().record.acknowledged.push(Acknowledged::Run(run));
            Some(run)
        }
        Created::NameTaken => None,
    }
}

async fn find_or_make(store: &Store, new: &NewBoard) -> sprag_store::Result<Created> {
    match store.read(|db| db.board_called(&new.name))? {
        Some(board) => Ok(Created::Existing(board.run)),
        None => store.person().create_board(new.clone()).await,
    }
}

async fn add(place: &Place, store: &Store, board: RunId, tasks: &mut Vec<StepNo>, chance: &mut Chance) {
    let many = 1 + chance.below(3);
    let new: Vec<NewTask> = (0..many)
        .map(|at| {
            let needs = match tasks.is_empty() || chance.one_in(2) {
                true => Vec::new(),
                false => vec![chance.pick(tasks).to_string().into()],
            };
            let key = format!("{}-{}-{at}", place.life, tasks.len());
            NewTask { key: Some(key.into()), needs, tolerant: chance.one_in(4), value: "{}".into() }
        })
        .collect();
    for added in insist!(place, store.person().add_tasks(board, new.clone())).unwrap_or_default() {
        tasks.push(added.no);
        place.world.state().record.acknowledged.push(Acknowledged::Task(board, added.no));
    }
}
