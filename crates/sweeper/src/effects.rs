//! Work after a commit: the executor reads it from the outbox, and retries each item until it is done.

use std::pin::Pin;

use sprag_lifecycle::{RunId, StepNo};
use sprag_store::{OutboxRow, Result, Row};

use crate::Executor;

/// The future of an effect's work; its error is the reason for the failure.
pub type EffectFuture<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), String>> + Send + 'a>>;

/// Work to do after a run has ended. The executor may call it again for the same run: after a crash between the work
/// and its record, because another effect of the run failed, or because two executors run at once.
pub trait Effect: Send + Sync + 'static {
    /// Returns the effect's name for log lines.
    fn name(&self) -> &'static str;
    /// Does the work for a run that has ended.
    fn run_ended(&self, run: RunId) -> EffectFuture<'_>;
}

/// The kind of an entry that tells a run of its child's end.
const CHILD_ENDED: &str = "child.ended";
/// The most effects that one sweep carries out.
const BATCH: usize = 64;
/// The first wait after a failure; it doubles up to [`LONGEST_WAIT_MS`].
const FIRST_WAIT_MS: i64 = 1_000;
/// The longest wait of an effect for its next try.
const LONGEST_WAIT_MS: i64 = 300_000;

impl Executor {
    /// Looks at the step whose work is a run that has ended.
    async fn tell_parent(&self, row: &OutboxRow) -> Result<bool> {
        let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap_or_default();
        let step = payload["step"].as_u64().and_then(|step| StepNo::try_from(step).ok()).unwrap_or_default();
        if let Err(error) = self.store.executor().look_at_step(row.run, step).await {
            tracing::warn!(run = %row.run, step, %error, "notifying a parent run of its child's end failed");
            let not_before_ms = self.store.now().steady_ms + FIRST_WAIT_MS;
            self.store.executor().effect_failed(row.id, not_before_ms, error.to_string()).await?;
            return Ok(false);
        }
        self.store.executor().effect_done(row.id).await?;
        Ok(true)
    }

    /// Looks at the steps whose child runs have ended; returns how many.
    pub(crate) async fn tell_parents(&self) -> Result<usize> {
        let now_ms = self.store.now().steady_ms;
        let mut told = 0;
        for row in self.store.queries().outbox_due(now_ms, self.batch(BATCH))? {
            if &*row.kind == CHILD_ENDED && self.cares_for(row.run) {
                told += usize::from(self.tell_parent(&row).await?);
            }
        }
        Ok(told)
    }

    /// Carries out the outbox entries that are due now, for processes that do no other work of an executor.
    pub async fn finish_effects(&self) -> Result<()> {
        let now_ms = self.store.now().steady_ms;
        let due = self.store.queries().outbox_due(now_ms, usize::MAX)?.len();
        // Entries that other processes add meanwhile are left to those processes.
        for _ in 0..due.div_ceil(BATCH) {
            self.relay().await?;
        }
        Ok(())
    }

    /// Carries out the outbox entries that are due. An effect that fails blocks no other and undoes nothing.
    pub(crate) async fn relay(&self) -> Result<usize> {
        let now_ms = self.store.now().steady_ms;
        let mut done = 0;
        for row in self.store.queries().outbox_due(now_ms, self.batch(BATCH))? {
            if !self.cares_for(row.run) {
                continue;
            }
            if &*row.kind == CHILD_ENDED {
                done += usize::from(self.tell_parent(&row).await?);
                continue;
            }
            // Another process has resumed the run meanwhile. The end of the resumed run brings its own effects.
            let run = self.store.queries().run(row.run)?;
            if run.is_some_and(|run| !run.status().is_terminal()) {
                self.store.executor().effect_done(row.id).await?;
                continue;
            }
            let mut failures = Vec::new();
            for effect in &self.effects {
                if let Err(error) = effect.run_ended(row.run).await {
                    tracing::warn!(run = %row.run, effect = effect.name(), error, "an effect failed: it is retried");
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
