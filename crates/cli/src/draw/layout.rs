//! The positions of the boxes and the routes of the lines in a layered picture; layers go from left to right.
//!
//! A long line passes through a place of its own in each layer between, so that it runs around boxes. The layout
//! orders the places of a layer by the positions of their neighbours, and moves them towards those as far as possible.

use super::Graph;
use super::layers::layers;

/// The most places for lines. Beyond that, long lines go straight, because they could not be told apart anyway.
const MOST_PLACES: usize = 20_000;
/// The number of rounds that order and move the places. More rounds make no visible difference.
const SORTING_ROUNDS: usize = 6;
const MOVING_ROUNDS: usize = 20;

/// Distances, in the picture's units.
pub(crate) const BOX_HEIGHT: f64 = 46.0;
const BETWEEN_BOXES: f64 = 20.0;
const BETWEEN_LINES: f64 = 10.0;
const BETWEEN_LAYERS: f64 = 56.0;

/// The positions and sizes in the picture.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The upper left corner of each box.
    pub(crate) boxes: Vec<(f64, f64)>,
    /// The lines from a step to one that needs it: the points at the borders of each layer that the line passes.
    pub(crate) lines: Vec<Vec<(f64, f64)>>,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// A place in a layer: a box, or a point that a line passes.
#[derive(Debug, Default)]
struct Cell {
    is_box: bool,
    before: Vec<usize>,
    after: Vec<usize>,
    layer: usize,
    y: f64,
}

impl Cell {
    fn height(&self) -> f64 {
        if self.is_box { BOX_HEIGHT } else { 0.0 }
    }
}

/// Returns the layout of a graph whose boxes have these widths.
pub(crate) fn layout(graph: &Graph, widths: &[f64]) -> Layout {
    let layer_of = layers(graph);
    let count = layer_of.iter().max().map_or(0, |last| last + 1);
    let edges: Vec<(usize, usize)> = graph
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(no, node)| node.needs.iter().map(move |need| (*need, no)))
        .collect();
    let extra: usize = edges.iter().map(|(from, to)| layer_of[*to] - layer_of[*from] - 1).sum();
    let mut places: Vec<Cell> =
        layer_of.iter().map(|layer| Cell { is_box: true, layer: *layer, ..Cell::default() }).collect();
    // The places that each line passes, from box to box.
    let ways: Vec<Vec<usize>> = edges
        .iter()
        .map(|(from, to)| {
            let mut way = vec![*from];
            for layer in layer_of[*from] + 1..if extra > MOST_PLACES { 0 } else { layer_of[*to] } {
                places.push(Cell { layer, ..Cell::default() });
                way.push(places.len() - 1);
            }
            way.push(*to);
            way
        })
        .collect();
    for pair in ways.iter().flat_map(|way| way.windows(2)) {
        places[pair[0]].after.push(pair[1]);
        places[pair[1]].before.push(pair[0]);
    }
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); count];
    (0..places.len()).for_each(|no| columns[places[no].layer].push(no));
    sort(&mut columns, &mut places);
    settle(&columns, &mut places);

    let lowest = places.iter().map(|place| place.y).fold(f64::INFINITY, f64::min);
    let mut lefts = Vec::with_capacity(count);
    let mut wides = vec![0.0_f64; count];
    widths.iter().zip(&layer_of).for_each(|(width, layer)| wides[*layer] = wides[*layer].max(*width));
    let mut x = 0.0;
    for wide in &wides {
        lefts.push(x);
        x += wide + BETWEEN_LAYERS;
    }
    let top = |no: usize| places[no].y - lowest;
    let boxes: Vec<(f64, f64)> = (0..graph.nodes.len()).map(|no| (lefts[layer_of[no]], top(no))).collect();
    let point = |no: usize, x: f64| (lefts[places[no].layer] + x, top(no) + places[no].height() / 2.0);
    let lines = ways.iter().map(|way| {
        let last = way.len() - 1;
        // A line leaves a narrow box straight to the end of its layer, past its wider neighbours.
        let mut points = vec![point(way[0], widths[way[0]])];
        for (at, no) in way.iter().enumerate() {
            points.extend((at > 0).then(|| point(*no, 0.0)));
            points.extend((at < last).then(|| point(*no, wides[places[*no].layer])));
        }
        points
    });
    let lines = lines.collect();
    let height = (0..places.len()).map(|no| top(no) + places[no].height()).fold(0.0, f64::max);
    Layout { boxes, lines, width: (x - BETWEEN_LAYERS).max(0.0), height }
}

