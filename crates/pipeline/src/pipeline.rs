//! A decoded pipeline: typed, checked, with the defaults merged into each step.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::{
    Concurrency, Condition, OnConflict, Plan, PlanAccount, PlanEnvironment, PlanFallback, PlanOutputs,
    PlanStep, Policy, Repeat, Spread, StepNo, WorkKind,
};

use crate::agent::AgentSpec;
use crate::child::Definition;
use crate::diagnostic::{Diagnostics, Problem, Report};
use crate::expression::Budget;
use crate::inline::INSIDE;
use crate::inputs::Input;
use crate::source::{Source, Span};
use crate::spec::{Kind, StepSpec};
use crate::template;
use crate::triggers::Trigger;
use crate::workplace::Workplace;
use crate::yaml::quoted;

/// The most reads of other steps' results in one plan. A step that uses the whole of `steps` reads all steps before it.
const MAX_READS: usize = 1_000_000;
/// The most steps of one account at once, unless agents.toml says otherwise.
const MAX_PARALLEL_AGENTS: u32 = 4;
/// The most characters of a run's name.
const LONGEST_RUN_NAME: usize = 128;

/// A pipeline as its author wrote it.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The name from the file, or the file's name without its extension.
    pub name: String,
    /// The author's description, for people.
    pub description: Option<String>,
    pub(crate) run_name: Option<LabelTemplate>,
    pub(crate) labels: BTreeMap<String, LabelTemplate>,
    /// The declared inputs.
    pub inputs: Vec<Input>,
    /// The declared outputs of a run with their templates; absent if the file declares none.
    pub outputs: Option<BTreeMap<String, Value>>,
    /// The concurrency limit that its runs share, if any.
    pub concurrency: Option<ConcurrencyRule>,
    /// The time after which a run is cancelled, in milliseconds; absent for no limit.
    pub timeout_ms: Option<u64>,
    /// The most steps and items that workers may have at once in one run; absent for no limit.
    pub max_parallel: Option<u32>,
    /// The environment of its runs; absent if they work in the folder where they are started.
    pub workplace: Option<Workplace>,
    /// The steps in the order of the file.
    pub steps: Vec<Step>,
    /// The rules that start its runs.
    pub triggers: Vec<Trigger>,
    /// All secrets that its steps and its child pipelines use.
    pub secrets: BTreeSet<String>,
    /// All agents that its steps and its child pipelines use, and their MCP servers as `mcp.NAME`.
    pub(crate) agents: BTreeSet<String>,
    pub(crate) source: Arc<Source>,
}

/// The name or a label of a run, a template over `inputs`.
#[derive(Debug, Clone)]
pub(crate) struct LabelTemplate {
    pub(crate) text: String,
    pub(crate) span: Span,
}

/// The name and the labels that a pipeline gives its runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnLabels {
    /// The name; absent if the file has none.
    pub name: Option<String>,
    /// The labels by their keys.
    pub labels: BTreeMap<String, String>,
}

/// A step, with the pipeline's defaults merged in.
#[derive(Debug, Clone)]
pub struct Step {
    /// The id from the file, unique in the pipeline.
    pub id: String,
    /// The author's description, for people.
    pub description: Option<String>,
    /// The steps that must finish before it starts.
    pub needs: Vec<StepNo>,
    /// The number of its needs that must be done; absent if all must be met.
    pub quorum: Option<u32>,
    /// The rounds of a step that runs again after a success.
    pub repeat: Option<Repeat>,
    /// Whether all steps that need it are skipped with it.
    pub skip_rest: bool,
    /// The rules for retries, rework and failure.
    pub policy: Policy,
    /// The queue in which its executions wait for a worker.
    pub queue: String,
    /// The labels that a worker must have to claim it.
    pub labels: Vec<String>,
    /// The priority of its executions; higher ones are claimed first.
    pub priority: i32,
    /// Whether it has its own environment.
    pub own_environment: bool,
    /// The work of the step.
    pub spec: StepSpec,
}

impl Step {
    /// Returns the number of bytes that the step adds to a plan.
    pub(crate) fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(String::len).sum();
        serde_json::to_string(&self.spec).map_or(0, |spec| spec.len()) + labels + self.needs.len() * 4
    }

    /// Returns the agent that does the step's work, if one does.
    pub fn agent(&self) -> Option<&AgentSpec> {
        match &self.spec.kind {
            Kind::Agent(agent) => Some(agent),
            _ => None,
        }
    }
}

