//! Checks of the steps' marks: order, overlap, double starts, groups.

use std::collections::BTreeMap;

use super::pipelines::Pipeline;

/// One line that a step wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// `begin`, `tick`, `end` or `fail`.
    pub(super) what: String,
    /// The pipeline of its run.
    pub(super) pipeline: String,
    /// The step; an item of a fan-out is `fan[2]`.
    pub(super) step: String,
    /// Which start of the step wrote it.
    pub(super) start: Start,
}

/// One start of a step: the attempt and the fence that Sprag gave it, and the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Start {
    pub(super) attempt: u64,
    pub(super) fence: u64,
    pub(super) pid: u64,
}

impl Mark {
    /// Reads a line of a run's file.
    pub(super) fn read(line: &str) -> Option<Mark> {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, pipeline, step, attempt, fence, pid] = words[..] else { return None };
        let number = |word: &str| word.parse().ok();
        let start = Start { attempt: number(attempt)?, fence: number(fence)?, pid: number(pid)? };
        Some(Mark { what: what.into(), pipeline: pipeline.into(), step: step.into(), start })
    }
}

/// The facts about a run besides its marks.
#[derive(Debug, Default, Clone)]
pub(super) struct RunWithPlan {
    /// The number of a person's requests to resume, retry or rewind it.
    pub(super) again: usize,
    /// The steps that a fork took over from another run.
    pub(super) inherited: Vec<String>,
    /// Whether a person was about to answer its question with yes.
    pub(super) approved: bool,
}

/// Checks one run's marks, and returns the violations.
pub(super) fn check_run(marks: &[Mark], known: &RunWithPlan) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut last: BTreeMap<&str, &Mark> = BTreeMap::new();
    for mark in marks {
        let Some(pipeline) = Pipeline::named(&mark.pipeline) else {
            wrong.push(format!("{mark:?} is of no pipeline"));
            continue;
        };
        let step = mark.step.as_str();
        for need in pipeline.needs(step) {
            let of_need = |id: &str| id == *need || id.split('[').next() == Some(need);
            let mut found = last.iter().filter(|(id, _)| of_need(id)).peekable();
            let inherited = known.inherited.iter().any(|id| id == need);
            if found.peek().is_none() && !inherited {
                wrong.push(format!(
                    "expected {need} to have ended before {step}; found that it never began: {mark:?}"
                ));
            }
            for (_, open) in found.filter(|(_, open)| open.what != "end") {
                wrong.push(format!(
                    "expected {need} to have ended before {step}; found {open:?}, then {mark:?}"
                ));
            }
        }
        if step == "after" && mark.pipeline == "asks" && !known.approved {
            let inherited = known.inherited.iter().any(|id| id == "ask");
            if !inherited {
                wrong.push(format!("expected an answer before {step}; none was sent: {mark:?}"));
            }
        }
        if mark.what == "begin" {
            let earlier = last.get(step).map(|earlier| earlier.start);
            if earlier.is_some_and(|earlier| mark.start.fence <= earlier.fence) {
                wrong.push(format!(
                    "expected the fence of {step} to grow with every start; found {:?} after {earlier:?}",
                    mark.start
                ));
            }
        } else if last.get(step).is_none_or(|latest| latest.start != mark.start) {
            let latest = last.get(step);
            wrong.push(format!("expected the marks of one start of {step}; found {mark:?} after {latest:?}"));
        }
        last.insert(step, mark);
    }
    if marks.iter().any(|mark| mark.pipeline == "once") {
        let begun = marks.iter().filter(|mark| mark.what == "begin" && mark.step == "one").count();
        if begun > 1 {
            wrong.push(format!("expected its at_most_once step to start once; found {begun} starts"));
        }
    }
    wrong
}

