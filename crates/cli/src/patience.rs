//! Messages about what a run waits for, to the person who waits for the run: after the run has waited for a moment,
//! and at each change.

use sprag_app::{App, Course, Waiting, course};
use sprag_lifecycle::RunId;
use sprag_process::boot_ms;

use crate::exit::Failure;
use crate::show::{Style, plain};

/// The shortest wait that is reported, in milliseconds. Together with the time between two looks it stays below a
/// second.
const WORTH_A_WORD_MS: u64 = 600;
/// The time after which the reason is checked for a change, if nothing else happens.
const LOOK_AGAIN_MS: u64 = 5_000;
/// The most waits that are listed; further waits are counted.
const LISTED: usize = 5;

/// The last message, and the time of the next look.
#[derive(Default)]
pub(crate) struct Patience {
    /// The time of the next look, by the boot clock.
    look_ms: Option<u64>,
    said: Option<Course>,
    /// The waits that were returned last.
    listed: Vec<Waiting>,
    /// Whether the last look was after the last event.
    is_current: bool,
}

impl Patience {
    /// Starts a new wait after an event.
    pub(crate) fn reset(&mut self) {
        self.look_ms = None;
        self.is_current = false;
    }

    /// Returns what the run waits for, as far as the last look has shown.
    pub(crate) fn waits(&self) -> &[Waiting] {
        self.said.as_ref().filter(|_| self.is_current).map_or(&[], Course::waits)
    }

    /// Returns whether it is time to look.
    pub(crate) fn is_due(&mut self) -> bool {
        let now_ms = boot_ms();
        let look_ms = *self.look_ms.get_or_insert(now_ms + WORTH_A_WORD_MS);
        if now_ms < look_ms {
            return false;
        }
        self.look_ms = Some(now_ms + LOOK_AGAIN_MS);
        true
    }

    /// Returns what the run waits for, if that has lasted for a moment and was not printed yet. Empty if there is nothing
    /// to print.
    pub(crate) fn look(&mut self, app: &App, run: RunId) -> Result<Vec<Waiting>, Failure> {
        let Some(course) = self.changed(app, run)? else { return Ok(Vec::new()) };
        Ok(self.unlisted(course.waits().to_vec()))
    }

    /// Returns these waits, unless they are those of the last call; empty if they are.
    pub(crate) fn unlisted(&mut self, waits: Vec<Waiting>) -> Vec<Waiting> {
        if waits == self.listed {
            return Vec::new();
        }
        self.listed.clone_from(&waits);
        waits
    }

    /// Returns the state of the run, if it was not printed yet.
    pub(crate) fn changed(&mut self, app: &App, run: RunId) -> Result<Option<Course>, Failure> {
        if !self.is_due() {
            return Ok(None);
        }
        let now = course(app, run)?;
        self.is_current = true;
        if self.said.as_ref() == Some(&now) {
            return Ok(None);
        }
        self.said = Some(now.clone());
        Ok(Some(now))
    }
}

/// Prints what a run waits for, one line for each wait.
pub(crate) fn say(style: Style, waits: &[Waiting], now_ms: i64) {
    for waiting in waits.iter().take(LISTED) {
        eprintln!("{} {}", style.dim("waiting:"), plain(&waiting.line(now_ms)));
    }
    if waits.len() > LISTED {
        eprintln!(
            "{} and {} more: sprag explain {}",
            style.dim("waiting:"),
            waits.len() - LISTED,
            waits[0].run
        );
    }
}
