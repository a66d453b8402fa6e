//! The plan: a pipeline's graph as the walk sees it, frozen into each run by the hash of its content.
//!
//! What a step *does* is opaque here (`spec`); what the walk needs is which steps come before it and
//! what becomes of the run when it fails.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::{StepNo, graph};

/// A graph of steps. Build it with [`Plan::new`], which checks that the needs form no cycle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The pipeline's name.
    pub name: String,
    /// The steps, in the order they were written.
    pub steps: Vec<PlanStep>,
    /// A place that the run must hold while it is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// Where its runs work, if not where they were started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Surroundings>,
    #[serde(skip)]
    dependents: OnceLock<Vec<Vec<StepNo>>>,
}

/// Where the runs of a plan work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// What to make, for the worker; the walk does not look inside.
    pub spec: String,
}

/// One node of the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The name its author gave it.
    pub id: String,
    /// The steps that must be met before it.
    pub needs: Vec<StepNo>,
    /// What becomes of failure.
    #[serde(default)]
    pub policy: Policy,
    /// Where its executions wait for a worker.
    pub queue: String,
    /// What a worker must have to be given it: it has all of these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Higher is claimed first.
    #[serde(default)]
    pub priority: i32,
    /// What to do, for the worker; the walk does not look inside.
    pub spec: String,
    /// Whose hands its work is in.
    #[serde(default)]
    pub work: WorkKind,
    /// When its own condition is asked.
    #[serde(default)]
    pub condition: Condition,
    /// One step of the run for each item of a list, instead of one in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// The steps whose results its texts name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<StepNo>,
    /// It works in an environment of its own, each item of a fan-out in another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_environment: bool,
}

impl PlanStep {
    /// A step that a worker of the default queue does, with nothing special about it.
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
        }
    }
}

/// Whose hands a step's work is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// A worker's: it is handed over and comes back.
    #[default]
    Execution,
    /// A worker's that comes from outside, whenever it does: an agent or a person.
    Task,
    /// A person's: a question that waits for an answer.
    Gate,
    /// Nobody's: a time or a signal.
    Wait,
    /// Another run's.
    Child,
}

/// When a step's own condition is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It has none.
    #[default]
    None,
    /// Once its needs are met.
    Step,
    /// For each item of its fan-out.
    Item,
}

/// How the items of a fan-out are worked off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// How many may be live at once; none: as many as the walk allows.
    pub max_parallel: Option<u32>,
    /// One item that fails ends the others.
    pub fail_fast: bool,
    /// Its list is empty at first and grows for as long as the run is open: a board. Its items may need each
    /// other, and one that was cancelled was not wanted any more: it breaks nothing but what needs it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// What becomes of a step when its work fails, and whether it runs when others did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// How often the work may be tried in one round; at least 1.
    pub attempts: u32,
    /// How long to wait before the next try.
    pub backoff: Backoff,
    /// What a failure means once the tries are used up.
    pub on_fail: OnFail,
    /// Runs even after a failure or a cancel, once its needs are settled.
    pub always: bool,
    /// A lost worker ends the step: it is never started again by itself.
    pub at_most_once: bool,
    /// How many workers in a row may be lost while they run it.
    pub losses: u32,
    /// Only these exit codes are worth another try; empty means all.
    pub retry_exit_codes: Vec<i32>,
    /// The longest that one attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A step that takes its worker down with it is not handed out forever.
pub const DEFAULT_LOSSES: u32 = 10;

impl Default for Policy {
    fn default() -> Self {
        Policy {
            attempts: 1,
            backoff: Backoff::default(),
            on_fail: OnFail::Fail,
            always: false,
            at_most_once: false,
            losses: DEFAULT_LOSSES,
            retry_exit_codes: Vec::new(),
            timeout_ms: None,
        }
    }
}

/// The wait between two tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backoff {
    /// How the wait grows.
    pub growth: Growth,
    /// The first wait.
    pub delay_ms: u64,
    /// No wait is longer; 0 means no bound.
    pub max_delay_ms: u64,
    /// Part of each wait, in percent, that is left to chance, so that many failures do not return as one.
    pub jitter_percent: u8,
}

/// How the wait between tries grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// Always the same.
    #[default]
    Fixed,
    /// Once, twice, three times the delay.
    Linear,
    /// Doubled each time.
    Exponential,
}

impl Backoff {
    /// The wait before try number `tries + 1`, when `tries` have failed; `chance` is any number.
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

/// What a step's failure means for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFail {
    /// The run fails.
    #[default]
    Fail,
    /// The step counts as met.
    Continue,
    /// An earlier step and all that descends from it run again, with the failure as feedback.
    Rework {
        /// The step to go back to; the failing step descends from it.
        step: StepNo,
        /// How often the failing step may send it back.
        max: u32,
    },
}

/// A place shared by runs: at most `limit` of a group are live at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The group's name.
    pub group: String,
    /// How many of it may be live at once.
    pub limit: u32,
    /// What becomes of a run that finds it full.
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// What becomes of a run that finds its group full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// It waits for a place.
    #[default]
    Queue,
    /// It is refused.
    Reject,
    /// Those who hold the places or wait for one are cancelled, and it takes their place.
    CancelOlder,
}

/// Why a graph is not a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// There is no step.
    Empty,
    /// Two steps have one name.
    DuplicateId(String),
    /// A step needs one that is not there.
    UnknownNeed {
        /// The step that needs it.
        step: String,
        /// The place that holds no step.
        need: StepNo,
    },
    /// The steps need each other in a circle, named in order.
    Cycle(Vec<String>),
    /// A step would send back one that it does not descend from.
    ReworkOfUnrelated {
        /// The step that fails.
        step: String,
    },
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlanError::Empty => write!(f, "the pipeline has no steps"),
            PlanError::DuplicateId(id) => write!(f, "two steps are called {id:?}"),
            PlanError::UnknownNeed { step, need } => {
                write!(f, "step {step:?} needs step number {need}, which is not there")
            }
            PlanError::Cycle(ids) => write!(f, "the steps need each other in a circle: {}", ids.join(" → ")),
            PlanError::ReworkOfUnrelated { step } => {
                write!(f, "step {step:?} can send back only a step that it needs, directly or through others")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// A plan of these steps, if they form a graph without cycles.
    pub fn new(name: impl Into<String>, mut steps: Vec<PlanStep>) -> Result<Plan, PlanError> {
        // A need named twice is one need: the walk counts them.
        for step in &mut steps {
            step.needs.sort_unstable();
            step.needs.dedup();
        }
        let plan = Plan {
            name: name.into(),
            steps,
            concurrency: None,
            environment: None,
            dependents: OnceLock::new(),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Says what is wrong with the graph, if anything is.
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
        if let Some(circle) = graph::find_circle(&needs) {
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

    /// Whether it is the same pipeline, step by step.
    pub fn is_same(&self, other: &Plan) -> bool {
        self.name == other.name
            && self.steps == other.steps
            && self.concurrency == other.concurrency
            && self.environment == other.environment
    }

    /// The step at `no`; the number must be one of this plan's.
    pub fn step(&self, no: StepNo) -> &PlanStep {
        &self.steps[no as usize]
    }

    /// The steps that need `no` directly, in order.
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

    /// `no` and all that needs it, directly or through others, in order.
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
        assert_eq!(error.to_string(), "the steps need each other in a circle: a → c → b → a");
    }

    #[test]
    fn a_long_chain_is_no_cycle_and_no_stack_overflow() {
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
    fn waits_grow_as_told_and_stay_in_bounds() {
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
