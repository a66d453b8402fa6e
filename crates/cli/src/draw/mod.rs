//! Pictures of a graph of steps: as lanes or a list in a terminal, as Mermaid, as SVG.
//!
//! ```text
//!   Graph ─┬─ lanes ──┐
//!          ├─ layers ─┼─ text ──▶ terminal
//!          ├─ mermaid ┘
//!          └─ layers ── layout ── svg
//! ```
//!
//! Nothing here reads, prints or knows a store: a graph goes in, text comes out.

mod lanes;
mod layers;
mod mermaid;
mod svg;
mod text;

pub(crate) use layers::{layers, stages};
pub(crate) use mermaid::mermaid;
pub(crate) use svg::svg;
pub(crate) use text::{Shape, text};

/// The graph to draw: steps and their needs, without cycles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    /// The pipeline's name.
    pub(crate) name: String,
    /// The id of the run that it is drawn for, and the run's status as people see it; none for a file.
    pub(crate) run: Option<(String, String)>,
    pub(crate) nodes: Vec<Node>,
}

/// One step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub(crate) id: String,
    /// The kind of its work, in one word.
    pub(crate) kind: String,
    /// The steps that it needs, as indexes into the nodes.
    pub(crate) needs: Vec<usize>,
    /// The earlier step that a failure goes back to.
    pub(crate) rework: Option<usize>,
    /// The label of its fan-out: `matrix ×6`, `foreach`.
    pub(crate) fan_out: Option<String>,
    /// Whether it is skipped if a condition is false.
    pub(crate) conditional: bool,
    /// Whether it runs even after a failure.
    pub(crate) always: bool,
    /// Its status in the run as people see it; none for a file.
    pub(crate) status: Option<String>,
    /// The status that its sign stands for, also while it waits; none for a file.
    pub(crate) sign: Option<String>,
    /// The number of its current attempt; 0 before the first one.
    pub(crate) attempt: u32,
    /// The round of its `repeat` and the most rounds; none for other steps.
    pub(crate) rounds: Option<(u32, u32)>,
}

impl Node {
    /// Returns a few words about the step, beside its name and status.
    pub(crate) fn marks(&self) -> String {
        let mut words = vec![self.kind.clone()];
        words.extend(self.fan_out.as_ref().map(|fan_out| format!("[{fan_out}]")));
        words.extend(self.conditional.then(|| "[when]".to_owned()));
        words.extend(self.always.then(|| "[always]".to_owned()));
        words.extend(
            self.rounds.filter(|(round, _)| *round == 0).map(|(_, most)| format!("[repeat ×{most}]")),
        );
        words.join(" ")
    }

    /// Returns the round, or the attempt if there was more than one: "round 2 of 5", "attempt 3".
    pub(crate) fn tries(&self) -> Option<String> {
        match self.rounds {
            Some((round, most)) if round > 0 => Some(format!("round {round} of {most}")),
            _ => (self.attempt > 1).then(|| format!("attempt {}", self.attempt)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A graph from `(id, needs)`.
    pub(crate) fn graph(steps: &[(&str, &[usize])]) -> Graph {
        let node = |(id, needs): &(&str, &[usize])| Node {
            id: (*id).into(),
            kind: "run".into(),
            needs: needs.to_vec(),
            ..Node::default()
        };
        Graph { name: "p".into(), run: None, nodes: steps.iter().map(node).collect() }
    }

    pub(crate) const DIAMOND: &[(&str, &[usize])] =
        &[("build", &[]), ("lint", &[0]), ("test", &[0]), ("publish", &[1, 2])];

    /// Graphs of every shape, the largest of a thousand steps.
    pub(crate) fn shapes() -> Vec<Graph> {
        let mut shapes = vec![graph(&[("one", &[])]), graph(DIAMOND)];
        let named = |needs: &dyn Fn(usize) -> Vec<usize>| {
            let nodes = (0..1000).map(|no| Node {
                id: format!("step-{no}"),
                kind: "run".into(),
                needs: needs(no),
                ..Node::default()
            });
            Graph { name: "large".into(), run: None, nodes: nodes.collect() }
        };
        shapes.push(named(&|no| no.checked_sub(1).into_iter().collect()));
        shapes.push(named(&|_| Vec::new()));
        // One root, everything beside each other, one end.
        shapes.push(named(&|no| match no {
            0 => vec![],
            999 => (1..999).collect(),
            _ => vec![0],
        }));
        shapes.push(named(&|no| if no == 0 { vec![] } else { vec![(no - 1) / 2] }));
        // Every step needs all that come shortly before it, and the first.
        shapes.push(named(&|no| {
            let mut needs: Vec<usize> = (no.saturating_sub(20)..no).chain((no > 0).then_some(0)).collect();
            needs.sort_unstable();
            needs.dedup();
            needs
        }));
        // Each layer of ten needs the whole layer before.
        shapes.push(named(&|no| if no < 10 { vec![] } else { (no / 10 * 10 - 10..no / 10 * 10).collect() }));
        // Written last to first: the order of the file is not the order of the work.
        shapes.push(named(&|no| if no == 999 { vec![] } else { vec![no + 1] }));
        shapes
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "it measures real time, which no simulation replaces")]
    fn a_thousand_steps_are_drawn_in_bounded_time() {
        for graph in shapes() {
            let start = std::time::Instant::now();
            let drawn = text(&graph, Shape::Fitting, 80, crate::show::Style::plain());
            assert!(drawn.iter().all(|line| line.chars().count() <= 80), "{drawn:#?}");
            for node in &graph.nodes {
                assert!(drawn.iter().any(|line| line.contains(&node.id)), "{} is drawn", node.id);
            }
            let (mermaid, svg) = (mermaid(&graph), svg(&graph));
            assert!(mermaid.len() < 2_000_000 && svg.len() < 40_000_000, "{} {}", mermaid.len(), svg.len());
            let seconds = start.elapsed().as_secs_f64();
            println!("{} steps: {seconds:.2} s, {} bytes of SVG", graph.nodes.len(), svg.len());
            assert!(seconds < 10.0, "{seconds} s");
        }
    }
}
