//! The graph of a pipeline's steps, of a file or of a run with their statuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_lifecycle::{OnFail, Policy, Repeat, RunId, StepNo, WorkKind};
use sprag_pipeline::{FanOut, FanOutItems, Kind, Pipeline, StepSpec};
use sprag_store::{Row, is_current, step_name};

use crate::App;
use crate::error::Error;
use crate::known::RunWithPlan;
use crate::layout::{BOX_HEIGHT, layout};
use crate::view::{is_not_run, round_of};

/// The most steps inside steps that a graph shows.
const MOST_INNER: usize = 300;

/// The steps of a pipeline and what they need; for a run with their statuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GraphView {
    /// The pipeline's name.
    pub pipeline: String,
    /// The run; absent for a file.
    pub run: Option<String>,
    /// The run's status; absent for a file.
    pub status: Option<String>,
    /// What the run waits for; absent if it does not wait.
    pub waiting_for: Option<String>,
    /// The steps in the order of the file, without the items of fan-outs.
    pub steps: Vec<GraphStep>,
    /// The positions of the steps in a picture; absent unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<GraphLayout>,
}

/// The positions of steps and lines in a picture; layers go from left to right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GraphLayout {
    /// The width of the picture.
    pub width: i32,
    /// The height of the picture.
    pub height: i32,
    /// The height of every box.
    pub box_height: i32,
    /// The box of each step, in the order of the steps: its left edge, its upper edge and its width.
    pub boxes: Vec<[i32; 3]>,
    /// The needs: the position in `steps` of the needed step, then of the one that needs it.
    pub edges: Vec<[u32; 2]>,
    /// The line of each edge: the x and y of each of its points, one after the other.
    pub lines: Vec<Vec<i32>>,
}

/// A step in a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GraphStep {
    /// Its id.
    pub id: String,
    /// The kind of its work, in one word, such as `run` or `gate`.
    pub kind: String,
    /// The steps that it needs.
    pub needs: Vec<String>,
    /// The earlier step to which a failure goes back.
    pub rework: Option<String>,
    /// A label of its fan-out, such as `matrix ×6`.
    pub fan_out: Option<String>,
    /// Whether it has a condition.
    pub when: bool,
    /// Whether it runs even after a failure.
    pub always: bool,
    /// Its status; absent for a file.
    pub status: Option<String>,
    /// What it waits for; absent if it does not wait.
    pub waiting_for: Option<String>,
    /// Whether it was cancelled before it began; absent for a file.
    pub not_run: Option<bool>,
    /// The number of its current attempt; absent for a file.
    pub attempt: Option<u32>,
    /// The round of its `repeat`; absent for a file, and for a step that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// The most rounds of its `repeat`; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// The number of failed items, if it is a fan-out of which some have failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_items: Option<u32>,
}

impl GraphView {
    /// Returns the graph of a pipeline.
    pub fn of_pipeline(pipeline: &Pipeline) -> GraphView {
        let ids: Vec<&str> = pipeline.steps.iter().map(|step| step.id.as_str()).collect();
        let steps = pipeline.steps.iter();
        let steps = steps
            .map(|step| graph_step(&step.id, &ids, &step.needs, &step.policy, step.repeat, Some(&step.spec)));
        let name = pipeline.name.clone();
        GraphView {
            pipeline: name,
            run: None,
            status: None,
            waiting_for: None,
            steps: steps.collect(),
            layout: None,
        }
    }

