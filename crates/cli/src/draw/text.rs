//! A graph for a terminal: as lanes where they fit, else as a list by layers.

use super::lanes::lanes;
use super::layers::{layers, order};
use super::{Graph, Node};
use crate::show::Style;

/// The shape of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As lanes if those fit, else as a list.
    Fitting,
    /// As a list.
    List,
}

/// The most lanes that a reader can follow with the eye.
const MOST_LANES: usize = 20;
/// The least number of characters of a line that remain for a step's name.
const LEAST_NAME: usize = 12;

/// Returns the lines of the picture, none longer than `width` where possible.
pub(crate) fn text(graph: &Graph, shape: Shape, width: usize, style: Style) -> Vec<String> {
    let columns = Columns::of(graph);
    let room = width.saturating_sub(columns.rest() + LEAST_NAME + 2) / 2;
    // Steps without needs require no lines.
    let joined = graph.nodes.iter().any(|node| !node.needs.is_empty());
    match shape {
        Shape::Fitting if joined => lane_lines(graph, &columns, room.min(MOST_LANES), width, style)
            .unwrap_or_else(|| list_lines(graph, &columns, width, style)),
        _ => list_lines(graph, &columns, width, style),
    }
}

/// The widths of the parts of a line, in characters.
struct Columns {
    name: usize,
    marks: usize,
    status: usize,
}

impl Columns {
    fn of(graph: &Graph) -> Columns {
        let widest = |of: &dyn Fn(&Node) -> usize| graph.nodes.iter().map(of).max().unwrap_or(0);
        Columns {
            name: widest(&|node| node.id.chars().count()),
            marks: widest(&|node| marks(graph, node).chars().count()),
            status: widest(&|node| status(node).chars().count()),
        }
    }

    /// Returns the width of all parts but the name, with the gaps.
    fn rest(&self) -> usize {
        2 + self.marks + if self.status > 0 { 2 + self.status } else { 0 }
    }

    /// Returns the line of a step after its sign: its name in `name` characters, its marks, its status.
    fn tell(&self, graph: &Graph, node: &Node, name: usize, style: Style) -> String {
        let id = cut(&node.id, name);
        let (marks, told) = (marks(graph, node), status(node));
        let mut line =
            style.bold(&id) + &gap(&id, name) + "  " + &style.dim(&marks) + &gap(&marks, self.marks);
        if let Some(word) = &node.status {
            line += &format!("  {}{}", style.status(word, 0), &told[word.len()..]);
            line += &gap(&told, self.status);
        }
        line
    }
}

/// Returns the spaces that pad the text to this width.
fn gap(text: &str, width: usize) -> String {
    " ".repeat(width.saturating_sub(text.chars().count()))
}

/// Returns the marks of a step: its kind, and the step to which its failure goes back.
fn marks(graph: &Graph, node: &Node) -> String {
    let back = node.rework.map(|to| format!(" [rework {}]", graph.nodes[to].id)).unwrap_or_default();
    node.marks() + &cut(&back, 24)
}

/// Returns the status with the round, or the attempt if there was more than one.
fn status(node: &Node) -> String {
    match (&node.status, node.tries()) {
        (Some(status), Some(tries)) => format!("{status} ({tries})"),
        (Some(status), None) => status.clone(),
        (None, _) => String::new(),
    }
}

fn sign(node: &Node, style: Style) -> String {
    match &node.sign {
        Some(status) => style.sign(status),
        None => "●".to_owned(),
    }
}

fn lane_lines(
    graph: &Graph,
    columns: &Columns,
    most: usize,
    width: usize,
    style: Style,
) -> Option<Vec<String>> {
    let rows = lanes(graph, most)?;
    let art = |row: &super::lanes::Row| match &row.step {
        Some((_, after)) => row.before.chars().count() + 2 + after.chars().count(),
        None => row.before.chars().count(),
    };
    let widest = rows.iter().map(art).max().unwrap_or(0);
    let name = columns.name.min(width.saturating_sub(widest + 1 + columns.rest()).max(LEAST_NAME));
    let line = |row: &super::lanes::Row| match &row.step {
        Some((step, after)) => {
            let node = &graph.nodes[*step];
            let gap = " ".repeat(widest - art(row) + 1);
            let told = columns.tell(graph, node, name, style);
            format!(
                "{}{} {}{gap}{}",
                style.dim(&row.before),
                sign(node, style),
                style.dim(after),
                told.trim_end()
            )
        }
        None => style.dim(&row.before),
    };
    Some(rows.iter().map(line).collect())
}

