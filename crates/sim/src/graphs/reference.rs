//! What must come of a run, from its graph and its scripts alone.
//!
//! Written from the rules, not from the walk: a need is met when done, skipped by its own `when` or failed
//! where that is tolerated; what is broken breaks all that needs it, except `always` steps. Where the
//! order of events decides, the answer is the set of what may come.

use std::collections::{BTreeMap, BTreeSet};

use sprag_lifecycle::{Condition, OnFail, Plan, PlanStep, RunId, RunStatus, StepNo, StepStatus, WorkKind};
use sprag_store::{Row, RunRow, StepRow, Tables};

use super::script::{Fault, Outside, Script, Scripts, has};

/// Statuses that a step may end in.
pub type Allowed = BTreeSet<StepStatus>;

/// What may come of a run's epoch, if nobody cancels it.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The steps that begin anew in this epoch.
    pub fresh: BTreeSet<StepNo>,
    /// How the run may end.
    pub outcomes: BTreeSet<RunStatus>,
    /// What each planned step may be if the run completes.
    pub completed: Vec<Allowed>,
    /// What each planned step may be if it fails or is cancelled.
    pub broken: Vec<Allowed>,
}

/// How a run stood when a person sent it back.
#[derive(Debug, Clone, Default)]
pub struct Prior {
    steps: Vec<PriorStep>,
    /// The steps that start again.
    reset: BTreeSet<StepNo>,
    /// The step that a person rewound to: nothing of it is kept.
    afresh: Option<StepNo>,
}

#[derive(Debug, Clone)]
struct PriorStep {
    status: StepStatus,
    met: bool,
    round: u32,
    /// The statuses of the items of its list, with the children that were their work.
    items: Option<Vec<(StepStatus, Option<Prior>)>>,
    child: Option<Prior>,
}

/// How a run stands now that somebody resumes it, or rewinds it to this step.
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
    Some(Prior { steps, reset, afresh: to })
}

impl Prior {
    /// Whether the step starts again.
    pub fn resets(&self, no: StepNo) -> bool {
        self.reset.contains(&no)
    }

    /// Whether it does so with its list or its child, of which stays done what is done.
    pub fn keeps(&self, plan: &Plan, no: StepNo) -> bool {
        self.resets(no)
            && self.afresh != Some(no)
            && !self.steps[no as usize].met
            && !plan.step(no).needs.iter().any(|need| self.resets(*need))
    }
}

fn is_met(row: &StepRow, planned: &PlanStep) -> bool {
    match row.status() {
        StepStatus::Done => true,
        StepStatus::Skipped => row.skipped_by_when,
        StepStatus::Failed => planned.policy.on_fail == OnFail::Continue,
        _ => false,
    }
}

/// A step and all that needs it; needs name earlier steps only.
fn descendants(plan: &Plan, no: StepNo) -> BTreeSet<StepNo> {
    let mut found = BTreeSet::from([no]);
    for (at, step) in plan.steps.iter().enumerate().skip(no as usize) {
        if step.needs.iter().any(|need| found.contains(need)) {
            found.insert(at as StepNo);
        }
    }
    found
}

/// What may come of something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Might {
    well: bool,
    badly: bool,
}

impl Might {
    const WELL: Might = Might { well: true, badly: false };
    const BADLY: Might = Might { well: false, badly: true };

    fn or(self, other: Might) -> Might {
        Might { well: self.well || other.well, badly: self.badly || other.badly }
    }
}

/// What may come of a step's work, left to itself.
#[derive(Debug, Clone, Copy)]
struct Work {
    end: Might,
    /// An attempt at it may fail, so that it may fail for good if the run does not go on.
    may_stumble: bool,
}

struct Reader<'a> {
    plan: &'a Plan,
    scripts: &'a Scripts,
    epoch: u32,
    prior: Option<&'a Prior>,
}

