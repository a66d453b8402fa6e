//! Identifiers of runs, steps and executions: short, ordered by time, unique across machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Crockford's alphabet in lower case. It lacks `i`, `l`, `o` and `u`, so an id can be read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Twelve characters of five bits each.
const RUN_ID_CHARS: usize = 12;
/// The number of random lower bits; milliseconds take the upper ones. On a collision the primary key refuses
/// the row and a new id is drawn.
const RANDOM_BITS: u32 = 17;
/// The zero of run ids' milliseconds: 2024-01-01T00:00:00Z.
const EPOCH_MS: u64 = 1_704_067_200_000;

/// The id of a run: 60 bits, of which the upper ones are the time of creation. Rows of runs from the same time
/// are stored together, so the current runs share few pages of the database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(u64);

impl RunId {
    /// Creates the id of a run created at `unix_ms`; `random` distinguishes runs of the same millisecond.
    pub fn new(unix_ms: i64, random: u64) -> Self {
        let ms = u64::try_from(unix_ms).unwrap_or(0).saturating_sub(EPOCH_MS);
        let ms = ms & ((1 << (60 - RANDOM_BITS)) - 1);
        RunId((ms << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1)))
    }

    /// Returns the number that stores contain.
    pub fn to_i64(self) -> i64 {
        self.0 as i64
    }

    /// Creates the id from a store's number; any number is valid.
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

/// A text that is not a run id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunIdError(pub String);

impl fmt::Display for RunIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a run id: {RUN_ID_CHARS} characters of 0-9 and a-z without i, l, o, u", self.0)
    }
}

impl std::error::Error for RunIdError {}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        if text.len() != RUN_ID_CHARS {
            return Err(RunIdError(text.to_owned()));
        }
        text.bytes()
            .try_fold(0u64, |n, b| {
                let digit = ALPHABET.iter().position(|a| *a == b.to_ascii_lowercase())?;
                Some((n << 5) | digit as u64)
            })
            .map(RunId)
            .ok_or_else(|| RunIdError(text.to_owned()))
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

/// The index of a step in its run, from 0, in the order of declaration or addition.
pub type StepNo = u32;

/// The id of one attempt at a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExecutionId {
    /// The run's id.
    pub run: RunId,
    /// The step's number in the run.
    pub step: StepNo,
    /// The number of the attempt, from 1; it only grows.
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
