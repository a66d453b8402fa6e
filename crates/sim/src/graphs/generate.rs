//! Draws pipelines: graphs of 1 to 200 steps with all features of a step.

use std::sync::Arc;

use sprag_lifecycle::{
    Backoff, Condition, OnFail, Plan, PlanStep, Policy, Repeat, SERVICE_PRIORITY, Spread, StepNo, WorkKind,
};

use super::script::{Chance, Fault, RunTest, Script, Scripts, WaitsFor};

/// The maximum size of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The most steps.
    pub steps: usize,
    /// The most items of a fan-out.
    pub items: usize,
    /// The deepest nesting of child runs.
    pub depth: usize,
}

/// A pipeline with the behaviour of its steps.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The plan of the outermost run.
    pub plan: Arc<Plan>,
    /// The behaviour of every step, including those of child plans.
    pub scripts: Scripts,
}

/// Draws a graph.
pub fn graph(chance: &mut Chance, size: Size) -> Graph {
    let mut scripts = Scripts::default();
    let plan = add_graph(chance, size, &mut scripts);
    if chance.one_in(3) {
        for step in &plan.steps {
            scripts.of_mut(step).is_skipped = chance.one_in(6);
        }
    }
    Graph { plan, scripts }
}

/// Draws a graph and appends its scripts to the existing ones.
pub fn add_graph(chance: &mut Chance, size: Size, scripts: &mut Scripts) -> Arc<Plan> {
    // The rate of failures is drawn per graph, so that some graphs are calm and others are not.
    let trouble = *chance.pick(&[3, 8, 30, 1_000]);
    plan(chance, size, trouble, scripts)
}

fn plan(chance: &mut Chance, size: Size, trouble: usize, scripts: &mut Scripts) -> Arc<Plan> {
    let count = 1 + chance.below(size.steps);
    let reach = 1 + chance.below(6);
    let mut steps: Vec<PlanStep> = Vec::with_capacity(count);
    for no in 0..count {
        let mut needs: Vec<StepNo> = Vec::new();
        for _ in 0..chance.below(reach).min(no) {
            needs.push(chance.below(no) as StepNo);
        }
        needs.sort_unstable();
        needs.dedup();
        let step = step(chance, size, trouble, needs, &steps, scripts);
        steps.push(step);
    }
    mark_skips(chance, &mut steps);
    if chance.one_in(4) {
        for _ in 0..1 + chance.below(2) {
            let service = service(chance, trouble, steps.len(), scripts);
            steps.push(service);
        }
    }
    let name = format!("random-{}", scripts.0.len());
    let mut plan = Plan::new(name, steps).expect("needs and reworks reach back only");
    plan.max_parallel = chance.one_in(4).then(|| 1 + chance.below(3) as u32);
    Arc::new(plan)
}

fn step(
    chance: &mut Chance,
    size: Size,
    trouble: usize,
    needs: Vec<StepNo>,
    before: &[PlanStep],
    scripts: &mut Scripts,
) -> PlanStep {
    let fails = chance.one_in(trouble);
    let mut script = Script::default();
    let mut step = PlanStep::new(format!("s{}", before.len()), needs);
    step.policy = policy(chance, &step, before);
    step.queue = (*chance.pick(&["default", "default", "other"])).into();
    step.priority = chance.below(3) as i32;
    if chance.one_in(4) {
        script.items = Ok(chance.below(size.items + 1) as u32);
        step.spread = Some(Spread {
            max_parallel: chance.one_in(2).then(|| 1 + chance.below(4) as u32),
            fail_fast: chance.one_in(3),
            open: false,
        });
        if chance.one_in(trouble.max(10)) {
            script.items = Err("no list".into());
        }
        script.bad_items = match chance.below(3) {
            0 => u32::MAX,
            1 => 1 << chance.below(20),
            _ => mask(chance),
        };
    }
    if chance.one_in(5) {
        let per_item = step.spread.is_some() && chance.one_in(2);
        step.condition = if per_item { Condition::Item } else { Condition::Step };
        script.condition_items = mask(chance);
        script.condition = if chance.one_in(trouble.max(10)) {
            Err("no answer".into())
        } else {
            Ok(per_item || chance.one_in(2))
        };
    }
    if step.condition == Condition::Step && script.condition.is_ok() && chance.one_in(2) {
        script.condition = Ok(true);
        script.by_status = Some(*chance.pick(&[RunTest::Failed, RunTest::Succeeded]));
    }
    (step.work, script.waits_for) = match chance.below(12) {
        0 => (WorkKind::Gate, WaitsFor::Gate),
        1 => (WorkKind::Wait, WaitsFor::Pause),
        2 => (WorkKind::Wait, WaitsFor::Signal),
        3 if size.depth > 0 => {
            let small = Size { steps: 4, items: size.items.min(3), depth: size.depth - 1 };
            (WorkKind::Child, WaitsFor::Child(plan(chance, small, trouble.max(3), scripts)))
        }
        4 => (WorkKind::Task, WaitsFor::Worker),
        5 if chance.one_in(3) => (WorkKind::End, WaitsFor::End(!chance.one_in(4))),
        _ => (WorkKind::Execution, WaitsFor::Worker),
    };
    if step.work == WorkKind::End {
        step.spread = None;
        step.policy.always = false;
        if step.condition == Condition::Item {
            step.condition = Condition::Step;
        }
    }
    if step.needs.len() > 1 && chance.one_in(6) {
        step.quorum = Some(1 + chance.below(step.needs.len()) as u32);
    }
    if matches!(step.work, WorkKind::Execution | WorkKind::Task | WorkKind::Child) && chance.one_in(5) {
        let max = 1 + chance.below(3) as u32;
        step.repeat = Some(Repeat { max, delay_ms: *chance.pick(&[0, 0, 9]) });
        step.reads = vec![before.len() as StepNo];
        script.repeats = match chance.below(12) {
            0 => Err("no answer".into()),
            1 => Ok(max + 1),
            _ => Ok(1 + chance.below(max as usize) as u32),
        };
    }
    if step.work == WorkKind::Child {
        script.items = script.items.map(|count| count.min(3));
        step.policy.timeout_ms = chance.one_in(2).then_some(1_000_000);
    }
    if fails && !matches!(step.work, WorkKind::Child | WorkKind::End) {
        script.fault = match (step.work, chance.below(8)) {
            (WorkKind::Execution | WorkKind::Task, 0) => Fault::LosesWorker,
            (WorkKind::Execution | WorkKind::Task, 1..=4) => Fault::Tries(1 + chance.below(3) as u32),
            (WorkKind::Execution | WorkKind::Task, 5) => Fault::Blocked,
            _ => Fault::Permanent,
        };
        script.rejects = chance.one_in(2);
        // Of a rejection and the end of its time, the first would count.
        script.gate_default = step.work == WorkKind::Gate && !script.rejects && chance.one_in(2);
        script.epochs = 1 + chance.below(3) as u32;
        if let OnFail::Rework { max, .. } = step.policy.on_fail {
            script.rounds = chance.below(max as usize + 3) as u32;
        }
    }
    step.spec = scripts.0.len().to_string();
    scripts.0.push(script);
    step
}

