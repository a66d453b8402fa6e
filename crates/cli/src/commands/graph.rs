//! `sprag graph`: the steps of a file or of a run, drawn.

use std::path::Path;

use serde_json::{Value, json};
use sprag_app::Row;
use sprag_app::view::is_not_run;
use sprag_lifecycle::{OnFail, PlanStep, Policy, StepNo, Word};
use sprag_pipeline::{FanOutItems, Kind, StepSpec};

use crate::args::GraphFormat;
use crate::context::{Context, find_run};
use crate::draw::{Graph, Node, Shape, StoredStatus, layers, mermaid, svg, text};
use crate::exit::{Exit, Failure};
use crate::show::{counted, line, shown_status, width};

pub(crate) fn graph(
    context: &Context,
    what: Option<&str>,
    format: Option<GraphFormat>,
) -> Result<Exit, Failure> {
    let graph = match (what, what.and_then(super::pipelines::named)) {
        (Some(what), _) if is_file(what) => of_file(Path::new(what))?,
        (Some(_), Some(file)) => of_file(&file)?,
        (run, _) => of_run(context, run)?,
    };
    match format {
        None if context.json => line(&as_json(&graph).to_string()),
        Some(GraphFormat::Mermaid) => line(mermaid(&graph).trim_end()),
        Some(GraphFormat::Svg) => line(svg(&graph).trim_end()),
        None | Some(GraphFormat::Text | GraphFormat::List) => {
            let shape = if format == Some(GraphFormat::List) { Shape::List } else { Shape::Fitting };
            line(&heading(context, &graph));
            text(&graph, shape, width(), context.style).iter().for_each(|row| line(row));
        }
    }
    Ok(Exit::Ok)
}

/// Returns whether the user means a file. The id of a run has neither a dot nor a slash.
fn is_file(what: &str) -> bool {
    what.contains(['/', '.']) || Path::new(what).is_file()
}

fn of_file(path: &Path) -> Result<Graph, Failure> {
    let loaded = sprag_pipeline::load_stream(path).map_err(|problems| super::drawn(&problems))?;
    let nodes =
        loaded.pipeline.steps.iter().map(|step| node(&step.id, &step.needs, &step.policy, Some(&step.spec)));
    Ok(Graph { name: loaded.pipeline.name.clone(), run: None, stored: None, nodes: nodes.collect() })
}

fn of_run(context: &Context, run: Option<&str>) -> Result<Graph, Failure> {
    let app = context.app()?;
    let known = find_run(&app, run)?;
    let rows = app.steps(known.id())?;
    let waits = app.waiting_for(&known.run)?;
    let planned = |step: &PlanStep| {
        node(&step.id, &step.needs, &step.policy, serde_json::from_str(&step.spec).ok().as_ref())
    };
    let mut nodes: Vec<Node> = known.plan.steps.iter().map(planned).collect();
    // Shows the progress of each fan-out whose items exist.
    for row in &rows {
        let fan_out = nodes.get_mut(row.no as usize).and_then(|node| node.fan_out.as_mut());
        if let (Some(fan_out), Some(list)) = (fan_out, row.items) {
            let word = fan_out.split(' ').next().unwrap_or_default();
            *fan_out = format!("{word} {}/{}", list.items.settled, list.items.total);
        }
    }
    for row in rows.iter().filter(|row| row.item_of.is_none()) {
        if let Some(node) = nodes.get_mut(row.no as usize) {
            let (stored, waits_for) = (row.status().to_string(), waits.steps.get(&row.no).copied());
            let shown = if is_not_run(row) { "not run".to_owned() } else { shown_status(&stored, waits_for) };
            node.status = Some(shown);
            node.stored = Some(StoredStatus { status: stored, waits_for, not_run: is_not_run(row) });
            node.attempt = row.attempt;
        }
    }
    let run = Some((known.id().to_string(), shown_status(known.run.status().as_str(), waits.run)));
    let stored = Some(known.run.status().to_string());
    Ok(Graph { name: known.plan.name.clone(), run, stored, nodes })
}

fn node(id: &str, needs: &[StepNo], policy: &Policy, spec: Option<&StepSpec>) -> Node {
    let rework = match policy.on_fail {
        OnFail::Rework { step, .. } => Some(step as usize),
        OnFail::Fail | OnFail::Continue => None,
    };
    Node {
        id: id.to_owned(),
        kind: spec.map_or("?", |spec| kind(&spec.kind)).to_owned(),
        needs: needs.iter().map(|need| *need as usize).collect(),
        rework,
        fan_out: spec.and_then(|spec| spec.fan_out.as_ref()).map(|fan_out| over(&fan_out.over)),
        conditional: spec.is_some_and(|spec| spec.when.is_some()),
        always: policy.always,
        status: None,
        stored: None,
        attempt: 0,
    }
}

fn kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Run { .. } | Kind::Exec { .. } => "run",
        Kind::Call { .. } => "call",
        Kind::Task { .. } => "task",
        Kind::Gate { .. } => "gate",
        Kind::Wait(_) => "wait",
        Kind::Pipeline { .. } => "pipeline",
        Kind::Land { .. } => "land",
    }
}

/// Returns the label of a step's fan-out, with the number of items if the file states it.
fn over(over: &FanOutItems) -> String {
    match over {
        FanOutItems::Matrix(axes) => {
            let count = axes.values().fold(1usize, |count, values| count.saturating_mul(values.len()));
            format!("matrix ×{count}")
        }
        FanOutItems::Each(Value::Array(items)) => format!("foreach ×{}", items.len()),
        FanOutItems::Each(_) => "foreach".to_owned(),
    }
}

fn heading(context: &Context, graph: &Graph) -> String {
    let style = context.style;
    match &graph.run {
        Some((run, status)) => {
            format!("{}  {}  {}", style.bold(run), graph.name, style.status(status, 0))
        }
        None => {
            let steps = counted(graph.nodes.len(), "step");
            format!("{}  {}", style.bold(&graph.name), style.dim(&steps))
        }
    }
}

fn as_json(graph: &Graph) -> Value {
    let layers = layers(graph);
    let name = |no: &usize| graph.nodes[*no].id.as_str();
    let steps: Vec<Value> = graph
        .nodes
        .iter()
        .zip(layers)
        .map(|(node, layer)| {
            json!({
                "id": node.id,
                "kind": node.kind,
                "needs": node.needs.iter().map(name).collect::<Vec<_>>(),
                "layer": layer,
                "rework": node.rework.as_ref().map(name),
                "fan_out": node.fan_out,
                "when": node.conditional,
                "always": node.always,
                "status": node.stored.as_ref().map(|stored| &stored.status),
                "waiting_for": node.stored.as_ref().and_then(|stored| stored.waits_for),
                "not_run": node.stored.as_ref().map(|stored| stored.not_run),
                "attempt": node.status.as_ref().map(|_| node.attempt),
            })
        })
        .collect();
    json!({
        "pipeline": graph.name,
        "run": graph.run.as_ref().map(|(run, _)| run),
        "status": graph.stored,
        "steps": steps,
    })
}
