//! The order of steps: resolves the names in `needs` and refuses cycles.

use std::collections::{HashMap, HashSet};

use sprag_lifecycle::StepNo;
use sprag_lifecycle::graph::{come_before, find_cycle};

use crate::diagnostic::{Problem, Report};
use crate::nearest::nearest;
use crate::source::Span;
use crate::yaml::quoted;

/// A name that the author wrote, with its position.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// A step as a node of the graph.
#[derive(Debug)]
pub(crate) struct Vertex {
    /// Absent if the author's id is invalid, which is reported elsewhere.
    pub(crate) id: Option<Named>,
    /// Absent if the author wrote no `needs`.
    pub(crate) needs: Option<Vec<Named>>,
    /// The step that a failure sends the run back to.
    pub(crate) rework: Option<Named>,
}

/// The resolved graph: each step's needs, and the step it sends the run back to.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) needs: Vec<Vec<StepNo>>,
    pub(crate) rework: Vec<Option<StepNo>>,
    /// Whether the needs form a cycle. It is reported, and no step counts as coming before another.
    pub(crate) is_circular: bool,
}

/// Resolves names. Reports unknown names, duplicates, cycles, and rework of unrelated steps.
pub(crate) fn resolve(vertices: &[Vertex], report: &mut Report) -> Graph {
    let mut numbers: HashMap<&str, StepNo> = HashMap::new();
    for (no, id) in vertices.iter().enumerate().filter_map(|(no, vertex)| Some((no, vertex.id.as_ref()?))) {
        if let Some(first) = numbers.get(id.name.as_str()) {
            let line = vertices[*first as usize]
                .id
                .as_ref()
                .map_or(0, |id| report.source.position(id.span.start).line);
            let message = format!("two steps have the id {}; the first is on line {line}", quoted(&id.name));
            report.error(Problem::at(id.span, message).help("give one of them another id"));
        } else {
            numbers.insert(&id.name, no as StepNo);
        }
    }
    let mut graph = Graph::default();
    for (no, vertex) in vertices.iter().enumerate() {
        let needs = match &vertex.needs {
            None => no.checked_sub(1).map(|before| before as StepNo).into_iter().collect(),
            Some(named) => {
                let mut needs = Vec::with_capacity(named.len());
                let mut seen = HashSet::with_capacity(named.len());
                for need in named {
                    match find(&numbers, need, "needs", vertices, report) {
                        Some(found) if !seen.insert(found) => {
                            report.warn(Problem::at(
                                need.span,
                                format!("{} is named twice", quoted(&need.name)),
                            ));
                        }
                        Some(found) => needs.push(found),
                        None => {}
                    }
                }
                needs
            }
        };
        graph.needs.push(needs);
        graph
            .rework
            .push(vertex.rework.as_ref().and_then(|to| find(&numbers, to, "reworks", vertices, report)));
    }
    match find_cycle(&graph.needs) {
        Some(circle) => {
            graph.is_circular = true;
            let circle: Vec<usize> = circle.iter().map(|no| *no as usize).collect();
            report_circle(&circle, vertices, report);
        }
        None => check_rework(&graph, vertices, report),
    }
    graph
}

fn find(
    numbers: &HashMap<&str, StepNo>,
    wanted: &Named,
    verb: &str,
    vertices: &[Vertex],
    report: &mut Report,
) -> Option<StepNo> {
    let found = numbers.get(wanted.name.as_str()).copied();
    if found.is_none() {
        let names = vertices.iter().filter_map(|vertex| Some(vertex.id.as_ref()?.name.as_str()));
        let near = if report.is_full() { None } else { nearest(&wanted.name, names) };
        let message = format!("this step {verb} {}, but there is no such step", quoted(&wanted.name));
        report.error(Problem::at(wanted.span, message).expected("the id of another step").nearest(near));
    }
    found
}

/// Reports a cycle at a need that the author wrote; other edges of the cycle may be implied by the order of steps.
fn report_circle(circle: &[usize], vertices: &[Vertex], report: &mut Report) {
    const MAX_NAMED: usize = 12;
    let id = |no: usize| vertices[no].id.as_ref().map_or("?", |id| id.name.as_str());
    let mut names: Vec<&str> = circle.iter().map(|no| id(*no)).collect();
    if names.len() > MAX_NAMED {
        names.splice(MAX_NAMED / 2..names.len() - MAX_NAMED / 2, ["…"]);
    }
    let written = circle.windows(2).find_map(|pair| {
        let needs = vertices[pair[0]].needs.as_ref()?;
        needs.iter().find(|need| need.name == id(pair[1])).map(|need| need.span)
    });
    let message = format!("the steps need each other in a cycle: {}", names.join(" → "));
    let problem = written.map_or_else(|| Problem::nowhere(&message), |span| Problem::at(span, &message));
    let implied = circle.windows(2).any(|pair| vertices[pair[0]].needs.is_none());
    report.error(if implied {
        problem.help("a step without `needs` needs the one written before it; `needs: []` needs none")
    } else {
        problem.help("remove one of these needs")
    });
}

fn check_rework(graph: &Graph, vertices: &[Vertex], report: &mut Report) {
    let reworks: Vec<(StepNo, StepNo)> =
        (0..).zip(&graph.rework).filter_map(|(no, target)| Some(((*target)?, no))).collect();
    for ((_, no), goes_back) in reworks.iter().zip(come_before(&graph.needs, &reworks)) {
        if let (false, Some(named)) = (goes_back, &vertices[*no as usize].rework) {
            let message = format!("a failure here cannot go back to {}", quoted(&named.name));
            report.error(
                Problem::at(named.span, message)
                    .expected("a step that this one needs, directly or through others"),
            );
        }
    }
}
