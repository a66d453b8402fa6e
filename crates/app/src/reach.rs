//! The reach of a caller: the runs, boards, queues, rules and hosts that its token's limits leave it.
//!
//! ```text
//!   server's guard ─┐                      ┌─ limits of the token (pipelines, labels, queues, hosts)
//!   MCP's tools ────┼─▶ App::require_reach ┤─ a `work` token: runs whose steps it holds
//!   lists, streams ─┘   App::reaches       └─ a step's own token: its run
//! ```
//!
//! Every interface asks here, so that a limit has one meaning. A child run, and a message to an agent, count as the run
//! that they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{Plan, RunId, WorkKind, mutant};
use sprag_pipeline::{Definition, Kind, Pipeline, StepSpec};
use sprag_store::{EnvironmentRow, Id, Row, RunRow, WorkerRow};

use crate::App;
use crate::boards::{self, agent_id};
use crate::error::{Error, ErrorKind};
use crate::labels::RunLabels;
use crate::threads::TALK;
use crate::tokens::{Scope, TokenLimits};

/// The most runs whose reach a stream remembers.
const MOST_REMEMBERED: usize = 4_096;
/// The deepest nesting of child runs that is followed; pipelines are nested less deeply.
const DEEPEST: usize = 32;

/// The reach of a caller.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    limits: Arc<TokenLimits>,
    bound: Bound,
}

/// The bound that a caller has beside the limits of its token.
#[derive(Debug, Clone, Default)]
enum Bound {
    #[default]
    None,
    /// The runs of which a worker or an agent with this token holds a step.
    Held(Arc<str>),
    /// One run and its child runs.
    Run(RunId),
}

