//! Formatting times, spans, sizes and foreign text in one way everywhere.

/// Formats a wall-clock time for programs.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| format!("{at:.3}"))
}

/// Reads a time as programs write it, in milliseconds of the wall clock; none if it is not one.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// Formats a wall-clock time for people, with its zone, and with its year if that is not the present one.
pub fn local(ms: i64) -> String {
    let zone = jiff::tz::TimeZone::system();
    let Ok(at) = jiff::Timestamp::from_millisecond(ms) else { return ms.to_string() };
    let (at, now) = (at.to_zoned(zone.clone()), jiff::Timestamp::now().to_zoned(zone));
    let form = if at.year() == now.year() { "%m-%d %H:%M:%S %Z" } else { "%Y-%m-%d %H:%M:%S %Z" };
    at.strftime(form).to_string()
}

/// Formats a span for people: `24ms`, `12.3s`, `4m05s`, `2h03m`, `3d04h`.
pub fn span(ms: i64) -> String {
    let ms = ms.max(0);
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{}.{}s", s, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Formats a number of bytes for people: `512 B`, `61.2 KB`, `1.3 GB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KB", "MB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} GB")
}

/// Makes text from outside safe for a terminal: replaces every control character but the tabulator.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Makes text of several lines from outside safe for a terminal: like [`plain`], and keeps its line ends.
pub fn plain_lines(text: &str) -> String {
    text.trim_end().lines().map(plain).collect::<Vec<_>>().join("\n")
}

/// Makes a line that a command printed safe for a terminal, and keeps its look.
///
/// Colours and other attributes (SGR sequences) stay if `coloured`, and are reset at the end of the line. Every other
/// escape sequence is removed whole, titles and links (OSC) included. A carriage return starts the line again, as
/// progress bars do, so only the text after the last one is shown.
pub fn command_line(text: &str, coloured: bool) -> String {
    let redrawn = text.trim_end_matches('\r');
    let redrawn = redrawn.rsplit('\r').next().unwrap_or(redrawn);
    let mut shown = String::with_capacity(redrawn.len());
    let mut is_painted = false;
    let mut rest = redrawn;
    while let Some(c) = rest.chars().next() {
        let (length, kind) = escape(rest);
        match kind {
            Some(Escape::Attributes) if coloured => {
                shown.push_str(&rest[..length]);
                is_painted = true;
            }
            Some(_) => {}
            None if c.is_control() && c != '\t' => shown.push('\u{fffd}'),
            None => shown.push(c),
        }
        rest = &rest[length..];
    }
    if is_painted && !shown.ends_with("\x1b[0m") {
        shown.push_str("\x1b[0m");
    }
    shown
}

/// The kind of an escape sequence.
enum Escape {
    /// Colours and other attributes of the text that follows: `ESC [ … m`.
    Attributes,
    /// Anything else: it moves the cursor, clears, sets a title, asks the terminal something.
    Other,
}

/// Returns the length of the first character or escape sequence of a text, and the kind of the sequence. A sequence
/// without an end reaches to the end of the text.
fn escape(text: &str) -> (usize, Option<Escape>) {
    let Some(first) = text.chars().next() else { return (0, None) };
    let (start, kind) = match (first, text[first.len_utf8()..].chars().next()) {
        ('\u{9b}', _) => (first.len_utf8(), '['),
        ('\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}', _) => (first.len_utf8(), ']'),
        ('\x1b', Some(next)) => (1 + next.len_utf8(), next),
        ('\x1b', None) => return (1, Some(Escape::Other)),
        _ => return (first.len_utf8(), None),
    };
    let body = &text[start..];
    match kind {
        '[' => {
            let end = body.find(|c: char| ('@'..='~').contains(&c));
            let is_sgr = first == '\x1b'
                && end.is_some_and(|end| {
                    body[end..].starts_with('m')
                        && body[..end].chars().all(|c| c.is_ascii_digit() || c == ';' || c == ':')
                });
            let length = end.map_or(text.len(), |end| start + end + 1);
            (length, Some(if is_sgr { Escape::Attributes } else { Escape::Other }))
        }
        // Strings: they end with BEL or ST.
        ']' | 'P' | 'X' | '^' | '_' => {
            let ends = ["\x07", "\x1b\\", "\u{9c}"];
            let end = ends.iter().filter_map(|end| body.find(end).map(|at| start + at + end.len())).min();
            (end.unwrap_or(text.len()), Some(Escape::Other))
        }
        // A character set: one more character follows.
        '(' | ')' | '*' | '+' | '-' | '.' | '/' | '#' | '%' | ' ' => {
            let more = body.chars().next().map_or(0, char::len_utf8);
            (start + more, Some(Escape::Other))
        }
        _ => (start, Some(Escape::Other)),
    }
}

