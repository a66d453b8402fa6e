//! Masks secrets in logs, outputs, feedback and every other text that leaves a worker.
//!
//! A secret is found literally, without line ends at its end; line by line if it has several lines; and in the
//! encodings of JSON, URLs and base64. In a stream it is found wherever the reads split it.

use serde_json::Value;

/// The replacement of a secret.
const MASK: &[u8] = b"***";

/// The shortest line of a secret that is masked on its own; shorter ones match common words.
const MIN_LINE_BYTES: usize = 8;

/// The shortest base64 form that is masked; shorter ones match other text.
const MIN_BASE64_BYTES: usize = 8;

/// The secrets to mask, indexed for searching.
#[derive(Clone, Default)]
pub struct Secrets {
    /// All forms by their first byte, so that most bytes need one look-up. The longest form comes first, so
    /// that a secret that contains another one is masked as a whole.
    by_start: Vec<Vec<Vec<u8>>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Creates the index of these secrets in all forms in which programs print them.
    pub fn new<S: AsRef<str>>(secrets: &[S]) -> Self {
        let mut forms: Vec<Vec<u8>> = Vec::new();
        for secret in secrets {
            let whole = secret.as_ref().trim_end_matches(['\r', '\n']);
            forms.extend(forms_of(whole));
            if whole.contains('\n') {
                let lines = whole.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE_BYTES);
                forms.extend(lines.flat_map(forms_of));
            }
        }
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        if forms.is_empty() {
            return Secrets::default();
        }
        let mut by_start = vec![Vec::new(); 256];
        for form in forms {
            by_start[usize::from(form[0])].push(form);
        }
        Secrets { by_start }
    }

    /// Returns whether there is nothing to mask.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Returns the text with `***` in place of each secret.
    pub fn mask(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        let (mut masker, mut out) = (Masker::default(), Vec::with_capacity(text.len()));
        masker.push(self, text.as_bytes(), &mut out);
        masker.finish(self, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Masks every text in a value, including keys and numbers that equal a secret.
    pub fn mask_json(&self, value: &mut Value) {
        if self.is_empty() {
            return;
        }
        match value {
            Value::String(text) => *text = self.mask(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_json(item)),
            Value::Object(entries) => {
                for (key, mut entry) in std::mem::take(entries) {
                    self.mask_json(&mut entry);
                    let mut masked = self.mask(&key);
                    // Two keys that are secrets stay distinct.
                    while masked != key && entries.contains_key(&masked) {
                        masked.push('*');
                    }
                    entries.insert(masked, entry);
                }
            }
            Value::Number(number) => {
                let (text, masked) = (number.to_string(), self.mask(&number.to_string()));
                if text != masked {
                    *value = Value::String(masked);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Searches for secrets in data that is read in pieces.
    pub fn search(&self) -> SecretSearch<'_> {
        let longest = self.by_start.iter().flatten().map(Vec::len).max().unwrap_or(0);
        SecretSearch { secrets: self, longest, held: Vec::new(), found: false }
    }

    fn find_at(&self, rest: &[u8]) -> Found {
        for text in &self.by_start[usize::from(rest[0])] {
            if rest.starts_with(text) {
                return Found::Secret(text.len());
            }
            if text.starts_with(rest) {
                return Found::Prefix;
            }
        }
        Found::Nothing
    }
}

/// A search for secrets in bytes of any kind, which come in pieces.
#[derive(Debug)]
pub struct SecretSearch<'s> {
    secrets: &'s Secrets,
    /// The bytes of the longest form of a secret.
    longest: usize,
    /// The end of what was read, in which a secret may have begun.
    held: Vec<u8>,
    found: bool,
}

impl SecretSearch<'_> {
    /// Looks at the next piece.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.found || self.longest == 0 {
            return;
        }
        self.held.extend_from_slice(bytes);
        self.found = (0..self.held.len()).any(|at| secret_at(self.secrets, &self.held[at..]).is_some());
        self.held.drain(..self.held.len().saturating_sub(self.longest - 1));
    }

    /// Whether there is a secret in what was read so far.
    pub fn found(&self) -> bool {
        self.found
    }
}

enum Found {
    Nothing,
    /// A whole secret of this length.
    Secret(usize),
    /// The rest of the input may be the start of a secret.
    Prefix,
}

