//! Brings the work of a run's worktree onto a branch, and tells what was in the way.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::{RunId, StepNo};
use sprag_pipeline::{Kind, Landing, StepSpec};
use sprag_store::ops::{Assignment, Ending};
use sprag_worktree::{
    Cancel, CheckoutFate, Error as GitError, Kind as GitKind, LandOptions, Landed, PushFate, Repository,
    Strategy, Worktree,
};

use crate::command::{Commands, Work, failed, first_line};
use crate::control::{Control, Signal};
use crate::entered::Entered;
use crate::environment::stopped;
use crate::slots::Ended;

/// How long a landing waits for others, unless its step has a timeout: each may verify for long.
const LONGEST_QUEUE: Duration = Duration::from_secs(3600);
/// How much of conflicting hunks goes with a failure.
const HUNK_BYTES: usize = 16 << 10;

/// What to land, with its texts filled in.
#[derive(Clone)]
struct Order {
    run: String,
    fence: (String, u64),
    into: String,
    strategy: Strategy,
    message: String,
    push: Option<String>,
    /// How long it may wait for others who land.
    patience: Duration,
}

impl Commands {
    /// Lands the run's work; returns when nothing of it goes on.
    pub(crate) async fn land(&self, assignment: &Assignment, spec: &StepSpec, mut control: Control) -> Ended {
        let entered = match self.enter(assignment, &control).await {
            Ok(Some(entered)) => entered,
            Ok(None) => {
                let message =
                    "the run has no worktree to land: give the pipeline `environment: { worktree: {} }`";
                return failed(&json!({ "reason": "environment", "message": message }), false);
            }
            Err(ended) => return ended,
        };
        let ended = match self.begin(assignment, spec, &entered, &mut control).await {
            Ok(()) => self.land_in(assignment, spec, &entered, control).await,
            Err(ended) => ended,
        };
        if ended != Ended::Lost {
            self.record(assignment, &entered).await;
        }
        entered.leave().await;
        ended
    }

    async fn land_in(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        entered: &Entered,
        control: Control,
    ) -> Ended {
        let Kind::Land { into, strategy, verify, message, push, push_required } = &spec.kind else {
            return Ended::Lost;
        };
        let run = assignment.lease.execution.run.to_string();
        let order = Order {
            into: into.clone(),
            strategy: match strategy {
                Landing::Rebase => Strategy::Rebase,
                Landing::Merge => Strategy::Merge,
                Landing::Squash => Strategy::Squash,
            },
            message: message.clone().unwrap_or_else(|| format!("{}: run {run}", assignment.plan.name)),
            push: push.clone(),
            fence: fence_of(assignment),
            patience: spec.timeout_ms.map_or(LONGEST_QUEUE, Duration::from_millis),
            run,
        };
        if let Err(ended) = self.fence_off(&order, entered).await {
            return ended;
        }
        match entered.own(&control).await {
            Ok(true) => {}
            Ok(false) if control.now() == Signal::Cancel => return Ended::Report(Ending::Cancelled),
            Ok(false) => return Ended::Lost,
            Err(message) => return failed(&json!({ "reason": "environment", "message": message }), true),
        }
        let cancel = Cancel::default();
        let listening = tokio::spawn(stopped(control.clone(), cancel.clone()));
        let check = match verify {
            Some(kind) => match self.verifier(assignment, spec, kind, entered, &control) {
                Ok(check) => Some(check),
                Err(ended) => return ended,
            },
            None => None,
        };
        let landing = cancel.clone();
        let done =
            entered.place.with_worktree(move |worktree| land(worktree, &order, check.as_deref(), &landing));
        let done = done.await;
        listening.abort();
        match (control.now(), done) {
            (Signal::Lost, _) => Ended::Lost,
            // Landed is landed, whatever came meanwhile.
            (_, Some(Ok(landed))) => {
                self.tell(assignment, into, &landed);
                landed_as(&landed, *push_required)
            }
            (Signal::Cancel, _) => Ended::Report(Ending::Cancelled),
            (_, Some(Err(error))) => refused(&error),
            (_, None) => {
                let message = "another process of this run holds its worktree";
                failed(&json!({ "reason": "environment", "message": message }), true)
            }
        }
    }

    /// Tells in the step's log what became of it, and what a person has to see to.
    fn tell(&self, assignment: &Assignment, into: &str, landed: &Landed) {
        let mut remarks = vec![match landed.moved {
            true => format!("landed {} on {into}", landed.commit),
            false => format!("{into} holds all of it already"),
        }];
        remarks.extend(left_checkouts(landed).into_iter().map(|left| format!("left as it is: {left}")));
        if let Some(PushFate::Refused(why)) = &landed.push {
            remarks.extend(format!("not pushed: {why}").lines().map(str::to_owned));
        }
        self.remark(assignment, &remarks);
    }

