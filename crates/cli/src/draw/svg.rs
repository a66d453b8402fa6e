//! A graph as a self-contained SVG picture, without external fonts, scripts or styles.

use std::fmt::Write;

use sprag_app::layout::{BOX_HEIGHT, layout};

use super::layers::needs;
use super::mermaid::{COLOURS, painted};
use super::{Graph, Node};

const MARGIN: f64 = 24.0;
const HEAD: f64 = 32.0;
/// The width of a character of the names, in the widest font that a viewer may choose.
const CHARACTER: f64 = 8.2;
const LONGEST_NAME: usize = 40;
/// The length and the width of the tip of an arrow.
const TIP: f64 = 9.0;
const LINE: &str = "#9ca3af";
const BACK: &str = "#b45309";
/// The colours for viewers that prefer dark ones. A step keeps the colour of its status, over the dark page.
const DARK: &str = "@media (prefers-color-scheme: dark) { .page { fill: #0d1117 } .name { fill: #f3f4f6 } \
                    .more { fill: #9ca3af } .step { fill-opacity: 0.16 } }";

pub(crate) fn svg(graph: &Graph) -> String {
    let shown: Vec<(String, String)> = graph.nodes.iter().map(|node| (cut(&node.id), below(node))).collect();
    let widths: Vec<f64> = shown
        .iter()
        .map(|(name, below)| {
            let characters = name.chars().count().max(below.chars().count().saturating_sub(2)).max(6);
            characters as f64 * CHARACTER + 28.0
        })
        .collect();
    let layout = layout(&needs(graph), &widths);
    // The line of a step that goes back runs above the boxes.
    let above = if graph.nodes.iter().any(|node| node.rework.is_some()) { 30.0 } else { 0.0 };
    let (left, top) = (MARGIN, MARGIN + HEAD + above);
    let title = match &graph.run {
        Some((run, status)) => format!("{} · {run} · {status}", graph.name),
        None => graph.name.clone(),
    };
    let width = (layout.width + 2.0 * MARGIN).max(title.chars().count() as f64 * 9.0 + 2.0 * MARGIN);
    let height = layout.height + top + MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\">\n\
         <title>{0}</title>\n<style>{DARK}</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <defs>{2}</defs>\n\
         <text class=\"name\" x=\"{MARGIN}\" y=\"{1:.0}\" font-size=\"15\" font-weight=\"bold\" fill=\"#111827\">{0}</text>\n",
        escaped(&title),
        MARGIN + 8.0,
        marker("back", BACK),
    );
    for line in &layout.lines {
        let _ = writeln!(
            text,
            "<path d=\"{}\" fill=\"none\" stroke=\"{LINE}\" stroke-width=\"1.5\"/>",
            curve(&before_tip(line), left, top)
        );
    }
    draw_tips(&mut text, &layout.lines, left, top);
    for (no, node) in graph.nodes.iter().enumerate() {
        if let Some(to) = node.rework {
            let middle = |no: usize| (layout.boxes[no].0 + widths[no] / 2.0 + left, layout.boxes[no].1 + top);
            let ((x0, y0), (x1, y1)) = (middle(no), middle(to));
            let over = y0.min(y1) - 28.0;
            let _ = writeln!(
                text,
                "<path d=\"M{x0:.1} {y0:.1}C{x0:.1} {over:.1} {x1:.1} {over:.1} {x1:.1} {y1:.1}\" fill=\"none\" \
                 stroke=\"{BACK}\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\" marker-end=\"url(#back)\">\
                 <title>rework</title></path>"
            );
        }
    }
    for (no, node) in graph.nodes.iter().enumerate() {
        let (x, y) = (layout.boxes[no].0 + left, layout.boxes[no].1 + top);
        draw_box(&mut text, node, &shown[no], (x, y, widths[no]));
    }
    text.push_str("</svg>\n");
    text
}

/// Returns a line without the part that its tip covers: beside many lines, the tip would not be seen.
fn before_tip(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut points = line.to_vec();
    points.iter_mut().next_back().into_iter().for_each(|(x, _)| *x -= TIP);
    points
}

/// Draws one tip where lines meet a box, over the lines.
fn draw_tips(text: &mut String, lines: &[Vec<(f64, f64)>], left: f64, top: f64) {
    let mut ends: Vec<(f64, f64)> = lines.iter().filter_map(|line| line.last().copied()).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    ends.dedup();
    for (x, y) in ends.iter().map(|(x, y)| (x + left, y + top)) {
        let (back, half) = (x - TIP, TIP / 2.0);
        let _ = writeln!(
            text,
            "<path class=\"tip\" d=\"M{back:.1} {:.1}L{x:.1} {y:.1}L{back:.1} {:.1}z\" fill=\"{LINE}\"/>",
            y - half,
            y + half
        );
    }
}

/// Returns the marker for the tip of an arrow.
fn marker(id: &str, colour: &str) -> String {
    format!(
        "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{colour}\"/></marker>"
    )
}