    /// Returns the graph of a run.
    pub fn of_run(app: &App, known: &RunWithPlan) -> Result<GraphView, Error> {
        let rows = app.steps(known.id())?;
        let waits = app.waiting_for(&known.run)?;
        let ids: Vec<&str> = known.plan.steps.iter().map(|step| step.id.as_str()).collect();
        let planned = known.plan.steps.iter().map(|step| {
            let spec: Option<StepSpec> = serde_json::from_str(&step.spec).ok();
            graph_step(&step.id, &ids, &step.needs, &step.policy, step.repeat, spec.as_ref())
        });
        let mut steps: Vec<GraphStep> = planned.collect();
        for row in rows.iter().filter(|row| row.item_of.is_none()) {
            let Some(step) = steps.get_mut(row.no as usize) else { continue };
            // Shows the progress of each fan-out whose items exist.
            if let (Some(fan_out), Some(list)) = (step.fan_out.as_mut(), row.items) {
                let word = fan_out.split(' ').next().unwrap_or_default();
                *fan_out = format!("{word} {}/{}", list.items.settled, list.items.total);
                step.failed_items = Some(list.items.failed).filter(|failed| *failed > 0);
            }
            step.status = Some(row.status().to_string());
            step.waiting_for = waits.steps.get(&row.no).map(|wait| wait.as_str().to_owned());
            step.not_run = Some(is_not_run(row));
            step.attempt = Some(row.attempt);
            step.round = round_of(&known.plan, row).map(|(round, _)| round);
        }
        Ok(GraphView {
            pipeline: known.plan.name.clone(),
            run: Some(known.id().to_string()),
            status: Some(known.run.status().to_string()),
            waiting_for: waits.run.map(|wait| wait.as_str().to_owned()),
            steps,
            layout: None,
        })
    }

    /// Returns the graph of a run with the steps inside its steps, under their whole names such as `each[0].build`. Those
    /// without needs are drawn below the step that they are inside of.
    pub fn of_run_with_inner(app: &App, known: &RunWithPlan) -> Result<GraphView, Error> {
        let mut view = GraphView::of_run(app, known)?;
        let mut room = MOST_INNER;
        view.steps = with_inner(app, known, view.steps, "", &mut room)?;
        Ok(view)
    }

    /// Adds the positions of the steps in a picture.
    pub fn laid_out(mut self) -> GraphView {
        /// The width of a character of a name, and of what a box has beside it.
        const CHARACTER: f64 = 8.4;
        const BESIDE: f64 = 44.0;
        const WIDEST_NAME: usize = 28;
        const NARROWEST_NAME: usize = 14;
        let numbers: BTreeMap<&str, usize> =
            self.steps.iter().enumerate().map(|(no, step)| (step.id.as_str(), no)).collect();
        let number = |id: &String| numbers.get(id.as_str()).copied();
        let needs: Vec<Vec<usize>> =
            self.steps.iter().map(|step| step.needs.iter().filter_map(number).collect()).collect();
        let width = |step: &GraphStep| {
            let name = step.id.chars().count();
            let marks = step.kind.len() + step.fan_out.as_ref().map_or(0, |label| label.chars().count() + 3);
            name.max(marks).clamp(NARROWEST_NAME, WIDEST_NAME) as f64 * CHARACTER + BESIDE
        };
        let widths: Vec<f64> = self.steps.iter().map(width).collect();
        let found = layout(&needs, &widths);
        let whole = |number: f64| number.round() as i32;
        let boxes = found.boxes.iter().zip(&widths);
        self.layout = Some(GraphLayout {
            width: whole(found.width),
            height: whole(found.height),
            box_height: whole(BOX_HEIGHT),
            boxes: boxes.map(|((x, y), width)| [whole(*x), whole(*y), whole(*width)]).collect(),
            edges: found.edges.iter().map(|(from, to)| [*from as u32, *to as u32]).collect(),
            lines: found
                .lines
                .iter()
                .map(|line| line.iter().flat_map(|(x, y)| [whole(*x), whole(*y)]).collect())
                .collect(),
        });
        self
    }
}