    /// Whoever was to land before, and was taken for dead, cannot do so from now on: not even while it still
    /// has the worktree.
    async fn fence_off(&self, order: &Order, entered: &Entered) -> Result<(), Ended> {
        let (dir, (name, number)) = (entered.place.dir.clone(), order.fence.clone());
        let moved = tokio::task::spawn_blocking(move || {
            let repository = Repository::discover(&dir)?;
            let last = repository.fence(&name)?.map(|fence| fence.number);
            repository.move_fence(&name, last, number)
        });
        match moved.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(refused(&error)),
            Err(error) => Err(failed(&json!({ "reason": "land", "message": error.to_string() }), true)),
        }
    }

    /// Runs the command that the result must pass, from a thread that may block.
    fn verifier(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        kind: &Kind,
        entered: &Entered,
        control: &Control,
    ) -> Result<Box<Verify>, Ended> {
        let spec = StepSpec { kind: kind.clone(), ..spec.clone() };
        let (order, places) = self
            .order(assignment, &spec, Some(&entered.place), control)
            .map_err(|message| failed(&json!({ "reason": "could_not_start", "message": message }), false))?;
        let (commands, assignment, control) = (self.clone(), assignment.clone(), control.clone());
        let runtime = tokio::runtime::Handle::current();
        let shown = kind.argv().and_then(|argv| argv.last().cloned()).unwrap_or_default();
        Ok(Box::new(move |_| {
            let mut control = control.clone();
            let work = Work { commands: &commands, assignment: &assignment, order: &order, places: &places };
            match runtime.block_on(work.see_to_end(order.clone(), &mut control)) {
                Ok(ended) if ended.success() => Ok(()),
                Ok(ended) => {
                    let code =
                        ended.exit_code.map_or_else(|| "a signal".into(), |code| format!("exit code {code}"));
                    Err(format!(
                        "{} ended with {code}\n{}",
                        first_line(&shown),
                        crate::evidence::tail(&order.log)
                    ))
                }
                Err(_) => Err(format!("{} did not come to its end", first_line(&shown))),
            }
        }))
    }
}

/// Looks at a result in the worktree; an error is what is wrong with it.
type Verify = dyn Fn(&std::path::Path) -> Result<(), String> + Send;

/// The fence of a landing step, and this attempt's number: higher than that of any attempt before.
fn fence_of(assignment: &Assignment) -> (String, u64) {
    let (id, fence) = (assignment.lease.execution, assignment.lease.fence);
    (fence_name(id.run, id.step), u64::from(id.attempt) << 32 | u64::from(fence))
}

/// Commits what is not, and lands.
fn land(
    worktree: &mut Worktree,
    order: &Order,
    verify: Option<&Verify>,
    cancel: &Cancel,
) -> Result<Landed, GitError> {
    worktree.commit_all(&order.message, cancel)?;
    let mut options = LandOptions::new(&order.run, &order.into);
    options.strategy = order.strategy;
    options.message.clone_from(&order.message);
    options.fence = Some(order.fence.clone());
    options.lock_deadline = order.patience;
    options.verify = verify.map(|verify| verify as &sprag_worktree::Verify<'_>);
    options.push.clone_from(&order.push);
    worktree.land(&options, cancel)
}

/// What a landing means for its step. It is landed, whatever became of the push: a push that was refused is told as
/// a warning, and fails the step only if it must not be.
fn landed_as(landed: &Landed, push_required: bool) -> Ended {
    let mut told = told(landed);
    match &landed.push {
        Some(PushFate::Refused(why)) if push_required => {
            told["reason"] = "push".into();
            told["message"] = format!("it is landed here, and was not pushed: {why}").into();
            failed(&told, true)
        }
        _ => Ended::Report(Ending::Completed { result: Some(told.to_string().into()) }),
    }
}

/// Checkouts of the branch that still have its old files, and why.
fn left_checkouts(landed: &Landed) -> Vec<String> {
    let left = landed.checkouts.iter().filter_map(|(path, fate)| match fate {
        CheckoutFate::Left(why) => Some(format!("{}: {why}", path.display())),
        CheckoutFate::Updated => None,
    });
    left.collect()
}

/// What there is to say of a landing.
fn told(landed: &Landed) -> Value {
    let left = left_checkouts(landed);
    let refused = match &landed.push {
        Some(PushFate::Refused(why)) => Some(why),
        _ => None,
    };
    let mut warnings: Vec<String> = left.iter().map(|left| format!("left as it is: {left}")).collect();
    warnings.extend(refused.map(|why| format!("not pushed: {why}")));
    json!({
        "outputs": {
            "commit": landed.commit, "before": landed.before, "moved": landed.moved, "checkouts_left": left,
            "pushed": landed.push == Some(PushFate::Pushed), "push_error": refused,
        },
        "warnings": warnings,
    })
}

/// Why nothing was landed, with what whoever works on it must know.
fn refused(error: &GitError) -> Ended {
    let (facts, retriable) = match &error.kind {
        GitKind::Conflict { files, hunks } => {
            let message = format!("it conflicts with the branch in {}", files.join(", "));
            let end =
                (0..=HUNK_BYTES.min(hunks.len())).rev().find(|at| hunks.is_char_boundary(*at)).unwrap_or(0);
            (
                json!({ "reason": "conflict", "message": message, "files": files, "tail": &hunks[..end] }),
                false,
            )
        }
        GitKind::VerifyFailed { message } => {
            let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
            (
                json!({ "reason": "verify", "message": format!("the result was refused: {first}"), "tail": rest }),
                false,
            )
        }
        GitKind::Fenced { .. } => (json!({ "reason": "fenced", "message": error.to_string() }), false),
        _ => (json!({ "reason": "land", "message": error.to_string() }), true),
    };
    failed(&facts, retriable)
}

/// What the fence of a step that lands is called in its repository.
pub fn fence_name(run: RunId, step: StepNo) -> String {
    format!("{run}-s{step}")
}
