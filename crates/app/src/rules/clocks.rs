//! The wall clock, compared with the machine's own clock: a wall clock that was set must not make a burst of ticks.

use serde::{Deserialize, Serialize};
use sprag_store::{Clock, System};

use crate::App;

/// A change of the wall clock against the machine's own clock that counts as a jump.
pub(super) const JUMP_MS: i64 = 60_000;
/// The time after a jump in which nothing fires: the clock may jump back.
const SETTLING_MS: i64 = 60_000;
/// The most bytes of the file about the last jump.
const MOST_BYTES: u64 = 4_096;

/// The comparison of the wall clock with the machine's own clock.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The difference of the two at the last look.
    difference_ms: Option<i64>,
    /// The time of the machine's clock until which nothing fires.
    settles_ms: i64,
    /// Whether stored timers may be too late, because the wall clock was set back.
    pub(super) set_back: bool,
    /// The jump that the last look found.
    pub(super) jumped_ms: Option<i64>,
}

impl Clocks {
    /// Whether there was no look yet.
    pub(super) fn is_new(&self) -> bool {
        self.difference_ms.is_none()
    }

    /// Notes the present times. Returns whether rules may fire.
    pub(super) fn look(&mut self, wall_ms: i64, boot_ms: i64) -> bool {
        let difference_ms = wall_ms - boot_ms;
        let jump_ms = self.difference_ms.map_or(0, |before_ms| difference_ms - before_ms);
        self.difference_ms = Some(difference_ms);
        if jump_ms.abs() > JUMP_MS {
            tracing::warn!(jump_ms, "the wall clock jumped: rules fire again when it is steady");
            self.settles_ms = boot_ms + SETTLING_MS;
            self.set_back |= jump_ms < 0;
            self.jumped_ms = Some(jump_ms);
        }
        boot_ms >= self.settles_ms
    }
}

/// The last jump of this machine's wall clock that a server has seen, in the file `clock-jump.json` of the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ClockJump {
    /// Positive if the clock was set forward.
    jump_ms: i64,
    /// The time of the jump, by the machine's own clock.
    boot_ms: i64,
}

impl App {
    /// Notes a jump of the wall clock, for people who ask why nothing fires.
    pub(super) fn note_clock_jump(&self, jump_ms: i64, boot_ms: i64) {
        let written = serde_json::to_vec(&ClockJump { jump_ms, boot_ms }).map_err(std::io::Error::other);
        let file = self.data().join("clock-jump.json");
        if let Err(error) = written.and_then(|text| sprag_process::replace_private(&file, &text)) {
            tracing::warn!(%error, "a jump of the clock cannot be noted");
        }
    }

    /// Returns why nothing fires, if the wall clock of this machine has just jumped.
    pub(super) fn clock_is_settling(&self) -> Option<String> {
        let file = self.data().join("clock-jump.json");
        let text = sprag_process::read_regular(&file, MOST_BYTES).ok()?;
        let jump: ClockJump = serde_json::from_slice(&text).ok()?;
        let since_ms = System.boot_ms() - jump.boot_ms;
        // The machine's clock begins anew when it starts.
        (0..SETTLING_MS).contains(&since_ms).then(|| {
            let (by, way) = (jump.jump_ms.abs() / 1_000, if jump.jump_ms < 0 { "back" } else { "forward" });
            format!("the clock was set {way} by {by} s, and nothing fires until it was steady for a minute")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r05_nothing_fires_after_a_jump_until_the_clock_is_steady() {
        let mut clocks = Clocks::default();
        let day = 24 * 3_600_000;
        assert!(clocks.look(day, 1_000));
        assert!(clocks.look(day + 5_000, 6_000), "both clocks move on");
        assert!(!clocks.look(2 * day, 7_000), "a day forward");
        assert!(!clocks.set_back);
        assert!(!clocks.look(2 * day + 10_000, 17_000), "not for a minute");
        assert!(clocks.look(2 * day + 60_000, 67_000));
        assert!(!clocks.look(0, 68_000), "back to 1970");
        assert!(clocks.set_back);
        assert!(clocks.look(60_000, 128_000));
    }

    #[test]
    fn r05_r23_a_jump_is_the_reason_for_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let store = sprag_store::Store::in_memory(std::sync::Arc::new(System), std::sync::Arc::new(System));
        let app = App::with_store(store, folder.path());
        assert_eq!(app.clock_is_settling(), None);
        let now_ms = System.boot_ms();
        app.note_clock_jump(-3_600_000, now_ms);
        let told = app.clock_is_settling().unwrap();
        assert!(told.starts_with("the clock was set back by 3600 s"), "{told}");
        // An old jump, and one from before the machine was started again, say nothing.
        for boot_ms in [now_ms - SETTLING_MS, now_ms + 3_600_000] {
            app.note_clock_jump(1, boot_ms);
            assert_eq!(app.clock_is_settling(), None);
        }
    }
}
