//! Services: processes that run beside the steps of a run. The loader adds them to the end of the plan as `always` steps
//! without needs; the walk stops them when all other steps have settled.

use regex::Regex;
use serde::{Deserialize, Serialize};
use sprag_lifecycle::{Backoff, Policy, SERVICE_PRIORITY};

use crate::decode::{Common, duration_ms, texts};
use crate::diagnostic::{Problem, Report};
use crate::expression::check_pattern;
use crate::kinds::{command, one_of};
use crate::names::Uses;
use crate::pipeline::Step;
use crate::source::Span;
use crate::spec::Kind;
use crate::yaml::{MapKey, Node, Scalar, ScalarKind, Yaml, quoted};

/// The most services of a pipeline.
const MAX_SERVICES: usize = 32;
/// The longest wait for a service that names none, in milliseconds.
const READY_WITHIN_MS: u64 = 60_000;
/// The key under which an added step has the keys of its service. No file can have it.
const SERVICE: &str = "service";

/// The part of a step's work that makes it a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// The names of the ports that are reserved for its run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The test that it must pass before steps start; absent if it is ready as soon as it has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// The longest wait until it is ready, in milliseconds.
    pub ready_within_ms: u64,
}

/// The test of a service that has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// A command that is repeated until it succeeds; always [`Kind::Run`] or [`Kind::Exec`].
    Run(Kind),
    /// A port that must accept connections: the name of a reserved one, or a number.
    Port(String),
    /// A regular expression that must fit a line of its output.
    Log(String),
}

/// A compiled pattern for the lines of a log.
#[derive(Debug)]
pub struct LogPattern(Regex);

impl LogPattern {
    /// Compiles a pattern that the loader has checked.
    pub fn new(pattern: &str) -> Result<LogPattern, String> {
        check_pattern(pattern)?;
        Regex::new(pattern).map(LogPattern).map_err(|error| error.to_string())
    }

    /// Returns whether the pattern fits anywhere in a line.
    pub fn fits(&self, line: &str) -> bool {
        self.0.is_match(line)
    }
}

/// Adds a step for each service.
pub(crate) fn add_steps(services: &Node, steps: &mut Vec<Node>, report: &mut Report) {
    if services.entries().len() > MAX_SERVICES {
        let message = format!("a pipeline has at most {MAX_SERVICES} services");
        report.error(Problem::at(services.span, message).help("start several processes in one service"));
        return;
    }
    for (name, service) in services.entries() {
        let span = name.span;
        let mut entries = vec![
            (key("id", span), scalar(&name.text, ScalarKind::Text, span)),
            (key("needs", span), Node::new(span, Yaml::List(Vec::new()))),
            (key("always", span), scalar("true", ScalarKind::Boolean(true), span)),
            (key(SERVICE, span), service.clone()),
        ];
        let own = |key: &MapKey| !["ready", "ports", "restart"].contains(&key.text.as_str());
        entries.extend(service.entries().iter().filter(|(key, _)| own(key)).cloned());
        steps.push(Node::new(service.span, Yaml::Map(entries)));
    }
}

/// Returns whether an added step is a service.
pub(crate) fn is_service(step: &Node) -> bool {
    step.get(SERVICE).is_some()
}

/// Decodes the keys of a service; `None` for other steps.
pub(crate) fn decode<'n>(
    step: &'n Node,
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<ServiceSpec> {
    let service = step.get(SERVICE)?;
    let ports = texts(service.get("ports"));
    let ready = service.get("ready");
    Some(ServiceSpec {
        ready: ready.and_then(|node| decode_ready(node, step, &ports, common, uses, report)),
        ready_within_ms: ready
            .and_then(|node| node.get("timeout"))
            .and_then(duration_ms)
            .unwrap_or(READY_WITHIN_MS),
        ports,
    })
}

