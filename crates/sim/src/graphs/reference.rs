//! The expected outcome of a run, derived from its graph and its scripts alone.
//!
//! The reference is written from the rules, not from the walk: a need is met when it is done, skipped by its own
//! `when`, or failed where that is tolerated. A broken step breaks all steps that need it, except `always` steps. Where
//! the order of events matters, the answer is the set of possible outcomes.

use std::collections::BTreeSet;

use sprag_lifecycle::{Condition, OnFail, Plan, PlanStep, RunId, RunStatus, StepNo, StepStatus, WorkKind};
use sprag_store::testing::Tables;
use sprag_store::{Row, StepRow};

use super::script::{Fault, RunTest, Script, Scripts, WaitsFor, has};

/// The statuses in which a step may end.
pub type Allowed = BTreeSet<StepStatus>;

/// The possible outcomes of one epoch of a run, if it is not cancelled.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The steps that start from the beginning in this epoch.
    pub fresh: BTreeSet<StepNo>,
    /// The possible final statuses of the run.
    pub outcomes: BTreeSet<RunStatus>,
    /// The possible statuses of each planned step if the run completes.
    pub completed: Vec<Allowed>,
    /// The possible statuses of each planned step if the run fails or is cancelled.
    pub broken: Vec<Allowed>,
}

/// The state of a run when a person resumed or rewound it.
#[derive(Debug, Clone, Default)]
pub struct Prior {
    steps: Vec<PriorStep>,
    /// The steps that start again.
    reset: BTreeSet<StepNo>,
    /// The step that a person rewound to, of which nothing is kept.
    rewound_to: Option<StepNo>,
}

#[derive(Debug, Clone)]
struct PriorStep {
    status: StepStatus,
    met: bool,
    round: u32,
    /// The statuses of the items of its list, with the child runs of these items.
    items: Option<Vec<(StepStatus, Option<Prior>)>>,
    child: Option<Prior>,
}

/// Captures the state of a run that is being resumed, or rewound to this step.
pub fn prior(tables: &Tables, run: RunId, to: Option<StepNo>) -> Option<Prior> {
    let row = tables.all_runs().find(|row| row.id == run)?;
    let plan = tables.plan_of(row)?;
    let rows: Vec<&StepRow> = tables.all_steps().filter(|step| step.run == run).collect();
    let child_of = |step: &StepRow| match plan.step(step.node()).work {
        WorkKind::Child => prior(tables, RunId::from_i64(step.work?), None),
        _ => None,
    };
    let steps: Vec<PriorStep> = rows
        .iter()
        .filter(|step| step.item_of.is_none())
        .map(|step| PriorStep {
            status: step.status(),
            met: is_met(step, plan.step(step.no)),
            round: step.round,
            items: step.items.map(|list| {
                let items = rows.iter().filter(|row| row.item_of == Some(step.no) && row.no >= list.first);
                items.map(|item| (item.status(), child_of(item))).collect()
            }),
            child: child_of(step),
        })
        .collect();
    let mut reset = BTreeSet::new();
    for (no, step) in steps.iter().enumerate() {
        let no = no as StepNo;
        if !step.met || plan.step(no).policy.always || Some(no) == to {
            reset.extend(descendants(&plan, no));
        }
    }
    Some(Prior { steps, reset, rewound_to: to })
}

impl Prior {
    /// Returns whether the step starts again.
    pub fn resets(&self, no: StepNo) -> bool {
        self.reset.contains(&no)
    }

    /// Returns whether the step restarts with its list or its child, whose finished parts stay finished.
    pub fn keeps(&self, plan: &Plan, no: StepNo) -> bool {
        self.resets(no)
            && self.rewound_to != Some(no)
            && !self.steps[no as usize].met
            && !plan.step(no).needs.iter().any(|need| self.resets(*need))
    }
}

pub(super) fn is_met(row: &StepRow, planned: &PlanStep) -> bool {
    match row.status() {
        StepStatus::Done => true,
        StepStatus::Skipped => row.skipped_by_when,
        StepStatus::Failed => is_tolerated(planned),
        _ => false,
    }
}

/// Returns whether the run continues after a failure of this step.
fn is_tolerated(planned: &PlanStep) -> bool {
    planned.policy.on_fail == OnFail::Continue || planned.policy.then_continue
}

/// Returns all steps that a step needs, directly or through others.
pub(super) fn ancestors(plan: &Plan, no: StepNo) -> BTreeSet<StepNo> {
    let mut found = BTreeSet::new();
    let mut todo = vec![no];
    while let Some(next) = todo.pop() {
        todo.extend(plan.step(next).needs.iter().filter(|need| found.insert(**need)));
    }
    found
}

