//! The kinds of agent failures and the reaction to each, as a table.

use std::time::Duration;

use jiff::{Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Serialize};

/// A failure of a turn, of the start, or of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind, which decides the reaction.
    pub kind: FailureKind,
    /// The agent's message or the driver's finding, in one sentence.
    pub message: String,
    /// The time at which the account's limit is reset, for a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets: Option<Reset>,
}

impl Failure {
    /// Returns a failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into(), resets: None }
    }

    /// Returns the time until the limit is reset, on this machine; `None` if it is not known, and zero if it has passed.
    pub fn until_reset(&self) -> Option<Duration> {
        let now = Timestamp::now().as_second();
        let at = self.resets?.resolve(now, &TimeZone::system())?;
        Some(Duration::from_secs(u64::try_from(at.saturating_sub(now)).unwrap_or(0)))
    }

    /// Returns the time at which the limit is reset, in milliseconds since 1970 (UTC); `None` if it is not known.
    pub fn resets_at_ms(&self) -> Option<i64> {
        let at = self.resets?.resolve(Timestamp::now().as_second(), &TimeZone::system())?;
        Some(at.saturating_mul(1_000))
    }

    /// Adds the time at which a limit is reset.
    pub fn resets(mut self, resets: impl Into<Option<Reset>>) -> Failure {
        self.resets = resets.into();
        self
    }
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The account's usage limit is reached.
    Limit,
    /// The agent is not logged in, or its key is refused.
    Auth,
    /// The model's service is overloaded or broken.
    Overload,
    /// The model declined.
    Refusal,
    /// The model's answer was cut off at the maximum length.
    MaxTokens,
    /// The agent reached its maximum number of turns.
    MaxTurns,
    /// The agent spent its budget.
    Budget,
    /// The conversation does not fit into the model's context any more.
    ContextFull,
    /// The request itself was wrong: an unknown model, a bad setting.
    Request,
    /// The agent reported success but neither said nor did anything.
    Empty,
    /// The agent reported success after an error that contradicts it.
    FalseSuccess,
    /// The structured output is missing or does not match its schema.
    SchemaNotMet,
    /// The session already contains a message with this id, and the agent ignored the second one.
    AlreadyDelivered,
    /// The session to resume does not exist.
    SessionUnknown,
    /// Another process works in the session.
    SessionInUse,
    /// The agent works in a different session than requested.
    SessionChanged,
    /// The agent did not start: it was not ready in time, or its wire is not supported.
    Handshake,
    /// The process ended without a terminal event.
    Exited,
    /// Anything else that the agent reported as an error.
    Other,
}

/// The reaction to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FollowUp {
    /// Hold the account until the reset; release the attempt without counting it.
    HoldAccount,
    /// Fail the step at once with a remedy; a retry would fail the same way.
    GiveUp,
    /// Retry after a pause, in the same session and with a new message.
    RetryInSession,
    /// Count a failed attempt, and give the failure to the next attempt as feedback, in the same session.
    Feedback,
    /// Resume the session in a new process, else load it, else start a new one with a summary.
    ResumeSession,
    /// Start a new session with a summary.
    NewSession,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [FailureKind; 19] = [
        FailureKind::Limit,
        FailureKind::Auth,
        FailureKind::Overload,
        FailureKind::Refusal,
        FailureKind::MaxTokens,
        FailureKind::MaxTurns,
        FailureKind::Budget,
        FailureKind::ContextFull,
        FailureKind::Request,
        FailureKind::Empty,
        FailureKind::FalseSuccess,
        FailureKind::SchemaNotMet,
        FailureKind::AlreadyDelivered,
        FailureKind::SessionUnknown,
        FailureKind::SessionInUse,
        FailureKind::SessionChanged,
        FailureKind::Handshake,
        FailureKind::Exited,
        FailureKind::Other,
    ];

    /// Returns the reaction to this kind of failure.
    pub fn follow_up(self) -> FollowUp {
        match self {
            FailureKind::Limit => FollowUp::HoldAccount,
            FailureKind::Auth | FailureKind::Request => FollowUp::GiveUp,
            FailureKind::Overload | FailureKind::SessionInUse | FailureKind::AlreadyDelivered => {
                FollowUp::RetryInSession
            }
            FailureKind::Refusal
            | FailureKind::MaxTokens
            | FailureKind::MaxTurns
            | FailureKind::Budget
            | FailureKind::Empty
            | FailureKind::FalseSuccess
            | FailureKind::SchemaNotMet
            | FailureKind::Other => FollowUp::Feedback,
            FailureKind::Handshake | FailureKind::Exited => FollowUp::ResumeSession,
            FailureKind::ContextFull | FailureKind::SessionUnknown | FailureKind::SessionChanged => {
                FollowUp::NewSession
            }
        }
    }

    /// Returns the kind for an HTTP status of a model's API, if the status is an error.
    pub fn of_http_status(status: u64) -> Option<FailureKind> {
        match status {
            401 | 403 => Some(FailureKind::Auth),
            429 => Some(FailureKind::Limit),
            413 => Some(FailureKind::ContextFull),
            408 | 500..=599 => Some(FailureKind::Overload),
            400..=499 => Some(FailureKind::Request),
            _ => None,
        }
    }
}

