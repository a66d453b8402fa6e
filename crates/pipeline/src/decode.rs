//! Decodes a checked tree into a typed pipeline. Continues after an error, so that all errors are reported at once.
//!
//! [`Form::check`] has already reported every value of the wrong form; this module skips such values.

use std::collections::BTreeMap;

use sprag_lifecycle::{Backoff, Growth, OnConflict, OnFail, Policy};

use crate::agent::{self, AgentSpec};
use crate::diagnostic::{Problem, Report};
use crate::duration;
use crate::expand;
use crate::form::Form;
use crate::gate;
use crate::graph::{self, Graph, Named, Vertex};
use crate::inputs::Input;
use crate::kinds;
use crate::language::PIPELINE;
use crate::names::{self, Scope, StepNames, TemplateRole, Uses};
use crate::parts;
use crate::pipeline::{ConcurrencyRule, LabelTemplate, Pipeline, Step};
use crate::sandbox;
use crate::secret::{self, SecretSource};
use crate::services;
use crate::spec::StepSpec;
use crate::triggers;
use crate::warnings;
use crate::workplace;
use crate::yaml::{Node, Scalar, Yaml};

/// Ten times the largest known pipeline. The checks of a graph take more than linear time.
const MAX_STEPS: usize = 10_000;
/// Limit in bytes on all steps together, each including what it takes from the pipeline: variables, defaults, child
/// pipelines, secrets.
const MAX_PLAN_BYTES: usize = 16 << 20;
/// The most steps that take later ones along when they are skipped. Each later step notes all of them.
const MAX_SKIPS: usize = 100;
const DEFAULT_QUEUE: &str = "default";
/// The default queue of tasks for agents and people.
const TASKS_QUEUE: &str = "tasks";

/// Decodes the tree into a pipeline. Reports errors and returns `None` if there are any.
pub(crate) fn decode(root: &Node, default_name: &str, report: &mut Report) -> Option<Pipeline> {
    Form::Record(&PIPELINE).check(root, "a pipeline file", report);
    decode_checked(root, default_name, report)
}