/// Returns the steps that end the run well.
pub(super) fn good_ends<'a>(plan: &'a Plan, scripts: &'a Scripts) -> impl Iterator<Item = StepNo> + 'a {
    let is_end = |no: &StepNo| matches!(scripts.of(plan.step(*no)).waits_for, WaitsFor::End(true));
    (0..plan.steps.len() as StepNo).filter(move |no| is_end(no))
}

/// Returns a step and all steps that need it. Needs refer to earlier steps only.
pub(super) fn descendants(plan: &Plan, no: StepNo) -> BTreeSet<StepNo> {
    let mut found = BTreeSet::from([no]);
    for (at, step) in plan.steps.iter().enumerate().skip(no as usize) {
        if step.needs.iter().any(|need| found.contains(need)) {
            found.insert(at as StepNo);
        }
    }
    found
}

/// The possible outcomes of a part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Possible {
    success: bool,
    failure: bool,
}

impl Possible {
    const SUCCESS: Possible = Possible { success: true, failure: false };
    const FAILURE: Possible = Possible { success: false, failure: true };

    fn or(self, other: Possible) -> Possible {
        Possible { success: self.success || other.success, failure: self.failure || other.failure }
    }
}

/// The possible outcomes of a step's work by itself.
#[derive(Debug, Clone, Copy)]
struct Work {
    end: Possible,
    /// Whether an attempt may fail, so that the step fails permanently if the run stops.
    may_fail: bool,
}

struct Reader<'a> {
    plan: &'a Plan,
    scripts: &'a Scripts,
    epoch: u32,
    prior: Option<&'a Prior>,
}

