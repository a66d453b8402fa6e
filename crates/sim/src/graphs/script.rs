//! What the work of each node does, and the language in which plans refer to it.

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{Plan, PlanStep};
use sprag_store::{ITEM, Language, Prepared, mix};

/// A source of chance that depends on its seed alone.
#[derive(Debug, Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// Any number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// How work goes wrong, when it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not at all.
    None,
    /// The first so many tries of a round fail.
    Tries(u32),
    /// It fails, and says that another try makes no sense.
    ForGood,
    /// Its worker is lost, each time.
    Deadly,
}

/// What the work of one node does.
#[derive(Debug, Clone)]
pub struct Script {
    /// The answer to its own condition, if it has one; an error fails it.
    pub wanted: Result<bool, String>,
    /// Which items its condition wants, if it is asked for each.
    pub wanted_items: u32,
    /// The length of its list, if it is a fan-out.
    pub items: Result<u32, String>,
    /// How it goes wrong.
    pub fault: Fault,
    /// It goes wrong in the run's first so many epochs; later it is well.
    pub epochs: u32,
    /// It goes wrong in its first so many rounds; later it is well.
    pub rounds: u32,
    /// The items that go wrong.
    pub bad_items: u32,
    /// A question that fails is answered with no; otherwise nobody answers.
    pub rejects: bool,
    /// What it waits for, if no worker does it.
    pub outside: Outside,
}

/// What a node waits for that no worker does.
#[derive(Debug, Clone)]
pub enum Outside {
    /// Nothing: a worker does it.
    Worker,
    /// An answer.
    Gate,
    /// A span of time.
    Pause,
    /// A signal.
    Signal,
    /// Another run.
    Child(Arc<Plan>),
}

impl Default for Script {
    fn default() -> Self {
        Script {
            wanted: Ok(true),
            wanted_items: u32::MAX,
            items: Ok(0),
            fault: Fault::None,
            epochs: u32::MAX,
            rounds: u32::MAX,
            bad_items: u32::MAX,
            rejects: false,
            outside: Outside::Worker,
        }
    }
}

impl Script {
    /// Whether it goes wrong in this epoch and round, as this item if it is one.
    pub fn goes_wrong(&self, epoch: u32, round: u32, item: Option<u32>) -> bool {
        self.fault != Fault::None
            && epoch <= self.epochs
            && round < self.rounds
            && item.is_none_or(|item| has(self.bad_items, item))
    }
}

/// Whether bit `item` is set; from the 32nd on they begin again.
pub fn has(mask: u32, item: u32) -> bool {
    mask >> (item % 32) & 1 == 1
}

/// Every script; a step's spec is the place of its own.
#[derive(Debug, Clone, Default)]
pub struct Scripts(pub Vec<Script>);

impl Scripts {
    /// The script of a planned step.
    pub fn of(&self, step: &PlanStep) -> &Script {
        let at: usize = step.spec.parse().expect("a spec is a number");
        &self.0[at]
    }
}

/// How long questions and signals are waited for.
pub const PATIENCE_MS: u64 = 50;

/// The signal that a step, or this item of it, waits for.
pub fn signal_name(spec: &str, item: Option<u32>) -> String {
    format!("{spec}/{}", item.map_or(-1, i64::from))
}

impl Language for Scripts {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, String> {
        let script = self.of(step);
        match names.get(ITEM).and_then(Value::as_u64) {
            Some(item) => script.wanted.clone().map(|_| has(script.wanted_items, item as u32)),
            None => script.wanted.clone(),
        }
    }

    fn items(&self, step: &PlanStep, _: &Value) -> Result<Vec<Value>, String> {
        self.of(step).items.clone().map(|count| (0..count).map(|item| json!(item)).collect())
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, String> {
        let item = names.get(ITEM).and_then(Value::as_u64).map(|item| item as u32);
        Ok(match &self.of(step).outside {
            Outside::Worker => return Err("a worker does it".into()),
            Outside::Gate => Prepared::Gate {
                ask: "go on?".into(),
                choices: vec!["yes".into(), "no".into()],
                timeout_ms: Some(PATIENCE_MS),
            },
            Outside::Pause => Prepared::Pause { ms: 5 },
            Outside::Signal => {
                Prepared::Signal { name: signal_name(&step.spec, item), timeout_ms: Some(PATIENCE_MS) }
            }
            Outside::Child(plan) => Prepared::Child { plan: Arc::clone(plan), inputs: "{}".into() },
        })
    }
}
