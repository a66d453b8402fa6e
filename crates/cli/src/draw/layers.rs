//! The order of a graph's steps, and the distance of each from the start.

use super::Graph;

/// Returns the needs of each step.
pub(crate) fn needs(graph: &Graph) -> Vec<&[usize]> {
    graph.nodes.iter().map(|node| node.needs.as_slice()).collect()
}

/// Returns the steps in an order that their needs allow, as close to the written order as possible.
pub(crate) fn order(graph: &Graph) -> Vec<usize> {
    sprag_app::layout::order(&needs(graph))
}

/// Returns the steps that need each step.
pub(crate) fn followers(graph: &Graph) -> Vec<Vec<usize>> {
    sprag_app::layout::followers(&needs(graph))
}

/// Returns the layer of each step, from 0: the number of steps before it on the longest path.
pub(crate) fn layers(graph: &Graph) -> Vec<usize> {
    sprag_app::layout::layers(&needs(graph))
}

/// Returns the steps of each layer, in the written order; `needs` lists the steps before each step.
pub(crate) fn stages(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let layers = sprag_app::layout::layers(needs);
    let mut stages = vec![Vec::new(); layers.iter().max().map_or(0, |last| last + 1)];
    layers.iter().enumerate().for_each(|(no, layer)| stages[*layer].push(no));
    stages
}
