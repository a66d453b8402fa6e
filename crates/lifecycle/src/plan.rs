//! The plan: a pipeline's graph as the walk sees it. Each run refers to its plan by the hash of the content.
//!
//! The walk does not interpret a step's `spec`. It needs only the order of the steps and the consequences of a
//! failure.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::{StepNo, graph};

/// The input of a run of steps inside a step: an object with the names around that step, which the run's steps use like
/// their own: `inputs`, `item`, `item_index`, `matrix`, and the results of `steps`. No declared input has this name.
pub const OUTER_INPUT: &str = "#outer";

/// A graph of steps. [`Plan::new`] checks that it has no cycle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// The steps, in the order of declaration.
    pub steps: Vec<PlanStep>,
    /// The concurrency group in which a live run holds a slot; absent if runs are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// A second group, with a limit of 1, in which a live run holds a slot as well: the runs of one rule. Absent if
    /// `concurrency` alone limits the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_group: Option<Arc<str>>,
    /// The environment of its runs; absent if they work in the directory where they were started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<PlanEnvironment>,
    /// The outputs that the pipeline declares; absent if it declares none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<PlanOutputs>,
    /// The time after which a run is cancelled, in milliseconds from its start; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The most steps and items that workers may have at once in one run; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    #[serde(skip)]
    dependents: OnceLock<Vec<Vec<StepNo>>>,
    #[serde(skip)]
    services: OnceLock<Vec<StepNo>>,
}

/// The environment of a plan's runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEnvironment {
    /// The description of the environment, for the worker; the walk does not interpret it.
    pub spec: String,
}

/// The declared outputs of a plan's runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOutputs {
    /// The outputs by name with their templates, for the evaluator; the walk does not interpret it.
    pub spec: String,
    /// The steps that the templates read, in ascending order.
    pub reads: Vec<StepNo>,
}

/// One node of the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The name from the pipeline's source, unique in the plan.
    pub id: String,
    /// The steps that must be met before it.
    pub needs: Vec<StepNo>,
    /// The treatment of failures.
    #[serde(default)]
    pub policy: Policy,
    /// The queue in which its executions wait for a worker.
    pub queue: String,
    /// The labels that a worker must have to receive it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The priority: workers claim higher values first.
    #[serde(default)]
    pub priority: i32,
    /// The description of the work, for the worker; the walk does not interpret it.
    pub spec: String,
    /// The kind of its work.
    #[serde(default)]
    pub work: WorkKind,
    /// The kind of its `when` condition.
    #[serde(default)]
    pub condition: Condition,
    /// The fan-out: one step of the run for each item of a list; absent for a single step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// The steps whose results its templates use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<StepNo>,
    /// Whether it works in its own environment; each item of a fan-out has a separate one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_environment: bool,
    /// The number of its needs that must be done for it to start; absent: all of them must be met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// The earlier steps that it is skipped with, if their `when` is false.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped_with: Vec<StepNo>,
    /// The rounds of a step that runs again after a success; absent for a step that runs once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
    /// The account that its agent uses; absent for steps without an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<PlanAccount>,
    /// Whether it is a service: it runs beside the other steps, and the walk stops it when all of them have settled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub service: bool,
}

/// The priority of a service's executions. No sum of the priorities of a step, its run and the runs above it reaches it,
/// so it also tells services from steps: workers claim services first, and the limit of a queue does not count them.
pub const SERVICE_PRIORITY: i32 = 1_000_000;

/// The account that a step's agent uses: a login with limits that all runs share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanAccount {
    /// The account's name.
    pub name: String,
    /// The most executions of the account that may be handed over or running at once, over all runs.
    pub max_parallel: u32,
    /// The longest time in milliseconds that one attempt waits for holds of the account, after which the step fails;
    /// absent means that it waits without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_wait_ms: Option<u64>,
    /// The agents that take over while the account is held, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<PlanFallback>,
}

/// An agent that takes over while the account of a step's own agent is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFallback {
    /// The agent, as the pipeline names it.
    pub agent: String,
    /// The name of the agent's account.
    pub account: String,
    /// The most executions of the account that may be handed over or running at once, over all runs.
    pub max_parallel: u32,
}

impl PlanAccount {
    /// Returns the name and the limit of each account that the step may use, its own first.
    pub fn candidates(&self) -> impl Iterator<Item = (&str, u32)> {
        let own = std::iter::once((self.name.as_str(), self.max_parallel));
        own.chain(self.fallbacks.iter().map(|other| (other.account.as_str(), other.max_parallel)))
    }

