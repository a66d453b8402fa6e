//! Splits one stream of bytes into the pieces that become log entries.

/// The longest text of one entry. A longer line becomes several entries.
pub(crate) const MAX_PIECE_BYTES: usize = 16 << 10;

/// The text of one entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Whether the line continues in the next piece.
    pub(crate) partial: bool,
}

/// The unfinished line of one stream, of at most one piece.
#[derive(Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Adds bytes and passes each complete piece to `emit`.
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

    /// Emits the unfinished line, except for an incomplete character at its end.
    pub(crate) fn flush(&mut self, emit: &mut impl FnMut(Piece)) {
        let whole = self.pending.len() - incomplete_tail(&self.pending);
        if whole > 0 {
            emit(Piece { text: self.take(whole), partial: true });
        }
    }

    /// Emits the last line, which has no line end.
    pub(crate) fn finish(&mut self, emit: &mut impl FnMut(Piece)) {
        if !self.pending.is_empty() {
            emit(Piece { text: self.take(self.pending.len()), partial: false });
        }
    }

    /// Returns whether [`Lines::flush`] would emit a piece.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.len() > incomplete_tail(&self.pending)
    }

    fn take(&mut self, length: usize) -> String {
        let text = String::from_utf8_lossy(&self.pending[..length]).into_owned();
        self.pending.drain(..length);
        text
    }
}

/// Returns the number of bytes at the end that start a UTF-8 character whose rest may still arrive.
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
    fn output_is_split_into_lines_and_pieces() {
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
    fn a_character_split_over_two_reads_is_kept_and_invalid_bytes_are_replaced() {
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