/// Decodes a tree whose form is checked: a file's, or that of the steps inside a step.
pub(crate) fn decode_checked(root: &Node, default_name: &str, report: &mut Report) -> Option<Pipeline> {
    let expanded = expand::expand(root, report);
    let root = expanded.as_ref().map_or(root, |expanded| &expanded.root);
    let name = root.get("name").and_then(Node::text).unwrap_or(default_name);
    let declared = root.get("inputs").map(Node::entries).unwrap_or_default();
    let inputs: Vec<Input> =
        declared.iter().map(|(key, node)| Input::decode(&key.text, key.span, node, report)).collect();
    let triggers = triggers::decode::triggers(root, &inputs, report);
    let mut uses = Uses::default();
    let run_name = root.get("run_name").and_then(|node| label(node, &mut uses));
    let labels = root.get("labels").map(Node::entries).unwrap_or_default();
    let labels: BTreeMap<String, LabelTemplate> =
        labels.iter().filter_map(|(key, node)| Some((key.text.clone(), label(node, &mut uses)?))).collect();
    let outputs = root.get("outputs").map(|node| {
        node.entries().iter().for_each(|(_, value)| uses.add(value, TemplateRole::Output));
        node.entries().iter().map(|(key, value)| (key.text.clone(), value.json())).collect()
    });
    let concurrency = root.get("concurrency").and_then(|node| concurrency(node, &mut uses));
    let workplace = root.get("environment").and_then(|node| workplace::decode(node, &mut uses, report));
    let dotenv = root.get("dotenv");
    for file in dotenv.map(|files| files.items().iter().chain([files])).into_iter().flatten() {
        if file.text().is_some_and(|path| path.contains("{{")) {
            let problem = Problem::at(file.span, "a path in `dotenv` cannot contain templates");
            report.error(problem.help("write the path out, or set the variables with `env`"));
        }
    }
    let common = Common {
        defaults: root.get("defaults"),
        env: root.get("env"),
        inherit: texts(root.get("inherit")),
        inherit_node: root.get("inherit"),
        dotenv_node: dotenv,
        dotenv: match dotenv.and_then(Node::text) {
            Some(file) => vec![file.to_owned()],
            None => texts(dotenv),
        },
        sandbox: root.get("sandbox"),
        secrets_node: root.get("secrets"),
        sources: secret::sources(root.get("secrets"), report),
        secret_inputs: inputs.iter().filter(|input| input.secret).map(|input| input.name.clone()).collect(),
    };
    if let Some(env) = common.env {
        env.entries().iter().for_each(|(_, value)| uses.add(value, TemplateRole::Variable));
    }
    let written = root.get("steps").map(Node::items).unwrap_or_default();
    if let (Some(steps), true) = (root.get("steps"), written.len() > MAX_STEPS) {
        let message = format!("{} steps are more than a pipeline may have, {MAX_STEPS}", written.len());
        report.error(Problem::at(steps.span, message).help("split it into several pipelines"));
        return None;
    }
    let skips = written.iter().filter_map(|step| step.get("when")?.get("else"));
    if let Some(node) = skips.filter(|node| node.text() == Some("skip_rest")).nth(MAX_SKIPS) {
        let message = format!("more than {MAX_SKIPS} steps with `skip_rest`");
        report.error(Problem::at(node.span, message).help("use `when` on the later steps"));
    }
    let vertices: Vec<Vertex> = written.iter().map(vertex).collect();
    let graph = graph::resolve(&vertices, report);
    let known: Vec<StepNames<'_>> =
        written.iter().zip(&vertices).map(|(node, vertex)| StepNames::of(node, vertex)).collect();
    let outer = report.outer.clone();
    let names = inputs.iter().map(|input| input.name.clone());
    let has_worktree = root.get("environment").is_some_and(|node| node.get("worktree").is_some());
    report.own = outer.clone().unwrap_or_default().with(names, &known, has_worktree);
    let mut steps = Vec::with_capacity(written.len());
    let mut plan_bytes = 0;
    for (no, node) in written.iter().enumerate() {
        uses.step = Some(no);
        let step = step(node, &vertices[no], &graph, no, &common, &mut uses, report);
        plan_bytes += step.as_ref().map_or(0, Step::bytes);
        if plan_bytes > MAX_PLAN_BYTES {
            report.error(too_large(node));
            return None;
        }
        steps.extend(step);
    }
    let ids: Vec<Option<&str>> =
        vertices.iter().map(|vertex| vertex.id.as_ref().map(|id| id.name.as_str())).collect();
    services::join_steps(&mut steps, written, report);
    services::check_ports(root, report);
    gate::check_routes(written, &graph, &ids, report);
    if !report.has_errors() {
        expanded.iter().for_each(|expanded| expanded.add_conditions(&mut steps));
        gate::add_routes(&mut steps);
    }
    let scope = Scope { inputs: &inputs, steps: &known, graph: &graph, outer: outer.as_ref() };
    names::check(&uses, &scope, report);
    agent::check(written, &vertices, &graph, report);
    if !report.has_errors() {
        warnings::check(root, &vertices, &graph, report);
    }
    let secrets_bytes: usize = report.child_secrets.iter().map(String::len).sum();
    let own_bytes: usize = steps.iter().flat_map(|step| &step.spec.secrets).map(String::len).sum();
    if let (Some(last), true) =
        (written.last(), (secrets_bytes + own_bytes).saturating_mul(steps.len()) > MAX_PLAN_BYTES)
    {
        report.error(too_large(last));
    }
    let own = steps.iter().flat_map(|step| step.spec.secrets.iter().cloned());
    let secrets = own.chain(std::mem::take(&mut report.child_secrets)).collect();
    let own = steps.iter().filter_map(Step::agent).flat_map(AgentSpec::names);
    let agents = own.chain(std::mem::take(&mut report.child_agents)).collect();
    let pipeline = Pipeline {
        name: name.to_owned(),
        description: root.get("description").and_then(Node::text).map(str::to_owned),
        run_name,
        labels,
        inputs,
        outputs,
        concurrency,
        timeout_ms: root.get("timeout").and_then(duration_ms),
        max_parallel: root.get("max_parallel").and_then(Node::integer).map(|n| n as u32),
        workplace,
        steps,
        triggers,
        secrets,
        agents,
        source: report.source.clone(),
    };
    (!report.has_errors()).then(|| pipeline.with_masks(&[]))
}

fn too_large(step: &Node) -> Problem {
    let most = MAX_PLAN_BYTES >> 20;
    let message = format!(
        "the steps up to here, with the defaults and variables they share, have more than {most} MiB"
    );
    Problem::at(step.span, message)
        .help("move long variables, scripts and prompts to separate files, or split the pipeline")
}

