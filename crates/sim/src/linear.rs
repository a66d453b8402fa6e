//! Checks whether a recorded history of claims and reports is linearizable (after Wing, Gong and Lowe): whether a
//! single store that serves one caller after the other could have given the same answers.
//!
//! Each operation takes effect at one moment between its call and its answer. If the answer was lost, it may take
//! effect at any moment after its call, or never.

use std::collections::HashSet;

/// A call of one caller, with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The time of the call, on a counter that all callers share.
    pub called: u64,
    /// The time of the answer; absent if the answer was lost.
    pub answered: Option<u64>,
    /// The operation and its answer.
    pub call: Call,
}

/// An operation with its answer, which is `None` if it was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A claim; the answer is a task and its fence token, or nothing to claim.
    Claim(Option<Option<(usize, FenceToken)>>),
    /// A holder's report that a task is finished; the answer says whether it was accepted.
    Complete(usize, FenceToken, Option<bool>),
    /// A holder's renewal of its lease; the answer says whether it still holds it.
    Renew(usize, FenceToken, Option<bool>),
    /// A holder's release of a task; the answer says whether it was accepted.
    Release(usize, FenceToken, Option<bool>),
    /// The reaper's removal of a task from a dead holder; the answer says whether it was accepted.
    Take(usize, FenceToken, Option<bool>),
    /// A query; the answer says which tasks are done.
    Look(Vec<bool>),
}

/// A fence token of a task. Later tokens are greater.
pub type FenceToken = u64;

/// The state of a task in the sequential store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Task {
    /// The greatest token that was given.
    last: FenceToken,
    held: Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Held {
    #[default]
    ByNobody,
    /// Held with the greatest token.
    ByLast,
    /// Held by a caller that never received the answer.
    ByUnknown,
    Done,
}

type Tasks = Vec<Task>;

/// Returns the possible states if an operation takes effect now; none if its answer contradicts that.
fn next(tasks: &Tasks, call: &Call) -> Vec<Tasks> {
    let with = |no: usize, task: Task| {
        let mut tasks = tasks.clone();
        tasks[no] = task;
        tasks
    };
    let free = |task: &Task| task.held == Held::ByNobody;
    match call {
        Call::Claim(Some(Some((no, token)))) => match tasks[*no] {
            task if free(&task) && *token > task.last => {
                vec![with(*no, Task { last: *token, held: Held::ByLast })]
            }
            _ => Vec::new(),
        },
        Call::Claim(Some(None)) if tasks.iter().any(free) => Vec::new(),
        Call::Claim(Some(None)) => vec![tasks.clone()],
        Call::Claim(None) => {
            let taken = tasks.iter().enumerate().filter(|(_, task)| free(task));
            let mut all: Vec<Tasks> =
                taken.map(|(no, task)| with(no, Task { held: Held::ByUnknown, ..*task })).collect();
            if all.is_empty() {
                all.push(tasks.clone());
            }
            all
        }
        Call::Complete(no, token, stands) => report(tasks, *no, *token, *stands, Held::Done),
        Call::Renew(no, token, stands) => report(tasks, *no, *token, *stands, Held::ByLast),
        Call::Release(no, token, stands) | Call::Take(no, token, stands) => {
            report(tasks, *no, *token, *stands, Held::ByNobody)
        }
        Call::Look(done) => {
            if tasks.iter().zip(done).all(|(task, done)| (task.held == Held::Done) == *done) {
                vec![tasks.clone()]
            } else {
                Vec::new()
            }
        }
    }
}

/// Applies a report with a token, which is accepted exactly if it is the current holder's.
fn report(tasks: &Tasks, no: usize, token: FenceToken, stands: Option<bool>, becomes: Held) -> Vec<Tasks> {
    let task = tasks[no];
    let holds = task.held == Held::ByLast && task.last == token;
    if stands.is_some_and(|stands| stands != holds) {
        return Vec::new();
    }
    let mut tasks = tasks.clone();
    if holds {
        tasks[no].held = becomes;
    }
    vec![tasks]
}