/// What may come of a run of this plan in this epoch of the outermost run.
pub fn expect(plan: &Plan, scripts: &Scripts, epoch: u32, prior: Option<&Prior>) -> Expected {
    let reader = Reader { plan, scripts, epoch, prior };
    let count = plan.steps.len() as StepNo;
    let reworkers: Vec<(StepNo, BTreeSet<StepNo>)> = (0..count)
        .filter_map(|no| match plan.step(no).policy.on_fail {
            OnFail::Rework { step, .. } if reader.work(no, true).may_stumble => {
                Some((no, descendants(plan, step)))
            }
            _ => None,
        })
        .collect();
    let fresh = prior.map_or_else(|| (0..count).collect(), |prior| prior.reset.clone());
    let mut expected =
        Expected { fresh, outcomes: BTreeSet::new(), completed: Vec::new(), broken: Vec::new() };
    // Whether each step can be met, and can be broken.
    let mut stands: Vec<Might> = Vec::new();
    for no in 0..count {
        let planned = plan.step(no);
        let needs = planned.needs.iter().map(|need| stands[*need as usize]);
        let met =
            Might { well: needs.clone().all(|need| need.well), badly: needs.clone().any(|need| need.badly) };
        let helped = reworkers.iter().any(|(by, set)| *by != no && set.contains(&no));
        let reworked = reworkers.iter().any(|(_, set)| set.contains(&no));
        let (mut statuses, mut standing, mut stumbles) = reader.fresh(no, met, helped, reworked);
        if let Some(prior) = prior
            && !prior.reset.contains(&no)
        {
            let step = &prior.steps[no as usize];
            let kept = BTreeSet::from([step.status]);
            let stood = if step.met { Might::WELL } else { Might::BADLY };
            // It stays as it is, unless a step that fails sends it back.
            if reworked {
                statuses.extend(kept);
                standing = standing.or(stood);
            } else {
                (statuses, standing, stumbles) = (kept, stood, false);
            }
        }
        let mut broken = statuses.clone();
        let touched = prior.is_none_or(|prior| prior.reset.contains(&no)) || standing.badly || stumbles;
        if !planned.policy.always && (touched || reworked) {
            broken.insert(StepStatus::Cancelled);
            if stumbles {
                broken.insert(StepStatus::Failed);
            }
        }
        // A run that fails sends nothing back any more, not even for an `always` step.
        if stumbles && matches!(planned.policy.on_fail, OnFail::Rework { .. }) {
            broken.insert(StepStatus::Failed);
        }
        statuses.retain(|status| *status != StepStatus::Cancelled);
        if planned.policy.on_fail != OnFail::Continue {
            statuses.remove(&StepStatus::Failed);
        }
        expected.completed.push(statuses);
        expected.broken.push(broken);
        stands.push(standing);
    }
    if stands.iter().all(|stand| stand.well) {
        expected.outcomes.insert(RunStatus::Completed);
    }
    if stands.iter().any(|stand| stand.badly) {
        expected.outcomes.insert(RunStatus::Failed);
    }
    expected
}