/// Orders each layer by the mean of its neighbours' ranks, forth and back.
fn sort(columns: &mut [Vec<usize>], places: &mut [Cell]) {
    let rank = |columns: &[Vec<usize>], places: &mut [Cell]| {
        for column in columns {
            column.iter().enumerate().for_each(|(rank, no)| places[*no].y = rank as f64);
        }
    };
    rank(columns, places);
    for round in 0..SORTING_ROUNDS {
        let forth = round % 2 == 0;
        let count = columns.len();
        for at in 0..count {
            let at = if forth { at } else { count - 1 - at };
            let mean = |no: usize| {
                let near = if forth { &places[no].before } else { &places[no].after };
                mean(near.iter().map(|no| places[*no].y)).unwrap_or(places[no].y)
            };
            let mut keyed: Vec<(f64, usize)> = columns[at].iter().map(|no| (mean(*no), *no)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            columns[at] = keyed.into_iter().map(|(_, no)| no).collect();
            rank(&columns[at..=at], places);
        }
    }
}

/// Moves each place towards its neighbours, as far as the places beside it allow.
fn settle(columns: &[Vec<usize>], places: &mut [Cell]) {
    for column in columns {
        let mut y = 0.0;
        for (at, no) in column.iter().enumerate() {
            if at > 0 {
                y += apart(&places[column[at - 1]], &places[*no]);
            }
            places[*no].y = y;
        }
    }
    for round in 0..MOVING_ROUNDS {
        for at in 0..columns.len() {
            let column = &columns[if round % 2 == 0 { at } else { columns.len() - 1 - at }];
            let wanted: Vec<f64> = column
                .iter()
                .map(|no| {
                    let place = &places[*no];
                    let near = place.before.iter().chain(&place.after);
                    let middle = mean(near.map(|near| places[*near].y + places[*near].height() / 2.0));
                    middle.map_or(place.y, |middle| middle - place.height() / 2.0)
                })
                .collect();
            // Both arrangements keep the distances, and so does every one between them.
            let (mut down, mut up) = (wanted.clone(), wanted);
            for at in 1..column.len() {
                down[at] = down[at].max(down[at - 1] + apart(&places[column[at - 1]], &places[column[at]]));
            }
            for at in (1..column.len()).rev() {
                up[at - 1] = up[at - 1].min(up[at] - apart(&places[column[at - 1]], &places[column[at]]));
            }
            for (at, no) in column.iter().enumerate() {
                places[*no].y = f64::midpoint(down[at], up[at]);
            }
        }
    }
}

/// Returns the distance from the top of one place to the top of the next.
fn apart(upper: &Cell, lower: &Cell) -> f64 {
    upper.height() + if upper.is_box || lower.is_box { BETWEEN_BOXES } else { BETWEEN_LINES }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph, shapes};
    use super::*;

    #[test]
    fn boxes_never_overlap_and_lines_go_forward() {
        for graph in shapes() {
            let widths = vec![100.0; graph.nodes.len()];
            let layout = layout(&graph, &widths);
            let mut boxes = layout.boxes.clone();
            boxes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            for pair in boxes.windows(2) {
                let beside = pair[1].0 >= pair[0].0 + 100.0;
                assert!(beside || pair[1].1 >= pair[0].1 + BOX_HEIGHT, "{pair:?}");
            }
            assert!(boxes.iter().all(|(x, y)| *x >= 0.0 && *y >= 0.0 && x + 100.0 <= layout.width));
            assert!(layout.lines.iter().all(|line| line.windows(2).all(|pair| pair[0].0 <= pair[1].0)));
        }
    }

    #[test]
    fn a_diamond_is_even() {
        let layout = layout(&graph(DIAMOND), &[100.0; 4]);
        let y: Vec<f64> = layout.boxes.iter().map(|(_, y)| y.round()).collect();
        assert_eq!(y, [33.0, 0.0, 66.0, 33.0]);
    }
}
