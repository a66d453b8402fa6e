//! Requests for webhooks that were refused: a count and the last reason for each rule, in the data directory. They are no
//! events: a stranger can send any number of them.
//!
//! ```text
//!   DATA/refused/PIPELINE/RULE.json
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::App;

/// The most bytes of such a file.
const MOST_BYTES: u64 = 4_096;
/// The most of these files that one process writes in a second. Strangers cause the writes.
const WRITES_PER_SECOND: u32 = 10;

/// Refusals of this process that no file counts yet.
pub(crate) type UnwrittenRefusals = Arc<Mutex<Unwritten>>;

/// The refusals that wait for a file, by rule, and the files that were written in this second.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    second: i64,
    writes: u32,
    counts: BTreeMap<String, u64>,
}

impl Unwritten {
    /// Counts a refusal. Returns the number to add to the rule's file; none if no file may be written now.
    fn add(&mut self, rule: &str, now_ms: i64) -> Option<u64> {
        *self.counts.entry(rule.to_owned()).or_default() += 1;
        let second = now_ms / 1_000;
        if second != self.second {
            (self.second, self.writes) = (second, 0);
        }
        if self.writes == WRITES_PER_SECOND {
            return None;
        }
        self.writes += 1;
        self.counts.remove(rule)
    }
}

/// Requests for a rule's webhook that servers of this machine refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedRequests {
    /// Their number.
    pub count: u64,
    /// The reason for the last refusal.
    pub reason: String,
    /// The time of the last refusal (milliseconds since 1970).
    pub last_ms: i64,
}

impl App {
    /// Counts a refused request of a rule. Requests of the same moment may count as one, and those of a flood are
    /// counted with a later one.
    pub(super) fn count_refused(&self, rule: &str, reason: &str) {
        let last_ms = self.now().wall_ms;
        let unwritten =
            self.unwritten_refusals.lock().unwrap_or_else(PoisonError::into_inner).add(rule, last_ms);
        let Some(more) = unwritten else { return };
        let before = self.refused_requests(rule).map_or(0, |refused| refused.count);
        let refused = RefusedRequests { count: before + more, reason: reason.to_owned(), last_ms };
        if let Err(error) = self.write_refused(rule, &refused) {
            tracing::warn!(%error, rule, "a refused request cannot be counted");
        }
    }

    fn write_refused(&self, rule: &str, refused: &RefusedRequests) -> std::io::Result<()> {
        let file = self.refused_file(rule);
        if let Some(folder) = file.parent() {
            sprag_process::make_private_folder(folder)?;
        }
        let written = file.with_extension(format!("{}.new", self.new_id()));
        sprag_process::write_private(&file, &written, &serde_json::to_vec(refused)?)
    }

    /// Returns the refused requests of a rule; none if there were none.
    pub(super) fn refused_requests(&self, rule: &str) -> Option<RefusedRequests> {
        use std::io::Read;
        let file = sprag_process::open_regular(&self.refused_file(rule)).ok()?;
        let mut text = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The names of pipelines and rules have letters, digits, `-`, `_` and `.` only.
    fn refused_file(&self, rule: &str) -> PathBuf {
        self.data().join("refused").join(format!("{rule}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r16_a_flood_of_refused_requests_writes_few_files_and_loses_no_count() {
        let mut unwritten = Unwritten::default();
        let mut written = 0;
        let mut files = 0;
        for nth in 0..5_000 {
            // A thousand requests a second, for two rules.
            let rule = if nth % 2 == 0 { "p/a" } else { "p/b" };
            if let Some(count) = unwritten.add(rule, nth) {
                (written, files) = (written + count, files + 1);
            }
        }
        assert_eq!(files, 5 * WRITES_PER_SECOND);
        let left: u64 = unwritten.counts.values().sum();
        assert_eq!(written + left, 5_000);
    }
}