    /// Returns the agent that works with an account; `None` for the step's own agent. Agents of one account are held
    /// together, so the first one of an account stands for all.
    pub fn stand_in(&self, account: &str) -> Option<&str> {
        if account == self.name {
            return None;
        }
        let found = self.fallbacks.iter().find(|other| other.account == account);
        found.map(|other| other.agent.as_str())
    }
}

impl PlanStep {
    /// Creates a step for a worker of the default queue, with default settings.
    pub fn new(id: impl Into<String>, needs: Vec<StepNo>) -> PlanStep {
        PlanStep {
            id: id.into(),
            needs,
            policy: Policy::default(),
            queue: "default".into(),
            labels: Vec::new(),
            priority: 0,
            spec: String::new(),
            work: WorkKind::default(),
            condition: Condition::default(),
            spread: None,
            reads: Vec::new(),
            own_environment: false,
            account: None,
            quorum: None,
            skipped_with: Vec::new(),
            repeat: None,
            service: false,
        }
    }

    /// Returns whether workers execute it. Agents and people do tasks; gates, waits and child runs have no
    /// execution.
    pub fn is_for_workers(&self) -> bool {
        self.work == WorkKind::Execution
    }

    /// Returns whether a step or, if `is_item`, an item of this node counts for [`Plan::max_parallel`] while it is
    /// pending or running. A fan-out does not: its items do. Services do not: the steps could then never start.
    pub fn takes_place(&self, is_item: bool) -> bool {
        self.is_for_workers() && !self.service && (self.spread.is_none() || is_item)
    }
}

/// The rounds of a step that runs again after a success, until its condition ends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// The most rounds; at least 1. The step fails if its condition asks for more.
    pub max: u32,
    /// The delay between two rounds, in milliseconds.
    #[serde(default)]
    pub delay_ms: u64,
}

/// The kind of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// An execution, done by a worker.
    #[default]
    Execution,
    /// A task, claimed from outside by an agent or a person.
    Task,
    /// A question that a person answers.
    Gate,
    /// A time or a signal to wait for.
    Wait,
    /// Another run.
    Child,
    /// The end of the run: steps that have not started are skipped.
    End,
}

/// The time at which a step's `when` is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The step has no `when`.
    #[default]
    None,
    /// Once, when its needs are met.
    Step,
    /// For each item of its fan-out.
    Item,
}

/// The settings of a fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// The most items that may be live at once; absent: the walk's own limit applies.
    pub max_parallel: Option<u32>,
    /// Whether the failure of one item stops the others.
    pub fail_fast: bool,
    /// Whether the list is empty at first and grows while the run is open: a board. Its items may need each
    /// other. A cancelled item breaks only the items that need it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// The treatment of a step's failures, and of failures before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// The most attempts in one round; at least 1.
    pub attempts: u32,
    /// The delay before the next attempt.
    pub backoff: Backoff,
    /// The consequence of a failure when all attempts are used up.
    pub on_fail: OnFail,
    /// Whether a failure counts as met once its reworks are used up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub then_continue: bool,
    /// Whether the step runs even after a failure or a cancel, once its needs are settled.
    pub always: bool,
    /// Whether a lost worker fails the step: it is never retried automatically.
    pub at_most_once: bool,
    /// The most workers in a row that may be lost while they run it.
    pub losses: u32,
    /// The exit codes that are retried; empty means all.
    pub retry_exit_codes: Vec<i32>,
    /// The timeout of one attempt in milliseconds; absent means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// The default of [`Policy::losses`], so that a step that crashes its worker is not retried forever.
pub const DEFAULT_LOSSES: u32 = 10;

impl Default for Policy {
    fn default() -> Self {
        Policy {
            attempts: 1,
            backoff: Backoff::default(),
            on_fail: OnFail::Fail,
            then_continue: false,
            always: false,
            at_most_once: false,
            losses: DEFAULT_LOSSES,
            retry_exit_codes: Vec::new(),
            timeout_ms: None,
        }
    }
}

impl Policy {
    /// Returns whether the run continues after the step has failed for good.
    pub fn tolerates_failure(&self) -> bool {
        self.on_fail == OnFail::Continue || (self.then_continue && !crate::mutant!(ThenIgnored))
    }
}

