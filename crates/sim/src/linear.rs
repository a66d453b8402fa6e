//! Whether a recorded history of claims and reports is one that a single store, asked by one caller after the
//! other, could have given (linearizability, after Wing, Gong and Lowe).
//!
//! Each operation took effect at one moment between its call and its answer. Where the answer was lost, it may have taken
//! effect at any moment after its call, or never.

use std::collections::HashSet;

/// What a caller asked, and what it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked, on a counter that all callers share.
    pub called: u64,
    /// When it was answered; none if the answer was lost.
    pub answered: Option<u64>,
    /// What was asked, and the answer.
    pub what: What,
}

/// An operation and its answer; an answer that was lost is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Somebody asks for a task: which one, and the right to it.
    Claim(Option<Option<(usize, Right)>>),
    /// A holder reports the end of a task: whether the report stands.
    Complete(usize, Right, Option<bool>),
    /// A holder prolongs its right: whether it still has it.
    Renew(usize, Right, Option<bool>),
    /// A holder gives a task back: whether that stands.
    Release(usize, Right, Option<bool>),
    /// The reaper takes a task from a dead holder: whether that stands.
    Take(usize, Right, Option<bool>),
    /// Somebody looks: which tasks are done.
    Look(Vec<bool>),
}

/// The right to a task: the later one is greater.
pub type Right = u64;

/// A task, as the one store would have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Task {
    /// The greatest right that was given.
    last: Right,
    held: Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Held {
    #[default]
    ByNobody,
    /// By whoever has the greatest right.
    ByLast,
    /// By somebody who was never told.
    ByAGhost,
    Done,
}

type Tasks = Vec<Task>;

/// What may come of an operation, if it takes effect now: nothing, if its answer says otherwise.
fn next(tasks: &Tasks, what: &What) -> Vec<Tasks> {
    let with = |no: usize, task: Task| {
        let mut tasks = tasks.clone();
        tasks[no] = task;
        tasks
    };
    let free = |task: &Task| task.held == Held::ByNobody;
    match what {
        What::Claim(Some(Some((no, right)))) => match tasks[*no] {
            task if free(&task) && *right > task.last => {
                vec![with(*no, Task { last: *right, held: Held::ByLast })]
            }
            _ => Vec::new(),
        },
        What::Claim(Some(None)) if tasks.iter().any(free) => Vec::new(),
        What::Claim(Some(None)) => vec![tasks.clone()],
        What::Claim(None) => {
            let taken = tasks.iter().enumerate().filter(|(_, task)| free(task));
            let mut all: Vec<Tasks> =
                taken.map(|(no, task)| with(no, Task { held: Held::ByAGhost, ..*task })).collect();
            if all.is_empty() {
                all.push(tasks.clone());
            }
            all
        }
        What::Complete(no, right, stands) => report(tasks, *no, *right, *stands, Held::Done),
        What::Renew(no, right, stands) => report(tasks, *no, *right, *stands, Held::ByLast),
        What::Release(no, right, stands) | What::Take(no, right, stands) => {
            report(tasks, *no, *right, *stands, Held::ByNobody)
        }
        What::Look(done) => {
            match tasks.iter().zip(done).all(|(task, done)| (task.held == Held::Done) == *done) {
                true => vec![tasks.clone()],
                false => Vec::new(),
            }
        }
    }
}

/// A report that carries a right stands exactly if it is the present holder's.
fn report(tasks: &Tasks, no: usize, right: Right, stands: Option<bool>, becomes: Held) -> Vec<Tasks> {
    let task = tasks[no];
    let holds = task.held == Held::ByLast && task.last == right;
    if stands.is_some_and(|stands| stands != holds) {
        return Vec::new();
    }
    let mut tasks = tasks.clone();
    if holds {
        tasks[no].held = becomes;
    }
    vec![tasks]
}

