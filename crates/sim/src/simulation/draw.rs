//! Draws a world: its nodes, the pipelines to run, durations, and failure rates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_lifecycle::{
    Backoff, Concurrency, OnConflict, Plan, PlanEnvironment, PlanStep, Policy, Spread, WorkKind,
};
use sprag_store::{Lease, Prepared, SpecError, SpecEvaluator, mix};
use sprag_sweeper::Config;

use super::Options;
use super::programs::PersonPlan;
use super::record::NaturalEnd;
use super::world::{Role, START_MS, World};
use crate::graphs::{Chance, Script, Scripts, Size, WaitsFor, add_graph};

/// The queue of tasks for agents.
pub const TASK_QUEUE: &str = "tasks";

/// The drawn scenario.
pub struct Scenario {
    pub executor: Config,
    pub length_ms: i64,
    /// The plan of a board.
    pub board: Arc<Plan>,
    /// The plan that an attached process executes.
    pub attached: Arc<Plan>,
    /// The plan of the runs that rules start; none without rules.
    pub ruled: Option<Arc<Plan>>,
    person_plan: BTreeMap<usize, PersonPlan>,
    fails_percent: usize,
    hangs_percent: usize,
    longest_ms: usize,
}

impl Scenario {
    pub fn person_plan(&self, person: usize) -> PersonPlan {
        self.person_plan.get(&person).cloned().unwrap_or_default()
    }

    /// Draws the behaviour of a process.
    pub fn natural_end(&self, chance: &mut Chance) -> NaturalEnd {
        match chance.below(100) {
            n if n < self.hangs_percent => NaturalEnd::Hangs,
            n if n < self.hangs_percent + self.fails_percent => NaturalEnd::Badly,
            _ => NaturalEnd::Well,
        }
    }

    pub fn takes_ms(&self, chance: &mut Chance) -> i64 {
        let longest = *chance.pick(&[self.longest_ms / 20, self.longest_ms / 4, self.longest_ms]);
        1 + chance.below(longest.max(1)) as i64
    }

    /// Returns the result of a step. Every result is distinct, so that a lost one is detected.
    pub fn result(&self, lease: Lease) -> Arc<str> {
        format!("{{\"by\":\"{}-{}\"}}", lease.execution, lease.fence).into()
    }
}

