//! Cron expressions over civil time: five fields, with names, lists, ranges and steps.

use jiff::civil::{Date, DateTime, Time};

/// The most days that are searched for a match. The longest distance between two leap days is eight years.
const SEARCHED_DAYS: usize = 9 * 366;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A parsed cron expression: one bit for each value of each field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    any_day: bool,
    any_weekday: bool,
    /// Whether the minute and the hour are fixed numbers, without `*`.
    fixed: bool,
}

impl Cron {
    /// Parses five fields: minute, hour, day of the month, month, day of the week.
    pub(crate) fn parse(text: &str) -> Result<Cron, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!("it has {} fields instead of five", fields.len()));
        };
        let mut weekdays = field(weekday, "day of the week", 0, 7, &WEEKDAYS, 0)?;
        // Seven is Sunday, too.
        weekdays = (weekdays | weekdays >> 7) & 0x7f;
        Ok(Cron {
            minutes: field(minute, "minute", 0, 59, &[], 0)?,
            hours: field(hour, "hour", 0, 23, &[], 0)?,
            days: field(day, "day of the month", 1, 31, &[], 0)?,
            months: field(month, "month", 1, 12, &MONTHS, 1)?,
            weekdays,
            any_day: day.starts_with('*'),
            any_weekday: weekday.starts_with('*'),
            fixed: !minute.contains('*') && !hour.contains('*'),
        })
    }

    /// Whether the minute and the hour are fixed numbers, so that a day has each of them once.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether both day fields are given, which cron joins by OR.
    pub(crate) fn joins_days(&self) -> bool {
        !self.any_day && !self.any_weekday
    }

    fn has_day(&self, date: Date) -> bool {
        let day = self.days >> date.day() & 1 == 1;
        let weekday = self.weekdays >> date.weekday().to_sunday_zero_offset() & 1 == 1;
        let month = self.months >> date.month() & 1 == 1;
        let either = if self.joins_days() { day || weekday } else { day && weekday };
        month && either
    }

    /// Returns the first match after this time; none if it never matches.
    pub(crate) fn next_after(&self, after: DateTime) -> Option<DateTime> {
        let mut date = after.date();
        // Ticks are whole minutes, so a time within a minute counts as the minute itself.
        let mut first = i32::from(after.hour()) * 60 + i32::from(after.minute()) + 1;
        for _ in 0..SEARCHED_DAYS {
            if self.has_day(date) {
                for minute in first..24 * 60 {
                    let (hour, minute) = (minute / 60, minute % 60);
                    if self.hours >> hour & 1 == 1 && self.minutes >> minute & 1 == 1 {
                        let time = Time::new(hour as i8, minute as i8, 0, 0).ok()?;
                        return Some(date.to_datetime(time));
                    }
                }
            }
            first = 0;
            date = date.tomorrow().ok()?;
        }
        None
    }
}

/// Parses one field into bits.
fn field(text: &str, what: &str, min: u32, max: u32, names: &[&str], base: u32) -> Result<u64, String> {
    let wrong = |why: String| format!("the {what} {text:?} {why}");
    let number = |word: &str| -> Result<u32, String> {
        let named = names.iter().position(|name| word.eq_ignore_ascii_case(name));
        let number = match named {
            Some(at) => at as u32 + base,
            None => word.parse().map_err(|_| wrong(format!("has {word:?}, which is not a number")))?,
        };
        if (min..=max).contains(&number) {
            Ok(number)
        } else {
            Err(wrong(format!("is not between {min} and {max}")))
        }
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse::<u32>().ok().filter(|step| (1..=max).contains(step));
                (range, step.ok_or_else(|| wrong("has a step that is no number of at least 1".into()))?)
            }
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (min, if max == 7 { 6 } else { max }),
            Some((from, to)) => (number(from)?, number(to)?),
            None if part.contains('/') => (number(range)?, max),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return Err(wrong(format!("ends before it begins: {from} to {to}")));
        }
        for value in (from..=to).step_by(step as usize) {
            bits |= 1u64 << value;
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(cron: &str, after: &str) -> String {
        let cron = Cron::parse(cron).unwrap();
        cron.next_after(after.parse().unwrap()).map_or("never".into(), |next| next.to_string())
    }

    #[test]
    fn the_next_match_is_found() {
        for (cron, after, expected) in [
            ("30 2 * * *", "2026-03-01T02:29:59", "2026-03-01T02:30:00"),
            ("30 2 * * *", "2026-03-01T02:30:00", "2026-03-02T02:30:00"),
            ("*/15 * * * *", "2026-03-01T23:50:00", "2026-03-02T00:00:00"),
            ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
            ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
            ("0 9 * * mon-fri", "2026-11-13T09:00:00", "2026-11-16T09:00:00"),
            ("0 9 * * 7", "2026-11-13T09:00:00", "2026-11-15T09:00:00"),
            ("0 9 1 * mon", "2026-11-01T09:00:00", "2026-11-02T09:00:00"),
            ("0 9 1 * mon", "2026-11-30T09:00:00", "2026-12-01T09:00:00"),
            ("5,10-12/2 3 * jan,dec *", "2026-11-01T00:00:00", "2026-12-01T03:05:00"),
            ("5/20 3 * * *", "2026-11-01T03:26:00", "2026-11-01T03:45:00"),
            ("0 0 30 2 *", "2026-03-01T00:00:00", "never"),
            ("0 0 31 4,6,9,11 *", "2026-03-01T00:00:00", "never"),
        ] {
            assert_eq!(next(cron, after), expected, "{cron} after {after}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (cron, why) in [
            ("* * * *", "it has 4 fields instead of five"),
            ("60 * * * *", "the minute \"60\" is not between 0 and 59"),
            ("* * * foo *", "the month \"foo\" has \"foo\", which is not a number"),
            ("5-1 * * * *", "the minute \"5-1\" ends before it begins: 5 to 1"),
            ("*/0 * * * *", "the minute \"*/0\" has a step that is no number of at least 1"),
        ] {
            assert_eq!(Cron::parse(cron).unwrap_err(), why);
        }
    }
}