impl Reader<'_> {
    /// What a step may be that starts from the beginning, given how its needs may stand.
    fn fresh(&self, no: StepNo, needs: Might, helped: bool, reworked: bool) -> (Allowed, Might, bool) {
        let planned = self.plan.step(no);
        let mut statuses = Allowed::new();
        let mut standing = Might::default();
        let mut stumbles = false;
        if needs.badly && !planned.policy.always {
            statuses.insert(StepStatus::Cancelled);
            standing.badly = true;
        }
        if !needs.well && !planned.policy.always {
            return (statuses, standing, stumbles);
        }
        if planned.condition == Condition::Step && self.script(no).wanted == Ok(false) {
            statuses.insert(StepStatus::Skipped);
            standing.well = true;
            return (statuses, standing, stumbles);
        }
        let mut work = self.work(no, reworked);
        stumbles = work.may_stumble;
        if let OnFail::Rework { max, .. } = planned.policy.on_fail
            && work.end.badly
            && let Some(bad_rounds) = self.bad_rounds(no)
        {
            // Each failure that sends it back brings it nearer to a round that goes well.
            if bad_rounds <= max {
                work.end = Might::WELL;
            } else if helped {
                work.end.well = true;
            }
        }
        if work.end.well {
            statuses.insert(StepStatus::Done);
            standing.well = true;
        }
        if work.end.badly {
            statuses.insert(StepStatus::Failed);
            match planned.policy.on_fail {
                OnFail::Continue => standing.well = true,
                OnFail::Fail | OnFail::Rework { .. } => standing.badly = true,
            }
        }
        (statuses, standing, stumbles)
    }

    fn script(&self, no: StepNo) -> &Script {
        self.scripts.of(self.plan.step(no))
    }

    fn first_round(&self, no: StepNo) -> u32 {
        self.prior.map_or(0, |prior| prior.steps[no as usize].round)
    }

    /// How many rounds in a row go wrong from here on; none if there is no end to them.
    fn bad_rounds(&self, no: StepNo) -> Option<u32> {
        let script = self.script(no);
        let by_rounds = matches!(script.outside, Outside::Worker | Outside::Gate | Outside::Signal);
        let unreadable = (self.plan.step(no).condition != Condition::None && script.wanted.is_err())
            || (self.plan.step(no).spread.is_some() && script.items.is_err());
        (by_rounds && !unreadable).then(|| script.rounds.saturating_sub(self.first_round(no)))
    }

    /// What may come of the step's work in this epoch: what a person has sent back with what was done of it
    /// goes on from there, until a rework has it begin anew.
    fn work(&self, no: StepNo, reworked: bool) -> Work {
        let kept =
            self.prior.filter(|prior| prior.keeps(self.plan, no)).map(|prior| &prior.steps[no as usize]);
        let first = self.work_with(no, kept);
        if kept.is_none() || !reworked {
            return first;
        }
        let later = self.work_with(no, None);
        Work { end: first.end.or(later.end), may_stumble: first.may_stumble || later.may_stumble }
    }

    fn work_with(&self, no: StepNo, kept: Option<&PriorStep>) -> Work {
        let planned = self.plan.step(no);
        let script = self.script(no);
        if planned.condition == Condition::Step && script.wanted.is_err() {
            return Work { end: Might::BADLY, may_stumble: true };
        }
        let Some(_) = planned.spread else {
            return self.unit(no, None, kept.and_then(|step| step.child.as_ref()));
        };
        let old = kept.and_then(|step| step.items.as_ref());
        let total = match (&script.items, old) {
            (Err(_), None) => return Work { end: Might::BADLY, may_stumble: true },
            (Err(_), Some(old)) => old.len() as u32,
            (Ok(total), _) => *total,
        };
        let mut all = Work { end: Might::WELL, may_stumble: false };
        for item in 0..total {
            let before = old.and_then(|old| old.get(item as usize));
            if before.is_some_and(|(status, _)| matches!(status, StepStatus::Done | StepStatus::Skipped)) {
                continue;
            }
            if planned.condition == Condition::Item
                && script.wanted.is_ok()
                && !has(script.wanted_items, item)
            {
                continue;
            }
            let one = self.unit(no, Some(item), before.and_then(|(_, child)| child.as_ref()));
            all.end.well &= one.end.well;
            all.end.badly |= one.end.badly;
            all.may_stumble |= one.may_stumble;
        }
        all
    }

    /// What may come of one piece of work: a step's, or an item's.
    fn unit(&self, no: StepNo, item: Option<u32>, kept: Option<&Prior>) -> Work {
        let planned = self.plan.step(no);
        let script = self.script(no);
        if planned.condition == Condition::Item && script.wanted.is_err() {
            return Work { end: Might::BADLY, may_stumble: true };
        }
        let wrong = script.goes_wrong(self.epoch, self.first_round(no), item);
        let end = match &script.outside {
            Outside::Pause => Might::WELL,
            Outside::Gate | Outside::Signal if wrong => Might::BADLY,
            Outside::Gate | Outside::Signal => Might::WELL,
            Outside::Worker => match script.fault {
                _ if !wrong => Might::WELL,
                Fault::None => Might::WELL,
                Fault::Tries(tries) if tries < planned.policy.attempts => Might::WELL,
                Fault::Tries(_) | Fault::ForGood | Fault::Deadly => Might::BADLY,
            },
            Outside::Child(plan) => {
                let fresh = self.child(plan, None);
                let Some(kept) = kept else { return fresh };
                let first = self.child(plan, Some(kept));
                let end = match planned.policy.attempts {
                    1 => first.end,
                    _ => Might {
                        well: first.end.well || fresh.end.well,
                        badly: first.end.badly && fresh.end.badly,
                    },
                };
                return Work { end, may_stumble: first.may_stumble || fresh.may_stumble };
            }
        };
        Work { end, may_stumble: wrong && !matches!(script.outside, Outside::Pause) }
    }

    fn child(&self, plan: &Plan, prior: Option<&Prior>) -> Work {
        let expected = expect(plan, self.scripts, self.epoch, prior);
        let badly = expected.outcomes.contains(&RunStatus::Failed);
        let well = expected.outcomes.contains(&RunStatus::Completed);
        Work { end: Might { well, badly }, may_stumble: badly }
    }
}

