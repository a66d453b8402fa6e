//! The faults: drawn from the seed as one list before the start, so that shrinking a failure can leave out each of
//! them.

use sprag_store::{Error, Fate};

use super::world::{Node, Role};
use crate::graphs::Chance;

/// A fault, or a period of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A program is killed and restarts later. Its processes die with it, or their supervisors end them soon.
    Crash { node: usize, down_ms: i64, at_once: bool },
    /// A program is stopped, and continues later without noticing.
    Pause { node: usize, ms: i64 },
    /// A program is asked to stop in an orderly way.
    Stop { node: usize },
    /// The wall clock of a node is changed.
    Jump { node: usize, ms: i64 },
    /// The store's disk is full for a period.
    Full { ms: i64 },
    /// For a period, this percentage of writes or answers of the store is lost.
    Ambiguous { ms: i64, percent: usize },
    /// For a period, wake-ups and hand-offs are lost, duplicated or delayed.
    Bus { ms: i64, lost: usize, doubled: usize, late: usize },
    /// For a period, store operations of a node are slow.
    Slow { node: usize, ms: i64, by_ms: usize },
    /// A process is killed from outside.
    Kill { chosen: usize },
    /// The files of an environment vanish.
    Lose { chosen: usize },
}

impl Fault {
    /// Returns the name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Crash { .. } => "crash",
            Fault::Pause { .. } => "pause",
            Fault::Stop { .. } => "stop",
            Fault::Jump { .. } => "clock jump",
            Fault::Full { .. } => "disk full",
            Fault::Ambiguous { .. } => "ambiguous commits",
            Fault::Bus { .. } => "bad bus",
            Fault::Slow { .. } => "slow line",
            Fault::Kill { .. } => "process killed",
            Fault::Lose { .. } => "files lost",
        }
    }
}

/// A fault with its start, in milliseconds from the start of the simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub at_ms: i64,
    pub fault: Fault,
}

/// Draws the faults of the first `length_ms`. The rate of each kind is drawn too, so that some worlds are calm, some
/// are not, and some have a single kind of fault.
pub fn draw(chance: &mut Chance, nodes: &[Node], length_ms: i64) -> Vec<Planned> {
    let mut planned = Vec::new();
    for kind in 0..10 {
        let many = *chance.pick(&[0, 0, 1, 1, 2, 5]);
        for _ in 0..many {
            let at_ms = 1 + chance.below(length_ms as usize) as i64;
            let fault = one(chance, kind, nodes);
            planned.extend(fault.map(|fault| Planned { at_ms, fault }));
        }
    }
    planned.sort_by_key(|planned| planned.at_ms);
    planned
}

fn one(chance: &mut Chance, kind: usize, nodes: &[Node]) -> Option<Fault> {
    let node = chance.below(nodes.len());
    let works = matches!(nodes[node].role, Role::Worker | Role::Executor);
    Some(match kind {
        0 => Fault::Crash { node, down_ms: span(chance, 60_000), at_once: chance.one_in(2) },
        1 => Fault::Pause { node, ms: span(chance, 120_000) },
        2 if works => Fault::Stop { node },
        2 => return None,
        3 => Fault::Jump { node, ms: *chance.pick(&[3_600_000, -3_600_000, 60_000, -5_000]) },
        4 => Fault::Full { ms: span(chance, 40_000) },
        5 => Fault::Ambiguous { ms: span(chance, 60_000), percent: 5 + chance.below(60) },
        6 => {
            let mut part = || chance.below(4) * 25;
            let (lost, doubled, late) = (part(), part(), part());
            Fault::Bus { ms: span(chance, 300_000), lost, doubled, late }
        }
        7 => Fault::Slow { node, ms: span(chance, 60_000), by_ms: 1 + chance.below(12_000) },
        8 => Fault::Kill { chosen: chance.below(1 << 20) },
        _ => Fault::Lose { chosen: chance.below(1 << 20) },
    })
}

/// Draws a duration: mostly short, sometimes up to `longest_ms`.
fn span(chance: &mut Chance, longest_ms: usize) -> i64 {
    let longest = *chance.pick(&[longest_ms / 50, longest_ms / 5, longest_ms]);
    1 + chance.below(longest.max(1)) as i64
}

/// The faults that are active now.
#[derive(Debug, Clone, Default)]
pub struct ActiveFaults {
    full_until_ms: i64,
    ambiguous: (i64, usize),
    bus: (i64, usize, usize, usize),
    slow: Vec<(usize, i64, usize)>,
}

impl ActiveFaults {
    /// Starts a period of faults.
    pub fn set(&mut self, now_ms: i64, fault: &Fault) {
        match fault {
            Fault::Full { ms } => self.full_until_ms = self.full_until_ms.max(now_ms + ms),
            Fault::Ambiguous { ms, percent } => self.ambiguous = (now_ms + ms, *percent),
            Fault::Bus { ms, lost, doubled, late } => self.bus = (now_ms + ms, *lost, *doubled, *late),
            Fault::Slow { node, ms, by_ms } => self.slow.push((*node, now_ms + ms, *by_ms)),
            _ => {}
        }
    }

    /// Ends all faults.
    pub fn clear(&mut self) {
        *self = ActiveFaults::default();
    }

    /// Returns the delay of a write or of its answer.
    pub fn delay_ms(&self, chance: &mut Chance, now_ms: i64, node: usize) -> i64 {
        let slow = self.slow.iter().find(|(of, until_ms, _)| *of == node && *until_ms > now_ms);
        match slow {
            Some((_, _, by_ms)) => chance.below(*by_ms) as i64,
            None if chance.one_in(40) => chance.below(200) as i64,
            None => chance.below(3) as i64,
        }
    }

    /// Returns the fate of a write that arrives now.
    pub fn fate(&self, chance: &mut Chance, now_ms: i64) -> Fate {
        if self.full_until_ms > now_ms {
            return Fate::Fails(Error::Full { path: "the simulated disk".into() });
        }
        if self.loses(chance, now_ms) { Fate::Lost(unknown()) } else { Fate::Arrives }
    }

    /// Returns whether an answer is lost now.
    pub fn loses(&self, chance: &mut Chance, now_ms: i64) -> bool {
        let (until_ms, percent) = self.ambiguous;
        until_ms > now_ms && chance.below(200) < percent
    }

    /// Returns the arrival times of a message's copies; empty if the message is lost.
    pub fn deliveries(&self, chance: &mut Chance, now_ms: i64) -> Vec<i64> {
        let (until_ms, lost, doubled, late) = self.bus;
        if until_ms <= now_ms {
            return vec![chance.below(3) as i64];
        }
        let mut copies = Vec::new();
        if chance.below(100) >= lost {
            copies.push(chance.below(3) as i64);
        }
        if chance.below(100) < doubled {
            copies.push(chance.below(500) as i64);
        }
        if chance.below(100) < late {
            for copy in &mut copies {
                *copy += chance.below(20_000) as i64;
            }
        }
        copies
    }
}

/// Returns the error for a caller whose answer was lost.
pub fn unknown() -> Error {
    Error::Unknown { path: "the simulated disk".into(), reason: "the answer was lost".into() }
}