/// Masks one stream. Holds back only what may be the start of a secret.
#[derive(Default)]
pub(crate) struct Masker {
    held: Vec<u8>,
}

impl Masker {
    /// Appends to `out` the part of the stream that is clean or masked.
    pub(crate) fn push(&mut self, secrets: &Secrets, bytes: &[u8], out: &mut Vec<u8>) {
        if secrets.is_empty() {
            out.extend_from_slice(bytes);
            return;
        }
        self.held.extend_from_slice(bytes);
        self.scan(secrets, false, out);
    }

    /// Ends the stream: the bytes held back are not a secret.
    pub(crate) fn finish(&mut self, secrets: &Secrets, out: &mut Vec<u8>) {
        self.scan(secrets, true, out);
    }

    fn scan(&mut self, secrets: &Secrets, at_end: bool, out: &mut Vec<u8>) {
        let input = std::mem::take(&mut self.held);
        let mut clean_from = 0;
        let mut position = 0;
        while position < input.len() {
            match secrets.find_at(&input[position..]) {
                Found::Nothing => position += 1,
                Found::Secret(length) => {
                    out.extend_from_slice(&input[clean_from..position]);
                    out.extend_from_slice(MASK);
                    position += length;
                    clean_from = position;
                }
                // A shorter secret may be complete within this prefix of a longer one.
                Found::Prefix if at_end => match secret_at(secrets, &input[position..]) {
                    Some(length) => {
                        out.extend_from_slice(&input[clean_from..position]);
                        out.extend_from_slice(MASK);
                        position += length;
                        clean_from = position;
                    }
                    None => position += 1,
                },
                Found::Prefix => {
                    self.held = input[position..].to_vec();
                    break;
                }
            }
        }
        out.extend_from_slice(&input[clean_from..position]);
    }
}

fn secret_at(secrets: &Secrets, rest: &[u8]) -> Option<usize> {
    secrets.by_start[usize::from(rest[0])].iter().find(|text| rest.starts_with(text)).map(Vec::len)
}

/// Returns a text literally and in the encodings of JSON, URLs and base64.
fn forms_of(text: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![text.as_bytes().to_vec()];
    let json = Value::from(text).to_string();
    let json = &json[1..json.len() - 1];
    forms.push(json.as_bytes().to_vec());
    if !json.is_ascii() {
        let escape = |c: char| {
            if c.is_ascii() {
                return c.to_string();
            }
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        };
        forms.push(json.chars().map(escape).collect::<String>().into_bytes());
    }
    let percent = |space: &str, byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        b' ' => space.to_owned(),
        _ => format!("%{byte:02X}"),
    };
    for space in ["%20", "+"] {
        forms.push(text.bytes().map(|byte| percent(space, byte)).collect::<String>().into_bytes());
    }
    for before in 0..3 {
        let standard = base64_inside(text.as_bytes(), before);
        let for_urls = standard.iter().map(|&c| match c {
            b'+' => b'-',
            b'/' => b'_',
            other => other,
        });
        forms.push(for_urls.collect());
        forms.push(standard);
    }
    forms.retain(|form| !form.is_empty());
    forms.sort();
    forms.dedup();
    forms
}

