//! The figures: one value per round and system, with medians and ratios at the end.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::Result;
use crate::plot;

/// The identity of a figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The workload, such as `W1`.
    pub(crate) workload: &'static str,
    /// The measured system, such as `sprag` or a peer.
    pub(crate) system: &'static str,
    /// The number of concurrent callers or runs.
    pub(crate) in_flight: usize,
    /// The unit of the values.
    pub(crate) unit: &'static str,
}

/// Returns the key of a figure.
pub(crate) fn key(workload: &'static str, system: &'static str, in_flight: usize, unit: &'static str) -> Key {
    Key { workload, system, in_flight, unit }
}

/// The required range of a ratio.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, "≥{least}"),
            Target::AtMost(most) => write!(f, "≤{most}"),
        }
    }
}

struct Series {
    key: Key,
    /// One value per round.
    values: Vec<f64>,
    /// The series that it is compared with.
    against: Option<Key>,
    /// The required range, if it is a ratio.
    target: Option<Target>,
}

/// All figures of a benchmark, in the order in which they were first added.
#[derive(Default)]
pub(crate) struct Board {
    series: Vec<Series>,
    notes: Vec<String>,
}

/// A finished figure, which is also a line of the NDJSON file.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) workload: &'static str,
    pub(crate) system: &'static str,
    pub(crate) in_flight: usize,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) ratio_to: Option<String>,
    pub(crate) ratio: Option<f64>,
    /// The required range, and whether it is met.
    target: Option<String>,
    met: Option<bool>,
    #[serde(skip)]
    spread: Option<(f64, f64)>,
}

impl Board {
    /// Adds the value of one round.
    pub(crate) fn add(&mut self, key: Key, value: f64) {
        match self.series.iter_mut().find(|series| series.key == key) {
            Some(series) => series.values.push(value),
            None => self.series.push(Series { key, values: vec![value], against: None, target: None }),
        }
    }

    /// Compares one series with another, round by round.
    pub(crate) fn compare(&mut self, key: &Key, against: Key) {
        if let Some(series) = self.series.iter_mut().find(|series| series.key == *key) {
            series.against = Some(against);
        }
    }

    /// Adds the ratio of two series, round by round. Does nothing if either was not measured.
    pub(crate) fn ratio(&mut self, system: &'static str, of: &Key, to: &Key, target: Option<Target>) {
        let values = |key: &Key| self.series.iter().find(|series| series.key == *key).map(|s| &s.values);
        if let (Some(ours), Some(theirs)) = (values(of), values(to)) {
            let values = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            let key = key(of.workload, system, of.in_flight, "times");
            self.series.push(Series { key, values, against: None, target });
        }
    }

    /// Adds a note below the table.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns the ratios of two series, round by round.
    fn ratios(&self, series: &Series) -> Option<Vec<f64>> {
        let against = self.series.iter().find(|other| Some(&other.key) == series.against.as_ref())?;
        Some(series.values.iter().zip(&against.values).map(|(value, base)| value / base).collect())
    }

    fn lines(&self) -> Vec<Line> {
        let line = |series: &Series| {
            let ratios = self.ratios(series);
            let ratio_to = series.against.as_ref().filter(|_| ratios.is_some()).map(|against| {
                if against.system == series.key.system && against.in_flight != series.key.in_flight {
                    format!("{} at {}", against.system, against.in_flight)
                } else {
                    against.system.to_owned()
                }
            });
            let Key { workload, system, in_flight, unit } = series.key;
            let value = median(&series.values);
            Line {
                workload,
                system,
                in_flight,
                value,
                unit,
                ratio_to,
                ratio: ratios.as_deref().map(median),
                target: series.target.map(|target| target.to_string()),
                met: series.target.map(|target| target.is_met(value)),
                spread: ratios.or_else(|| (unit == "times").then(|| series.values.clone())).map(|ratios| {
                    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                    (least, ratios.iter().copied().fold(0.0, f64::max))
                }),
            }
        };
        self.series.iter().map(line).collect()
    }

