//! `sprag graph`: the steps of a file or of a run, drawn.

use std::path::Path;

use serde_json::{Value, json};
use sprag_app::{GraphStep, GraphView};

use crate::args::GraphFormat;
use crate::context::{Context, find_run};
use crate::draw::{Graph, Node, Shape, layers, mermaid, svg, text};
use crate::exit::{Exit, Failure};
use crate::show::{counted, line, shown_status_word, width};

pub(crate) fn graph(
    context: &Context,
    what: Option<&str>,
    format: Option<GraphFormat>,
) -> Result<Exit, Failure> {
    let view = match what.map(of_file).transpose()?.flatten() {
        Some(view) => view,
        None => {
            let app = context.app()?;
            GraphView::of_run_with_inner(&app, &find_run(&app, what)?)?
        }
    };
    draw(context, &view, format)
}

/// Draws a graph.
pub(super) fn draw(
    context: &Context,
    view: &GraphView,
    format: Option<GraphFormat>,
) -> Result<Exit, Failure> {
    let graph = nodes(view);
    match format {
        None if context.json => line(&as_json(view, &graph).to_string()),
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

/// Returns the graph of the pipeline that the user means: a file, or a name in `.sprag/pipelines`. None if the user
/// means a run: the id of a run has neither a dot nor a slash.
pub(super) fn of_file(what: &str) -> Result<Option<GraphView>, Failure> {
    let is_file = what.contains(['/', '.']) || Path::new(what).is_file();
    let path = if is_file { Some(what.into()) } else { super::pipelines::named(what) };
    let Some(path) = path else { return Ok(None) };
    let loaded = sprag_pipeline::load_stream(&path).map_err(|problems| super::drawn(&problems))?;
    Ok(Some(GraphView::of_pipeline(&loaded.pipeline)))
}

/// Returns the graph with its steps by their numbers and their statuses as people see them.
fn nodes(view: &GraphView) -> Graph {
    let number = |id: &String| view.steps.iter().position(|step| step.id == *id);
    let node = |step: &GraphStep| Node {
        id: step.id.clone(),
        kind: step.kind.clone(),
        needs: step.needs.iter().filter_map(number).collect(),
        rework: step.rework.as_ref().and_then(number),
        fan_out: step.fan_out.clone(),
        conditional: step.when,
        always: step.always,
        status: step.status.as_ref().map(|status| match step.not_run {
            Some(true) => "not run".to_owned(),
            _ => shown_status_word(status, step.waiting_for.as_deref()),
        }),
        sign: step.status.as_ref().map(|status| match step.not_run {
            Some(true) => "not run".to_owned(),
            _ => status.clone(),
        }),
        attempt: step.attempt.unwrap_or(0),
        rounds: step.max_rounds.map(|most| (step.round.unwrap_or(0), most)),
    };
    let status = shown_status_word(view.status.as_deref().unwrap_or_default(), view.waiting_for.as_deref());
    Graph {
        name: view.pipeline.clone(),
        run: view.run.clone().map(|run| (run, status)),
        nodes: view.steps.iter().map(node).collect(),
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

fn as_json(view: &GraphView, graph: &Graph) -> Value {
    let mut told = json!(view);
    let steps = told["steps"].as_array_mut().into_iter().flatten();
    for (step, layer) in steps.zip(layers(graph)) {
        step["layer"] = json!(layer);
    }
    told
}
