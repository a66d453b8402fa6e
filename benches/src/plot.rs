//! A bar chart of the figures: lengths are proportional within a workload and unit.

use std::fmt::Write as _;

use crate::board::{Line, figure};

const ROW: usize = 22;
const LABEL: usize = 330;
const LONGEST: usize = 400;
const WIDTH: usize = 900;

/// Returns the chart as SVG.
pub(crate) fn bars(name: &str, lines: &[Line]) -> String {
    let height = ROW * (lines.len() + 2);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"{ROW}\" font-weight=\"bold\">{name}: medians, bars in proportion within a unit</text>\n"
    );
    for (at, line) in lines.iter().enumerate() {
        let same = |other: &&Line| other.unit == line.unit && other.workload == line.workload;
        let most = lines.iter().filter(same).map(|other| other.value).fold(f64::MIN_POSITIVE, f64::max);
        let length = (line.value / most * LONGEST as f64).max(1.0);
        let top = ROW * (at + 1) + ROW / 2;
        let middle = top + ROW * 2 / 3;
        let color = if line.system.starts_with("sprag") { "#2b6cb0" } else { "#a0aec0" };
        let ratio = match (line.ratio, &line.ratio_to) {
            (Some(ratio), Some(to)) => format!(" ({ratio:.2} of {to})"),
            _ => String::new(),
        };
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{middle}\">{} · {} · {} at once</text>\
             <rect x=\"{LABEL}\" y=\"{top}\" width=\"{length:.0}\" height=\"{}\" fill=\"{color}\"/>\
             <text x=\"{:.0}\" y=\"{middle}\">{} {}{ratio}</text>",
            line.workload,
            line.system,
            line.in_flight,
            ROW - 5,
            LABEL as f64 + length + 6.0,
            figure(line.value),
            line.unit
        );
    }
    svg.push_str("</svg>\n");
    svg
}