/// Whether there is an order of these operations on `tasks` tasks that explains every answer.
pub fn is_linearizable(tasks: usize, history: &[Operation]) -> bool {
    assert!(history.len() <= 64, "a history is short");
    let must: u64 = (0..history.len()).filter(|no| history[*no].answered.is_some()).map(|no| 1 << no).sum();
    let mut seen = HashSet::new();
    let mut open = vec![(0u64, vec![Task::default(); tasks])];
    while let Some((done, tasks)) = open.pop() {
        if done & must == must {
            return true;
        }
        // Nothing can take effect after something else was answered that has not taken effect yet.
        let left = (0..history.len()).filter(|no| done & (1 << no) == 0);
        let bound = left.clone().filter_map(|no| history[no].answered).min().unwrap_or(u64::MAX);
        for no in left.filter(|no| history[*no].called < bound) {
            for tasks in next(&tasks, &history[no].what) {
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

    fn told(called: u64, answered: u64, what: What) -> Operation {
        Operation { called, answered: Some(answered), what }
    }

    fn lost(called: u64, what: What) -> Operation {
        Operation { called, answered: None, what }
    }

    #[test]
    fn one_after_the_other_is_fine() {
        let history = [
            told(0, 1, What::Claim(Some(Some((0, 1))))),
            told(2, 3, What::Claim(Some(None))),
            told(4, 5, What::Complete(0, 1, Some(true))),
            told(6, 7, What::Complete(0, 1, Some(false))),
            told(8, 9, What::Look(vec![true])),
        ];
        assert!(is_linearizable(1, &history));
    }

    #[test]
    fn c01_two_callers_cannot_both_get_a_task() {
        let history =
            [told(0, 3, What::Claim(Some(Some((0, 1))))), told(1, 2, What::Claim(Some(Some((0, 2)))))];
        assert!(!is_linearizable(1, &history));
        assert!(is_linearizable(1, &history[..1]));
    }

    #[test]
    fn i04_a_report_stands_once_and_only_with_the_present_right() {
        let claim = told(0, 1, What::Claim(Some(Some((0, 1)))));
        let complete = |called, stands| told(called, called + 3, What::Complete(0, 1, Some(stands)));
        assert!(!is_linearizable(1, &[claim.clone(), complete(2, true), complete(3, true)]));
        assert!(is_linearizable(1, &[claim.clone(), complete(2, true), complete(3, false)]));
        let taken = told(2, 3, What::Take(0, 1, Some(true)));
        let again = told(4, 5, What::Claim(Some(Some((0, 2)))));
        assert!(!is_linearizable(1, &[claim.clone(), taken.clone(), again.clone(), complete(6, true)]));
        assert!(is_linearizable(1, &[claim, taken, again, complete(6, false)]));
    }

    #[test]
    fn i26_a_right_is_never_given_twice() {
        let claim = told(0, 1, What::Claim(Some(Some((0, 1)))));
        let release = told(2, 3, What::Release(0, 1, Some(true)));
        let same = told(4, 5, What::Claim(Some(Some((0, 1)))));
        assert!(!is_linearizable(1, &[claim, release, same]));
    }

    #[test]
    fn what_was_answered_before_another_was_asked_comes_first() {
        let nothing = told(0, 1, What::Claim(Some(None)));
        assert!(!is_linearizable(1, &[nothing]), "there was something to get");
        let claim = told(0, 1, What::Claim(Some(Some((0, 1)))));
        let look = told(2, 3, What::Look(vec![true]));
        let late = told(4, 5, What::Complete(0, 1, Some(true)));
        assert!(!is_linearizable(1, &[claim, look, late]), "it was done only later");
    }

    #[test]
    fn a_lost_answer_may_mean_either() {
        let claim = told(0, 1, What::Claim(Some(Some((0, 1)))));
        let complete = lost(2, What::Complete(0, 1, None));
        for done in [true, false] {
            let look = told(8, 9, What::Look(vec![done]));
            assert!(is_linearizable(1, &[claim.clone(), complete.clone(), look]), "{done}");
        }
        let ghost = lost(0, What::Claim(None));
        for got in [Some((0, 1)), None] {
            assert!(is_linearizable(1, &[ghost.clone(), told(2, 3, What::Claim(Some(got)))]), "{got:?}");
        }
        // What was lost cannot have happened before it was asked.
        let early = [told(0, 1, What::Claim(Some(None))), lost(2, What::Claim(None))];
        assert!(!is_linearizable(1, &early));
    }
}
