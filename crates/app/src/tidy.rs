//! Cleaning up after a run has ended: its lock files are removed, its logs stay.

use sprag_lifecycle::RunId;
use sprag_sweeper::{Effect, EffectFuture};
use sprag_worker::Files;

/// The effect that removes the files that only a live run needs.
pub(crate) struct RemoveLocks(pub(crate) Files);

impl Effect for RemoveLocks {
    fn name(&self) -> &'static str {
        "remove lock files"
    }

    fn run_ended(&self, run: RunId) -> EffectFuture<'_> {
        let folder = self.0.run(run);
        Box::pin(async move {
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(format!("{}: {error}", folder.display())),
            };
            for path in entries.flatten().map(|entry| entry.path()) {
                // A held lock belongs to processes that are still ending: the next sweep looks again.
                if path.extension().is_some_and(|ending| ending == "lock") {
                    sprag_process::remove_if_free(&path)
                        .map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
            Ok(())
        })
    }
}
