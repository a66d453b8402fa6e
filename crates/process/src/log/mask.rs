//! Replaces secrets in a stream of bytes, also where a secret comes in two reads.

/// What a secret is replaced with.
const MASK: &[u8] = b"***";

/// Lines of a secret shorter than this are not masked on their own: they would hit common words.
const MIN_LINE_BYTES: usize = 8;

/// The secrets of a step, ready to be searched for.
pub(crate) struct Secrets {
    /// Longest first, so that a secret that contains another is masked as a whole.
    texts: Vec<Vec<u8>>,
    /// Whether a secret starts with this byte: most bytes are passed after one look.
    starts: [bool; 256],
}

impl Secrets {
    /// A secret of several lines (a key file) is also masked line by line: tools print it that way.
    pub(crate) fn new(secrets: &[String]) -> Self {
        let lines = secrets.iter().filter(|secret| secret.contains('\n')).flat_map(|secret| {
            secret.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE_BYTES).map(str::to_owned)
        });
        let mut texts: Vec<Vec<u8>> = secrets
            .iter()
            .map(|secret| secret.trim_end_matches(['\r', '\n']).to_owned())
            .chain(lines)
            .filter(|secret| !secret.is_empty())
            .map(String::into_bytes)
            .collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.dedup();
        let mut starts = [false; 256];
        for text in &texts {
            starts[text[0] as usize] = true;
        }
        Secrets { texts, starts }
    }

    fn at(&self, rest: &[u8]) -> Found {
        if !self.starts[rest[0] as usize] {
            return Found::Nothing;
        }
        for text in &self.texts {
            if rest.starts_with(text) {
                return Found::Secret(text.len());
            }
            if text.starts_with(rest) {
                return Found::Beginning;
            }
        }
        Found::Nothing
    }
}

enum Found {
    Nothing,
    /// A whole secret of this length.
    Secret(usize),
    /// All that is there may be the beginning of a secret.
    Beginning,
}

/// Masks one stream. Holds back at most what may be the beginning of a secret.
#[derive(Default)]
pub(crate) struct Masker {
    held: Vec<u8>,
}

impl Masker {
    /// Appends to `out` what of the stream is known to be clean, or masked.
    pub(crate) fn push(&mut self, secrets: &Secrets, bytes: &[u8], out: &mut Vec<u8>) {
        if secrets.texts.is_empty() {
            out.extend_from_slice(bytes);
            return;
        }
        self.held.extend_from_slice(bytes);
        self.scan(secrets, false, out);
    }

    /// The stream ended: what was held back is no secret.
    pub(crate) fn finish(&mut self, secrets: &Secrets, out: &mut Vec<u8>) {
        self.scan(secrets, true, out);
    }

    fn scan(&mut self, secrets: &Secrets, at_end: bool, out: &mut Vec<u8>) {
        let input = std::mem::take(&mut self.held);
        let mut clean_from = 0;
        let mut position = 0;
        while position < input.len() {
            match secrets.at(&input[position..]) {
                Found::Nothing => position += 1,
                Found::Secret(length) => {
                    out.extend_from_slice(&input[clean_from..position]);
                    out.extend_from_slice(MASK);
                    position += length;
                    clean_from = position;
                }
                // A shorter secret may be complete within this beginning of a longer one.
                Found::Beginning if at_end => match whole_at(secrets, &input[position..]) {
                    Some(length) => {
                        out.extend_from_slice(&input[clean_from..position]);
                        out.extend_from_slice(MASK);
                        position += length;
                        clean_from = position;
                    }
                    None => position += 1,
                },
                Found::Beginning => {
                    self.held = input[position..].to_vec();
                    break;
                }
            }
        }
        out.extend_from_slice(&input[clean_from..position]);
    }
}

fn whole_at(secrets: &Secrets, rest: &[u8]) -> Option<usize> {
    secrets.texts.iter().find(|text| rest.starts_with(text)).map(Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(secrets: &[&str], chunks: &[&[u8]]) -> String {
        let secrets = Secrets::new(&secrets.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let (mut masker, mut out) = (Masker::default(), Vec::new());
        for chunk in chunks {
            masker.push(&secrets, chunk, &mut out);
        }
        masker.finish(&secrets, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn secrets_are_masked_wherever_the_reads_fall() {
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
        let secrets = Secrets::new(&["hunter2".into()]);
        let (mut masker, mut out) = (Masker::default(), Vec::new());
        masker.push(&secrets, b"Password: hun", &mut out);
        assert_eq!(out, b"Password: ");
        masker.push(&secrets, b"gry", &mut out);
        assert_eq!(out, b"Password: hungry");
    }
}