/// Decodes one step, or returns `None` if it cannot be decoded.
fn step<'n>(
    node: &'n Node,
    vertex: &Vertex,
    graph: &Graph,
    no: usize,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Step> {
    let kind = kinds::kind(node, common, uses, report);
    let inner = |key: &str| node.get("task")?.get(key);
    let (repeat, condition) = parts::repeat(node, uses, report).unzip();
    let spec = StepSpec {
        env: common.env(node, uses),
        dir: common.dir(node, uses),
        timeout_ms: timeout(node, common).and_then(duration_ms),
        service: services::decode(node, common, uses, report),
        sources: {
            let own = texts(node.get("secrets")).into_iter();
            own.filter_map(|name| common.sources.get(&name).map(|source| (name, source.clone()))).collect()
        },
        secret_inputs: if is_for_workers(node) { common.secret_inputs.clone() } else { Vec::new() },
        secrets: texts(node.get("secrets")),
        inherit: if is_process(node) { common.inherit.clone() } else { Vec::new() },
        when: parts::when(node, uses),
        outputs: parts::outputs(node, uses, report),
        checks: parts::checks(node, common, uses, report),
        warns: parts::warns(node),
        dotenv: if is_process(node) { common.dotenv.clone() } else { Vec::new() },
        fan_out: parts::fan_out(node, uses, report),
        cache: parts::cache(node, uses, report),
        repeat: condition,
        sandbox: if is_process(node) { sandbox::decode(node.get("sandbox"), common.sandbox) } else { None },
        retry_here: match node.get("retry").and_then(|retry| retry.get("from")).and_then(Node::text) {
            Some(from) => from == "here",
            // A retry continues the agent's session, which knows the files as the last attempt left them.
            None => node.get("agent").is_some(),
        },
        ..StepSpec::new(kind?)
    };
    let is_task = node.get("task").is_some();
    let queue = if is_task {
        // The shared defaults are for commands; agents and people who claim tasks use other queues.
        inner("queue").or_else(|| node.get("queue"))
    } else {
        common.get(node, "queue")
    };
    let default_queue = if is_task { TASKS_QUEUE } else { DEFAULT_QUEUE };
    let timeout_ms = spec.timeout_ms;
    let policy = if spec.service.is_some() {
        services::policy(node, policy(node, None, None, report))
    } else {
        Policy { timeout_ms, ..policy(node, common.defaults, graph.rework[no], report) }
    };
    Some(Step {
        id: vertex.id.as_ref()?.name.clone(),
        description: node.get("description").and_then(Node::text).map(str::to_owned),
        needs: graph.needs[no].clone(),
        quorum: parts::quorum(node, report),
        repeat,
        skip_rest: parts::skip_rest(node, report),
        policy,
        queue: queue.and_then(Node::text).unwrap_or(default_queue).to_owned(),
        // Agents and people that claim tasks or answer gates have no labels.
        labels: if is_for_workers(node) { texts(common.get(node, "labels")) } else { Vec::new() },
        own_environment: node.get("environment").is_some(),
        priority: common.get(node, "priority").and_then(Node::integer).unwrap_or(0) as i32,
        spec,
    })
}

/// Returns the timeout that applies to a step. Gates and waits have their own and ignore the shared default. Services run
/// as long as their run.
fn timeout<'n>(node: &'n Node, common: &Common<'n>) -> Option<&'n Node> {
    if services::is_service(node) {
        return None;
    }
    match ["gate", "wait"].iter().find_map(|kind| node.get(kind)) {
        Some(outside) => outside.get("timeout"),
        None => common.get(node, "timeout"),
    }
}

/// The defaults and variables that all steps share.
pub(crate) struct Common<'n> {
    defaults: Option<&'n Node>,
    env: Option<&'n Node>,
    inherit: Vec<String>,
    inherit_node: Option<&'n Node>,
    dotenv: Vec<String>,
    dotenv_node: Option<&'n Node>,
    sandbox: Option<&'n Node>,
    secrets_node: Option<&'n Node>,
    sources: BTreeMap<String, SecretSource>,
    secret_inputs: Vec<String>,
}