/// The delay between two attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backoff {
    /// The growth of the delay.
    pub growth: Growth,
    /// The first delay, in milliseconds.
    pub delay_ms: u64,
    /// The longest delay, in milliseconds; 0 means no limit.
    pub max_delay_ms: u64,
    /// The random part of each delay, in percent. It spreads out the retries of simultaneous failures.
    pub jitter_percent: u8,
}

/// The growth of the delay between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// The same delay each time.
    #[default]
    Fixed,
    /// One, two, three times the first delay.
    Linear,
    /// Doubled each time.
    Exponential,
}

impl Backoff {
    /// Returns the delay in milliseconds after `tries` failed attempts; `chance` is any random number.
    pub fn wait_ms(&self, tries: u32, chance: u64) -> u64 {
        let grown = match self.growth {
            Growth::Fixed => self.delay_ms,
            Growth::Linear => self.delay_ms.saturating_mul(u64::from(tries)),
            Growth::Exponential => {
                self.delay_ms.saturating_mul(1u64.checked_shl(tries.saturating_sub(1)).unwrap_or(u64::MAX))
            }
        };
        let bounded = if self.max_delay_ms > 0 { grown.min(self.max_delay_ms) } else { grown };
        let spread = bounded / 100 * u64::from(self.jitter_percent.min(100));
        bounded - if spread > 0 { chance % (spread + 1) } else { 0 }
    }
}

/// The consequence of a step's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFail {
    /// The run fails.
    #[default]
    Fail,
    /// The step counts as met.
    Continue,
    /// An earlier step and all its descendants run again, with the failure as feedback.
    Rework {
        /// The earlier step, of which the failing step must be a descendant.
        step: StepNo,
        /// The most reworks that the failing step may request.
        max: u32,
    },
}

/// A concurrency group: at most `limit` of its runs are live at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The group's name.
    pub group: String,
    /// The most live runs.
    pub limit: u32,
    /// The treatment of a new run while the group is full.
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// The treatment of a new run while its group is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// The run waits for a slot.
    #[default]
    Queue,
    /// The run is refused.
    Reject,
    /// The live and waiting runs of the group are cancelled, and the new run takes a slot.
    CancelOlder,
}

