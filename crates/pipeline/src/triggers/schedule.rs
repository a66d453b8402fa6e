//! Schedules: the ticks of a rule, by civil time and zone.
//!
//! A zone's time is a sequence of segments, each with one offset from UTC. The search goes from segment to segment:
//!
//! | at the border of two segments | a fixed time such as `30 2 * * *` | a step such as `*/15 * * * *` |
//! |---|---|---|
//! | a gap (clocks go forward) | a time in the gap ticks once, when the gap ends | a time in the gap does not tick |
//! | a repeat (clocks go back) | ticks the first time only | ticks both times |
//!
//! A tick's key is its civil time, its zone and its turn in a repeat. So jitter, another version of the zone's rules or
//! a clock that was set never make a second tick of the same key.

use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::cron::Cron;

/// The most changes of a zone's offset that one search passes: some centuries.
const SEARCHED_SEGMENTS: usize = 1_000;

/// A schedule: all ticks of its parts, without those on excepted days.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub(crate) parts: Vec<SchedulePart>,
}

/// One part of a schedule.
#[derive(Debug, Clone)]
pub(crate) struct SchedulePart {
    pub(crate) ticks: Ticks,
    pub(crate) zone: TimeZone,
    pub(crate) zone_name: String,
    pub(crate) except: Vec<Date>,
    pub(crate) jitter_ms: i64,
}

/// The ticks of a part.
#[derive(Debug, Clone)]
pub(crate) enum Ticks {
    /// Civil times that match an expression.
    Cron(Cron),
    /// Multiples of a duration since 1970.
    Every(i64),
    /// Points in time, in milliseconds since 1970, in order.
    At(Vec<i64>),
}

/// A tick of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// The nominal time, in milliseconds since 1970.
    pub nominal_ms: i64,
    /// The key under which it fires once.
    pub key: String,
    /// The nominal time as RFC 3339, in the schedule's zone.
    pub time: String,
    /// The nominal day in the schedule's zone.
    pub date: String,
    /// The name of the zone.
    pub zone: String,
    jitter_ms: i64,
}

impl Schedule {
    /// Returns the first tick after this time (milliseconds since 1970); none if there is no further tick.
    pub fn next_after(&self, after_ms: i64) -> Option<Tick> {
        self.parts.iter().filter_map(|part| part.next_after(after_ms)).min_by_key(|tick| tick.nominal_ms)
    }

    /// Returns a tick for a point in time that need not be one of the schedule's, with the zone of its first part.
    pub fn at(&self, at_ms: i64) -> Option<Tick> {
        let part = self.parts.first()?;
        Some(part.tick(part.civil(at_ms)?, at_ms, false))
    }

    /// Returns the time at which a tick fires: its nominal time and a part of the jitter, which depends on the rule and
    /// the tick alone and stays below the distance to the next tick.
    pub fn fires_ms(&self, rule: &str, tick: &Tick) -> i64 {
        if tick.jitter_ms == 0 {
            return tick.nominal_ms;
        }
        let distance = self.next_after(tick.nominal_ms).map(|next| next.nominal_ms - tick.nominal_ms);
        let most = distance.map_or(tick.jitter_ms, |distance| tick.jitter_ms.min(distance)).max(1);
        tick.nominal_ms + (hash(&format!("{rule} {}", tick.key)) % most as u64) as i64
    }
}

/// Hashes a text (FNV-1a), the same on every machine.
fn hash(text: &str) -> u64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    // The last bytes differ most between two ticks, and their bits are in the lower half.
    hash ^ (hash >> 32)
}

impl SchedulePart {
    /// Returns the part's first tick after this time that is on no excepted day.
    fn next_after(&self, after_ms: i64) -> Option<Tick> {
        let mut after_ms = after_ms;
        // Each excepted day is skipped as a whole, so few rounds are needed.
        for _ in 0..=self.except.len() {
            let (civil, at_ms, fold) = self.search(after_ms)?;
            if !self.except.contains(&civil.date()) {
                return Some(self.tick(civil, at_ms, fold));
            }
            let midnight = civil.date().tomorrow().ok()?.to_datetime(jiff::civil::Time::midnight());
            let next = midnight.to_zoned(self.zone.clone()).ok()?.timestamp().as_millisecond() - 1;
            after_ms = next.max(at_ms);
        }
        None
    }