/// Returns the base64 characters that these bytes determine alone, when `before` other bytes of their group
/// precede them, as in `user:password`. Returns nothing if the result is too short.
fn base64_inside(bytes: &[u8], before: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let padded: Vec<u8> = std::iter::repeat_n(0, before).chain(bytes.iter().copied()).collect();
    let bit = |at: usize| padded[at / 8] >> (7 - at % 8) & 1;
    let whole = padded.len() * 8 / 6;
    let first = (before * 8).div_ceil(6);
    let text: Vec<u8> = (first..whole)
        .map(|at| ALPHABET[(0..6).fold(0, |six, offset| six << 1 | usize::from(bit(at * 6 + offset)))])
        .collect();
    if text.len() >= MIN_BASE64_BYTES { text } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(secrets: &[&str], chunks: &[&[u8]]) -> String {
        let secrets = Secrets::new(secrets);
        let (mut masker, mut out) = (Masker::default(), Vec::new());
        for chunk in chunks {
            masker.push(&secrets, chunk, &mut out);
        }
        masker.finish(&secrets, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn secrets_are_masked_across_reads() {
        let text = b"a hunter2 b hunt hunter22 hunter";
        for first in 0..text.len() {
            for second in first..text.len() {
                let chunks = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(masked(&["hunter2"], &chunks), "a *** b hunt ***2 hunter");
            }
        }
    }

    #[test]
    fn the_longest_secret_wins() {
        for (secrets, text, expected) in [
            (&["abc", "abcdef"][..], "abcdef abcde", "*** ***de"),
            (&["abc", "abcdef"], "abcd", "***d"),
            (&["aab"], "aaab", "a***"),
            (&["", "\n"], "as it is", "as it is"),
            (&["line one is long\nx\nline two is long\n"], "line two is long, x", "***, x"),
            (&["one\ntwo"], "one\ntwo", "***"),
        ] {
            assert_eq!(masked(secrets, &[text.as_bytes()]), expected, "{secrets:?} in {text:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(masked(secrets, &bytes), expected, "{secrets:?} in {text:?}, byte by byte");
        }
    }

    #[test]
    fn only_a_possible_secret_is_held_back() {
        let secrets = Secrets::new(&["hunter2"]);
        let (mut masker, mut out) = (Masker::default(), Vec::new());
        masker.push(&secrets, b"Password: hun", &mut out);
        assert_eq!(out, b"Password: ");
        masker.push(&secrets, b"gry", &mut out);
        assert_eq!(out, b"Password: hungry");
    }

    #[test]
    fn secrets_are_masked_in_every_form_in_which_programs_print_them() {
        let secret = "p\u{e4}ss\"word & line\nsecond line of it\n";
        for text in [
            "p\u{e4}ss\"word & line\nsecond line of it",
            "p\u{e4}ss\"word & line",
            "second line of it",
            // JSON, with and without letters beyond ASCII.
            "p\u{e4}ss\\\"word & line\\nsecond line of it",
            "p\\u00e4ss\\\"word & line\\nsecond line of it",
            // A path and a query of a URL.
            "p%C3%A4ss%22word%20%26%20line%0Asecond%20line%20of%20it",
            "p%C3%A4ss%22word+%26+line%0Asecond+line+of+it",
        ] {
            assert_eq!(masked(&[secret], &[text.as_bytes()]), "***", "{text}");
        }
    }

    #[test]
    fn secrets_are_masked_at_any_offset_in_base64() {
        // `printf %s hunter2hunter2 | base64`, and the same after `u:`, after `us:` and before a line end.
        for (text, expected) in [
            ("aHVudGVyMmh1bnRlcjI=", "***I="),
            ("dTpodW50ZXIyaHVudGVyMg==", "dTp***g=="),
            ("dXM6aHVudGVyMmh1bnRlcjI=", "dXM6***I="),
            ("aHVudGVyMmh1bnRlcjIK", "***IK"),
        ] {
            let found = masked(&["hunter2hunter2"], &[text.as_bytes()]);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn e06_a_secret_is_found_wherever_the_pieces_end() {
        let secrets = Secrets::new(&["s3cret-w0rd", "another"]);
        let found = |pieces: &[&[u8]]| {
            let mut search = secrets.search();
            pieces.iter().for_each(|piece| search.push(piece));
            search.found()
        };
        assert!(
            found(&[b"\0\xffa s3cret-w0rd\0"])
                && found(&[b"s3cr", b"et-w", b"0rd"])
                && found(&[b"anothe", b"r"])
        );
        assert!(!found(&[]) && !found(&[b"s3cret-w0r", b"anothe"]) && !found(&[b"s3cret", b"\0", b"-w0rd"]));
        let nothing = Secrets::default();
        let mut none = nothing.search();
        none.push(b"s3cret-w0rd");
        assert!(!none.found());
    }

    #[test]
    fn keys_texts_and_numbers_of_json_are_masked() {
        let secrets = Secrets::new(&["hunter2", "12345678", "one line of a key\nanother line of it\n"]);
        let mut value = serde_json::json!({
            "hunter2": 1, "a": { "b": ["x hunter2", 12345678, "another line of it"] }, "***": 2,
        });
        secrets.mask_json(&mut value);
        assert_eq!(value, serde_json::json!({ "****": 1, "***": 2, "a": { "b": ["x ***", "***", "***"] } }));
    }
}