impl<'n> Common<'n> {
    /// Returns the keys of a pipeline that steps inside a step share with those around it.
    pub(crate) fn shared(&self) -> Vec<(&'static str, &'n Node)> {
        let all = [
            ("defaults", self.defaults),
            ("env", self.env),
            ("inherit", self.inherit_node),
            ("dotenv", self.dotenv_node),
            ("sandbox", self.sandbox),
            ("secrets", self.secrets_node),
        ];
        all.into_iter().filter_map(|(key, node)| Some((key, node?))).collect()
    }

    /// Returns the step's own value, or the default.
    pub(crate) fn get(&self, step: &'n Node, key: &str) -> Option<&'n Node> {
        step.get(key).or_else(|| self.defaults?.get(key))
    }

    fn dir(&self, step: &'n Node, uses: &mut Uses<'n>) -> Option<String> {
        let dir = self.get(step, "dir").filter(|_| is_process(step))?;
        uses.add(dir, TemplateRole::Text);
        dir.text().map(str::to_owned)
    }

    fn env(&self, step: &'n Node, uses: &mut Uses<'n>) -> BTreeMap<String, String> {
        if !is_process(step) {
            return BTreeMap::new();
        }
        let own = step.get("env").map(Node::entries).unwrap_or_default();
        own.iter().for_each(|(_, value)| uses.add(value, TemplateRole::Variable));
        let all = self.env.map(Node::entries).unwrap_or_default().iter().chain(own);
        all.filter_map(|(key, value)| match &value.yaml {
            Yaml::Scalar(Scalar { text, .. }) => Some((key.text.clone(), text.clone())),
            _ => None,
        })
        .collect()
    }
}

/// Returns whether the step starts a process. Other steps have no directory and no variables, not even those of the
/// pipeline.
fn is_process(step: &Node) -> bool {
    ["run", "land", "agent"].iter().any(|kind| step.get(kind).is_some())
}

/// Returns whether a Sprag worker executes the step.
fn is_for_workers(step: &Node) -> bool {
    is_process(step) || step.get("call").is_some()
}

pub(crate) fn duration_ms(node: &Node) -> Option<u64> {
    node.text().and_then(|text| duration::parse_ms(text).ok())
}

/// Returns the texts in a list of scalars.
pub(crate) fn texts(list: Option<&Node>) -> Vec<String> {
    let items = list.map(Node::items).unwrap_or_default();
    items.iter().filter_map(Node::text).map(str::to_owned).collect()
}

fn named(node: &Node) -> Option<Named> {
    node.text().map(|name| Named { name: name.to_owned(), span: node.span })
}

fn vertex(step: &Node) -> Vertex {
    let needs =
        step.get("needs").map(|node| match (node.text(), node.get("any").or_else(|| node.get("of"))) {
            (Some(_), _) => named(node).into_iter().collect(),
            (None, Some(some)) => some.items().iter().filter_map(named).collect(),
            (None, None) => node.items().iter().filter_map(named).collect(),
        });
    let rework = step.get("on_fail").and_then(|node| node.get("rework")).and_then(named);
    Vertex { id: step.get("id").and_then(named), needs, rework }
}

fn policy(step: &Node, defaults: Option<&Node>, rework: Option<u32>, report: &mut Report) -> Policy {
    let own = step.get("retry");
    let common = defaults.and_then(|defaults| defaults.get("retry"));
    let retry = |key: &str| own.and_then(|retry| retry.get(key)).or_else(|| common?.get(key));
    // A value that is not a map has been reported.
    let is_map = |own: &&Node| matches!(own.yaml, Yaml::Map(_));
    if let Some(own) = own.filter(is_map).filter(|_| retry("attempts").is_none()) {
        let problem = Problem::at(own.span, "`retry` without `attempts` tries once");
        report.warn(problem.help("add `attempts: 3`, or remove `retry`"));
    }
    let flag = |key: &str| step.get(key).and_then(Node::boolean).unwrap_or(false);
    let integer = |node: Option<&Node>| node.and_then(Node::integer);
    let on_fail = match (step.get("on_fail"), rework) {
        (Some(node), _) if node.text() == Some("continue") => OnFail::Continue,
        (Some(node), Some(step)) => {
            OnFail::Rework { step, max: integer(node.get("max")).unwrap_or(1) as u32 }
        }
        _ => OnFail::Fail,
    };
    let then = step.get("on_fail").and_then(|node| node.get("then"));
    Policy {
        // A gate after the last rework decides in the place of the step.
        then_continue: then.is_some_and(|then| then.text() == Some("continue") || then.get("gate").is_some()),
        attempts: integer(retry("attempts")).unwrap_or(1) as u32,
        backoff: Backoff {
            growth: match retry("backoff").and_then(Node::text) {
                Some("linear") => Growth::Linear,
                Some("exponential") => Growth::Exponential,
                _ => Growth::Fixed,
            },
            delay_ms: retry("delay").and_then(duration_ms).unwrap_or(0),
            max_delay_ms: retry("max_delay").and_then(duration_ms).unwrap_or(0),
            jitter_percent: integer(retry("jitter")).unwrap_or(0) as u8,
        },
        on_fail,
        always: flag("always"),
        at_most_once: flag("at_most_once"),
        retry_exit_codes: retry("exit_codes")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .filter_map(|code| integer(Some(code)))
            .map(|code| code as i32)
            .collect(),
        ..Policy::default()
    }
}

/// Decodes the name or a label of a run.
fn label<'n>(node: &'n Node, uses: &mut Uses<'n>) -> Option<LabelTemplate> {
    uses.add(node, TemplateRole::Group);
    match &node.yaml {
        Yaml::Scalar(Scalar { text, .. }) => Some(LabelTemplate { text: text.clone(), span: node.span }),
        _ => None,
    }
}