/// Says where a run that has ended differs from what was expected.
pub fn compare(
    tables: &Tables,
    run: &RunRow,
    plan: &Plan,
    scripts: &Scripts,
    expected: &Expected,
    cancelled: bool,
) -> Result<(), String> {
    let right = match cancelled {
        true => run.status() == RunStatus::Cancelled,
        false => expected.outcomes.contains(&run.status()),
    };
    if !right {
        return Err(format!(
            "the run is {}, expected {:?}, cancelled: {cancelled}",
            run.status(),
            expected.outcomes
        ));
    }
    let allowed = match run.status() {
        RunStatus::Completed => &expected.completed,
        _ => &expected.broken,
    };
    let rows: BTreeMap<StepNo, &StepRow> =
        tables.all_steps().filter(|step| step.run == run.id).map(|step| (step.no, step)).collect();
    for (no, allowed) in allowed.iter().enumerate() {
        let row = rows[&(no as StepNo)];
        if !allowed.contains(&row.status()) {
            return Err(format!(
                "step {no} of a run that is {} is {}, expected {allowed:?}\n{row:?}\n{:?}",
                run.status(),
                row.status(),
                plan.step(no as StepNo),
            ));
        }
    }
    if run.status() == RunStatus::Completed {
        for row in rows.values().filter(|row| row.items.is_some() && expected.fresh.contains(&row.no)) {
            compare_items(&rows, row, plan.step(row.no), scripts.of(plan.step(row.no)), run.epoch)?;
        }
    }
    Ok(())
}

/// In a completed run, each item of a list is what its script says; one that fails first ends the others.
fn compare_items(
    rows: &BTreeMap<StepNo, &StepRow>,
    parent: &StepRow,
    planned: &PlanStep,
    script: &Script,
    epoch: u32,
) -> Result<(), String> {
    let (Some(list), Outside::Worker | Outside::Gate | Outside::Signal) = (parent.items, &script.outside)
    else {
        return Ok(());
    };
    let spread = planned.spread.unwrap_or_default();
    let cut = spread.fail_fast && parent.status() == StepStatus::Failed;
    let made: Vec<&&StepRow> =
        rows.values().filter(|row| row.item_of == Some(parent.no) && row.no >= list.first).collect();
    let mut failed = None;
    for (at, row) in made.iter().enumerate() {
        let item = at as u32;
        let wrong = script.goes_wrong(epoch, parent.round, Some(item));
        let fails = match script.fault {
            Fault::Tries(tries) => wrong && tries >= planned.policy.attempts,
            _ => wrong,
        };
        let expected = match planned.condition == Condition::Item {
            true if script.wanted.is_err() => StepStatus::Failed,
            true if !has(script.wanted_items, item) => StepStatus::Skipped,
            _ if fails => StepStatus::Failed,
            _ => StepStatus::Done,
        };
        if row.item != Some(item) || (row.status() != expected && !(cut && row.status() != StepStatus::Done))
        {
            return Err(format!(
                "item {item} of step {} is {}, expected {expected}",
                parent.no,
                row.status()
            ));
        }
        if expected == StepStatus::Failed && failed.is_none() {
            failed = Some(made.len() == at + 1);
        }
    }
    if !cut && made.len() as u32 != list.items.total {
        return Err(format!("step {} has made {} of {} items", parent.no, made.len(), list.items.total));
    }
    if cut && epoch == 1 && spread.max_parallel == Some(1) && failed != Some(true) {
        return Err(format!("step {} went on after its first item had failed", parent.no));
    }
    Ok(())
}
