//! Failures that an agent reports as text: patterns for limits, logins, outages and lost sessions, and times in
//! sentences.
//!
//! The drivers prefer typed fields wherever a wire has them. These patterns apply to error messages, the end of stderr,
//! and answers that consist of an error message. They never apply to the answer of an agent that describes its work.

use jiff::{civil, tz::TimeZone};

use crate::failure::{Failure, FailureKind, Reset};

/// The longest answer that can be a disguised error message, in bytes.
const MAX_ERROR_ANSWER: usize = 600;
/// The longest message of a failure, in bytes.
const MAX_MESSAGE: usize = 600;

/// Phrases in lower case and the kind of failure that they indicate. The first match counts.
const PHRASES: &[(FailureKind, &[&str])] = &[
    (
        FailureKind::SessionUnknown,
        &[
            "no conversation found",
            "no rollout found",
            "session not found",
            "no previous sessions found",
            "invalid session identifier",
        ],
    ),
    (FailureKind::SessionInUse, &["is already in use"]),
    (
        FailureKind::ContextFull,
        &[
            "prompt is too long",
            "context window",
            "context length",
            "context_length_exceeded",
            "contextwindowexceeded",
        ],
    ),
    (FailureKind::MaxTokens, &["max_output_tokens", "output token maximum"]),
    (
        FailureKind::Limit,
        &[
            "usage limit",
            "hour limit",
            "weekly limit",
            "hit your limit",
            "rate limit",
            "rate_limit",
            "ratelimit",
            "too many requests",
            "quota",
            "resource_exhausted",
            "resource has been exhausted",
            "credit balance is too low",
        ],
    ),
    (
        FailureKind::Auth,
        &[
            "unauthorized",
            "unauthenticated",
            "authentication",
            "api key not valid",
            "invalid api key",
            "incorrect api key",
            "invalid x-api-key",
            "not logged in",
            "please run /login",
            "login required",
            "auth required",
            "please log in",
            "must specify the gemini_api_key",
        ],
    ),
    (
        FailureKind::Overload,
        &[
            "overloaded",
            "internal server error",
            "internal error has occurred",
            "service unavailable",
            "bad gateway",
            "gateway timeout",
            "at capacity",
            "high demand",
            "econnreset",
            "econnrefused",
            "fetch failed",
            "connection error",
            "stream disconnected",
            "timed out",
        ],
    ),
    (
        FailureKind::Request,
        &["model not found", "not_found_error", "unknown model", "invalid model", "does not exist"],
    ),
];

/// Prefixes of answers that consist of an error message.
const ERROR_ANSWERS: &[&str] = &[
    "api error:",
    "[api error:",
    "you've hit your",
    "you’ve hit your",
    "claude ai usage limit reached",
    "claude usage limit reached",
    "not logged in ·",
    "invalid api key ·",
    "credit balance is too low",
    "usage limit reached",
];

/// Returns the failure that an error message describes.
pub fn classify_error(message: &str) -> Failure {
    let lower = message.to_lowercase();
    let by_phrase = || {
        PHRASES
            .iter()
            .find(|(_, phrases)| phrases.iter().any(|phrase| lower.contains(phrase)))
            .map(|(kind, _)| *kind)
    };
    let kind = http_status(&lower).or_else(by_phrase).unwrap_or(FailureKind::Other);
    // A phrase is more precise than a status that several failures share.
    let kind = match (kind, by_phrase()) {
        (FailureKind::Request | FailureKind::Overload, Some(phrase)) => phrase,
        _ => kind,
    };
    let resets = if kind == FailureKind::Limit { reset_in(message) } else { None };
    Failure::new(kind, shorten(message)).resets(resets)
}

/// Returns the failure, if an answer consists of an error message.
pub fn classify_answer(answer: &str) -> Option<Failure> {
    let answer = answer.trim();
    if answer.len() > MAX_ERROR_ANSWER {
        return None;
    }
    let lower = answer.to_lowercase();
    ERROR_ANSWERS.iter().any(|start| lower.starts_with(start)).then(|| classify_error(answer))
}

/// Returns the text in one line of bounded length.
pub(crate) fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Finds an HTTP status that is not part of a longer number, a time or an address.
fn http_status(lower: &str) -> Option<FailureKind> {
    let bytes = lower.as_bytes();
    let is_part =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b":.-_/".contains(byte));
    for (at, window) in bytes.windows(3).enumerate() {
        if !window.iter().all(u8::is_ascii_digit) {
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let after = bytes.get(at + 3);
        let named = ["status", "http", "error", "code"].iter().any(|word| {
            let start = at.saturating_sub(word.len() + 3);
            lower.get(start..at).is_some_and(|near| near.contains(word))
        });
        // `status:429` and `429.` are statuses, `127.0.0.1:4290` is not.
        let alone = !is_part(before) && !after.is_some_and(u8::is_ascii_alphanumeric);
        if alone || (named && !after.is_some_and(u8::is_ascii_digit)) {
            let status = window.iter().fold(0, |status, digit| status * 10 + u64::from(digit - b'0'));
            if let kind @ Some(_) = FailureKind::of_http_status(status) {
                return kind;
            }
        }
    }
    None
}

