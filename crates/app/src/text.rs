//! Formatting times, spans, sizes and foreign text in one way everywhere.

/// Formats a wall-clock time for programs.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| format!("{at:.3}"))
}

/// Formats a wall-clock time for people.
pub fn local(ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms);
    at.map_or_else(
        |_| ms.to_string(),
        |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string(),
    )
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