fn decode_ready<'n>(
    node: &'n Node,
    step: &'n Node,
    ports: &[String],
    common: &Common<'n>,
    uses: &mut Uses<'n>,
    report: &mut Report,
) -> Option<Ready> {
    let (key, value) = one_of(node, &["run", "port", "log"], report)?;
    match key {
        "run" => command(value, common.get(step, "shell"), uses, report).map(Ready::Run),
        "port" => {
            let Yaml::Scalar(Scalar { text, .. }) = &value.yaml else { return None };
            let is_number = text.parse::<u16>().is_ok_and(|port| port > 0);
            if !is_number && !ports.contains(text) {
                let message = format!("the service has no port {}", quoted(text));
                report
                    .error(Problem::at(value.span, message).help("name it under `ports:`, or give a number"));
            }
            Some(Ready::Port(text.clone()))
        }
        _ => {
            let pattern = value.text()?;
            if let Err(why) = check_pattern(pattern) {
                report.error(Problem::at(value.span, why).expected("a regular expression"));
            }
            Some(Ready::Log(pattern.to_owned()))
        }
    }
}

/// Returns the policy of a service: it runs as long as its run, and `restart` counts its tries.
pub(crate) fn policy(step: &Node, policy: Policy) -> Policy {
    let restart = step.get(SERVICE).and_then(|service| service.get("restart"));
    let max = restart.and_then(|node| node.integer().or_else(|| node.get("max")?.integer())).unwrap_or(0);
    let delay_ms = restart.and_then(|node| node.get("delay")).and_then(duration_ms).unwrap_or(0);
    Policy {
        attempts: max as u32 + 1,
        backoff: Backoff { delay_ms, ..Backoff::default() },
        timeout_ms: None,
        ..policy
    }
}

/// The queue and the labels of a step that a worker executes.
type Demand = (String, Vec<String>);

/// Returns what the work of a step asks of its worker: of the step itself, or of the steps of its child pipelines that use
/// the services of their parent.
fn demands(step: &Step) -> Vec<Demand> {
    match &step.spec.kind {
        Kind::Run { .. } | Kind::Exec { .. } | Kind::Call { .. } | Kind::Agent(_) | Kind::Land { .. } => {
            vec![(step.queue.clone(), step.labels.clone())]
        }
        Kind::Pipeline { definition, files, .. } => {
            let only = files.is_empty().then_some(&**definition);
            let children = files.values().chain(only).filter_map(|child| child.parse().ok());
            let steps = children.map(|child| child.pipeline.steps);
            // A child with services of its own uses those.
            let sharing = steps.filter(|steps| steps.iter().all(|step| step.spec.service.is_none()));
            sharing.flat_map(|steps| steps.iter().flat_map(demands).collect::<Vec<_>>()).collect()
        }
        _ => Vec::new(),
    }
}

/// Gives the services the queue and the labels of the steps, because one worker has them all. Reports steps with
/// different queues.
pub(crate) fn join_steps(steps: &mut [Step], written: &[Node], report: &mut Report) {
    if !steps.iter().any(|step| step.spec.service.is_some()) {
        return;
    }
    let mut queue: Option<String> = None;
    let mut labels: Vec<String> = Vec::new();
    let uses = steps.iter().filter(|step| step.spec.service.is_none());
    for (step, (own, more)) in uses.flat_map(|step| demands(step).into_iter().map(move |one| (step, one))) {
        if queue.as_ref().is_some_and(|queue| *queue != own) {
            let place = written.iter().find(|node| node.get("id").and_then(Node::text) == Some(&step.id));
            let message = format!(
                "step {} waits in another queue than the steps before it, and one worker must run all steps of a \
                 pipeline with services",
                quoted(&step.id)
            );
            let span = place.map_or(Span::default(), |node| node.get("queue").unwrap_or(node).span);
            report.error(
                Problem::at(span, message).help("use one queue, or put these steps into another pipeline"),
            );
        }
        queue.get_or_insert(own);
        labels.extend(more.into_iter().filter(|label| !labels.contains(label)).collect::<Vec<_>>());
    }
    for step in steps.iter_mut().filter(|step| step.spec.service.is_some()) {
        step.labels.clone_from(&labels);
        step.priority = SERVICE_PRIORITY;
        if let Some(queue) = &queue {
            step.queue.clone_from(queue);
        }
    }
}