/// Returns the time at which a limit is reset, if the text states it: an epoch, a duration, or a date in words.
pub fn reset_in(text: &str) -> Option<Reset> {
    epoch_in(text).or_else(|| duration_in(text)).or_else(|| date_in(text))
}

/// Finds `limit reached|1700000000`, `"resets_at":1700000000`, `resetsAt=1700000000`.
fn epoch_in(text: &str) -> Option<Reset> {
    let mut digits = String::new();
    for character in text.chars().chain([' ']) {
        if character.is_ascii_digit() {
            digits.push(character);
            continue;
        }
        let number = std::mem::take(&mut digits);
        // Seconds or milliseconds of this century.
        match (number.len(), number.parse::<i64>()) {
            (10, Ok(seconds)) if (1_600_000_000..4_200_000_000).contains(&seconds) => {
                return Some(Reset::At(seconds));
            }
            (13, Ok(millis)) if (1_600_000_000_000..4_200_000_000_000).contains(&millis) => {
                return Some(Reset::At(millis / 1000));
            }
            _ => {}
        }
    }
    None
}

/// Finds `retry in 34.07s`, `try again in 2 hours 5 minutes`, `retry after 60 seconds`, `in 1h30m`.
fn duration_in(text: &str) -> Option<Reset> {
    let lower = text.to_lowercase();
    let starts = ["retry in ", "again in ", "retry after ", "resets in ", "reset in ", "reset after "];
    let (at, start) = starts.iter().filter_map(|start| Some((lower.find(start)?, start))).min()?;
    let mut rest = lower.get(at + start.len()..)?.trim_start();
    let mut seconds = 0.0;
    let mut found = false;
    loop {
        rest = rest.trim_start_matches([' ', ',']).trim_start_matches("and ");
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let Ok(number) = rest[..end].trim_end_matches('.').parse::<f64>() else { break };
        let after = rest[end..].trim_start();
        let unit: String = after.chars().take_while(char::is_ascii_alphabetic).collect();
        let factor = match unit.as_str() {
            "ms" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => break,
        };
        seconds += number * factor;
        found = true;
        rest = &after[unit.len()..];
    }
    let is_sane = found && (0.0..366.0 * 86_400.0).contains(&seconds);
    is_sane.then(|| Reset::InSeconds(seconds.ceil() as u64))
}

/// Finds `try again at Mar 17th, 2030 5:46 PM`, `resets Mar 17, 2030, 5:46pm (UTC)`, `resets 3am`.
fn date_in(text: &str) -> Option<Reset> {
    let lower = text.to_lowercase();
    let starts = ["again at ", "resets at ", "reset at ", "resets on ", "resets "];
    let (at, start) = starts.iter().filter_map(|start| Some((lower.find(start)?, start))).min()?;
    let rest = lower.get(at + start.len()..)?;
    let is_utc = rest.contains("(utc)");
    let words: Vec<&str> =
        rest.split([' ', ',', '·', '(', ')']).filter(|word| !word.is_empty()).take(8).collect();
    let mut words = words.as_slice();
    let mut date = None;
    if let [month, day, after @ ..] = words
        && let Some(month) = month_number(month)
    {
        let day: i8 = day.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
        words = after;
        let year = words.first().filter(|word| word.len() == 4).and_then(|word| word.parse::<i16>().ok());
        words = if year.is_some() { &words[1..] } else { words };
        date = Some((month, day, year));
    }
    words = words.strip_prefix(&["at"]).unwrap_or(words);
    let time = time_of(words)?;
    match date {
        None => Some(Reset::LocalTime(time)),
        Some((month, day, None)) => Some(Reset::LocalDay { month, day, time }),
        Some((month, day, Some(year))) => {
            let local = civil::Date::new(year, month, day).ok()?.to_datetime(time);
            if is_utc {
                return Some(Reset::At(local.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second()));
            }
            Some(Reset::Local(local))
        }
    }
}

fn month_number(word: &str) -> Option<i8> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let short = word.get(..3)?;
    MONTHS.iter().position(|month| *month == short).map(|at| at as i8 + 1)
}

