//! Requests for webhooks that were refused: a count and the last reason for each rule, in the data directory. They are no
//! events: a stranger can send any number of them.
//!
//! ```text
//!   DATA/refused/PIPELINE/RULE.json
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::App;

/// The most bytes of such a file.
const MOST_BYTES: u64 = 4_096;

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
    /// Counts a refused request of a rule. Requests of the same moment may count as one.
    pub(super) fn count_refused(&self, rule: &str, reason: &str) {
        let before = self.refused_requests(rule).map_or(0, |refused| refused.count);
        let refused =
            RefusedRequests { count: before + 1, reason: reason.to_owned(), last_ms: self.now().wall_ms };
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
