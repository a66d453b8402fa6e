//! Draws a world: who is in it, what is to be run, how long things take, how often they fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_executor::Config;
use sprag_lifecycle::{
    Backoff, Concurrency, OnConflict, Plan, PlanStep, Policy, Spread, Surroundings, WorkKind,
};
use sprag_store::ops::Lease;
use sprag_store::{Language, Prepared, mix};

use super::Options;
use super::programs::Wishes;
use super::record::Course;
use super::world::{BEGINNING_MS, Role, World};
use crate::graphs::{Chance, Outside, Script, Scripts, Size, add_graph};

/// Where tasks wait that agents come for.
pub const TASK_QUEUE: &str = "tasks";

/// What was drawn.
pub struct Cast {
    pub executor: Config,
    pub length_ms: i64,
    /// What a board is a run of.
    pub board: Arc<Plan>,
    /// What an attached process works off.
    pub attached: Arc<Plan>,
    wishes: BTreeMap<usize, Wishes>,
    fails_percent: usize,
    hangs_percent: usize,
    longest_ms: usize,
}

impl Cast {
    pub fn wishes(&self, person: usize) -> Wishes {
        self.wishes.get(&person).cloned().unwrap_or_default()
    }

    /// How a process will go.
    pub fn course(&self, chance: &mut Chance) -> Course {
        match chance.below(100) {
            n if n < self.hangs_percent => Course::Hangs,
            n if n < self.hangs_percent + self.fails_percent => Course::Badly,
            _ => Course::Well,
        }
    }

    pub fn takes_ms(&self, chance: &mut Chance) -> i64 {
        let longest = *chance.pick(&[self.longest_ms / 20, self.longest_ms / 4, self.longest_ms]);
        1 + chance.below(longest.max(1)) as i64
    }

    /// What a step hands on: told apart from every other, so that a lost one is missed.
    pub fn result(&self, lease: Lease) -> Arc<str> {
        format!("{{\"by\":\"{}-{}\"}}", lease.execution, lease.fence).into()
    }
}

/// Draws the nodes and what they want; the language in which plans are written comes with it.
pub fn cast(world: &World, chance: &mut Chance, options: &Options) -> (Cast, Words) {
    let mut scripts = Scripts::default();
    let hosts = 1 + chance.below(2);
    let restless = *chance.pick(&[0, 5, 20, 50]);
    let mut wishes = BTreeMap::new();
    {
        let mut state = world.state();
        let mut add = |name: &str, role: Role, least: usize, most: usize, cap: usize, chance: &mut Chance| {
            let many = (least + chance.below(most - least + 1)).min(cap.max(least));
            let named = |at: usize| format!("{name}-{}", at + 1);
            // On the first host there is always somebody who works, and clears away.
            let mut host = |at: usize| if at == 0 { 0 } else { chance.below(hosts) };
            (0..many).map(|at| state.add_node(named(at), role, host(at))).collect::<Vec<usize>>()
        };
        add("executor", Role::Executor, 1, 3, options.executors, chance);
        add("worker", Role::Worker, 1, 3, options.workers, chance);
        add("agent", Role::Agent, 1, 2, options.agents, chance);
        add("courier", Role::Courier, 0, 1, options.agents.min(1), chance);
        add("leader", Role::Leader, 0, 1, options.boards, chance);
        add("attached", Role::Attached, 0, 1, options.attached, chance);
        for person in add("person", Role::Person, 1, 2, options.persons, chance) {
            wishes.insert(person, Wishes { plans: Vec::new(), restless });
        }
        if state.nodes.iter().any(|node| node.role == Role::Courier) {
            state.record.letters = Some(Vec::new());
        }
    }
    for (person, wishes) in &mut wishes {
        for _ in 0..(1 + chance.below(3)).min(options.runs) {
            let mut own = Chance(mix(chance.below(1 << 30) as u64 ^ *person as u64));
            wishes.plans.push(plan(&mut own, options, &mut scripts));
        }
    }
    let attached = plan(chance, options, &mut scripts);
    let board = board(chance, &mut scripts);
    for script in &mut scripts.0 {
        if let Outside::Child(child) = &mut script.outside {
            *child = with_task_queue(child);
        }
    }
    let cast = Cast {
        executor: Config {
            only: None,
            sweep_interval: Duration::from_secs(5),
            dispatch_deadline: Duration::from_secs(*chance.pick(&[20, 60, 300])),
            unserved_bound: Duration::from_secs(*chance.pick(&[300, 3600])),
        },
        length_ms: *chance.pick(&[20_000, 60_000, 120_000, 300_000]),
        board,
        attached,
        wishes,
        fails_percent: *chance.pick(&[0, 5, 20]),
        hangs_percent: *chance.pick(&[0, 0, 2, 10]),
        longest_ms: *chance.pick(&[2_000, 10_000, 60_000]),
    };
    (cast, Words { scripts, seed: world.seed })
}