    /// Prints the table and writes the NDJSON file and the plot.
    pub(crate) fn publish(&self, name: &str, out: &Path) -> Result<()> {
        let lines = self.lines();
        println!("{}", table(&lines));
        for note in &self.notes {
            println!("{note}");
        }
        std::fs::create_dir_all(out)?;
        let mut ndjson = String::new();
        for line in &lines {
            writeln!(ndjson, "{}", serde_json::to_string(line)?)?;
        }
        std::fs::write(out.join(format!("{name}.ndjson")), ndjson)?;
        std::fs::write(out.join(format!("{name}.svg")), plot::bars(name, &lines))?;
        println!("\nwritten: {0}/{name}.ndjson, {0}/{name}.svg", out.display());
        Ok(())
    }
}

/// Formats the table in eighty columns.
fn table(lines: &[Line]) -> String {
    let mut text =
        format!("{:<10}{:<17}{:>3} {:>9} {:<14} {}", "workload", "system", "at", "median", "unit", "ratio");
    for line in lines {
        let ratio = match (&line.ratio_to, line.ratio, line.spread) {
            (Some(to), Some(ratio), Some((least, most))) => {
                format!("{ratio:.2} ({least:.2}–{most:.2}) of\n{:56}{to}", "")
            }
            (None, _, Some((least, most))) => {
                let target = match (&line.target, line.met) {
                    (Some(target), Some(true)) => format!(" {target} met"),
                    (Some(target), _) => format!(" {target} MISSED"),
                    (None, _) => String::new(),
                };
                format!("({}–{}){target}", figure(least), figure(most))
            }
            _ => String::new(),
        };
        let _ = write!(
            text,
            "\n{:<10}{:<17}{:>3} {:>9} {:<14} {ratio}",
            line.workload,
            line.system,
            line.in_flight,
            figure(line.value),
            line.unit
        );
    }
    text
}

/// Formats a figure with its significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns the value that this percentage of values does not exceed; zero if there are none.
pub(crate) fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    values.sort_unstable();
    let at = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let (ours, floor) = (key("w", "ours", 8, "x/s"), key("w", "floor", 8, "x/s"));
        let mut board = Board::default();
        for (value, base) in [(1.0, 2.0), (100.0, 200.0), (9.0, 3.0)] {
            board.add(ours.clone(), value);
            board.add(floor.clone(), base);
        }
        board.compare(&ours, floor);
        let line = &board.lines()[0];
        assert_eq!((line.value, line.ratio, line.spread), (9.0, Some(0.5), Some((0.5, 3.0))));
        assert_eq!(line.ratio_to.as_deref(), Some("floor"));
    }

    #[test]
    fn a_ratio_is_held_against_its_target() {
        let (ours, theirs) = (key("w", "ours", 8, "x/s"), key("w", "theirs", 8, "x/s"));
        let mut board = Board::default();
        board.add(ours.clone(), 30.0);
        board.add(theirs.clone(), 10.0);
        for (target, met) in [
            (Target::AtLeast(3.0), true),
            (Target::AtLeast(3.1), false),
            (Target::AtMost(3.0), true),
            (Target::AtMost(2.9), false),
        ] {
            board.ratio("ours/theirs", &ours, &theirs, Some(target));
            let line = board.lines().pop().expect("a line");
            assert_eq!((line.value, line.unit, line.met), (3.0, "times", Some(met)), "{target}");
        }
        let lines = board.lines().len();
        board.ratio("ours/nobody", &ours, &key("w", "nobody", 8, "x/s"), None);
        assert_eq!(board.lines().len(), lines, "a system that was not measured has no ratio");
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&mut values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&mut [], 99), Duration::ZERO);
    }

    #[test]
    fn the_table_is_eighty_columns_wide() {
        let mut board = Board::default();
        let (ours, floor) =
            (key("pipelines", "sprag batched", 64, "transitions/s"), key("w", "group commit", 8, "x/s"));
        board.add(ours.clone(), 123_456.0);
        board.add(floor.clone(), 12_345.0);
        board.compare(&ours, floor.clone());
        board.ratio("batched/graphile", &ours, &floor, Some(Target::AtLeast(10.5)));
        for line in table(&board.lines()).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