/// Returns one line for each step. A number starts each layer, and the line names the step's needs.
fn list_lines(graph: &Graph, columns: &Columns, width: usize, style: Style) -> Vec<String> {
    /// The least number of characters that remain for the names of needs.
    const LEAST_NEEDS: usize = 16;
    let layers = layers(graph);
    let mut order = order(graph);
    order.sort_by_key(|no| layers[*no]);
    let digits = layers.iter().max().map_or(1, |last| (last + 1).to_string().len());
    let head = digits + 3;
    let name = columns.name.min(width.saturating_sub(head + columns.rest() + LEAST_NEEDS).max(LEAST_NAME));
    let room = width.saturating_sub(head + name + columns.rest() + 2);
    let mut before = None;
    let line = |no: usize| {
        let node = &graph.nodes[no];
        let first = before.replace(layers[no]) != Some(layers[no]);
        let number = if first { (layers[no] + 1).to_string() } else { String::new() };
        let told = columns.tell(graph, node, name, style);
        let needs = style.dim(&needs(graph, node, room));
        let head = format!("{} {}", style.dim(&format!("{number:>digits$}")), sign(node, style));
        format!("{head} {told}  {needs}").trim_end().to_owned()
    };
    order.into_iter().map(line).collect()
}

/// Returns the names of a step's needs, as many as fit.
fn needs(graph: &Graph, node: &Node, room: usize) -> String {
    let count = node.needs.len();
    let names = |shown: usize| {
        let names: Vec<&str> =
            node.needs[..shown].iter().map(|need| graph.nodes[*need].id.as_str()).collect();
        let more = (shown < count).then(|| format!("+{}", count - shown));
        let all: Vec<&str> = names.into_iter().chain(more.as_deref()).collect();
        format!("← {}", all.join(", "))
    };
    // A line cannot hold more names than it has characters.
    let fitting = (0..=count.min(room)).rev().map(names).find(|told| told.chars().count() <= room);
    fitting.filter(|_| count > 0).unwrap_or_default()
}

/// Returns the text, cut at the end if it is longer than `width`.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph};
    use super::*;

    #[track_caller]
    fn check(graph: &Graph, shape: Shape, width: usize, expected: &str) {
        let drawn = text(graph, shape, width, Style::plain()).join("\n");
        assert_eq!(drawn, expected.trim_matches('\n'), "\n{drawn}\n");
    }

    /// A run in which everything has happened.
    fn live() -> Graph {
        let mut graph = graph(DIAMOND);
        let told = [("done", 1), ("failed", 3), ("running", 1), ("waiting", 0)];
        for (node, (status, attempt)) in graph.nodes.iter_mut().zip(told) {
            (node.status, node.attempt) = (Some(status.into()), attempt);
            node.sign = node.status.clone();
        }
        graph.nodes[2].fan_out = Some("matrix ×6".into());
        graph.nodes[3].always = true;
        graph.nodes[3].rework = Some(1);
        graph
    }

    #[test]
    fn a_file_has_no_statuses() {
        check(
            &graph(DIAMOND),
            Shape::Fitting,
            80,
            r"
●    build    run
├─╮
│ ●  lint     run
● │  test     run
├─╯
●    publish  run",
        );
    }

    #[test]
    fn a_run_has_a_status_at_each_step() {
        check(
            &live(),
            Shape::Fitting,
            80,
            r"
✓    build    run                         done
├─╮
│ ✗  lint     run                         failed (attempt 3)
▶ │  test     run [matrix ×6]             running
├─╯
·    publish  run [always] [rework lint]  waiting",
        );
    }

    #[test]
    fn a_list_names_layers_and_needs() {
        check(
            &live(),
            Shape::List,
            80,
            r"
1 ✓ build    run                         done
2 ✗ lint     run                         failed (attempt 3)  ← build
  ▶ test     run [matrix ×6]             running             ← build
3 · publish  run [always] [rework lint]  waiting             ← lint, test",
        );
        let mut long = graph(&[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[0, 1, 2])]);
        long.nodes[3].id = "x".repeat(64);
        check(
            &long,
            Shape::List,
            31,
            r"
1 ● a             run
  ● b             run
  ● c             run
2 ● xxxxxxxxxxx…  run  ← a, +2",
        );
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        for shape in [Shape::Fitting, Shape::List] {
            let plain = text(&live(), shape, 80, Style::plain());
            let coloured = text(&live(), shape, 80, Style::colourful());
            let bare = |line: &String| {
                let mut parts = line.split('\u{1b}');
                let first = parts.next().unwrap_or_default().to_owned();
                first
                    + &parts.map(|part| part.split_once('m').map_or("", |(_, text)| text)).collect::<String>()
            };
            assert_ne!(plain, coloured);
            assert_eq!(plain, coloured.iter().map(bare).collect::<Vec<_>>());
        }
    }
}