/// Returns whether some order of these operations on `tasks` tasks explains every answer.
pub fn is_linearizable(tasks: usize, history: &[Operation]) -> bool {
    assert!(history.len() <= 64, "a history is short");
    let must: u64 = (0..history.len()).filter(|no| history[*no].answered.is_some()).map(|no| 1 << no).sum();
    let mut seen = HashSet::new();
    let mut open = vec![(0u64, vec![Task::default(); tasks])];
    while let Some((done, tasks)) = open.pop() {
        if done & must == must {
            return true;
        }
        // An operation cannot take effect after the answer of another one that has not taken effect yet.
        let left = (0..history.len()).filter(|no| done & (1 << no) == 0);
        let bound = left.clone().filter_map(|no| history[no].answered).min().unwrap_or(u64::MAX);
        for no in left.filter(|no| history[*no].called < bound) {
            for tasks in next(&tasks, &history[no].call) {
                let state = (done | (1 << no), tasks);
                if seen.insert(state.clone()) {
                    open.push(state);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(called: u64, answered: u64, call: Call) -> Operation {
        Operation { called, answered: Some(answered), call }
    }

    fn lost(called: u64, call: Call) -> Operation {
        Operation { called, answered: None, call }
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let history = [
            answered(0, 1, Call::Claim(Some(Some((0, 1))))),
            answered(2, 3, Call::Claim(Some(None))),
            answered(4, 5, Call::Complete(0, 1, Some(true))),
            answered(6, 7, Call::Complete(0, 1, Some(false))),
            answered(8, 9, Call::Look(vec![true])),
        ];
        assert!(is_linearizable(1, &history));
    }

    #[test]
    fn c01_two_callers_cannot_both_get_a_task() {
        let history = [
            answered(0, 3, Call::Claim(Some(Some((0, 1))))),
            answered(1, 2, Call::Claim(Some(Some((0, 2))))),
        ];
        assert!(!is_linearizable(1, &history));
        assert!(is_linearizable(1, &history[..1]));
    }

    #[test]
    fn i04_a_report_counts_once_and_only_with_the_current_fence() {
        let claim = answered(0, 1, Call::Claim(Some(Some((0, 1)))));
        let complete = |called, stands| answered(called, called + 3, Call::Complete(0, 1, Some(stands)));
        assert!(!is_linearizable(1, &[claim.clone(), complete(2, true), complete(3, true)]));
        assert!(is_linearizable(1, &[claim.clone(), complete(2, true), complete(3, false)]));
        let taken = answered(2, 3, Call::Take(0, 1, Some(true)));
        let again = answered(4, 5, Call::Claim(Some(Some((0, 2)))));
        assert!(!is_linearizable(1, &[claim.clone(), taken.clone(), again.clone(), complete(6, true)]));
        assert!(is_linearizable(1, &[claim, taken, again, complete(6, false)]));
    }

    #[test]
    fn i26_a_right_is_never_given_twice() {
        let claim = answered(0, 1, Call::Claim(Some(Some((0, 1)))));
        let release = answered(2, 3, Call::Release(0, 1, Some(true)));
        let same = answered(4, 5, Call::Claim(Some(Some((0, 1)))));
        assert!(!is_linearizable(1, &[claim, release, same]));
    }

    #[test]
    fn an_answered_call_precedes_a_later_one() {
        let nothing = answered(0, 1, Call::Claim(Some(None)));
        assert!(!is_linearizable(1, &[nothing]), "there was something to get");
        let claim = answered(0, 1, Call::Claim(Some(Some((0, 1)))));
        let look = answered(2, 3, Call::Look(vec![true]));
        let late = answered(4, 5, Call::Complete(0, 1, Some(true)));
        assert!(!is_linearizable(1, &[claim, look, late]), "it was done only later");
    }

    #[test]
    fn a_lost_answer_may_mean_either() {
        let claim = answered(0, 1, Call::Claim(Some(Some((0, 1)))));
        let complete = lost(2, Call::Complete(0, 1, None));
        for done in [true, false] {
            let look = answered(8, 9, Call::Look(vec![done]));
            assert!(is_linearizable(1, &[claim.clone(), complete.clone(), look]), "{done}");
        }
        let ghost = lost(0, Call::Claim(None));
        for got in [Some((0, 1)), None] {
            assert!(is_linearizable(1, &[ghost.clone(), answered(2, 3, Call::Claim(Some(got)))]), "{got:?}");
        }
        // A lost operation cannot have taken effect before its call.
        let early = [answered(0, 1, Call::Claim(Some(None))), lost(2, Call::Claim(None))];
        assert!(!is_linearizable(1, &early));
    }
}
