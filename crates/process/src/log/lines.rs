//! Cuts one stream of bytes into the pieces that become log entries.

/// The longest text of one entry: a line beyond it comes in several.
pub(crate) const MAX_PIECE_BYTES: usize = 16 << 10;

/// Text for one entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Whether the line goes on.
    pub(crate) partial: bool,
}

/// The unfinished line of one stream; never more than one piece is held.
#[derive(Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes bytes and gives each piece that is complete to `emit`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(Piece)) {
        while !bytes.is_empty() {
            let room = MAX_PIECE_BYTES - self.pending.len();
            let window = &bytes[..room.min(bytes.len())];
            match window.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    self.pending.extend_from_slice(&window[..end]);
                    if self.pending.last() == Some(&b'\r') {
                        self.pending.pop();
                    }
                    emit(Piece { text: self.take(self.pending.len()), partial: false });
                    bytes = &bytes[end + 1..];
                }
                None => {
                    self.pending.extend_from_slice(window);
                    bytes = &bytes[window.len()..];
                    if self.pending.len() == MAX_PIECE_BYTES {
                        self.flush(emit);
                    }
                }
            }
        }
    }

    /// Gives what there is of the unfinished line, except for a character that is not complete.
    pub(crate) fn flush(&mut self, emit: &mut impl FnMut(Piece)) {
        let whole = self.pending.len() - incomplete_tail(&self.pending);
        if whole > 0 {
            emit(Piece { text: self.take(whole), partial: true });
        }
    }

    /// Gives the last line, which had no end.
    pub(crate) fn finish(&mut self, emit: &mut impl FnMut(Piece)) {
        if !self.pending.is_empty() {
            emit(Piece { text: self.take(self.pending.len()), partial: false });
        }
    }

    /// Whether [`Lines::flush`] would give something.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.len() > incomplete_tail(&self.pending)
    }

    fn take(&mut self, length: usize) -> String {
        let text = String::from_utf8_lossy(&self.pending[..length]).into_owned();
        self.pending.drain(..length);
        text
    }
}

/// How many bytes at the end are the beginning of a UTF-8 character whose rest may still come.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let needed = match bytes[bytes.len() - back] {
            0x80..=0xBF => continue,
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            _ => 1,
        };
        return if needed > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(feed: impl FnOnce(&mut Lines, &mut dyn FnMut(Piece))) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        feed(&mut Lines::default(), &mut |piece: Piece| found.push((piece.text, piece.partial)));
        found
    }

    #[test]
    fn lines_pieces_and_the_end() {
        let found = pieces(|lines, mut emit| {
            lines.push(b"one\r\ntwo\n\npro", &mut emit);
            lines.flush(&mut emit);
            lines.flush(&mut emit);
            lines.push(b"gress\nlast", &mut emit);
            lines.finish(&mut emit);
        });
        let expected =
            [("one", false), ("two", false), ("", false), ("pro", true), ("gress", false), ("last", false)];
        assert_eq!(found, expected.map(|(text, partial)| (text.to_owned(), partial)));
    }

    #[test]
    fn a_long_line_comes_in_pieces_without_cutting_a_character() {
        let line = "xé".repeat(MAX_PIECE_BYTES);
        let found = pieces(|lines, mut emit| {
            lines.push(line.as_bytes(), &mut emit);
            lines.push(b"\n", &mut emit);
        });
        assert!(found.len() > 2);
        assert!(found.iter().all(|(text, _)| text.len() <= MAX_PIECE_BYTES && !text.contains('\u{FFFD}')));
        assert_eq!(found.iter().map(|(text, _)| text.as_str()).collect::<String>(), line);
        assert_eq!(found.iter().filter(|(_, partial)| !partial).count(), 1);
    }

    #[test]
    fn a_character_in_two_reads_is_kept_and_rubbish_is_replaced() {
        let found = pieces(|lines, mut emit| {
            lines.push(b"\xE2\x82", &mut emit);
            assert!(!lines.has_pending());
            lines.flush(&mut emit);
            lines.push(b"\xAC \xFF\xFE!\n\xC3", &mut emit);
            lines.finish(&mut emit);
        });
        assert_eq!(found, [("€ \u{FFFD}\u{FFFD}!".to_owned(), false), ("\u{FFFD}".to_owned(), false)]);
    }
}