    fn tick(&self, civil: DateTime, nominal_ms: i64, fold: bool) -> Tick {
        let at = Timestamp::from_millisecond(nominal_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        let zoned = at.to_zoned(self.zone.clone());
        let key = match self.ticks {
            Ticks::Cron(_) => {
                let again = if fold { " again" } else { "" };
                format!("{} {}{again}", civil.strftime("%Y-%m-%dT%H:%M"), self.zone_name)
            }
            Ticks::Every(_) | Ticks::At(_) => at.to_string(),
        };
        Tick {
            nominal_ms,
            key,
            time: zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            date: civil.date().to_string(),
            zone: self.zone_name.clone(),
            jitter_ms: self.jitter_ms,
        }
    }

    /// Returns the civil time, the time and the turn of the first match after this time.
    fn search(&self, after_ms: i64) -> Option<(DateTime, i64, bool)> {
        match &self.ticks {
            Ticks::Cron(cron) => self.search_cron(cron, after_ms),
            Ticks::Every(every_ms) => {
                let at_ms = (after_ms.div_euclid(*every_ms) + 1) * every_ms;
                Some((self.civil(at_ms)?, at_ms, false))
            }
            Ticks::At(times) => {
                let at_ms = *times.iter().find(|time| **time > after_ms)?;
                Some((self.civil(at_ms)?, at_ms, false))
            }
        }
    }

    fn civil(&self, at_ms: i64) -> Option<DateTime> {
        Some(self.zone.to_datetime(Timestamp::from_millisecond(at_ms).ok()?))
    }

    fn search_cron(&self, cron: &Cron, after_ms: i64) -> Option<(DateTime, i64, bool)> {
        let mut at = Timestamp::from_millisecond(after_ms).ok()?;
        let mut offset = self.zone.to_offset(at);
        // A match must be later than this.
        let mut lower = offset.to_datetime(at);
        if cron.is_fixed() {
            lower = lower.max(self.repeated_until(at, offset)?);
        }
        for _ in 0..SEARCHED_SEGMENTS {
            let border = self.zone.following(at).next().map(|transition| transition.timestamp());
            let found = cron.next_after(lower)?;
            let found_at = offset.to_timestamp(found).ok()?;
            let Some(border) = border.filter(|border| found_at >= *border) else {
                let fold = self.is_second(found, offset);
                return Some((found, found_at.as_millisecond(), fold));
            };
            let next = self.zone.to_offset(border);
            let (before, after) = (offset.to_datetime(border), next.to_datetime(border));
            if cron.is_fixed() && found < after {
                // In the gap: once, when it ends.
                return Some((found, border.as_millisecond(), false));
            }
            let minute = SignedDuration::from_secs(60);
            lower = after.checked_sub(minute).ok()?;
            if cron.is_fixed() {
                lower = lower.max(before.checked_sub(minute).ok()?);
            }
            (at, offset) = (border, next);
        }
        None
    }

    /// Returns the civil time before which a fixed time has ticked already, because this time is in or after a repeat;
    /// a minute earlier than that time, because the search excludes its lower bound.
    fn repeated_until(&self, at: Timestamp, offset: Offset) -> Option<DateTime> {
        let Some(transition) =
            self.zone.preceding(at.checked_add(SignedDuration::from_nanos(1)).ok()?).next()
        else {
            return Some(DateTime::MIN);
        };
        let border = transition.timestamp();
        let before = self.zone.to_offset(border.checked_sub(SignedDuration::from_nanos(1)).ok()?);
        if before.seconds() <= offset.seconds() {
            return Some(DateTime::MIN);
        }
        before.to_datetime(border).checked_sub(SignedDuration::from_secs(60)).ok()
    }

    /// Whether a civil time with this offset is the second of two, in a repeat.
    fn is_second(&self, civil: DateTime, offset: Offset) -> bool {
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            jiff::tz::AmbiguousOffset::Fold { after, .. } => after == offset,
            _ => false,
        }
    }
}
