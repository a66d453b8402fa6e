//! Halves of surrogate pairs in JSON: JavaScript prints them, but Rust's strings cannot contain them.

/// Replaces each `\uD8xx` or `\uDCxx` escape without its other half by `\uFFFD`. Returns `None` if there is none.
pub(crate) fn replace_lone_halves(json: &str) -> Option<String> {
    let bytes = json.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        let Some(unit) = escape_at(bytes, at) else {
            // Any other escape is two bytes long; the second may be a backslash.
            at += 2;
            continue;
        };
        let is_high = (0xD800..0xDC00).contains(&unit);
        let has_low =
            is_high && escape_at(bytes, at + 6).is_some_and(|next| (0xDC00..0xE000).contains(&next));
        if has_low {
            at += 12;
            continue;
        }
        if (0xD800..0xE000).contains(&unit) {
            out.push_str(&json[copied..at]);
            out.push_str("\\ufffd");
            copied = at + 6;
        }
        at += 6;
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&json[copied..]);
    Some(out)
}

/// Returns the code unit of a `\u` escape with four digits at this position.
fn escape_at(bytes: &[u8], at: usize) -> Option<u16> {
    let escape = bytes.get(at..at + 6)?;
    if escape[0] != b'\\' || escape[1] != b'u' || !escape[2..].iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    escape[2..].iter().try_fold(0u16, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn lone_halves_are_replaced_and_pairs_stay() {
        let rows = [
            (r#""\ud83d\ude00""#, None),
            (r#""a\ud83db""#, Some("a\u{fffd}b")),
            (r#""a\ude00b""#, Some("a\u{fffd}b")),
            (r#""\ud83d\ud83d\ude00""#, Some("\u{fffd}😀")),
            (r#""\\ud83d""#, None),
            (r#""\\\ud83d""#, Some("\\\u{fffd}")),
            (r#""no escape""#, None),
        ];
        for (json, expected) in rows {
            let repaired = replace_lone_halves(json);
            let read = repaired.map(|json| serde_json::from_str::<Value>(&json).expect("JSON"));
            assert_eq!(read.as_ref().and_then(Value::as_str), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_units_become_json(units in prop::collection::vec(prop::num::u16::ANY, 0..20)) {
            let json = format!("\"{}\"", units.iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>());
            let repaired = replace_lone_halves(&json).unwrap_or_else(|| json.clone());
            let read: String = serde_json::from_str(&repaired).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(read, String::from_utf16_lossy(&units));
        }
    }
}
