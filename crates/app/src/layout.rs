//! The positions of the boxes and the routes of the lines in a layered picture; layers go from left to right.
//!
//! A long line passes through a place of its own in each layer between, so that it runs around boxes. The layout
//! orders the places of a layer by the positions of their neighbours, and moves them towards those as far as possible.

use std::collections::BTreeSet;

/// The most places for lines. Beyond that, long lines go straight, because they could not be told apart anyway.
const MOST_PLACES: usize = 20_000;
/// The number of rounds that order and move the places. More rounds make no visible difference.
const SORTING_ROUNDS: usize = 6;
const MOVING_ROUNDS: usize = 20;

/// The height of every box, in the picture's units, as are the distances below.
pub const BOX_HEIGHT: f64 = 46.0;
const BETWEEN_BOXES: f64 = 20.0;
const BETWEEN_LINES: f64 = 10.0;
const BETWEEN_LAYERS: f64 = 56.0;

/// The positions and sizes in the picture.
#[derive(Debug)]
pub struct Layout {
    /// The upper left corner of each box.
    pub boxes: Vec<(f64, f64)>,
    /// The steps that each line connects: the needed one, then the one that needs it.
    pub edges: Vec<(usize, usize)>,
    /// The line of each edge: the points at the borders of each layer that the line passes.
    pub lines: Vec<Vec<(f64, f64)>>,
    /// The width of the whole picture.
    pub width: f64,
    /// The height of the whole picture.
    pub height: f64,
}

/// Returns the steps in an order that their needs allow, as close to the written order as possible; `needs` lists the
/// steps before each step.
pub fn order<N: AsRef<[usize]>>(needs: &[N]) -> Vec<usize> {
    let mut open: Vec<usize> = needs.iter().map(|needs| needs.as_ref().len()).collect();
    let followers = followers(needs);
    let mut ready: BTreeSet<usize> = (0..open.len()).filter(|no| open[*no] == 0).collect();
    let mut order = Vec::with_capacity(open.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for follower in &followers[next] {
            open[*follower] -= 1;
            if open[*follower] == 0 {
                ready.insert(*follower);
            }
        }
    }
    order
}

/// Returns the steps that need each step.
pub fn followers<N: AsRef<[usize]>>(needs: &[N]) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); needs.len()];
    for (no, needs) in needs.iter().enumerate() {
        needs.as_ref().iter().for_each(|need| followers[*need].push(no));
    }
    followers
}

/// Returns the layer of each step, from 0: the number of steps before it on the longest path. The steps of one layer
/// can run in parallel.
pub fn layers<N: AsRef<[usize]>>(needs: &[N]) -> Vec<usize> {
    let mut layers = vec![0; needs.len()];
    for no in order(needs) {
        layers[no] = needs[no].as_ref().iter().map(|need| layers[*need] + 1).max().unwrap_or(0);
    }
    layers
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

/// Returns the layout of steps without cycles: `needs` lists the steps before each step, `widths` has the width of each
/// box.
pub fn layout<N: AsRef<[usize]>>(needs: &[N], widths: &[f64]) -> Layout {
    let layer_of = layers(needs);
    let count = layer_of.iter().max().map_or(0, |last| last + 1);
    let edges: Vec<(usize, usize)> = needs
        .iter()
        .enumerate()
        .flat_map(|(no, needs)| needs.as_ref().iter().map(move |need| (*need, no)))
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
    let boxes: Vec<(f64, f64)> = (0..needs.len()).map(|no| (lefts[layer_of[no]], top(no))).collect();
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
    Layout { boxes, edges, lines, width: (x - BETWEEN_LAYERS).max(0.0), height }
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
    use super::*;

    const DIAMOND: &[&[usize]] = &[&[], &[0], &[0], &[1, 2]];

    /// Graphs of several shapes, of up to a thousand steps.
    fn shapes() -> Vec<Vec<Vec<usize>>> {
        let made = |needs: &dyn Fn(usize) -> Vec<usize>| (0..1000).map(needs).collect::<Vec<_>>();
        vec![
            vec![vec![]],
            DIAMOND.iter().map(|needs| needs.to_vec()).collect(),
            made(&|no| no.checked_sub(1).into_iter().collect()),
            made(&|_| Vec::new()),
            made(&|no| match no {
                0 => vec![],
                999 => (1..999).collect(),
                _ => vec![0],
            }),
            made(&|no| if no == 0 { vec![] } else { vec![(no - 1) / 2] }),
            made(&|no| if no < 10 { vec![] } else { (no / 10 * 10 - 10..no / 10 * 10).collect() }),
            made(&|no| if no == 999 { vec![] } else { vec![no + 1] }),
        ]
    }

    #[test]
    fn boxes_never_overlap_and_lines_go_forward() {
        for needs in shapes() {
            let widths = vec![100.0; needs.len()];
            let layout = layout(&needs, &widths);
            assert_eq!(layout.edges.len(), layout.lines.len());
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
        let layout = layout(DIAMOND, &[100.0; 4]);
        let y: Vec<f64> = layout.boxes.iter().map(|(_, y)| y.round()).collect();
        assert_eq!(y, [33.0, 0.0, 66.0, 33.0]);
    }

    #[test]
    fn a_layer_comes_after_all_that_it_needs() {
        assert_eq!(layers(DIAMOND), [0, 1, 1, 2]);
        let backwards: &[&[usize]] = &[&[1], &[2], &[]];
        assert_eq!(layers(backwards), [2, 1, 0]);
        assert_eq!(order(backwards), [2, 1, 0]);
    }
}