/// Adds the steps inside the steps of a run, each after the step that it is inside of. `steps` has the planned steps of
/// the run in order, and `prefix` comes before their names.
fn with_inner(
    app: &App,
    known: &RunWithPlan,
    steps: Vec<GraphStep>,
    prefix: &str,
    room: &mut usize,
) -> Result<Vec<GraphStep>, Error> {
    let rows = app.steps(known.id())?;
    let mut all = Vec::with_capacity(steps.len());
    for (no, mut step) in steps.into_iter().enumerate() {
        step.id = format!("{prefix}{}", step.id);
        step.needs.iter_mut().for_each(|need| *need = format!("{prefix}{need}"));
        step.rework = step.rework.map(|rework| format!("{prefix}{rework}"));
        let outer = step.id.clone();
        all.push(step);
        for row in rows.iter().filter(|row| row.node() == no as StepNo && is_current(&rows, row)) {
            let is_child = known.plan.step(row.node()).work == WorkKind::Child && row.items.is_none();
            let Some(child) = row.work.filter(|_| is_child && *room > 0) else { continue };
            let inner = RunWithPlan::load(app, RunId::from_i64(child))?;
            if !inner.is_inside() {
                continue;
            }
            let name = format!("{prefix}{}.", step_name(&known.plan, row));
            let of_inner = GraphView::of_run(app, &inner)?.steps;
            *room = room.saturating_sub(of_inner.len());
            let mut inside = with_inner(app, &inner, of_inner, &name, room)?;
            let roots = inside.iter_mut().filter(|step| step.needs.is_empty());
            roots.for_each(|step| step.needs.push(outer.clone()));
            all.extend(inside);
        }
    }
    Ok(all)
}

fn graph_step(
    id: &str,
    ids: &[&str],
    needs: &[StepNo],
    policy: &Policy,
    repeat: Option<Repeat>,
    spec: Option<&StepSpec>,
) -> GraphStep {
    let name = |no: StepNo| ids.get(no as usize).map(|id| (*id).to_owned()).unwrap_or_default();
    let rework = match policy.on_fail {
        OnFail::Rework { step, .. } => Some(name(step)),
        OnFail::Fail | OnFail::Continue => None,
    };
    GraphStep {
        id: id.to_owned(),
        kind: spec.map_or("?", kind).to_owned(),
        needs: needs.iter().map(|need| name(*need)).collect(),
        rework,
        fan_out: spec.and_then(|spec| spec.fan_out.as_ref()).map(fan_out_label),
        when: spec.is_some_and(|spec| spec.when.is_some()),
        // That a service runs as long as its run goes without saying.
        always: policy.always && spec.is_none_or(|spec| spec.service.is_none()),
        status: None,
        waiting_for: None,
        not_run: None,
        attempt: None,
        round: None,
        max_rounds: repeat.map(|repeat| repeat.max),
        failed_items: None,
    }
}

/// Returns the kind of a step's work in one word, from its spec; `?` if the spec cannot be read.
pub(crate) fn kind_of(spec: &str) -> &'static str {
    serde_json::from_str::<StepSpec>(spec).map_or("?", |spec| kind(&spec))
}

fn kind(spec: &StepSpec) -> &'static str {
    match &spec.kind {
        _ if spec.service.is_some() => "service",
        Kind::Run { .. } | Kind::Exec { .. } => "run",
        Kind::Call { .. } => "call",
        Kind::Agent(_) => "agent",
        Kind::Task { .. } => "task",
        Kind::Gate { .. } => "gate",
        Kind::Wait(_) => "wait",
        Kind::Pipeline { .. } => "pipeline",
        Kind::End { .. } => "end",
        Kind::Land { .. } => "land",
    }
}

/// Returns the label of a step's fan-out, with the number of items if the file states it.
fn fan_out_label(fan_out: &FanOut) -> String {
    match (&fan_out.over, fan_out.items(&Value::Null)) {
        (FanOutItems::Matrix(_), Ok(items)) => format!("matrix ×{}", items.len()),
        (FanOutItems::Matrix(_), Err(_)) => "matrix".to_owned(),
        (FanOutItems::Each(Value::Array(items)), _) => format!("foreach ×{}", items.len()),
        (FanOutItems::Each(_), _) => "foreach".to_owned(),
    }
}