/// Draws the nodes and their requests. Returns them with the evaluator of the plans.
pub fn scenario(world: &World, chance: &mut Chance, options: &Options) -> (Scenario, ScriptEvaluator) {
    let mut scripts = Scripts::default();
    let hosts = 1 + chance.below(2);
    let restless = *chance.pick(&[0, 5, 20, 50]);
    let mut person_plan = BTreeMap::new();
    {
        let mut state = world.state();
        let mut add = |name: &str, role: Role, least: usize, most: usize, cap: usize, chance: &mut Chance| {
            let many = (least + chance.below(most - least + 1)).min(cap.max(least));
            let named = |at: usize| format!("{name}-{}", at + 1);
            // The first host always has a worker, which also removes environments.
            let mut host = |at: usize| if at == 0 { 0 } else { chance.below(hosts) };
            (0..many).map(|at| state.add_node(named(at), role, host(at))).collect::<Vec<usize>>()
        };
        if !options.serverless {
            add("executor", Role::Executor, 1, 3, options.executors, chance);
            add("worker", Role::Worker, 1, 3, options.workers, chance);
        }
        add("agent", Role::Agent, 1, 2, options.agents, chance);
        if options.serverless {
            add("attached", Role::Attached, 2, 5, options.attached, chance);
        } else {
            add("courier", Role::Courier, 0, 1, options.agents.min(1), chance);
            add("leader", Role::Leader, 0, 1, options.boards, chance);
            add("attached", Role::Attached, 0, 1, options.attached, chance);
            add("forgetter", Role::Collector, 0, 1, options.collectors, chance);
        }
        if options.senders > 0 {
            add("sender", Role::Sender, 1, options.senders, options.senders, chance);
        }
        for person in add("person", Role::Person, 1, 2, options.persons, chance) {
            person_plan.insert(person, PersonPlan { plans: Vec::new(), restless });
        }
        if state.nodes.iter().any(|node| node.role == Role::Courier) {
            state.record.handoffs = Some(Vec::new());
        }
    }
    for (person, person_plan) in &mut person_plan {
        for _ in 0..(1 + chance.below(3)).min(options.runs) {
            let mut own = Chance(mix(chance.below(1 << 30) as u64 ^ *person as u64));
            person_plan.plans.push(plan(&mut own, options, &mut scripts));
        }
    }
    let mut attached = plan(chance, options, &mut scripts);
    if options.serverless {
        // The runs of the group wait for each other.
        let on_conflict = *chance.pick(&[OnConflict::Queue, OnConflict::Queue, OnConflict::CancelOlder]);
        let limit = 1 + chance.below(2) as u32;
        let mut plan = (*attached).clone();
        plan.concurrency = Some(Concurrency { group: "group-0".into(), limit, on_conflict });
        attached = Arc::new(plan);
    }
    let board = board(chance, &mut scripts);
    let ruled = (options.senders > 0).then(|| {
        let mut plan = (*plan(chance, options, &mut scripts)).clone();
        // A full group would be another reason for an event to start nothing.
        plan.concurrency = None;
        Arc::new(plan)
    });
    for script in &mut scripts.0 {
        if let WaitsFor::Child(child) = &mut script.waits_for {
            *child = with_task_queue(child);
        }
    }
    let scenario = Scenario {
        executor: Config {
            only: None,
            worker: None,
            sweep_interval: Duration::from_secs(5),
            dispatch_deadline: Duration::from_secs(*chance.pick(&[20, 60, 300])),
            unserved_bound: Duration::from_secs(*chance.pick(&[300, 3600])),
        },
        length_ms: *chance.pick(&[20_000, 60_000, 120_000, 300_000]),
        board,
        attached,
        ruled,
        person_plan,
        fails_percent: *chance.pick(&[0, 5, 20]),
        hangs_percent: *chance.pick(&[0, 0, 2, 10]),
        longest_ms: *chance.pick(&[2_000, 10_000, 60_000]),
    };
    (scenario, ScriptEvaluator { scripts, seed: world.seed })
}

fn plan(chance: &mut Chance, options: &Options, scripts: &mut Scripts) -> Arc<Plan> {
    let size = Size { steps: 1 + chance.below(options.steps.max(1)), items: 3, depth: chance.below(2) };
    let drawn = add_graph(chance, size, scripts);
    let mut plan = (*with_task_queue(&drawn)).clone();
    for step in &mut plan.steps {
        // The delays of the graphs are those of a world without clocks.
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
        plan.environment = Some(PlanEnvironment { spec: "{}".into() });
    }
    Arc::new(plan)
}

/// Puts tasks into the queue of the agents.
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

/// The evaluator of the scripts, with delays as long as those of people.
#[derive(Debug, Clone)]
pub struct ScriptEvaluator {
    scripts: Scripts,
    seed: u64,
}

impl SpecEvaluator for ScriptEvaluator {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        self.scripts.wanted(step, names)
    }

    fn items(&self, step: &PlanStep, names: &Value) -> Result<Vec<Value>, SpecError> {
        self.scripts.items(step, names)
    }

    fn repeats(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        self.scripts.repeats(step, names)
    }

    fn prepare(&self, step: &PlanStep, names: &Value) -> Result<Prepared, SpecError> {
        let spec = step.spec.bytes().fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)));
        let mut chance = Chance(spec);
        let mut prepared = self.scripts.prepare(step, names)?;
        let patience_ms = 1_000 + chance.below(120_000) as u64;
        match &mut prepared {
            Prepared::Gate { timeout_ms, .. } => *timeout_ms = (!chance.one_in(3)).then_some(patience_ms),
            Prepared::Signal { timeout_ms, .. } => *timeout_ms = Some(patience_ms),
            Prepared::Pause { .. } if chance.one_in(3) => {
                let wall_ms = START_MS + chance.below(600_000) as i64;
                prepared = Prepared::Until { wall_ms };
            }
            Prepared::Pause { ms } => *ms = 1 + chance.below(60_000) as u64,
            Prepared::Until { .. } | Prepared::Child { .. } | Prepared::End { .. } => {}
        }
        Ok(prepared)
    }
}