/// Reads `5:46pm`, `5:46 pm`, `3am`, `17:46`.
fn time_of(words: &[&str]) -> Option<civil::Time> {
    let first = words.first()?.trim_end_matches('.');
    let (clock, mut half) = match first.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => first.split_at(at),
        None => (first, ""),
    };
    if half.is_empty() {
        half = words.get(1).map_or("", |word| word.trim_end_matches('.'));
    }
    let (hour, minute) = clock.split_once(':').unwrap_or((clock, "0"));
    let (hour, minute): (i8, i8) = (hour.parse().ok()?, minute.parse().ok()?);
    let hour = match half {
        "am" | "a.m" => hour % 12,
        "pm" | "p.m" => hour % 12 + 12,
        // A number without a colon and without am or pm is not a time.
        _ if clock.contains(':') => hour,
        _ => return None,
    };
    civil::Time::new(hour, minute, 0, 0).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn error_messages_of_real_agents_have_a_kind() {
        let rows = [
            ("No conversation found with session ID: f3f1", FailureKind::SessionUnknown),
            (
                "no rollout found for thread id 019a0000-0000-7000-8000-000000000000",
                FailureKind::SessionUnknown,
            ),
            ("Error: Session ID 1b72f288 is already in use.", FailureKind::SessionInUse),
            ("You have exhausted your daily quota on this model.", FailureKind::Limit),
            ("exceeded retry limit, last status: 429 Too Many Requests", FailureKind::Limit),
            ("You've hit your 5-hour limit · resets Mar 17, 2030, 5:46pm (UTC)", FailureKind::Limit),
            (
                r#"{"error":{"code":401,"message":"API key not valid.","status":"UNAUTHENTICATED"}}"#,
                FailureKind::Auth,
            ),
            ("Internal error: invalid x-api-key", FailureKind::Auth),
            (
                r#"401 {"error":{"message":"invalid x-api-key","type":"authentication_error"}}"#,
                FailureKind::Auth,
            ),
            (
                "unexpected status 500 Internal Server Error, url: http://127.0.0.1:4290/v1/responses",
                FailureKind::Overload,
            ),
            ("Selected model is at capacity. Please try a different model.", FailureKind::Overload),
            ("API Error: 529 Overloaded.", FailureKind::Overload),
            ("Incomplete response returned, reason: max_output_tokens", FailureKind::MaxTokens),
            ("Model stream ended with empty response text.", FailureKind::Other),
            ("connect to 127.0.0.1:4291 refused after 401ms", FailureKind::Other),
        ];
        for (message, kind) in rows {
            assert_eq!(classify_error(message).kind, kind, "{message}");
        }
    }

    #[test]
    fn an_answer_is_an_error_only_if_it_begins_like_one() {
        assert_eq!(
            classify_answer("API Error: 500 Internal server error.").map(|f| f.kind),
            Some(FailureKind::Overload)
        );
        assert_eq!(
            classify_answer("Not logged in · Please run /login").map(|f| f.kind),
            Some(FailureKind::Auth)
        );
        for answer in
            ["I added a rate limit of 429 per hour.", "API Error handling was added.", "Fixed the 401.", ""]
        {
            assert_eq!(classify_answer(answer), None, "{answer}");
        }
        let long = format!("API Error: {}", "x ".repeat(1000));
        assert_eq!(classify_answer(&long), None, "a long answer talks about something");
    }

    #[test]
    fn resets_are_found_in_sentences() {
        let local = |hour, minute| civil::date(2030, 3, 17).at(hour, minute, 0, 0);
        let rows = [
            ("Claude AI usage limit reached|1900000000", Some(Reset::At(1_900_000_000))),
            (r#"{"resets_at":1900000000}"#, Some(Reset::At(1_900_000_000))),
            ("resetsAt 1900000000000", Some(Reset::At(1_900_000_000))),
            ("Please retry in 34.07s.", Some(Reset::InSeconds(35))),
            ("Please try again in 2 hours, 5 minutes", Some(Reset::InSeconds(7500))),
            ("try again in 1h30m", Some(Reset::InSeconds(5400))),
            ("or try again at Mar 17th, 2030 5:46 PM.", Some(Reset::Local(local(17, 46)))),
            ("limit · resets Mar 17, 2030, 5:46pm (UTC)", Some(Reset::At(1_899_999_960))),
            ("limit · resets 3am (America/Los_Angeles)", Some(Reset::LocalTime(civil::time(3, 0, 0, 0)))),
            ("resets at 12:05 AM", Some(Reset::LocalTime(civil::time(0, 5, 0, 0)))),
            (
                "weekly limit · resets Dec 24 at 5pm",
                Some(Reset::LocalDay { month: 12, day: 24, time: civil::time(17, 0, 0, 0) }),
            ),
            ("resets soon", None),
            ("try again at some time", None),
            ("try again in a while", None),
            ("Rate limit reached for requests.", None),
        ];
        for (text, reset) in rows {
            assert_eq!(reset_in(text), reset, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}", hint in prop::sample::select(vec!["", "resets ", "retry in ", "429 ", "again at mar "])) {
            let text = format!("{hint}{text}");
            classify_error(&text);
            classify_answer(&text);
            if let Some(reset) = reset_in(&text) {
                reset.resolve(1_900_000_000, &TimeZone::UTC);
            }
        }
    }
}