fn plan(chance: &mut Chance, options: &Options, scripts: &mut Scripts) -> Arc<Plan> {
    let size = Size { steps: 1 + chance.below(options.steps.max(1)), items: 3, depth: chance.below(2) };
    let drawn = add_graph(chance, size, scripts);
    let mut plan = (*with_task_queue(&drawn)).clone();
    for step in &mut plan.steps {
        // The graphs' own waits are those of a world without clocks.
        if step.policy.backoff.delay_ms > 0 {
            let delay_ms = 1 + chance.below(8_000) as u64;
            step.policy.backoff = Backoff { delay_ms, jitter_percent: 20, ..Backoff::default() };
        }
    }
    if chance.one_in(4) {
        let on_conflict = *chance.pick(&[
            OnConflict::Queue,
            OnConflict::Queue,
            OnConflict::Reject,
            OnConflict::CancelOlder,
        ]);
        let group = format!("group-{}", chance.below(2));
        plan.concurrency = Some(Concurrency { group, limit: 1 + chance.below(2) as u32, on_conflict });
    }
    if chance.one_in(3) {
        plan.environment = Some(Surroundings { spec: "{}".into() });
    }
    Arc::new(plan)
}

/// Tasks wait where agents come by.
fn with_task_queue(plan: &Plan) -> Arc<Plan> {
    let mut plan = plan.clone();
    for step in plan.steps.iter_mut().filter(|step| step.work == WorkKind::Task) {
        step.queue = TASK_QUEUE.into();
    }
    Arc::new(plan)
}

fn board(chance: &mut Chance, scripts: &mut Scripts) -> Arc<Plan> {
    let step = PlanStep {
        queue: TASK_QUEUE.into(),
        policy: Policy { attempts: 1 + chance.below(3) as u32, ..Policy::default() },
        work: WorkKind::Task,
        spread: Some(Spread { open: true, ..Spread::default() }),
        spec: scripts.0.len().to_string(),
        ..PlanStep::new("task", Vec::new())
    };
    scripts.0.push(Script::default());
    Arc::new(Plan::new("board", vec![step]).expect("one step that needs nothing"))
}

/// The scripts' language, with waits as long as those of people.
#[derive(Debug, Clone)]
pub struct Words {
    scripts: Scripts,
    seed: u64,
}

impl Language for Words {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, String> {
        self.scripts.wanted(step, names)
    }

    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, String> {
        self.scripts.items(step, names)
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, String> {
        let spec = step.spec.bytes().fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)));
        let mut chance = Chance(spec);
        let mut prepared = self.scripts.prepare(step, names)?;
        let patience_ms = 1_000 + chance.below(120_000) as u64;
        match &mut prepared {
            Prepared::Gate { timeout_ms, .. } => *timeout_ms = (!chance.one_in(3)).then_some(patience_ms),
            Prepared::Signal { timeout_ms, .. } => *timeout_ms = Some(patience_ms),
            Prepared::Pause { .. } if chance.one_in(3) => {
                let wall_ms = BEGINNING_MS + chance.below(600_000) as i64;
                prepared = Prepared::Until { wall_ms };
            }
            Prepared::Pause { ms } => *ms = 1 + chance.below(60_000) as u64,
            Prepared::Until { .. } | Prepared::Child { .. } => {}
        }
        Ok(prepared)
    }
}