/// Returns an agent that takes over. Its account has its name until agents.toml names another one.
fn fallback(agent: &str) -> PlanFallback {
    PlanFallback { agent: agent.to_owned(), account: agent.to_owned(), max_parallel: MAX_PARALLEL_AGENTS }
}

/// A concurrency limit shared by several runs, before its group's name is rendered.
#[derive(Debug, Clone)]
pub struct ConcurrencyRule {
    /// The group's name, a template over `inputs`.
    pub group: String,
    /// The most live runs of the group.
    pub limit: u32,
    /// The treatment of a run that finds the group full.
    pub on_conflict: OnConflict,
    pub(crate) span: Span,
}

impl Pipeline {
    /// Returns the file's text, from which the hash of a run's frozen copy is computed.
    pub fn source(&self) -> &str {
        &self.source.text
    }

    /// Adds secrets for the steps to mask: those of the parent pipeline.
    pub fn with_masks(mut self, secrets: &[String]) -> Pipeline {
        self.secrets.extend(secrets.iter().cloned());
        let all: Vec<String> = self.secrets.iter().cloned().collect();
        for step in &mut self.steps {
            if matches!(
                step.spec.kind,
                Kind::Run { .. }
                    | Kind::Exec { .. }
                    | Kind::Land { .. }
                    | Kind::Pipeline { .. }
                    | Kind::Agent(_)
            ) {
                step.spec.masks.clone_from(&all);
                step.spec.agents = self.agents.iter().cloned().collect();
            }
        }
        self
    }

    /// Adds agents whose credentials the steps must not see: those of the parent pipeline.
    pub fn with_agents(mut self, agents: &[String]) -> Pipeline {
        self.agents.extend(agents.iter().cloned());
        self.with_masks(&[])
    }

