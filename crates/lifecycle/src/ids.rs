//! Names of things: short to read, ordered by time, unique across machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Crockford's alphabet in lower case: no `i`, `l`, `o`, `u`, so that an id can be read out.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Twelve characters of five bits.
const RUN_ID_CHARS: usize = 12;
/// Milliseconds take the upper bits, chance the lower ones; a clash is refused by the primary key and drawn
/// again.
const RANDOM_BITS: u32 = 17;
/// 2024-01-01T00:00:00Z: run ids count their milliseconds from here.
const EPOCH_MS: u64 = 1_704_067_200_000;

/// A run's name: 60 bits, the upper ones its millisecond of birth. Rows of one time lie together, so that the
/// runs of the moment share a few of the database's pages, however many ended before them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u64);

impl RunId {
    /// The id of a run born at `unix_ms`, told apart from its contemporaries by `random`.
    pub fn new(unix_ms: i64, random: u64) -> Self {
        let ms = u64::try_from(unix_ms).unwrap_or(0).saturating_sub(EPOCH_MS);
        let ms = ms & ((1 << (60 - RANDOM_BITS)) - 1);
        RunId((ms << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1)))
    }

    /// The number that stores keep.
    pub fn to_i64(self) -> i64 {
        self.0 as i64
    }

    /// The id that a store kept as `n`; any number is one.
    pub fn from_i64(n: i64) -> Self {
        RunId(n as u64 & ((1 << 60) - 1))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; RUN_ID_CHARS];
        for (i, slot) in text.iter_mut().enumerate() {
            *slot = ALPHABET[(self.0 >> (5 * (RUN_ID_CHARS - 1 - i))) as usize & 31];
        }
        f.pad(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {self}")
    }
}

/// Why a text is not a run id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotARunId(pub String);

impl fmt::Display for NotARunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a run id: {RUN_ID_CHARS} characters of 0-9 and a-z without i, l, o, u", self.0)
    }
}

impl std::error::Error for NotARunId {}

impl FromStr for RunId {
    type Err = NotARunId;

    fn from_str(text: &str) -> Result<Self, NotARunId> {
        if text.len() != RUN_ID_CHARS {
            return Err(NotARunId(text.to_owned()));
        }
        text.bytes()
            .try_fold(0u64, |n, b| {
                let digit = ALPHABET.iter().position(|a| *a == b.to_ascii_lowercase())?;
                Some((n << 5) | digit as u64)
            })
            .map(RunId)
            .ok_or_else(|| NotARunId(text.to_owned()))
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A step's place in its run: 0, 1, 2, … in the order they were written down or added.
pub type StepNo = u32;

/// One attempt at a step of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExecutionId {
    /// The run.
    pub run: RunId,
    /// The step within the run.
    pub step: StepNo,
    /// The attempt at the step, from 1; it only grows.
    pub attempt: u32,
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.step, self.attempt)
    }
}

impl fmt::Debug for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution {self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_orders_by_time() {
        let early = RunId::new(1_800_000_000_000, u64::MAX);
        let late = RunId::new(1_800_000_000_001, 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        assert_eq!(early.to_string().parse::<RunId>(), Ok(early));
        assert_eq!(RunId::from_i64(late.to_i64()), late);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "abc", "../../etc/pw", "0123456789ab0", "ilouilouilou"] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }
}