/// Returns the number of characters that must be changed, added or removed to turn one text into the other. Two
/// neighbours that are swapped count once.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    // The distances of the parts of `a` before the last and before the present character to each part of `b`.
    let (mut older, mut above) = (Vec::new(), (0..=b.len()).collect::<Vec<usize>>());
    let mut last = None;
    for (i, a) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut least = (above[j] + usize::from(a != b[j])).min(above[j + 1] + 1).min(row[j] + 1);
            if j > 0 && last == Some(b[j]) && a == b[j - 1] {
                least = least.min(older[j - 1] + 1);
            }
            row.push(least);
        }
        (older, above, last) = (above, row, Some(a));
    }
    above[b.len()]
}

/// Returns the word that a mistyped one probably means; none if no word is close.
pub fn nearest<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (wrong.chars().count() / 3).clamp(1, 3);
    let near = words.into_iter().map(|word| (distance(word, wrong), word));
    near.filter(|(far, _)| *far <= most).min_by_key(|(far, _)| *far).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_line_keeps_its_colours_and_nothing_else_that_steers_a_terminal() {
        for (text, coloured, bare) in [
            ("\x1b[1;32mok\x1b[0m", "\x1b[1;32mok\x1b[0m", "ok"),
            ("\x1b[38:5:9mred", "\x1b[38:5:9mred\x1b[0m", "red"),
            ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab", "ab"),
            ("\x1b[2J\x1b[1;1Hx\x1b[?25l", "x", "x"),
            ("\u{9b}2Jx\u{9d}0;t\u{9c}y", "xy", "xy"),
            ("\x1bP1$q\x1b\\z\x1b(Bw\x1bcq", "zwq", "zwq"),
            ("10 %\r50 %\r100 %\r", "100 %", "100 %"),
            ("bell\x07", "bell\u{fffd}", "bell\u{fffd}"),
            ("\x1b[31", "", ""),
            ("\x1b]never ends", "", ""),
            ("\x1b", "", ""),
            ("tab\tand é", "tab\tand é", "tab\tand é"),
        ] {
            assert_eq!(command_line(text, true), coloured, "{text:?}");
            assert_eq!(command_line(text, false), bare, "{text:?}");
        }
    }

    #[test]
    fn a_time_has_its_zone_and_another_year() {
        let now_ms = jiff::Timestamp::now().as_millisecond();
        assert_eq!(local(now_ms).split(' ').count(), 3, "{}", local(now_ms));
        assert!(local(0).starts_with("1970-01-01 ") || local(0).starts_with("1969-12-31 "), "{}", local(0));
    }

    #[test]
    fn only_a_close_word_is_suggested() {
        let events = ["run.succeeded", "run.failed"];
        assert_eq!(nearest("run.suceeded", events), Some("run.succeeded"));
        assert_eq!(nearest("zzzz", events), None);
        for (wrong, right) in [("tset", "test"), ("rnu", "run"), ("biuld", "build")] {
            assert_eq!((distance(wrong, right), nearest(wrong, [right])), (1, Some(right)), "{wrong}");
        }
        for (a, b, far) in [("", "abc", 3), ("ab", "ba", 1), ("abc", "cab", 2), ("kitten", "sitting", 3)] {
            assert_eq!(distance(a, b), far, "{a} {b}");
        }
    }
}