    /// Returns the agents that the steps of this pipeline and of its children use, and their MCP servers as `mcp.NAME`.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.agents.iter().map(String::as_str)
    }

    /// Returns the plan of a run with these inputs. Checks them as [`Pipeline::complete`] does.
    pub fn plan(&self, inputs: &BTreeMap<String, Value>) -> Result<Plan, Diagnostics> {
        let inputs = self.complete(inputs)?;
        let mut report = Report::new(self.source.clone());
        let context = serde_json::json!({ "inputs": inputs });
        let budget = Budget::default();
        let concurrency =
            self.concurrency.as_ref().and_then(|rule| match template::text(&rule.group, &context, &budget) {
                Ok(group) => Some(Concurrency { group, limit: rule.limit, on_conflict: rule.on_conflict }),
                Err(why) => {
                    report.error(Problem::at(
                        rule.span,
                        format!("cannot render the name of the concurrency group: {why}"),
                    ));
                    None
                }
            });
        let environment = self.workplace.as_ref().and_then(|workplace| {
            let pattern = workplace.pattern(&context["inputs"]).map_err(|why| {
                report.error(Problem::nowhere(format!("cannot render the environment: {why}")));
            });
            let spec = serde_json::to_string(&pattern.ok()?).expect("a workplace is text and lists");
            Some(PlanEnvironment { spec })
        });
        // If all inputs are given, the loader's checks are sufficient.
        if inputs.len() < self.inputs.len() {
            self.check_values(&context, &mut report);
        }
        let numbers: HashMap<&str, StepNo> =
            self.steps.iter().enumerate().map(|(no, step)| (step.id.as_str(), no as StepNo)).collect();
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut reads = 0;
        for no in 0..self.steps.len() {
            let step = self.plan_step(no, &numbers);
            reads += step.reads.len();
            if reads > MAX_READS {
                let message = format!(
                    "the steps up to `{}` read the results of other steps more than {MAX_READS} times",
                    step.id
                );
                report.error(
                    Problem::nowhere(message).help("refer to a single step: steps.ID instead of steps"),
                );
                return Err(report.finish());
            }
            steps.push(step);
        }
        self.mark_skips(&mut steps);
        let plan = Plan::new(self.name.clone(), steps);
        match plan {
            Ok(mut plan) if !report.has_errors() => {
                plan.concurrency = concurrency;
                plan.timeout_ms = self.timeout_ms;
                plan.max_parallel = self.max_parallel;
                plan.environment = environment;
                plan.outputs = self.plan_outputs(&numbers);
                Ok(plan)
            }
            Ok(_) => Err(report.finish()),
            Err(why) => {
                report.error(Problem::nowhere(why.to_string()));
                Err(report.finish())
            }
        }
    }

    /// Returns the name and the labels of a run with these inputs, which must be complete.
    pub fn run_labels(&self, inputs: &BTreeMap<String, Value>) -> Result<OwnLabels, Diagnostics> {
        let mut report = Report::new(self.source.clone());
        let context = serde_json::json!({ "inputs": inputs });
        let budget = Budget::default();
        let mut render = |template: &LabelTemplate, what: &str| {
            template::text(&template.text, &context, &budget)
                .map_err(|why| {
                    let problem =
                        Problem::at(template.span, format!("{what} has no value in this run: {why}"));
                    report.error(problem.help("give the input, or use the filter `default`"));
                })
                .ok()
        };
        let name = self.run_name.as_ref().and_then(|template| render(template, "`run_name`"));
        let rendered = self
            .labels
            .iter()
            .filter_map(|(key, template)| Some((key.clone(), render(template, &format!("label `{key}`"))?)));
        let labels = rendered.collect();
        if report.has_errors() { Err(report.finish()) } else { Ok(OwnLabels { name, labels }) }
    }

    /// Reports a name that `run_name` gives a run and that no run can have.
    pub fn check_run_name(&self, name: &str) -> Result<(), Diagnostics> {
        let fits = !name.trim().is_empty()
            && name.chars().count() <= LONGEST_RUN_NAME
            && !name.chars().any(char::is_control);
        let Some(template) = self.run_name.as_ref().filter(|_| !fits) else { return Ok(()) };
        let mut report = Report::new(self.source.clone());
        let message = format!("`run_name` gives this run the name {}", quoted(name));
        report.error(
            Problem::at(template.span, message)
                .expected(format!("1 to {LONGEST_RUN_NAME} characters, without control characters"))
                .help("change the input that it uses, or start the run with a name of its own"),
        );
        Err(report.finish())
    }

    /// Returns the declared outputs as a plan has them.
    fn plan_outputs(&self, numbers: &HashMap<&str, StepNo>) -> Option<PlanOutputs> {
        let outputs = self.outputs.as_ref()?;
        let mut names = Vec::new();
        outputs.values().for_each(|value| names_in(value, &mut names));
        let mut reads = BTreeSet::new();
        for name in &names {
            let mut parts = name.split('.');
            if parts.next() != Some("steps") {
                continue;
            }
            match parts.next().and_then(|id| numbers.get(id)) {
                Some(found) => drop(reads.insert(*found)),
                None => reads.extend(numbers.values().copied()),
            }
        }
        let spec = serde_json::to_string(outputs).expect("outputs are JSON");
        Some(PlanOutputs { spec, reads: reads.into_iter().collect() })
    }

    /// Returns the child pipelines that its steps refer to, by the path as written in the file.
    pub(crate) fn children(&self) -> impl Iterator<Item = (String, Definition)> {
        self.steps.iter().flat_map(|step| match &step.spec.kind {
            // The text of steps inside a step is in the text around it.
            Kind::Pipeline { file, definition, .. } if file == INSIDE => {
                definition.children.clone().into_iter().collect()
            }
            Kind::Pipeline { files, .. } if !files.is_empty() => {
                files.clone().into_iter().collect::<Vec<_>>()
            }
            Kind::Pipeline { file, definition, .. } => vec![(file.clone(), (**definition).clone())],
            _ => Vec::new(),
        })
    }

    /// Returns the texts of the prompt files that the steps use, by the paths as written.
    pub(crate) fn prompts(&self) -> impl Iterator<Item = (String, String)> {
        self.steps.iter().flat_map(|step| match &step.spec.kind {
            Kind::Agent(agent) => {
                agent.prompt_file.clone().map(|file| (file, agent.prompt.clone())).into_iter().collect()
            }
            Kind::Pipeline { file, definition, .. } if file == INSIDE => {
                definition.prompts.clone().into_iter().collect()
            }
            _ => Vec::new(),
        })
    }

    fn plan_step(&self, no: usize, numbers: &HashMap<&str, StepNo>) -> PlanStep {
        let step = &self.steps[no];
        let spec =
            serde_json::to_string(&step.spec).expect("a spec is text, numbers and maps with text keys");
        let has_condition = step.spec.when.is_some() || step.spec.repeat.is_some();
        let names = if spec.contains("steps") || has_condition { step.spec.names() } else { Vec::new() };
        let when = step.spec.when.as_deref().map(template::reads_item);
        let mut planned = PlanStep::new(step.id.clone(), step.needs.clone());
        planned.policy = step.policy.clone();
        planned.queue = step.queue.clone();
        planned.labels = step.labels.clone();
        planned.priority = step.priority;
        planned.work = match &step.spec.kind {
            Kind::Run { .. } | Kind::Exec { .. } | Kind::Call { .. } | Kind::Agent(_) | Kind::Land { .. } => {
                WorkKind::Execution
            }
            Kind::Task { .. } => WorkKind::Task,
            Kind::Gate { .. } => WorkKind::Gate,
            Kind::Wait(_) => WorkKind::Wait,
            Kind::Pipeline { .. } => WorkKind::Child,
            Kind::End { .. } => WorkKind::End,
        };
        planned.condition = match (when, &step.spec.fan_out) {
            (None, _) => Condition::None,
            (Some(true), Some(_)) => Condition::Item,
            (Some(_), _) => Condition::Step,
        };
        planned.spread = step.spec.fan_out.as_ref().map(|fan_out| Spread {
            max_parallel: fan_out.max_parallel,
            fail_fast: fan_out.fail_fast,
            open: false,
        });
        planned.own_environment = step.own_environment;
        planned.service = step.spec.service.is_some();
        planned.account = step.agent().map(|agent| PlanAccount {
            name: agent.agent.clone(),
            max_parallel: MAX_PARALLEL_AGENTS,
            longest_wait_ms: agent.limit_wait_ms,
            fallbacks: agent.fallback.iter().map(|agent| fallback(agent)).collect(),
        });
        planned.quorum = step.quorum;
        planned.repeat = step.repeat;
        planned.reads = self.reads(no, &names, numbers);
        planned.spec = spec;
        planned
    }

    /// Notes at each step the earlier ones that it is skipped with. Needs may refer to later steps of the file.
    fn mark_skips(&self, steps: &mut [PlanStep]) {
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.steps.len()];
        for (no, step) in self.steps.iter().enumerate() {
            step.needs.iter().for_each(|need| dependents[*need as usize].push(no));
        }
        for (no, _) in self.steps.iter().enumerate().filter(|(_, step)| step.skip_rest) {
            let mut found = BTreeSet::new();
            let mut todo = vec![no];
            while let Some(next) = todo.pop() {
                todo.extend(dependents[next].iter().filter(|dependent| found.insert(**dependent)));
            }
            found.into_iter().for_each(|dependent| steps[dependent].skipped_with.push(no as StepNo));
        }
    }

    /// Returns the steps that these names refer to, or all steps before this one if a name refers to `steps` as a
    /// whole.
    fn reads(&self, no: usize, names: &[String], numbers: &HashMap<&str, StepNo>) -> Vec<StepNo> {
        let mut reads = BTreeSet::new();
        for name in names {
            let mut parts = name.split('.');
            if parts.next() != Some("steps") {
                continue;
            }
            match parts.next().and_then(|id| numbers.get(id)) {
                Some(found) => drop(reads.insert(*found)),
                None => reads.extend(self.before(no)),
            }
        }
        reads.into_iter().collect()
    }

    /// Returns all steps that come before this one.
    fn before(&self, no: usize) -> BTreeSet<StepNo> {
        let mut found = BTreeSet::new();
        let mut todo = vec![no];
        while let Some(next) = todo.pop() {
            todo.extend(
                self.steps[next].needs.iter().filter(|need| found.insert(**need)).map(|need| *need as usize),
            );
        }
        found
    }

    /// Reports templates that have no value because an input is missing, before any step has run.
    fn check_values(&self, context: &Value, report: &mut Report) {
        let budget = Budget::default();
        for step in &self.steps {
            for expression in step.spec.expressions() {
                let names = template::names(&expression);
                let of_inputs =
                    !names.is_empty() && names.iter().all(|name| name.split('.').next() == Some("inputs"));
                if let Some(why) =
                    of_inputs.then(|| template::evaluate(&expression, context, &budget).err()).flatten()
                {
                    let message = format!(
                        "step `{}` uses `{{{{ {expression} }}}}`, which has no value in this run: {why}",
                        step.id
                    );
                    report
                        .error(Problem::nowhere(message).help("give the input, or use the filter `default`"));
                }
            }
        }
    }
}

/// Adds the names that the templates in a value use.
fn names_in(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            let pieces = template::split(text).unwrap_or_default();
            names.extend(pieces.iter().flat_map(|piece| match piece {
                template::Piece::Value(expression) => template::names(expression),
                template::Piece::Literal(_) => Vec::new(),
            }));
        }
        Value::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        Value::Object(entries) => entries.values().for_each(|value| names_in(value, names)),
        _ => {}
    }
}
