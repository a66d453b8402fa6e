//! The scripted behaviour of each step, and the evaluator through which plans refer to it.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{Plan, PlanStep};
use sprag_store::{ITEM, Prepared, SpecError, SpecEvaluator, mix};

/// A pseudo-random generator that depends only on its seed.
#[derive(Debug, Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % n as u64) as usize
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns one of these values.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// The failure mode of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The work succeeds.
    None,
    /// The first attempts of each round fail, this many.
    Tries(u32),
    /// The work fails permanently: a retry is pointless.
    Permanent,
    /// The work fails for a reason that only a person can remove, so that it fails in the whole epoch.
    Blocked,
    /// The worker is lost in every attempt.
    LosesWorker,
}

/// A condition on the run's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunTest {
    /// `failed()`
    Failed,
    /// `succeeded()`
    Succeeded,
}

impl RunTest {
    /// Returns whether the condition holds for a run with this status.
    pub fn holds(self, status: &str) -> bool {
        match self {
            RunTest::Failed => status == "failing",
            RunTest::Succeeded => status == "running",
        }
    }
}

/// The behaviour of one step.
#[derive(Debug, Clone)]
pub struct Script {
    /// The result of its condition, if it has one; an error fails the step.
    pub condition: Result<bool, String>,
    /// The statuses of the run for which its condition holds; absent if the condition does not depend on them.
    pub by_status: Option<RunTest>,
    /// A mask of the items for which the condition holds, if it is evaluated for each item.
    pub condition_items: u32,
    /// The length of its list, if it is a fan-out.
    pub items: Result<u32, String>,
    /// The failure mode.
    pub fault: Fault,
    /// The number of epochs of the run in which it fails; it succeeds later.
    pub epochs: u32,
    /// The number of its rounds in which it fails; it succeeds later.
    pub rounds: u32,
    /// A mask of the items that fail.
    pub bad_items: u32,
    /// Whether a failing gate is answered with no; otherwise it is never answered.
    pub rejects: bool,
    /// Whether a gate that is never answered has a default.
    pub gate_default: bool,
    /// The round after which its `repeat` asks for no more; an error fails the step.
    pub repeats: Result<u32, String>,
    /// The event that it waits for, if no worker executes it.
    pub waits_for: WaitsFor,
    /// Whether a person skips it before the run's first epoch. Only steps of the outermost run are skipped.
    pub is_skipped: bool,
}

/// The event that a step waits for if no worker executes it.
#[derive(Debug, Clone)]
pub enum WaitsFor {
    /// None: a worker executes the step.
    Worker,
    /// The answer to a gate.
    Gate,
    /// The end of a delay.
    Pause,
    /// A signal.
    Signal,
    /// The end of a child run.
    Child(Arc<Plan>),
    /// Nothing: it ends the run, and succeeds or fails itself.
    End(bool),
}

impl Default for Script {
    fn default() -> Self {
        Script {
            condition: Ok(true),
            by_status: None,
            condition_items: u32::MAX,
            items: Ok(0),
            fault: Fault::None,
            epochs: u32::MAX,
            rounds: u32::MAX,
            bad_items: u32::MAX,
            rejects: false,
            gate_default: false,
            repeats: Ok(1),
            waits_for: WaitsFor::Worker,
            is_skipped: false,
        }
    }
}

impl Script {
    /// Returns whether the step fails because its rounds do not end within its plan's limit.
    pub fn exceeds_rounds(&self, step: &PlanStep) -> bool {
        step.repeat.is_some_and(|repeat| match self.repeats {
            Ok(last) => last > repeat.max,
            Err(_) => true,
        })
    }

    /// Returns whether the step or this item fails in this epoch and round.
    pub fn fails(&self, epoch: u32, round: u32, item: Option<u32>) -> bool {
        self.fault != Fault::None
            && epoch <= self.epochs
            && round < self.rounds
            && item.is_none_or(|item| has(self.bad_items, item))
    }
}

/// Returns whether bit `item` is set. The mask repeats after 32 items.
pub fn has(mask: u32, item: u32) -> bool {
    mask >> (item % 32) & 1 == 1
}

/// All scripts. A step's spec is the index of its script.
#[derive(Debug, Clone, Default)]
pub struct Scripts(pub Vec<Script>);

impl Scripts {
    /// Returns the script of a planned step.
    pub fn of(&self, step: &PlanStep) -> &Script {
        let at: usize = step.spec.parse().expect("a spec is a number");
        &self.0[at]
    }

    /// Returns the script of a planned step, to change it.
    pub fn of_mut(&mut self, step: &PlanStep) -> &mut Script {
        let at: usize = step.spec.parse().expect("a spec is a number");
        &mut self.0[at]
    }
}

/// The longest wait for an answer or a signal, in milliseconds.
pub const MAX_WAIT_MS: u64 = 50;

/// Returns the name of the signal that a step, or this item of it, waits for.
pub fn signal_name(spec: &str, item: Option<u32>) -> String {
    format!("{spec}/{}", item.map_or(-1, i64::from))
}

impl SpecEvaluator for Scripts {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let script = self.of(step);
        let condition = script.condition.as_ref().map_err(SpecError::new)?;
        if let Some(test) = script.by_status {
            return Ok(test.holds(names["run"]["status"].as_str().unwrap_or_default()));
        }
        Ok(match names.get(ITEM).and_then(Value::as_u64) {
            Some(item) => has(script.condition_items, item as u32),
            None => *condition,
        })
    }

    fn repeats(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let last = *self.of(step).repeats.as_ref().map_err(SpecError::new)?;
        let round = names["steps"][&step.id]["round"].as_u64();
        Ok(round.expect("a step with rounds reads itself") < u64::from(last))
    }

    fn items(&self, step: &PlanStep, _: &Value) -> Result<Vec<Value>, SpecError> {
        let count = *self.of(step).items.as_ref().map_err(SpecError::new)?;
        Ok((0..count).map(|item| json!(item)).collect())
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, SpecError> {
        let item = names.get(ITEM).and_then(Value::as_u64).map(|item| item as u32);
        Ok(match &self.of(step).waits_for {
            WaitsFor::Worker => return Err(SpecError::new("a worker does it")),
            WaitsFor::Gate => Prepared::Gate {
                ask: "go on?".into(),
                choices: vec!["yes".into(), "no".into()],
                default: self.of(step).gate_default.then(|| "no".into()),
                fields: Value::Null,
                routes: Value::Null,
                answerers: Default::default(),
                timeout_ms: Some(MAX_WAIT_MS),
            },
            WaitsFor::Pause => Prepared::Pause { ms: 5 },
            WaitsFor::Signal => {
                Prepared::Signal { name: signal_name(&step.spec, item), timeout_ms: Some(MAX_WAIT_MS) }
            }
            WaitsFor::End(completed) => Prepared::End { completed: *completed, message: None },
            WaitsFor::Child(plan) => Prepared::Child { plan: Arc::clone(plan), inputs: "{}".into() },
        })
    }
}
