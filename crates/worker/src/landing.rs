//! Lands the work of a run's worktree on a branch, and reports what prevented it.
//!
//! A landing may wait long for its turn. A worker that drains does not wait for that: it returns the step to its queue.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_lifecycle::{RunId, StepNo};
use sprag_pipeline::{Kind, LandStrategy, StepSpec};
use sprag_store::{Assignment, Ending};
use sprag_worktree::{
    Blocked, Cancel, Error as GitError, Kind as GitKind, LandOptions, Landed, Push, PushFate, Repository,
    Strategy, Worktree,
};

use crate::command::{Commands, Work, failed, first_line};
use crate::control::{Control, Signal};
use crate::entered::Entered;
use crate::environment::stopped;
use crate::sandbox::GitAccess;
use crate::slots::Ended;

/// The longest time that a landing waits for others and retries, unless its step has a timeout. It is long because
/// each landing may verify for long.
const LONGEST_QUEUE: Duration = Duration::from_secs(3600);
/// The largest size of the conflicting hunks that go with a failure.
const HUNK_BYTES: usize = 16 << 10;

/// The parameters of a landing, with templates filled in.
#[derive(Clone)]
struct Order {
    run: String,
    fence: (String, u64),
    into: String,
    strategy: Strategy,
    message: String,
    push: Option<Push>,
    /// The longest time to wait for other landings and to retry when the branch moves.
    patience: Duration,
}

