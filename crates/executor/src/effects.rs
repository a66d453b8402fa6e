//! Work after a commit: read from the outbox, each on its own, tried again until it is done.

use std::pin::Pin;

use sprag_lifecycle::{RunId, StepNo};
use sprag_store::{Backend, OutboxRow, Result, Row, RunRow, Table};

use crate::Executor;

/// What an effect's work returns: nothing, or why it failed.
pub type EffectFuture<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), String>> + Send + 'a>>;

/// Something to be done after a run has ended. It may be called again for the same run: after a crash
/// between doing it and noting that, because another effect of the run failed, or by two executors at once.
pub trait Effect: Send + Sync + 'static {
    /// What it is called in the log.
    fn name(&self) -> &'static str;
    /// Does it.
    fn run_ended(&self, run: RunId) -> EffectFuture<'_>;
}

/// Whether a run is over, or gone.
fn is_over(db: &mut dyn Backend, run: RunId) -> Result<bool> {
    Ok(Table::<RunRow>::load(db, run)?.is_none_or(|row| row.status().is_terminal()))
}

/// Effects that one sweep carries out at most.
const BATCH: usize = 64;
/// The first wait after a failure; it doubles up to [`LONGEST_WAIT_MS`].
const FIRST_WAIT_MS: i64 = 1_000;
/// No effect waits longer than this for its next try.
const LONGEST_WAIT_MS: i64 = 300_000;

impl Executor {
    /// A run that is the work of another's step has ended: that step is looked at.
    async fn tell_parent(&self, row: &OutboxRow) -> Result<bool> {
        let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap_or_default();
        let step = payload["step"].as_u64().and_then(|step| StepNo::try_from(step).ok()).unwrap_or_default();
        if let Err(error) = self.store.executor().look_at_step(row.run, step).await {
            tracing::warn!(run = %row.run, step, %error, "telling a run that its step's work has ended");
            let not_before_ms = self.store.now().steady_ms + FIRST_WAIT_MS;
            self.store.executor().effect_failed(row.id, not_before_ms, error.to_string()).await?;
            return Ok(false);
        }
        self.store.executor().effect_done(row.id).await?;
        Ok(true)
    }

    /// Carries out what is due in the outbox. One that fails blocks no other and undoes nothing.
    pub(crate) async fn relay(&self) -> Result<usize> {
        let now_ms = self.store.now().steady_ms;
        let mut done = 0;
        for row in self.store.read(|db| db.outbox_due(now_ms, self.batch(BATCH)))? {
            if !self.cares_for(row.run) {
                continue;
            }
            if &*row.kind == "child.ended" {
                done += usize::from(self.tell_parent(&row).await?);
                continue;
            }
            // Somebody has resumed it meanwhile: its next end brings its own effects.
            if !self.store.read(|db| is_over(db, row.run))? {
                self.store.executor().effect_done(row.id).await?;
                continue;
            }
            let mut failures = Vec::new();
            for effect in &self.effects {
                if let Err(error) = effect.run_ended(row.run).await {
                    tracing::warn!(run = %row.run, effect = effect.name(), error, "effect failed; it is tried again");
                    failures.push(format!("{}: {error}", effect.name()));
                }
            }
            if failures.is_empty() {
                self.store.executor().effect_done(row.id).await?;
                done += 1;
            } else {
                let wait_ms = (FIRST_WAIT_MS << row.attempts.min(16)).min(LONGEST_WAIT_MS);
                self.store.executor().effect_failed(row.id, now_ms + wait_ms, failures.join("; ")).await?;
            }
        }
        Ok(done)
    }
}