/// Returns the possible outcomes of a run of this plan in this epoch of the outermost run.
pub fn expect(plan: &Plan, scripts: &Scripts, epoch: u32, prior: Option<&Prior>) -> Expected {
    let reader = Reader { plan, scripts, epoch, prior };
    let count = plan.steps.len() as StepNo;
    let reworkers: Vec<(StepNo, BTreeSet<StepNo>)> = (0..count)
        .filter_map(|no| match plan.step(no).policy.on_fail {
            OnFail::Rework { step, .. } if reader.work(no, true).may_fail && !reader.is_blocked(no) => {
                Some((no, descendants(plan, step)))
            }
            _ => None,
        })
        .collect();
    let fresh = prior.map_or_else(|| (0..count).collect(), |prior| prior.reset.clone());
    let mut expected =
        Expected { fresh, outcomes: BTreeSet::new(), completed: Vec::new(), broken: Vec::new() };
    // Whether each step can be met, and can be broken.
    let mut stands: Vec<Possible> = Vec::new();
    // Whether each step can be done, and is done in every case.
    let mut dones: Vec<(bool, bool)> = Vec::new();
    let ends: Vec<(StepNo, BTreeSet<StepNo>)> =
        good_ends(plan, scripts).map(|end| (end, ancestors(plan, end))).collect();
    let joins = plan.steps.iter().any(|step| step.quorum.is_some());
    for no in 0..count {
        let planned = plan.step(no);
        if planned.service {
            let (completed, broken, standing) = reader.service(no);
            expected.completed.push(completed);
            expected.broken.push(broken);
            stands.push(standing);
            dones.push((true, false));
            continue;
        }
        let needs = planned.needs.iter().map(|need| stands[*need as usize]);
        let met = match planned.quorum {
            None => Possible {
                success: needs.clone().all(|need| need.success),
                failure: needs.clone().any(|need| need.failure),
            },
            Some(wanted) => {
                let count = |which: fn(&(bool, bool)) -> bool| {
                    planned.needs.iter().filter(|need| which(&dones[**need as usize])).count() as u32
                };
                Possible { success: count(|done| done.0) >= wanted, failure: count(|done| done.1) < wanted }
            }
        };
        let helped = reworkers.iter().any(|(by, set)| *by != no && set.contains(&no));
        let reworked = reworkers.iter().any(|(_, set)| set.contains(&no));
        let (mut statuses, mut standing, mut may_fail) = reader.fresh(no, met, helped, reworked);
        if planned.quorum.is_some() && met.failure && !planned.policy.always {
            statuses.insert(StepStatus::Skipped);
        }
        // An earlier step that is skipped takes this one along.
        let skips = |no: &StepNo| expected.broken[*no as usize].contains(&StepStatus::Skipped);
        if !planned.policy.always && planned.skipped_with.iter().any(skips) {
            let surely = |no: &StepNo| expected.completed[*no as usize].iter().eq([&StepStatus::Skipped]);
            if planned.skipped_with.iter().any(surely) && !joins && ends.is_empty() && !reworked {
                statuses.retain(|status| *status == StepStatus::Cancelled);
                may_fail = false;
                standing.failure = met.failure;
            }
            statuses.insert(StepStatus::Skipped);
            standing.success = true;
        }
        // The run may end before this step starts.
        let ended =
            |(end, before): &(StepNo, BTreeSet<StepNo>)| *end != no && (joins || !before.contains(&no));
        if !planned.policy.always && ends.iter().any(ended) {
            statuses.insert(StepStatus::Skipped);
            standing.success = true;
        }
        if let Some(prior) = prior
            && !prior.reset.contains(&no)
        {
            let step = &prior.steps[no as usize];
            let kept = BTreeSet::from([step.status]);
            let stood = if step.met { Possible::SUCCESS } else { Possible::FAILURE };
            // The step stays unchanged, unless a failing step sends the run back to it.
            if reworked {
                statuses.extend(kept);
                standing = standing.or(stood);
            } else {
                (statuses, standing, may_fail) = (kept, stood, false);
            }
        }
        let mut broken = statuses.clone();
        let by_status = reader.script(no).by_status.filter(|_| planned.condition == Condition::Step);
        if let (Some(test), true) = (by_status, planned.policy.always) {
            // The run may fail before or after the condition is evaluated.
            broken.insert(StepStatus::Skipped);
            if test == RunTest::Failed {
                statuses.retain(|status| *status == StepStatus::Skipped);
                statuses.insert(StepStatus::Skipped);
                standing = Possible::SUCCESS;
            }
        }
        let touched = prior.is_none_or(|prior| prior.reset.contains(&no)) || standing.failure || may_fail;
        if !planned.policy.always && (touched || reworked) {
            broken.insert(StepStatus::Cancelled);
            if may_fail {
                broken.insert(StepStatus::Failed);
            }
        }
        // A failing run does no more rework, not even for an `always` step.
        if may_fail && matches!(planned.policy.on_fail, OnFail::Rework { .. }) {
            broken.insert(StepStatus::Failed);
        }
        statuses.retain(|status| *status != StepStatus::Cancelled);
        if !is_tolerated(planned) {
            statuses.remove(&StepStatus::Failed);
        }
        let done = statuses.contains(&StepStatus::Done) || broken.contains(&StepStatus::Done);
        dones.push((done, statuses.iter().eq([&StepStatus::Done]) && !standing.failure));
        expected.completed.push(statuses);
        expected.broken.push(broken);
        stands.push(standing);
    }
    if stands.iter().all(|stand| stand.success) {
        expected.outcomes.insert(RunStatus::Completed);
    }
    if stands.iter().any(|stand| stand.failure) {
        expected.outcomes.insert(RunStatus::Failed);
    }
    expected
}