impl Commands {
    /// Lands the run's work, and returns when no part of the landing is still running.
    pub(crate) async fn land(&self, assignment: &Assignment, spec: &StepSpec, mut control: Control) -> Ended {
        let entered = match self.enter(assignment, spec, &control).await {
            Ok(Some(entered)) => entered,
            Ok(None) => {
                let message =
                    "the run has no worktree to land: give the pipeline `environment: { worktree: {} }`";
                return failed(&json!({ "reason": "environment", "message": message }), false);
            }
            Err(ended) => return ended,
        };
        let ended = match self.begin(assignment, spec, &entered, &mut control).await {
            Ok(()) => {
                let ended = self.land_in(assignment, spec, &entered, control).await;
                self.record(assignment, spec, &entered, ended).await
            }
            Err(ended) => ended,
        };
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
                LandStrategy::Rebase => Strategy::Rebase,
                LandStrategy::Merge => Strategy::Merge,
                LandStrategy::Squash => Strategy::Squash,
            },
            message: message.clone().unwrap_or_else(|| format!("{}: run {run}", assignment.plan.name)),
            push: push.clone().map(|remote| Push { remote, required: *push_required }),
            fence: fence_of(assignment),
            patience: spec.timeout_ms.map_or(LONGEST_QUEUE, Duration::from_millis),
            run,
        };
        if let Err(ended) = self.fence_off(&order, entered).await {
            return ended;
        }
        match entered.own(&control).await {
            Ok(true) => {}
            Ok(false) => return without_turn(&control),
            Err(message) => return failed(&json!({ "reason": "environment", "message": message }), true),
        }
        let (cancel, give_up_turn) = (Cancel::default(), Cancel::default());
        let listening = tokio::spawn(stopped(control.clone(), cancel.clone()));
        let draining = tokio::spawn(drained(control.clone(), give_up_turn.clone()));
        let check = match verify {
            Some(kind) => match self.verifier(assignment, spec, kind, entered, &control) {
                Ok(check) => Some(check),
                Err(ended) => return ended,
            },
            None => None,
        };
        let (landing, pushed_to) = (cancel.clone(), order.push.clone());
        let (commands, told, told_spec) = (self.clone(), assignment.clone(), spec.clone());
        let done = entered.place.with_worktree(move |worktree| {
            let tell = |what: String| commands.remark(&told, &told_spec, &[what]);
            land(worktree, &order, check.as_deref(), &tell, &landing, give_up_turn)
        });
        let done = done.await;
        listening.abort();
        draining.abort();
        match (control.now(), done) {
            (Signal::Lost, _) => Ended::Lost,
            // A completed landing stays completed, even if a cancellation arrived meanwhile.
            (_, Some(Ok(landed))) => {
                let facts = facts(into, pushed_to.as_ref(), &landed);
                self.tell(assignment, spec, into, &landed, &facts);
                Ended::Report(Ending::Completed { result: Some(facts.to_string().into()) })
            }
            (Signal::Cancel, _) => Ended::Report(Ending::Cancelled),
            (_, Some(Err(error))) if matches!(error.kind, GitKind::GaveUpTurn) => {
                let remark = format!("its worker is stopping: another one lands it on {into}");
                self.remark(assignment, spec, &[remark]);
                Ended::Returned
            }
            (_, Some(Err(error))) => refused(&error),
            (_, None) => {
                let message = "another process of this run holds its worktree";
                failed(&json!({ "reason": "environment", "message": message }), true)
            }
        }
    }

    /// Writes the result of the landing to the step's log, with the warnings that a person has to handle.
    fn tell(&self, assignment: &Assignment, spec: &StepSpec, into: &str, landed: &Landed, facts: &Value) {
        let mut remarks = vec![if landed.moved {
            format!("landed {} on {into}", landed.commit)
        } else {
            format!("{into} holds all of it already")
        }];
        let warnings = facts["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
        remarks.extend(warnings.flat_map(str::lines).map(str::to_owned));
        self.remark(assignment, spec, &remarks);
    }

    /// Moves the fence, so that an earlier attempt that was taken for dead can no longer land, even while it still
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

    /// Returns a function that runs the command which the result must pass. It is called on a thread that may block.
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
            .order_with(assignment, &spec, Some(&entered.place), control, GitAccess::Read)
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

/// A check of the result in the worktree; the error says what is wrong with it.
type Verify = dyn Fn(&std::path::Path) -> Result<(), String> + Send;

/// Returns the fence of a landing step and this attempt's number, which is higher than that of any earlier attempt.
fn fence_of(assignment: &Assignment) -> (String, u64) {
    let id = assignment.lease.execution;
    (fence_name(id.run, id.step), assignment.lease.guard())
}

/// Commits uncommitted changes, and lands.
fn land(
    worktree: &mut Worktree,
    order: &Order,
    verify: Option<&Verify>,
    tell: &dyn Fn(String),
    cancel: &Cancel,
    give_up_turn: Cancel,
) -> Result<Landed, GitError> {
    worktree.commit_all(&order.message, cancel)?;
    let mut options = LandOptions::new(&order.run, &order.into);
    options.strategy = order.strategy;
    options.message.clone_from(&order.message);
    options.fence = Some(order.fence.clone());
    options.patience = order.patience;
    options.give_up_turn = give_up_turn;
    options.verify = verify.map(|verify| verify as &sprag_worktree::Verify<'_>);
    options.push.clone_from(&order.push);
    options.on_progress = Some(tell);
    worktree.land(&options, cancel)
}

/// Waits until the worker is draining, then ends the landing's wait for its turn.
async fn drained(mut control: Control, give_up_turn: Cancel) {
    control.draining().await;
    give_up_turn.cancel();
}

/// Returns the ending of a landing that was stopped, or whose worker is draining, before it could begin.
fn without_turn(control: &Control) -> Ended {
    match control.now() {
        Signal::Cancel => Ended::Report(Ending::Cancelled),
        Signal::Renewed { .. } if control.is_draining() => Ended::Returned,
        Signal::Renewed { .. } | Signal::Lost => Ended::Lost,
    }
}

/// Returns the facts about a landing as JSON. A failed push that was not required is a warning, because the local
/// branch has the work.
fn facts(into: &str, push: Option<&Push>, landed: &Landed) -> Value {
    let (mut warnings, mut push_error) = (Vec::new(), None);
    if let (Some(PushFate::NotPushed { reason, commits }), Some(push)) = (&landed.push, push) {
        let (remote, commit) = (&push.remote, landed.commit.get(..10).unwrap_or(&landed.commit));
        let many =
            commits.map(|n| format!(" ({n} commit{})", if n == 1 { "" } else { "s" })).unwrap_or_default();
        warnings.push(format!(
            "not pushed: {into} up to {commit}{many} is not at {remote}; to push it: git push {remote} {into}\n{reason}"
        ));
        push_error = Some(reason);
    }
    json!({
        "outputs": {
            "commit": landed.commit, "before": landed.before, "moved": landed.moved, "checkouts": landed.checkouts,
            "pushed": landed.push == Some(PushFate::Pushed), "push_error": push_error,
        },
        "warnings": warnings,
    })
}

/// Returns the ending of a step whose landing failed, with the facts that the next attempt or a person needs.
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
        GitKind::Blocked(found) => return blocked(found),
        kind @ GitKind::PushFailed { reason, .. } => {
            let message = format!("nothing was landed: {kind}");
            (json!({ "reason": "push", "message": first_of(&message), "tail": reason }), true)
        }
        _ => (json!({ "reason": "land", "message": error.to_string() }), true),
    };
    failed(&facts, retriable)
}

/// Returns the ending of a step that a person must unblock: the facts say where the obstacle is and what to do.
fn blocked(found: &Blocked) -> Ended {
    let facts = json!({
        "reason": "blocked", "message": found.to_string(), "remedy": found.remedy(),
        "checkout": found.checkout, "files": found.files(),
    });
    Ended::Report(Ending::Blocked { result: Some(facts.to_string().into()) })
}

/// Returns the first lines of git's output, as many as fit into a message.
fn first_of(message: &str) -> String {
    const MOST: usize = 4;
    message.lines().take(MOST).collect::<Vec<_>>().join("; ")
}

/// Returns the name of a landing step's fence in its repository.
pub fn fence_name(run: RunId, step: StepNo) -> String {
    format!("{run}-s{step}")
}