/// A graph that is not a valid plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// The plan has no steps.
    Empty,
    /// Two steps have the same name.
    DuplicateId(String),
    /// A step needs a step that does not exist.
    UnknownNeed {
        /// The step with the need.
        step: String,
        /// The number without a step.
        need: StepNo,
    },
    /// The needs form a cycle of these steps, in order.
    Cycle(Vec<String>),
    /// A step's rework names a step that it does not descend from.
    ReworkOfUnrelated {
        /// The step with the rework.
        step: String,
    },
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlanError::Empty => write!(f, "the pipeline has no steps"),
            PlanError::DuplicateId(id) => write!(f, "two steps are named {id:?}"),
            PlanError::UnknownNeed { step, need } => {
                write!(f, "step {step:?} needs step number {need}, which does not exist")
            }
            PlanError::Cycle(ids) => write!(f, "the needs of the steps form a cycle: {}", ids.join(" → ")),
            PlanError::ReworkOfUnrelated { step } => {
                write!(f, "step {step:?} can rework only a step that it needs, directly or through others")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Creates a plan of these steps, or returns why they do not form one.
    pub fn new(name: impl Into<String>, mut steps: Vec<PlanStep>) -> Result<Plan, PlanError> {
        // Duplicates are removed because the walk counts needs.
        for step in &mut steps {
            step.needs.sort_unstable();
            step.needs.dedup();
        }
        let plan = Plan {
            name: name.into(),
            steps,
            concurrency: None,
            second_group: None,
            environment: None,
            outputs: None,
            timeout_ms: None,
            max_parallel: None,
            dependents: OnceLock::new(),
            services: OnceLock::new(),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Checks the graph.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.steps.is_empty() {
            return Err(PlanError::Empty);
        }
        let mut seen = std::collections::BTreeSet::new();
        for step in &self.steps {
            if !seen.insert(step.id.as_str()) {
                return Err(PlanError::DuplicateId(step.id.clone()));
            }
            if let Some(need) = step.needs.iter().find(|n| **n as usize >= self.steps.len()) {
                return Err(PlanError::UnknownNeed { step: step.id.clone(), need: *need });
            }
        }
        let needs: Vec<&[StepNo]> = self.steps.iter().map(|step| step.needs.as_slice()).collect();
        if let Some(circle) = graph::find_cycle(&needs) {
            return Err(PlanError::Cycle(circle.iter().map(|n| self.step(*n).id.clone()).collect()));
        }
        let reworks: Vec<(StepNo, StepNo)> = self
            .steps
            .iter()
            .enumerate()
            .filter_map(|(no, step)| match step.policy.on_fail {
                OnFail::Rework { step: target, .. } => Some((target, no as StepNo)),
                OnFail::Fail | OnFail::Continue => None,
            })
            .collect();
        let back = graph::come_before(&needs, &reworks);
        match reworks.iter().zip(back).find(|(_, goes_back)| !goes_back) {
            Some(((_, no), _)) => Err(PlanError::ReworkOfUnrelated { step: self.step(*no).id.clone() }),
            None => Ok(()),
        }
    }

    /// Returns whether both plans are the same pipeline, step by step.
    pub fn is_same(&self, other: &Plan) -> bool {
        self.name == other.name
            && self.steps == other.steps
            && self.concurrency == other.concurrency
            && self.second_group == other.second_group
            && self.environment == other.environment
            && self.timeout_ms == other.timeout_ms
            && self.max_parallel == other.max_parallel
    }

    /// Returns the step with this number.
    ///
    /// # Panics
    ///
    /// If the plan has no such step.
    pub fn step(&self, no: StepNo) -> &PlanStep {
        &self.steps[no as usize]
    }

    /// Returns the services, in order.
    pub fn services(&self) -> &[StepNo] {
        self.services.get_or_init(|| {
            let all = self.steps.iter().enumerate();
            all.filter(|(_, step)| step.service).map(|(no, _)| no as StepNo).collect()
        })
    }

    /// Returns the steps that need `no` directly, in order.
    pub fn dependents(&self, no: StepNo) -> &[StepNo] {
        let all = self.dependents.get_or_init(|| {
            let mut all = vec![Vec::new(); self.steps.len()];
            for (from, step) in self.steps.iter().enumerate() {
                for need in &step.needs {
                    all[*need as usize].push(from as StepNo);
                }
            }
            all
        });
        &all[no as usize]
    }

    /// Returns `no` and all steps that need it, directly or through others, in order.
    pub fn with_descendants(&self, no: StepNo) -> std::collections::BTreeSet<StepNo> {
        let mut found = std::collections::BTreeSet::from([no]);
        let mut todo = vec![no];
        while let Some(next) = todo.pop() {
            for dependent in self.dependents(next) {
                if found.insert(*dependent) {
                    todo.push(*dependent);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(id: &str, needs: &[StepNo]) -> PlanStep {
        PlanStep::new(id, needs.to_vec())
    }

    #[test]
    fn a_cycle_is_named() {
        let steps = vec![step("a", &[2]), step("b", &[0]), step("c", &[1])];
        let error = Plan::new("p", steps).unwrap_err();
        assert_eq!(error.to_string(), "the needs of the steps form a cycle: a → c → b → a");
    }

    #[test]
    fn a_long_chain_does_not_overflow_the_stack() {
        let steps =
            (0..100_000).map(|n: u32| step(&n.to_string(), &n.checked_sub(1).map_or(vec![], |p| vec![p])));
        let plan = Plan::new("p", steps.collect()).unwrap();
        assert_eq!(plan.with_descendants(0).len(), 100_000);
    }

    #[test]
    fn rework_reaches_back_only() {
        let mut steps = vec![step("a", &[]), step("b", &[0]), step("c", &[0])];
        steps[1].policy.on_fail = OnFail::Rework { step: 0, max: 1 };
        assert!(Plan::new("p", steps.clone()).is_ok());
        steps[1].policy.on_fail = OnFail::Rework { step: 2, max: 1 };
        assert!(matches!(Plan::new("p", steps), Err(PlanError::ReworkOfUnrelated { .. })));
    }

    #[test]
    fn delays_grow_as_configured_and_stay_in_bounds() {
        let mut backoff =
            Backoff { growth: Growth::Exponential, delay_ms: 100, max_delay_ms: 1000, jitter_percent: 0 };
        assert_eq!([1, 2, 3, 4, 5, 90].map(|n| backoff.wait_ms(n, 0)), [100, 200, 400, 800, 1000, 1000]);
        backoff.growth = Growth::Linear;
        assert_eq!([1, 2, 3].map(|n| backoff.wait_ms(n, 0)), [100, 200, 300]);
        backoff.jitter_percent = 50;
        for chance in [0, 7, 1 << 40, u64::MAX] {
            assert!((50..=100).contains(&backoff.wait_ms(1, chance)));
        }
    }
}