fn concurrency<'n>(node: &'n Node, uses: &mut Uses<'n>) -> Option<ConcurrencyRule> {
    let group = node.get("group").filter(|group| group.text().is_some())?;
    uses.add(group, TemplateRole::Group);
    let on_conflict = match node.get("on_conflict").and_then(Node::text) {
        Some("reject") => OnConflict::Reject,
        Some("cancel_older") => OnConflict::CancelOlder,
        _ => OnConflict::Queue,
    };
    let limit = node.get("limit").and_then(Node::integer).unwrap_or(1) as u32;
    Some(ConcurrencyRule { group: group.text()?.to_owned(), limit, on_conflict, span: group.span })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use crate::parse;

    #[test]
    fn a_path_in_dotenv_is_no_template() {
        for files in ["'{{ inputs.x }}.env'", "[a.env, '{{ inputs.x }}.env']"] {
            let text =
                format!("inputs: {{ x: {{ default: a }} }}\ndotenv: {files}\nsteps: [{{ id: a, run: x }}]\n");
            let wrong = parse("p.yaml", &text).expect_err(files).to_string();
            assert!(wrong.contains("a path in `dotenv` cannot contain templates"), "{wrong}");
            assert!(wrong.contains("p.yaml:2:"), "{wrong}");
        }
    }

    #[test]
    fn conditions_are_yaml_booleans_or_expressions_without_braces() {
        for (when, condition) in
            [("true", "true"), ("False", "false"), ("{ if: false, else: skip_rest }", "false")]
        {
            let text = format!("steps: [{{ id: a, run: x, when: {when} }}]\n");
            let loaded = parse("p.yaml", &text).unwrap_or_else(|wrong| panic!("{wrong}"));
            assert_eq!(loaded.pipeline.steps[0].spec.when.as_deref(), Some(condition));
            assert!(loaded.warnings.to_string().contains("this condition is always"), "{}", loaded.warnings);
        }
        let text = "inputs: { x: { default: a } }\nsteps: [{ id: a, run: x, when: '{{ inputs.x }} == 1' }]\n";
        let wrong = parse("p.yaml", text).expect_err("braces").to_string();
        assert!(wrong.contains("write it without braces: `inputs.x == 1`"), "{wrong}");
    }

    #[test]
    fn a_run_name_that_no_run_can_have_is_reported_at_its_key() {
        let text =
            "inputs: { x: { default: a } }\nrun_name: 'of {{ inputs.x }}'\nsteps: [{ id: a, run: x }]\n";
        let pipeline = parse("p.yaml", text).expect("a pipeline").pipeline;
        let name = |x: &str| {
            let own = pipeline.run_labels(&BTreeMap::from([("x".to_owned(), json!(x))])).expect("a name");
            pipeline.check_run_name(&own.name.unwrap_or_default()).map_err(|wrong| wrong.to_string())
        };
        assert_eq!(name("a"), Ok(()));
        for x in ["a\nb".to_owned(), "a".repeat(126)] {
            let wrong = name(&x).expect_err("no name");
            assert!(
                wrong.contains("`run_name` gives this run the name") && wrong.contains("p.yaml:2:11"),
                "{wrong}"
            );
        }
    }
}