/// Draws a service: an `always` step without needs that ends with its run.
fn service(chance: &mut Chance, trouble: usize, no: usize, scripts: &mut Scripts) -> PlanStep {
    let mut step = PlanStep::new(format!("s{no}"), Vec::new());
    step.service = true;
    step.priority = SERVICE_PRIORITY;
    step.policy = Policy {
        attempts: 1 + chance.below(3) as u32,
        backoff: Backoff { delay_ms: *chance.pick(&[0, 7]), ..Backoff::default() },
        on_fail: if chance.one_in(3) { OnFail::Continue } else { OnFail::Fail },
        always: true,
        losses: 3,
        ..Policy::default()
    };
    let mut script = Script::default();
    if chance.one_in(trouble) {
        script.fault = match chance.below(4) {
            0 => Fault::LosesWorker,
            1 => Fault::Permanent,
            _ => Fault::Tries(1 + chance.below(3) as u32),
        };
        script.epochs = 1 + chance.below(3) as u32;
    }
    step.spec = scripts.0.len().to_string();
    scripts.0.push(script);
    step
}

/// Lets some conditional steps take the steps that need them along when they are skipped. Needs reach back only.
fn mark_skips(chance: &mut Chance, steps: &mut [PlanStep]) {
    let mut with: Vec<Vec<StepNo>> = Vec::with_capacity(steps.len());
    for (no, step) in steps.iter_mut().enumerate() {
        let mut all: Vec<StepNo> = step.needs.iter().flat_map(|need| with[*need as usize].clone()).collect();
        all.sort_unstable();
        all.dedup();
        step.skipped_with = all.clone();
        if step.condition == Condition::Step && chance.one_in(3) {
            all.push(no as StepNo);
        }
        with.push(all);
    }
}

fn mask(chance: &mut Chance) -> u32 {
    chance.below(1 << 20) as u32
}

fn policy(chance: &mut Chance, step: &PlanStep, before: &[PlanStep]) -> Policy {
    let on_fail = match chance.below(6) {
        0 => OnFail::Continue,
        1 | 2 if !step.needs.is_empty() => {
            // Goes back through a few needs.
            let mut target = *chance.pick(&step.needs);
            for _ in 0..chance.below(3) {
                if let Some(further) = before[target as usize].needs.first() {
                    target = *further;
                }
            }
            OnFail::Rework { step: target, max: 1 + chance.below(2) as u32 }
        }
        _ => OnFail::Fail,
    };
    let then_continue = matches!(on_fail, OnFail::Rework { .. }) && chance.one_in(3);
    Policy {
        then_continue,
        attempts: 1 + chance.below(3) as u32,
        backoff: Backoff { delay_ms: *chance.pick(&[0, 0, 7, 30]), ..Backoff::default() },
        on_fail,
        always: chance.one_in(6),
        at_most_once: chance.one_in(8),
        losses: 3,
        ..Policy::default()
    }
}
