//! Durations in text form: `500ms`, `30s`, `1h30m`.

/// Units and their length in milliseconds, in the order in which they may follow each other.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Ten years. A longer duration is a typing error, and the sum of two never overflows.
const MAX_MS: u64 = 3650 * 86_400_000;

/// The expected form, for messages.
pub(crate) const EXPECTED: &str = "a duration such as 500ms, 30s, 5m, 2h, 1d or 1h30m";
/// The expected form as a regular expression, for the JSON schema.
pub(crate) const PATTERN: &str = "^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

/// Parses a duration and returns milliseconds, or the reason why the text is not a duration.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let mut rest = text;
    let mut total_ms = 0u64;
    let mut allowed = &UNITS[..];
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        let place = allowed.iter().position(|(name, _)| *name == unit);
        let (Some(place), false) = (place, number.is_empty()) else {
            return Err("this is not a duration".into());
        };
        let part_ms = number.parse::<u64>().ok().and_then(|n| n.checked_mul(allowed[place].1));
        total_ms = part_ms
            .and_then(|ms| total_ms.checked_add(ms))
            .filter(|ms| *ms <= MAX_MS)
            .ok_or("longer than ten years")?;
        allowed = &allowed[place + 1..];
        rest = after;
    }
    if text.is_empty() { Err("this is not a duration".into()) } else { Ok(total_ms) }
}

/// Formats a duration in the form that [`parse_ms`] reads.
pub(crate) fn text(mut ms: u64) -> String {
    let mut text = String::new();
    for (name, length) in UNITS {
        if ms >= length {
            text.push_str(&format!("{}{name}", ms / length));
            ms %= length;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1d", Some(86_400_000)),
            ("1m500ms", Some(60_500)),
            ("0s", Some(0)),
            ("30", None),
            ("", None),
            ("s", None),
            ("1.5h", None),
            ("30m1h", None),
            ("1h1h", None),
            ("5 m", None),
            ("-5s", None),
            ("9999999999999999999d", None),
            ("4000d", None),
        ] {
            assert_eq!(parse_ms(text).ok(), ms, "{text}");
        }
    }
}
