//! The order of steps, and the distance of each from the start.

use super::Graph;

/// Returns the steps in an order that their needs allow, as close to the written order as possible.
pub(crate) fn order(graph: &Graph) -> Vec<usize> {
    let mut open: Vec<usize> = graph.nodes.iter().map(|node| node.needs.len()).collect();
    let followers = followers(graph);
    let mut ready: std::collections::BTreeSet<usize> = (0..open.len()).filter(|no| open[*no] == 0).collect();
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
pub(crate) fn followers(graph: &Graph) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); graph.nodes.len()];
    for (no, node) in graph.nodes.iter().enumerate() {
        node.needs.iter().for_each(|need| followers[*need].push(no));
    }
    followers
}

/// Returns the layer of each step, from 0: the number of steps before it on the longest path. The steps of one layer
/// can run in parallel.
pub(crate) fn layers(graph: &Graph) -> Vec<usize> {
    let mut layers = vec![0; graph.nodes.len()];
    for no in order(graph) {
        layers[no] = graph.nodes[no].needs.iter().map(|need| layers[*need] + 1).max().unwrap_or(0);
    }
    layers
}

/// Returns the steps of each layer, in the written order; `needs` lists the steps before each step.
pub(crate) fn stages(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let node = |needs: &Vec<usize>| super::Node { needs: needs.clone(), ..super::Node::default() };
    let layers = layers(&Graph { nodes: needs.iter().map(node).collect(), ..Graph::default() });
    let mut stages = vec![Vec::new(); layers.iter().max().map_or(0, |last| last + 1)];
    layers.iter().enumerate().for_each(|(no, layer)| stages[*layer].push(no));
    stages
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DIAMOND, graph};
    use super::*;

    #[test]
    fn a_layer_comes_after_all_that_it_needs() {
        assert_eq!(layers(&graph(DIAMOND)), [0, 1, 1, 2]);
        let backwards = graph(&[("c", &[1]), ("b", &[2]), ("a", &[])]);
        assert_eq!(layers(&backwards), [2, 1, 0]);
        assert_eq!(order(&backwards), [2, 1, 0]);
    }
}