/// Reports ports that several services, or a service and the environment, reserve under one name.
pub(crate) fn check_ports(root: &Node, report: &mut Report) {
    let mut known = texts(root.get("environment").and_then(|environment| environment.get("ports")));
    for (_, service) in root.get("services").map(Node::entries).unwrap_or_default() {
        for port in service.get("ports").map(Node::items).unwrap_or_default() {
            let Some(name) = port.text() else { continue };
            if known.iter().any(|known| known == name) {
                let message = format!("port {} is reserved already", quoted(name));
                report.error(
                    Problem::at(port.span, message).help("its variable has one value: choose another name"),
                );
            }
            known.push(name.to_owned());
        }
    }
}

fn key(name: &str, span: Span) -> MapKey {
    MapKey { text: name.to_owned(), span }
}

fn scalar(text: &str, kind: ScalarKind, span: Span) -> Node {
    Node::new(span, Yaml::Scalar(Scalar { text: text.to_owned(), kind }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::parse;

    #[test]
    fn services_become_steps_that_always_run_and_need_nothing() {
        let source = "defaults: { timeout: 1s, retry: { attempts: 5 }, labels: [big] }\nservices:\n  db:\n    run: serve\n    ports: [db]\n    \
                      ready: { port: db, timeout: 5s }\n    restart: { max: 2, delay: 1s }\nsteps:\n- { id: a, run: x, queue: q }\n";
        let pipeline = parse("p.yaml", source).unwrap().pipeline;
        let plan = pipeline.plan(&Default::default()).unwrap();
        assert_eq!(plan.services(), [1]);
        let service = plan.step(1);
        assert_eq!(
            (service.id.as_str(), service.queue.as_str(), &*service.labels),
            ("db", "q", &["big".to_owned()][..])
        );
        assert!(service.policy.always && service.needs.is_empty() && !service.takes_place(false));
        assert_eq!(
            (service.policy.attempts, service.policy.backoff.delay_ms, service.policy.timeout_ms),
            (3, 1_000, None)
        );
        let spec: Value = serde_json::from_str(&service.spec).unwrap();
        assert_eq!(
            spec["service"],
            json!({ "ports": ["db"], "ready": { "port": "db" }, "ready_within_ms": 5_000 })
        );
        assert_eq!(spec.get("timeout_ms"), None);
    }

    #[test]
    fn services_wait_for_a_worker_that_fits_the_steps_inside_steps_too() {
        let inside = "services:\n  db: { run: serve }\nsteps:\n- id: each\n  foreach: [1]\n  steps:\n  - { id: deep, run: x, labels: [gpu], queue: q }\n";
        let plan = parse("p.yaml", inside).unwrap().pipeline.plan(&Default::default()).unwrap();
        let service = plan.step(plan.services()[0]);
        assert_eq!((service.queue.as_str(), &*service.labels), ("q", &["gpu".to_owned()][..]));
        let other = format!("{inside}- {{ id: after, run: x }}\n");
        let wrong = parse("p.yaml", &other).map(|_| ()).unwrap_err().to_string();
        assert!(wrong.contains("another queue"), "{wrong}");
    }

    #[test]
    fn mistakes_in_services_are_refused_at_their_places() {
        for (service, steps, expected) in [
            ("{ run: x, ready: { port: web } }", "- { id: a, run: x }", "no port `web`"),
            ("{ run: x, ready: { log: '(' } }", "- { id: a, run: x }", "not a regular expression"),
            ("{ run: x, ready: { log: a, port: 80 } }", "- { id: a, run: x }", "only one of these keys"),
            ("{ run: x, ports: [a, a] }", "- { id: a, run: x }", "reserved already"),
            ("{ run: x, timeout: 1m }", "- { id: a, run: x }", "timeout"),
            ("{ ready: { port: 80 } }", "- { id: a, run: x }", "run"),
            ("{ run: x }", "- { id: s, run: x }", "`s`"),
            ("{ run: x }", "- { id: a, run: x }\n- { id: b, run: x, queue: other }", "another queue"),
            (
                "{ run: 'x {{ steps.a.outputs.b }}' }",
                "- { id: a, run: x, outputs: { b: { stdout: text } } }",
                "`a`",
            ),
        ] {
            let source = format!("services:\n  s: {service}\nsteps:\n{steps}\n");
            let wrong = parse("p.yaml", &source).map(|_| source.clone()).unwrap_err().to_string();
            assert!(wrong.contains(expected) && wrong.contains("p.yaml:"), "{source}\n{wrong}");
        }
    }
}
