//! Deletes runs that ended a while ago in small transactions, and is killed between any two of them.

use std::sync::Arc;
use std::time::Duration;

use sprag_store::Bite;

use super::super::world::ProgramHandle;

/// The number of runs in one page.
const PAGE: usize = 8;

/// Deletes finished runs from time to time, and continues deletions that an earlier start left unfinished.
pub async fn collect(handle: Arc<ProgramHandle>) {
    let store = handle.store();
    let mut chance = handle.world.chance(0xf0 ^ handle.node as u64 ^ (u64::from(handle.life) << 8));
    loop {
        handle.world.pause(Duration::from_millis(1 + chance.below(20_000) as u64)).await;
        let keep_ms = *chance.pick(&[0, 5_000, 60_000]);
        let before_ms = store.now().wall_ms - keep_ms;
        let Ok(page) = store.person().forgettable_runs(before_ms, None, PAGE) else { continue };
        // Other programs act between the query and the transaction.
        handle.world.pause(Duration::from_millis(chance.below(2_000) as u64)).await;
        let mut runs = page.runs;
        loop {
            let bite = Bite::of(1 + chance.below(3));
            let Ok(forgot) = store.person().forget_runs(runs.clone(), before_ms, bite).await else { break };
            runs.drain(..forgot.looked_at);
            if runs.is_empty() && !forgot.rows_left {
                break;
            }
        }
        let Ok(gone) = store.queries().forgotten(None, PAGE) else { continue };
        let _ = store.person().files_are_gone(gone).await;
        let _ = store.person().forget_entries(Bite::of(2)).await;
        let _ = store.person().forget_plans(None, Bite::of(2)).await;
    }
}