/// The time at which a limit is reset, with the precision that the agent reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// At this time (seconds since 1970, UTC).
    At(i64),
    /// This many seconds after the report.
    InSeconds(u64),
    /// At this local date and time of the agent's machine.
    Local(civil::DateTime),
    /// At this time of day of the agent's machine, the next time it comes.
    LocalTime(civil::Time),
    /// On this day of a month and at this time of the agent's machine, the next time it comes.
    LocalDay {
        /// The month, from 1.
        month: i8,
        /// The day of the month, from 1.
        day: i8,
        /// The time of day.
        time: civil::Time,
    },
}

impl Reset {
    /// Returns the time in seconds since 1970 (UTC), for an agent that reported it at `now` on a machine in `zone`.
    /// Returns `None` for a time that does not exist.
    pub fn resolve(self, now: i64, zone: &TimeZone) -> Option<i64> {
        let at = |local: civil::DateTime| Some(local.to_zoned(zone.clone()).ok()?.timestamp().as_second());
        let today = Timestamp::from_second(now).ok()?.to_zoned(zone.clone()).date();
        match self {
            Reset::At(time) => Some(time),
            Reset::InSeconds(seconds) => now.checked_add_unsigned(seconds),
            Reset::Local(local) => at(local),
            Reset::LocalTime(time) => {
                let days = [today, today.tomorrow().ok()?];
                days.into_iter().filter_map(|day| at(day.to_datetime(time))).find(|time| *time > now)
            }
            Reset::LocalDay { month, day, time } => {
                let years = [today.year(), today.year() + 1];
                let days = years.into_iter().filter_map(|year| civil::Date::new(year, month, day).ok());
                days.filter_map(|day| at(day.to_datetime(time))).find(|time| *time > now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_outcomes() {
        use FollowUp::*;
        let rows = [
            (FailureKind::Limit, HoldAccount),
            (FailureKind::Auth, GiveUp),
            (FailureKind::Overload, RetryInSession),
            (FailureKind::FalseSuccess, Feedback),
            (FailureKind::Empty, Feedback),
            (FailureKind::SchemaNotMet, Feedback),
            (FailureKind::Exited, ResumeSession),
            (FailureKind::SessionUnknown, NewSession),
        ];
        for (kind, follow_up) in rows {
            assert_eq!(kind.follow_up(), follow_up, "{kind:?}");
        }
        let mut all = FailureKind::ALL.to_vec();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), FailureKind::ALL.len());
    }

    #[test]
    fn resets_become_times() {
        let zone = TimeZone::UTC;
        // 2030-03-17 12:00 UTC.
        let now = 1_899_979_200;
        assert_eq!(Reset::At(5).resolve(now, &zone), Some(5));
        assert_eq!(Reset::InSeconds(60).resolve(now, &zone), Some(now + 60));
        let local = Reset::Local(civil::date(2030, 3, 17).at(17, 46, 40, 0));
        assert_eq!(local.resolve(now, &zone), Some(1_900_000_000));
        assert_eq!(Reset::LocalTime(civil::time(13, 0, 0, 0)).resolve(now, &zone), Some(now + 3600));
        assert_eq!(Reset::LocalTime(civil::time(11, 0, 0, 0)).resolve(now, &zone), Some(now + 23 * 3600));
        let day = |month| Reset::LocalDay { month, day: 17, time: civil::time(11, 0, 0, 0) };
        assert_eq!(day(4).resolve(now, &zone), Some(now + 31 * 86_400 - 3600));
        assert_eq!(day(3).resolve(now, &zone), Some(now + 365 * 86_400 - 3600));
        assert_eq!(Reset::InSeconds(u64::MAX).resolve(now, &zone), None);
    }
}
