//! The lane drawing: one row for each step, and a line from each step down to the steps that need it.
//!
//! A lane belongs to one step, from its row to the last row that needs it. Above a step, one horizontal line gathers
//! the lanes that the step needs. A lane that touches that line with a corner or a tee is needed; a lane that crosses
//! it unbroken is not.

use super::Graph;
use super::layers::{followers, order};

/// A row of the drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The lines to the left of the step's sign, or the whole row if it has no step.
    pub(crate) before: String,
    /// The step, and the lines to the right of its sign.
    pub(crate) step: Option<(usize, String)>,
}

/// Returns the drawing; none if it needs more than `most` lanes.
pub(crate) fn lanes(graph: &Graph, most: usize) -> Option<Vec<Row>> {
    let followers = followers(graph);
    let mut open: Vec<usize> = followers.iter().map(Vec::len).collect();
    let mut lane_of = vec![0; graph.nodes.len()];
    // The step that each lane belongs to.
    let mut lanes: Vec<Option<usize>> = Vec::new();
    let mut rows = Vec::new();
    let mut stood_in = None;
    let line = |lane: &Option<usize>| if lane.is_some() { "│ " } else { "  " };
    for step in order(graph) {
        let needed: Vec<usize> = graph.nodes[step].needs.iter().map(|need| lane_of[*need]).collect();
        let before = lanes.clone();
        for need in &graph.nodes[step].needs {
            open[*need] -= 1;
            if open[*need] == 0 {
                lanes[lane_of[*need]] = None;
            }
        }
        // The step stands in a lane that ends here, or else in the first free lane to the right of its needs.
        let ended = needed.iter().copied().filter(|lane| lanes[*lane].is_none()).min();
        let free = || (0..=lanes.len()).find(|lane| lanes.get(*lane).is_none_or(Option::is_none));
        let own = ended.or_else(free)?;
        if own >= most {
            return None;
        }
        if own == lanes.len() {
            lanes.push(None);
        }
        // A step directly below another one would seem to follow it.
        if needed.is_empty() && stood_in == Some(own) {
            rows.push(Row {
                before: lanes.iter().map(line).collect::<String>().trim_end().to_owned(),
                step: None,
            });
        }
        if !(needed.is_empty() || needed == [own]) {
            rows.push(Row { before: joint(&before, &lanes, &needed, own), step: None });
        }
        lane_of[step] = own;
        stood_in = Some(own);
        rows.push(Row {
            before: lanes[..own].iter().map(line).collect(),
            step: Some((step, lanes[own + 1..].iter().map(line).collect::<String>().trim_end().to_owned())),
        });
        lanes[own] = (open[step] > 0).then_some(step);
        while lanes.last() == Some(&None) {
            lanes.pop();
        }
    }
    Some(rows)
}

/// Returns the row above a step that gathers the lanes of its needs.
fn joint(before: &[Option<usize>], after: &[Option<usize>], needed: &[usize], own: usize) -> String {
    let from = needed.iter().copied().chain([own]).min().unwrap_or(own);
    let to = needed.iter().copied().chain([own]).max().unwrap_or(own);
    let mut row = String::new();
    for lane in 0..before.len().max(after.len()) {
        let is = |lanes: &[Option<usize>]| lanes.get(lane).copied().flatten().is_some();
        let joins = needed.contains(&lane) || lane == own;
        let (above, below) = (is(before), is(after) || lane == own);
        let (left, right) = (lane > from && lane <= to, lane >= from && lane < to);
        row.push(match (joins, above, below, left, right) {
            (true, true, true, true, true) => '┼',
            (true, true, true, false, true) => '├',
            (true, true, true, true, false) => '┤',
            (true, true, false, true, true) => '┴',
            (true, true, false, true, false) => '╯',
            (true, true, false, false, true) => '╰',
            (true, false, true, true, true) => '┬',
            (true, false, true, true, false) => '╮',
            (true, false, true, false, true) => '╭',
            (false, true, _, _, _) => '│',
            (false, false, _, true, true) => '─',
            _ => ' ',
        });
        row.push(if right { '─' } else { ' ' });
    }
    row.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph, shapes};
    use super::*;

    #[track_caller]
    fn check(steps: &[(&str, &[usize])], expected: &str) {
        let graph = graph(steps);
        let rows = lanes(&graph, 40).expect("few lanes");
        let drawn: Vec<String> = rows
            .iter()
            .map(|row| match &row.step {
                Some((step, after)) => format!("{}● {:6}{}", row.before, after, graph.nodes[*step].id),
                None => row.before.clone(),
            })
            .collect();
        assert_eq!(drawn.join("\n"), expected.trim_matches('\n'), "\n{}\n", drawn.join("\n"));
    }

    #[test]
    fn a_chain_is_straight() {
        check(&[("a", &[]), ("b", &[0]), ("c", &[1])], "●       a\n●       b\n●       c");
    }

    #[test]
    fn a_diamond_splits_and_joins() {
        check(
            DIAMOND,
            r"
●       build
├─╮
│ ●       lint
● │     test
├─╯
●       publish",
        );
    }

    #[test]
    fn what_follows_nothing_stands_apart() {
        check(
            &[("a", &[]), ("b", &[0]), ("c", &[]), ("d", &[2])],
            "●       a\n●       b\n\n●       c\n●       d",
        );
    }

    #[test]
    fn what_is_not_needed_is_crossed_unbroken() {
        check(
            &[("a", &[]), ("b", &[]), ("c", &[]), ("d", &[0, 2]), ("e", &[1, 3])],
            r"
●       a
│ ●       b
│ │ ●       c
├─│─╯
● │     d
├─╯
●       e",
        );
    }

    #[test]
    fn a_step_that_is_needed_often_keeps_its_lane() {
        check(
            &[("a", &[]), ("b", &[0]), ("c", &[0, 1]), ("d", &[0]), ("e", &[2, 3])],
            r"
●       a
├─╮
│ ●       b
├─┤
│ ●       c
● │     d
├─╯
●       e",
        );
    }

    #[test]
    fn too_many_lanes_are_not_drawn() {
        let wide = &shapes()[4];
        assert_eq!(lanes(wide, 16), None);
        assert!(lanes(&shapes()[2], 16).is_some_and(|rows| rows.len() == 1000));
    }
}