impl Reader<'_> {
    /// Returns the possible statuses of a step that starts from the beginning, given the possible outcomes of its
    /// needs.
    fn fresh(&self, no: StepNo, needs: Possible, helped: bool, reworked: bool) -> (Allowed, Possible, bool) {
        let planned = self.plan.step(no);
        let mut statuses = Allowed::new();
        let mut standing = Possible::default();
        let mut may_fail = false;
        if needs.failure && !planned.policy.always {
            statuses.insert(StepStatus::Cancelled);
            standing.failure = true;
        }
        if !needs.success && !planned.policy.always {
            return (statuses, standing, may_fail);
        }
        if self.is_skipped(no) {
            // A rework makes it run as if no person had skipped it.
            statuses.insert(StepStatus::Skipped);
            standing.success = true;
            if !reworked && !self.ends_at_once(no) {
                return (statuses, standing, may_fail);
            }
        }
        let never = self.script(no).by_status == Some(RunTest::Failed) && !planned.policy.always;
        if planned.condition == Condition::Step && (never || self.script(no).condition == Ok(false)) {
            statuses.insert(StepStatus::Skipped);
            standing.success = true;
            return (statuses, standing, may_fail);
        }
        let mut work = self.work(no, reworked);
        may_fail = work.may_fail;
        if let OnFail::Rework { max, .. } = planned.policy.on_fail
            && work.end.failure
            && let Some(bad_rounds) = self.bad_rounds(no)
        {
            // Each failure that sends it back brings it one round closer to success.
            if bad_rounds <= max && !self.is_blocked(no) {
                work.end = Possible::SUCCESS;
            } else if helped {
                work.end.success = true;
            }
        }
        if work.end.success {
            statuses.insert(StepStatus::Done);
            standing.success = true;
        }
        if work.end.failure {
            statuses.insert(StepStatus::Failed);
            if is_tolerated(planned) {
                standing.success = true;
            } else {
                standing.failure = true;
            }
        }
        (statuses, standing, may_fail)
    }

    /// Returns the possible statuses of a service in a run that completes and in one that does not, and its possible
    /// standings. A service is done when it was stopped, and skipped if it did not run at the end. One that fails may do so
    /// before or after the end of the other steps.
    fn service(&self, no: StepNo) -> (Allowed, Allowed, Possible) {
        let (planned, script) = (self.plan.step(no), self.script(no));
        let lasts = match script.fault {
            Fault::None => false,
            Fault::Tries(tries) => tries >= planned.policy.attempts,
            Fault::Permanent | Fault::Blocked | Fault::LosesWorker => true,
        };
        let may_fail = lasts && script.fails(self.epoch, 0, None);
        let stopped = Allowed::from([StepStatus::Done, StepStatus::Skipped]);
        let mut with_failure = stopped.clone();
        if may_fail {
            with_failure.insert(StepStatus::Failed);
        }
        let completed = if is_tolerated(planned) { with_failure.clone() } else { stopped };
        let failure = may_fail && !is_tolerated(planned);
        (completed, with_failure, Possible { success: true, failure })
    }

    fn script(&self, no: StepNo) -> &Script {
        self.scripts.of(self.plan.step(no))
    }

    /// Returns whether a person skips the step in this epoch.
    fn is_skipped(&self, no: StepNo) -> bool {
        self.script(no).is_skipped && self.epoch == 1 && self.prior.is_none()
    }

    /// Returns whether the step may have ended before a person could skip it: without needs, it starts with the run.
    fn ends_at_once(&self, no: StepNo) -> bool {
        let (planned, script) = (self.plan.step(no), self.script(no));
        let no_worker = planned.spread.is_some()
            || self.is_unreadable(no)
            || matches!(script.waits_for, WaitsFor::End(_) | WaitsFor::Child(_));
        no_worker || planned.condition != Condition::None
    }

    fn first_round(&self, no: StepNo) -> u32 {
        self.prior.map_or(0, |prior| prior.steps[no as usize].round)
    }

    /// Returns the number of consecutive failing rounds from here, or `None` if there is no end to them.
    fn bad_rounds(&self, no: StepNo) -> Option<u32> {
        let script = self.script(no);
        let by_rounds = matches!(script.waits_for, WaitsFor::Worker | WaitsFor::Gate | WaitsFor::Signal);
        let exceeds = script.exceeds_rounds(self.plan.step(no));
        let wanted = by_rounds && !self.is_unreadable(no) && !exceeds;
        wanted.then(|| script.rounds.saturating_sub(self.first_round(no)))
    }

    /// Returns whether the step fails before it has any work, because its condition or its list cannot be evaluated.
    fn is_unreadable(&self, no: StepNo) -> bool {
        let (planned, script) = (self.plan.step(no), self.script(no));
        (planned.condition != Condition::None && script.condition.is_err())
            || (planned.spread.is_some() && script.items.is_err())
    }

    /// Returns whether the step's failures never cause a rework.
    fn is_blocked(&self, no: StepNo) -> bool {
        let script = self.script(no);
        let exceeds = script.exceeds_rounds(self.plan.step(no));
        script.fault == Fault::Blocked && !self.is_unreadable(no) && !exceeds
    }

    /// Returns the possible outcomes of the step's work in this epoch. A step that a person sent back continues with
    /// its finished parts, until a rework restarts it.
    fn work(&self, no: StepNo, reworked: bool) -> Work {
        let kept =
            self.prior.filter(|prior| prior.keeps(self.plan, no)).map(|prior| &prior.steps[no as usize]);
        let first = self.work_with(no, kept);
        if kept.is_none() || !reworked {
            return first;
        }
        let later = self.work_with(no, None);
        Work { end: first.end.or(later.end), may_fail: first.may_fail || later.may_fail }
    }

    fn work_with(&self, no: StepNo, kept: Option<&PriorStep>) -> Work {
        let planned = self.plan.step(no);
        let script = self.script(no);
        if planned.condition == Condition::Step && script.condition.is_err() {
            return Work { end: Possible::FAILURE, may_fail: true };
        }
        let Some(_) = planned.spread else {
            return self.unit(no, None, kept.and_then(|step| step.child.as_ref()));
        };
        let old = kept.and_then(|step| step.items.as_ref());
        let total = match (&script.items, old) {
            (Err(_), None) => return Work { end: Possible::FAILURE, may_fail: true },
            (Err(_), Some(old)) => old.len() as u32,
            (Ok(total), _) => *total,
        };
        let mut all = Work { end: Possible::SUCCESS, may_fail: false };
        for item in 0..total {
            let before = old.and_then(|old| old.get(item as usize));
            if before.is_some_and(|(status, _)| matches!(status, StepStatus::Done | StepStatus::Skipped)) {
                continue;
            }
            if planned.condition == Condition::Item
                && script.condition.is_ok()
                && !has(script.condition_items, item)
            {
                continue;
            }
            let one = self.unit(no, Some(item), before.and_then(|(_, child)| child.as_ref()));
            all.end.success &= one.end.success;
            all.end.failure |= one.end.failure;
            all.may_fail |= one.may_fail;
        }
        all
    }

    /// Returns the possible outcomes of one unit of work: a step's or an item's.
    fn unit(&self, no: StepNo, item: Option<u32>, kept: Option<&Prior>) -> Work {
        let (planned, script) = (self.plan.step(no), self.script(no));
        let round = self.one_round(no, item, kept);
        let unreadable = planned.condition == Condition::Item && script.condition.is_err();
        if planned.repeat.is_none() || unreadable {
            return round;
        }
        // Each round has its own tries. Only the first can continue a kept child.
        let next = self.one_round(no, item, None);
        let several = script.repeats != Ok(1);
        let mut end = Possible {
            success: round.end.success && (!several || next.end.success),
            failure: round.end.failure || (several && next.end.failure),
        };
        if script.exceeds_rounds(planned) {
            end = Possible::FAILURE;
        }
        Work { end, may_fail: round.may_fail || (several && next.may_fail) || end.failure }
    }

    /// Returns the possible outcomes of one round of a unit of work; a step without `repeat` has one.
    fn one_round(&self, no: StepNo, item: Option<u32>, kept: Option<&Prior>) -> Work {
        let planned = self.plan.step(no);
        let script = self.script(no);
        if planned.condition == Condition::Item && script.condition.is_err() {
            return Work { end: Possible::FAILURE, may_fail: true };
        }
        // A question without an answer has its default, if it has one.
        let answers_itself = script.gate_default && !script.rejects;
        let wrong = script.fails(self.epoch, self.first_round(no), item) && !answers_itself;
        let end = match &script.waits_for {
            WaitsFor::Pause | WaitsFor::End(true) => Possible::SUCCESS,
            WaitsFor::End(false) => return Work { end: Possible::FAILURE, may_fail: true },
            WaitsFor::Gate | WaitsFor::Signal if wrong => Possible::FAILURE,
            WaitsFor::Gate | WaitsFor::Signal => Possible::SUCCESS,
            WaitsFor::Worker => match script.fault {
                _ if !wrong => Possible::SUCCESS,
                Fault::None => Possible::SUCCESS,
                Fault::Tries(tries) if tries < planned.policy.attempts => Possible::SUCCESS,
                Fault::Tries(_) | Fault::Permanent | Fault::Blocked | Fault::LosesWorker => Possible::FAILURE,
            },
            WaitsFor::Child(plan) => {
                let fresh = self.child(plan, None);
                let Some(kept) = kept else { return fresh };
                let first = self.child(plan, Some(kept));
                let end = match planned.policy.attempts {
                    1 => first.end,
                    _ => Possible {
                        success: first.end.success || fresh.end.success,
                        // A blocked child is not created again.
                        failure: first.end.failure && (fresh.end.failure || self.may_block(plan)),
                    },
                };
                return Work { end, may_fail: first.may_fail || fresh.may_fail };
            }
        };
        Work { end, may_fail: wrong && !matches!(script.waits_for, WaitsFor::Pause) }
    }

    /// Returns whether a run of this plan may fail for a reason that only a person can remove.
    fn may_block(&self, plan: &Plan) -> bool {
        plan.steps.iter().map(|step| self.scripts.of(step)).any(|script| match &script.waits_for {
            WaitsFor::Child(plan) => self.may_block(plan),
            _ => script.fault == Fault::Blocked,
        })
    }

    fn child(&self, plan: &Plan, prior: Option<&Prior>) -> Work {
        let expected = expect(plan, self.scripts, self.epoch, prior);
        let failure = expected.outcomes.contains(&RunStatus::Failed);
        let success = expected.outcomes.contains(&RunStatus::Completed);
        Work { end: Possible { success, failure }, may_fail: failure }
    }
}