fn draw_box(
    text: &mut String,
    node: &Node,
    (name, below): &(String, String),
    (x, y, width): (f64, f64, f64),
) {
    let (fill, stroke) = match &node.status {
        Some(status) => {
            let found = COLOURS.iter().find(|(name, ..)| *name == painted(status));
            found.map_or(("#ffffff", "#374151"), |(_, fill, stroke)| (*fill, *stroke))
        }
        None => ("#f9fafb", "#374151"),
    };
    let dashes = if node.conditional { " stroke-dasharray=\"4 3\"" } else { "" };
    if node.fan_out.is_some() {
        // A second box behind it shows that the step has several items.
        let _ = writeln!(
            text,
            "<rect class=\"step\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"7\" fill=\"{fill}\" stroke=\"{stroke}\"/>",
            x + 4.0,
            y + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<g><title>{}</title><rect class=\"step\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"7\" \
         fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"{dashes}/>\
         <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" font-weight=\"bold\" fill=\"#111827\">{}</text>\
         <text class=\"more\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"#4b5563\">{}</text></g>",
        escaped(&node.id),
        x + 14.0,
        y + 20.0,
        escaped(name),
        x + 14.0,
        y + 36.0,
        escaped(below),
    );
}

/// Returns the second line of a box.
fn below(node: &Node) -> String {
    let marks = node.marks();
    match (&node.status, node.tries()) {
        (Some(status), Some(tries)) => format!("{marks} · {status} ({tries})"),
        (Some(status), None) => format!("{marks} · {status}"),
        (None, _) => marks,
    }
}

/// Returns a line through its points: curved between layers, straight within one.
fn curve(points: &[(f64, f64)], left: f64, top: f64) -> String {
    let mut path = String::new();
    for (at, (x, y)) in points.iter().map(|(x, y)| (x + left, y + top)).enumerate() {
        if at == 0 {
            let _ = write!(path, "M{x:.1} {y:.1}");
        } else if at % 2 == 1 {
            let _ = write!(path, "L{x:.1} {y:.1}");
        } else {
            let (from_x, from_y) = (points[at - 1].0 + left, points[at - 1].1 + top);
            let half = f64::midpoint(from_x, x);
            let _ = write!(path, "C{half:.1} {from_y:.1} {half:.1} {y:.1} {x:.1} {y:.1}");
        }
    }
    path
}

fn cut(text: &str) -> String {
    if text.chars().count() <= LONGEST_NAME {
        return text.to_owned();
    }
    text.chars().take(LONGEST_NAME - 1).chain(['…']).collect()
}

/// Escapes a text for XML, and replaces characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph};
    use super::*;

    #[test]
    fn every_step_and_every_need_is_drawn_once() {
        let drawn = svg(&graph(DIAMOND));
        assert_eq!(drawn.matches("<g><title>").count(), 4, "{drawn}");
        assert_eq!(drawn.matches("<path d=\"M").count(), 4 + 1, "four needs and a marker\n{drawn}");
        assert_eq!(drawn.matches("<path class=\"tip\"").count(), 3, "a tip for each box with needs\n{drawn}");
        assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"));
        assert!(!drawn.contains("href") && !drawn.contains("script"), "{drawn}");
    }

    #[test]
    fn the_tip_of_many_lines_is_drawn_once_and_over_them() {
        let all: Vec<usize> = (0..7).collect();
        let steps: Vec<(String, &[usize])> =
            (0..8).map(|no| (format!("s{no}"), if no == 7 { all.as_slice() } else { &[] })).collect();
        let named: Vec<(&str, &[usize])> = steps.iter().map(|(id, needs)| (id.as_str(), *needs)).collect();
        let drawn = svg(&graph(&named));
        assert_eq!(drawn.matches("stroke-width=\"1.5\"/>\n<path").count(), 7, "seven lines\n{drawn}");
        assert_eq!(drawn.matches("class=\"tip\"").count(), 1, "{drawn}");
        let end =
            drawn.split("class=\"tip\" d=\"M").nth(1).and_then(|tip| tip.split(' ').next()).expect("a tip");
        assert_eq!(drawn.matches(&format!(" {end} ")).count(), 7, "no line goes below the tip\n{drawn}");
        assert!(drawn.rfind("stroke=\"#9ca3af\"") < drawn.find("class=\"tip\""), "{drawn}");
    }

    #[test]
    fn names_cannot_break_out() {
        let mut graph = graph(&[("</title><script>\u{1}", &[])]);
        graph.name = "a<b>&\"'".into();
        let drawn = svg(&graph);
        assert!(!drawn.contains("<script>") && !drawn.contains('\u{1}'), "{drawn}");
        assert!(drawn.contains("a&lt;b&gt;&amp;&quot;&#39;"), "{drawn}");
        // Every `<` begins or ends an element.
        assert_eq!(drawn.matches('<').count(), drawn.matches('>').count());
    }
}