/// Checks a group in which one run at a time may work: `(what, run)` in order. `again` tells how often a person asked to run a
/// run again, which lets it come back after another run.
pub(super) fn check_group<'m>(marks: &[(&'m str, &'m str)], again: impl Fn(&str) -> usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut holder: Option<&str> = None;
    let mut entered: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, run) in marks {
        if holder == Some(run) {
            continue;
        }
        if *what != "begin" {
            wrong.push(format!(
                "expected one run of the group at a time; found a {what} of {run} while {holder:?} has begun"
            ));
            continue;
        }
        holder = Some(run);
        let times = entered.entry(run).or_default();
        *times += 1;
        if *times > 1 + again(run) {
            wrong.push(format!(
                "expected {run} to keep its place in the group; found that it entered {times} times"
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(lines: &str) -> Vec<Mark> {
        lines.lines().map(|line| Mark::read(line.trim()).expect("a mark")).collect()
    }

    fn wrong(lines: &str) -> Vec<String> {
        check_run(&marks(lines), &RunWithPlan::default())
    }

    #[test]
    fn a_run_in_order_is_right() {
        let lines = "begin chain a 1 2 10\nend chain a 1 2 10\nbegin chain b 1 2 11\nfail chain b 1 2 11
            begin chain b 2 5 12\ntick chain b 2 5 12\nend chain b 2 5 12\nbegin chain c 1 2 13\nend chain c 1 2 13";
        assert_eq!(wrong(lines), Vec::<String>::new());
    }

    #[test]
    fn the_check_finds_a_step_that_starts_before_its_need() {
        assert_eq!(wrong("begin chain a 1 2 10\nbegin chain b 1 2 11").len(), 1);
        assert_eq!(wrong("begin chain b 1 2 11").len(), 1);
        // An item that is open keeps the join from starting.
        let open = "begin fans a 1 2 1\nend fans a 1 2 1\nbegin fans fan[0] 1 2 3\nend fans fan[0] 1 2 3
            begin fans fan[1] 1 2 4\nbegin fans join 1 2 5";
        assert_eq!(wrong(open).len(), 1);
    }

    #[test]
    fn the_check_finds_an_item_that_counts_its_attempts_from_1_again() {
        let first = "begin fans a 1 2 1\nend fans a 1 2 1\nbegin fans fan[0] 1 2 3\nend fans fan[0] 1 2 3";
        assert_eq!(wrong(&format!("{first}\nbegin fans fan[0] 2 5 4")), Vec::<String>::new());
        assert_eq!(wrong(&format!("{first}\nbegin fans fan[0] 1 2 4")).len(), 1);
    }

    #[test]
    fn the_check_finds_a_need_that_runs_again_beside_its_dependent() {
        let lines = "begin chain a 1 2 1\nend chain a 1 2 1\nbegin chain b 1 2 2\nbegin chain a 2 5 3\ntick chain b 1 2 2";
        assert_eq!(wrong(lines).len(), 1);
    }

    #[test]
    fn the_check_finds_an_attempt_that_survives_or_starts_twice() {
        assert_eq!(wrong("begin chain a 1 2 10\nbegin chain a 2 5 11\ntick chain a 1 2 10").len(), 1);
        assert_eq!(wrong("begin chain a 1 2 10\nbegin chain a 1 2 11").len(), 1);
        assert_eq!(wrong("begin chain a 2 5 10\nbegin chain a 1 3 11").len(), 1);
    }

    #[test]
    fn the_check_finds_a_step_after_an_unanswered_question_and_a_second_start() {
        let asked = "begin asks a 1 2 1\nend asks a 1 2 1\nbegin asks after 1 2 2";
        assert_eq!(wrong(asked).len(), 1);
        let known = RunWithPlan { approved: true, ..RunWithPlan::default() };
        assert_eq!(check_run(&marks(asked), &known), Vec::<String>::new());
        assert_eq!(wrong("begin once one 1 2 1\nbegin once one 2 5 2").len(), 1);
    }

    #[test]
    fn the_check_finds_two_runs_of_a_group_at_once() {
        let none = |_: &str| 0;
        assert!(check_group(&[("begin", "x"), ("end", "x"), ("begin", "y"), ("end", "y")], none).is_empty());
        assert_eq!(check_group(&[("begin", "x"), ("begin", "y"), ("tick", "x")], none).len(), 1);
        let back = [("begin", "x"), ("begin", "y"), ("begin", "x")];
        assert_eq!(check_group(&back, none).len(), 1);
        assert!(check_group(&back, |_| 1).is_empty());
    }
}
