//! Tokens and cost per turn, computed from any kind of report so that nothing is counted twice.

use serde::{Deserialize, Serialize};

/// Tokens and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens sent to the model, including cached ones.
    pub input_tokens: u64,
    /// The part of the input that was read from a cache.
    pub cached_input_tokens: u64,
    /// The part of the input that was written to a cache.
    pub cache_write_tokens: u64,
    /// Tokens that the model wrote, including its reasoning.
    pub output_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
    /// The price in US dollars as the agent computes it; absent if it does not report one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl Usage {
    /// Returns the sum of input and output tokens.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Adds two usages.
    pub fn plus(&self, other: &Usage) -> Usage {
        self.zip(other, u64::saturating_add, |a, b| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
        })
    }

    /// Returns the difference to `earlier`. Figures that decreased count as zero.
    pub fn since(&self, earlier: &Usage) -> Usage {
        self.zip(earlier, u64::saturating_sub, |a, b| a.map(|a| (a - b.unwrap_or(0.0)).max(0.0)))
    }

    /// Returns the larger value of each figure.
    pub fn max(&self, other: &Usage) -> Usage {
        self.zip(other, u64::max, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        })
    }

    fn zip(
        &self,
        other: &Usage,
        tokens: impl Fn(u64, u64) -> u64,
        cost: impl Fn(Option<f64>, Option<f64>) -> Option<f64>,
    ) -> Usage {
        Usage {
            input_tokens: tokens(self.input_tokens, other.input_tokens),
            cached_input_tokens: tokens(self.cached_input_tokens, other.cached_input_tokens),
            cache_write_tokens: tokens(self.cache_write_tokens, other.cache_write_tokens),
            output_tokens: tokens(self.output_tokens, other.output_tokens),
            reasoning_tokens: tokens(self.reasoning_tokens, other.reasoning_tokens),
            cost_usd: cost(self.cost_usd, other.cost_usd),
        }
    }
}

/// Converts an agent's reports into usage per turn.
///
/// Agents report three kinds: the usage of one request, of the turn so far, and of the session so far. The last kind
/// continues across a resume, so the first such report of a resumed session outside a turn is only the base to count
/// from.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsageMeter {
    /// The session's usage at the end of the last turn; absent until known.
    base: Option<Usage>,
    /// The session's usage in the last report.
    session: Option<Usage>,
    turn: Usage,
}

impl UsageMeter {
    /// Returns a meter for a new session, whose usage starts at zero, or for a resumed one.
    pub(crate) fn new(is_resumed: bool) -> UsageMeter {
        UsageMeter { base: (!is_resumed).then(Usage::default), ..UsageMeter::default() }
    }

    pub(crate) fn begin_turn(&mut self) {
        self.turn = Usage::default();
        self.base = self.session.or(self.base);
    }

    /// Adds the usage of one more request of this turn.
    pub(crate) fn add(&mut self, request: &Usage) {
        self.turn = self.turn.plus(request);
    }

    /// Records the usage of this turn so far.
    pub(crate) fn turn_so_far(&mut self, turn: &Usage) {
        self.turn = self.turn.max(turn);
    }

    /// Records the usage of the session so far. `in_turn` is true if it includes work of the open turn.
    pub(crate) fn session_so_far(&mut self, session: &Usage, in_turn: bool) {
        self.session = Some(self.session.map_or(*session, |known| known.max(session)));
        if in_turn {
            // The base of this resumed session was never reported, so the turn's part of the figure is unknown.
            if let Some(base) = self.base {
                self.turn = self.turn.max(&session.since(&base));
            }
        } else {
            self.base = self.session;
        }
    }

    pub(crate) fn turn(&self) -> Usage {
        self.turn
    }

    pub(crate) fn session(&self) -> Option<Usage> {
        self.session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64, cost: Option<f64>) -> Usage {
        Usage { input_tokens: input, output_tokens: output, cost_usd: cost, ..Usage::default() }
    }

    #[test]
    fn t08_session_figures_become_turn_figures() {
        let mut meter = UsageMeter::new(false);
        meter.begin_turn();
        meter.session_so_far(&usage(100, 20, Some(0.1)), true);
        meter.session_so_far(&usage(200, 40, Some(0.2)), true);
        assert_eq!(meter.turn(), usage(200, 40, Some(0.2)));
        meter.begin_turn();
        meter.session_so_far(&usage(300, 60, Some(0.5)), true);
        assert_eq!(meter.turn().total_tokens(), 120);
        assert!((meter.turn().cost_usd.expect("a cost") - 0.3).abs() < 1e-9);
    }

    #[test]
    fn t08_a_resumed_session_is_not_counted_twice() {
        let mut told = UsageMeter::new(true);
        told.session_so_far(&usage(1000, 500, None), false);
        told.begin_turn();
        told.session_so_far(&usage(1100, 520, None), true);
        assert_eq!(told.turn(), usage(100, 20, None));
        // Without a base, the first turn uses its own figures, and later turns use the session's.
        let mut untold = UsageMeter::new(true);
        untold.begin_turn();
        untold.turn_so_far(&usage(100, 20, None));
        untold.session_so_far(&usage(0, 0, Some(9.0)), true);
        assert_eq!(untold.turn(), usage(100, 20, None));
        untold.begin_turn();
        untold.session_so_far(&usage(0, 0, Some(9.5)), true);
        assert_eq!(untold.turn().cost_usd, Some(0.5));
    }

    #[test]
    fn figures_never_go_back_within_a_turn() {
        let mut meter = UsageMeter::new(false);
        meter.begin_turn();
        meter.add(&usage(100, 20, None));
        meter.add(&usage(100, 20, None));
        meter.turn_so_far(&usage(150, 30, None));
        assert_eq!(meter.turn(), usage(200, 40, None));
    }
}