/// The object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A run.
    Run(RunId),
    /// A gate, by its number.
    Gate(Id),
    /// An environment, by its number.
    Environment(Id),
    /// A board, by its name or the id of its run.
    Board(&'a str),
    /// A pipeline of the project.
    Pipeline(&'a str),
    /// A rule, by its full name.
    Rule(&'a str),
    /// An event that reached a rule, by its number.
    Delivery(Id),
    /// A queue that is held, released or limited, for all runs.
    Queue(&'a str),
    /// Something that belongs to no run, pipeline or queue in particular.
    Everything,
}

impl Reach {
    /// Returns the reach of a token. One that may work, but neither read nor run, reaches what it holds.
    pub fn of_token(token: &Arc<str>, scopes: &[Scope], limits: &TokenLimits) -> Reach {
        let reads = scopes.iter().any(|scope| *scope != Scope::Work);
        let bound = if reads { Bound::None } else { Bound::Held(Arc::clone(token)) };
        Reach { limits: Arc::new(limits.clone()), bound }
    }

    /// Returns the reach of a step of this run.
    pub fn of_step(run: RunId) -> Reach {
        Reach { limits: Arc::default(), bound: Bound::Run(run) }
    }

    /// Whether nothing is out of reach.
    pub fn is_everything(&self) -> bool {
        matches!(self.bound, Bound::None) && self.limits.is_empty() || mutant!(LimitNotChecked)
    }

    /// Returns the limits of the token.
    pub fn limits(&self) -> &TokenLimits {
        &self.limits
    }

    /// Whether the caller is shown a queue.
    pub fn shows_queue(&self, queue: &str) -> bool {
        self.is_everything() || matches!(self.bound, Bound::None) && self.limits.allow_queue(queue)
    }

    /// Whether the caller is shown a pipeline of the project.
    pub fn shows_pipeline(&self, name: &str) -> bool {
        self.is_everything() || matches!(self.bound, Bound::None) && self.limits.allow_pipeline(name)
    }

    /// Whether the caller reaches a rule: rules start runs whose labels and queues are not known before.
    pub fn shows_rule(&self, rule: &str) -> bool {
        let pipeline = rule.split('/').next().unwrap_or_default();
        let only_names = self.limits.labels.is_empty() && self.limits.queues.is_empty();
        self.is_everything() || self.shows_pipeline(pipeline) && only_names
    }

    /// Whether the caller is shown a worker: it serves one of the queues, on one of the hosts.
    pub fn shows_worker(&self, worker: &WorkerRow) -> bool {
        let limits = &self.limits;
        let serves =
            limits.queues.is_empty() || worker.queues.split(',').any(|queue| limits.allow_queue(queue));
        match &self.bound {
            _ if self.is_everything() => true,
            Bound::None => serves && limits.allow_host(worker.host()),
            Bound::Held(token) => is_of_token(worker, token),
            Bound::Run(_) => false,
        }
    }

    /// Refuses queues beyond the limits.
    pub fn check_queues<'q>(&self, queues: impl IntoIterator<Item = &'q str>) -> Result<(), Error> {
        if self.is_everything() {
            return Ok(());
        }
        match queues.into_iter().find(|queue| !self.limits.allow_queue(queue)) {
            None => Ok(()),
            Some(queue) => Err(self.out_of_reach(&format!("queue {queue:?}"))),
        }
    }

    /// Refuses a worker on a host beyond the limits.
    pub fn check_host(&self, host: &str) -> Result<(), Error> {
        if self.is_everything() || self.limits.allow_host(host) {
            return Ok(());
        }
        Err(self.out_of_reach(&format!("host {:?}", sprag_process::reported_host_name(host))))
    }

    /// Refuses a board whose name or queue is beyond the limits. Boards have no labels.
    pub fn check_board(&self, name: &str, queue: Option<&str>) -> Result<(), Error> {
        if self.is_everything() {
            return Ok(());
        }
        let own = format!("{}{name}/", boards::OWN_QUEUE);
        self.check_queues([queue.unwrap_or(&own)])?;
        if self.limits.allow_pipeline(name) && self.limits.labels.is_empty() {
            return Ok(());
        }
        Err(self.out_of_reach(&format!("board {name:?}")))
    }

    /// Refuses to start a run beyond the limits. `by_name` tells that the pipeline is the project's own and runs as it
    /// is, in the project's folder. A caller that is limited to names of pipelines may start no other: else it could
    /// give any pipeline an allowed name.
    pub fn check_start(&self, plan: &Plan, labels: &RunLabels, by_name: bool) -> Result<(), Error> {
        if self.is_everything() {
            return Ok(());
        }
        if !self.limits.allow_pipeline(&plan.name) {
            return Err(self.out_of_reach(&format!("pipeline {:?}", plan.name)));
        }
        if !self.limits.pipelines.is_empty() && !by_name {
            let message =
                "this token is limited to pipelines by name, and starts them as the project has them";
            return Err(Error::new(ErrorKind::Forbidden, message)
                .next("name a pipeline of the project, without `yaml`, `dir`, `only`, `from` and `skip`"));
        }
        if !self.limits.allow_labels(&labels.labels) {
            let wanted: Vec<String> =
                self.limits.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let message = format!("this token starts runs with the label {} alone", wanted.join(" and "));
            return Err(Error::new(ErrorKind::Forbidden, message).next("add it to the run's labels"));
        }
        if self.limits.queues.is_empty() {
            return Ok(());
        }
        self.check_queues(queues_of(plan).iter().map(String::as_str))
    }

    /// Returns the error for something beyond the reach.
    fn out_of_reach(&self, what: &str) -> Error {
        let (message, next) = match &self.bound {
            Bound::Held(_) => (
                format!("this token has the scope `work` alone, and holds no step of {what}"),
                "claim one first",
            ),
            Bound::Run(run) => {
                (format!("this token belongs to a step of run {run}, and reaches nothing else"), "")
            }
            Bound::None => {
                let message = format!("{what} is beyond the limits of this token ({})", self.limits);
                (message, "use a token with other limits: sprag token new NAME")
            }
        };
        let error = Error::new(ErrorKind::Forbidden, message);
        if next.is_empty() { error } else { error.next(next) }
    }
}

impl App {
    /// Refuses a request about something that the caller does not reach. What does not exist passes: its own use case
    /// says so.
    pub fn require_reach(&self, reach: &Reach, subject: Subject<'_>) -> Result<(), Error> {
        if reach.is_everything() {
            return Ok(());
        }
        let (reached, what) = match subject {
            Subject::Run(run) => return self.require_run_reach(reach, Some(run)),
            Subject::Gate(id) => {
                let gate = self.gate(id)?;
                return self.require_run_reach(reach, gate.map(|gate| gate.run));
            }
            Subject::Environment(id) => {
                let Some(row) = self.environment(id)? else { return Ok(()) };
                (self.reaches_environment(reach, &row)?, format!("environment {id}"))
            }
            Subject::Board(name) => {
                let run = boards::known(self, name).map(|board| board.run);
                return self.require_run_reach(reach, run.ok());
            }
            Subject::Pipeline(name) => (reach.shows_pipeline(name), format!("pipeline {name:?}")),
            Subject::Rule(name) => {
                // The caller may have given the last part of the name alone.
                let found = self.find_rule(name).map(|rule| rule.name.to_string());
                (reach.shows_rule(found.as_deref().unwrap_or(name)), format!("rule {name:?}"))
            }
            Subject::Delivery(id) => match self.delivery_view(id) {
                Ok(event) => (reach.shows_rule(&event.rule), format!("event {id}")),
                Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
            Subject::Queue(name) => {
                // Without a limit on queues, the caller is limited otherwise: a queue concerns runs beyond that, too.
                let is_named = !reach.limits.queues.is_empty() && reach.shows_queue(name);
                (is_named, format!("queue {name:?}"))
            }
            Subject::Everything => {
                let message = "this concerns all runs, and the token reaches a part of them";
                return Err(Error::new(ErrorKind::Forbidden, message)
                    .next("use a token without limits, with the scope `read` or `run`"));
            }
        };
        if reached { Ok(()) } else { Err(reach.out_of_reach(&what)) }
    }

    fn require_run_reach(&self, reach: &Reach, run: Option<RunId>) -> Result<(), Error> {
        let Some(row) = run.map(|run| self.run(run)).transpose()?.flatten() else { return Ok(()) };
        if self.reaches_row(reach, &row)? {
            return Ok(());
        }
        Err(reach.out_of_reach(&format!("run {}", row.id)))
    }

    /// Whether a caller reaches a run. It reaches no run that does not exist.
    pub fn reaches(&self, reach: &Reach, run: RunId) -> Result<bool, Error> {
        if reach.is_everything() {
            return Ok(true);
        }
        match self.run(run)? {
            Some(row) => self.reaches_row(reach, &row),
            None => Ok(false),
        }
    }

    /// Whether a caller reaches the run with this id, as a view shows it.
    pub fn reaches_shown(&self, reach: &Reach, run: &str) -> Result<bool, Error> {
        match run.parse() {
            _ if reach.is_everything() => Ok(true),
            Ok(run) => self.reaches(reach, run),
            Err(_) => Ok(false),
        }
    }

    /// Whether a caller reaches a run.
    pub(crate) fn reaches_row(&self, reach: &Reach, row: &RunRow) -> Result<bool, Error> {
        if reach.is_everything() {
            return Ok(true);
        }
        match &reach.bound {
            Bound::None => self.within_limits(&reach.limits, row),
            Bound::Held(token) => self.is_held_by(token, row.id),
            Bound::Run(run) => self.belongs_to(*run, row),
        }
    }

    /// Whether a caller reaches an environment: it reaches its run, and its host.
    pub fn reaches_environment(&self, reach: &Reach, row: &EnvironmentRow) -> Result<bool, Error> {
        if reach.is_everything() {
            return Ok(true);
        }
        let Some(run) = row.run else { return Ok(false) };
        Ok(reach.limits.allow_host(&row.host) && self.reaches(reach, run)?)
    }

    /// Whether a run, or the one that it belongs to, is within the limits.
    fn within_limits(&self, limits: &TokenLimits, row: &RunRow) -> Result<bool, Error> {
        let top = match self.top_of(row)? {
            Some(top) => top,
            // Its parent was deleted: what it belongs to is not known any more.
            None => return Ok(false),
        };
        if !limits.allow_pipeline(&top.pipeline) || !limits.allow_labels(&RunLabels::of(&top).labels) {
            return Ok(false);
        }
        if limits.queues.is_empty() {
            return Ok(true);
        }
        let Some(plan) = self.store.queries().plan_of(top.id)? else { return Ok(false) };
        Ok(queues_of(&plan).iter().all(|queue| limits.allow_queue(queue)))
    }

    /// Returns the run at the top of a run: that of its parents, and for a message to an agent that of the agent's step.
    fn top_of(&self, row: &RunRow) -> Result<Option<RunRow>, Error> {
        let top = if row.root == row.id { Some(row.clone()) } else { self.run(row.root)? };
        let Some(top) = top else { return Ok(None) };
        if &*top.pipeline != TALK {
            return Ok(Some(top));
        }
        let context: serde_json::Value = serde_json::from_str(&top.context).unwrap_or_default();
        match context[sprag_worker::TALKS_TO]["run"].as_str().and_then(|run| run.parse().ok()) {
            None => Ok(Some(top)),
            Some(run) => match self.run(run)? {
                Some(row) if row.root == row.id => Ok(Some(row)),
                Some(row) => self.run(row.root),
                None => Ok(None),
            },
        }
    }

    /// Whether a run is the given one, or a child run of it.
    fn belongs_to(&self, run: RunId, row: &RunRow) -> Result<bool, Error> {
        let mut above = Some(row.clone());
        for _ in 0..DEEPEST {
            let Some(row) = above else { return Ok(false) };
            if row.id == run {
                return Ok(true);
            }
            above = row.parent.map(|(parent, _)| self.run(parent)).transpose()?.flatten();
        }
        Ok(false)
    }

    /// Whether a worker or an agent with this token holds a step of a run.
    fn is_held_by(&self, token: &str, run: RunId) -> Result<bool, Error> {
        let mut known: BTreeMap<Id, bool> = BTreeMap::new();
        for execution in self.executions(run)?.iter().filter(|row| !row.status().is_terminal()) {
            let Some(owner) = execution.owner else { continue };
            let is_own = match known.get(&owner) {
                Some(is_own) => *is_own,
                None => {
                    let worker = self.store.queries().worker(owner)?;
                    let is_own = worker.is_some_and(|worker| is_of_token(&worker, token));
                    *known.entry(owner).or_insert(is_own)
                }
            };
            if is_own {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a worker, or an agent, has registered with this token.
fn is_of_token(worker: &WorkerRow, token: &str) -> bool {
    if worker.process.is_empty() {
        let name = worker.name.strip_suffix(token).and_then(|name| name.strip_suffix('@'));
        return name.is_some_and(|name| agent_id(name, token) == worker.id);
    }
    let reported = sprag_process::reported_host_name(worker.host());
    worker.host() == sprag_process::vouched_host(reported, token)
}

/// Returns the queues in which steps of a plan, and of its child pipelines, wait for workers, agents or people.
fn queues_of(plan: &Plan) -> BTreeSet<String> {
    let mut queues = BTreeSet::new();
    for step in &plan.steps {
        match step.work {
            WorkKind::Execution | WorkKind::Task => drop(queues.insert(step.queue.clone())),
            WorkKind::Child => {
                let spec: Option<StepSpec> = serde_json::from_str(&step.spec).ok();
                spec.iter().for_each(|spec| add_children(&spec.kind, &mut queues, 0));
            }
            WorkKind::Gate | WorkKind::Wait | WorkKind::End => {}
        }
    }
    queues
}

fn add_children(kind: &Kind, queues: &mut BTreeSet<String>, depth: usize) {
    let Kind::Pipeline { definition, files, .. } = kind else { return };
    for definition in std::iter::once(&**definition).chain(files.values()).filter(|_| depth < DEEPEST) {
        match Definition::parse(definition) {
            Ok(loaded) => add_pipeline(&loaded.pipeline, queues, depth + 1),
            // No pattern but `*` matches it: a child that cannot be read is beyond every limit.
            Err(_) => drop(queues.insert("\u{0}".to_owned())),
        }
    }
}

fn add_pipeline(pipeline: &Pipeline, queues: &mut BTreeSet<String>, depth: usize) {
    for step in &pipeline.steps {
        match &step.spec.kind {
            Kind::Pipeline { .. } => add_children(&step.spec.kind, queues, depth),
            Kind::Gate { .. } | Kind::Wait { .. } | Kind::End { .. } => {}
            _ => drop(queues.insert(step.queue.clone())),
        }
    }
}

/// The reach of a caller that follows a stream: each run is looked up once.
///
/// A run keeps its pipeline, labels and queues, so that the answer stays the same. What a `work` token holds changes, so
/// that it is looked up each time.
#[derive(Debug)]
pub struct ReachedRuns {
    reach: Reach,
    known: BTreeMap<RunId, bool>,
}

impl ReachedRuns {
    /// Starts with no run looked up.
    pub fn new(reach: Reach) -> Self {
        ReachedRuns { reach, known: BTreeMap::new() }
    }

    /// Whether the caller is told of an entry of this run; of entries without a run only if nothing is out of reach.
    pub fn has(&mut self, app: &App, run: Option<RunId>) -> Result<bool, Error> {
        if self.reach.is_everything() {
            return Ok(true);
        }
        let Some(run) = run else { return Ok(false) };
        if let Some(known) = self.known.get(&run) {
            return Ok(*known);
        }
        let reached = app.reaches(&self.reach, run)?;
        if !matches!(self.reach.bound, Bound::Held(_)) {
            if self.known.len() >= MOST_REMEMBERED {
                self.known.pop_first();
            }
            self.known.insert(run, reached);
        }
        Ok(reached)
    }
}
