//! Shrinks a failure: leaves out faults, then programs and their requests, as long as the same invariant is violated.

use super::{Failure, Options, run_caught};

/// Returns the smallest options with which the seed still fails like this, with its event log.
pub fn shrink(failure: Box<Failure>) -> Box<Failure> {
    let mut smallest = failure;
    loop {
        let tries = smaller(&smallest);
        let found = tries.into_iter().find_map(|options| fails(&smallest, &options));
        match found {
            Some(found) => smallest = found,
            None => break,
        }
    }
    let told = Options { keep_log: true, ..smallest.options.clone() };
    run_caught(smallest.seed, &told).err().unwrap_or(smallest)
}

fn fails(failure: &Failure, options: &Options) -> Option<Box<Failure>> {
    run_caught(failure.seed, options)
        .err()
        .filter(|found| found.violation.invariant == failure.violation.invariant)
}

/// Returns variants of the options with one thing less.
fn smaller(failure: &Failure) -> Vec<Options> {
    let options = Options { keep_log: false, ..failure.options.clone() };
    let mut tries = Vec::new();
    // Leaves out half of the faults at once, while there are many.
    let kept: Vec<usize> = failure.faults.iter().map(|(at, _)| *at).collect();
    if kept.len() > 4 {
        for half in [&kept[..kept.len() / 2], &kept[kept.len() / 2..]] {
            let mut without = options.without.clone();
            without.extend(half);
            tries.push(Options { without, ..options.clone() });
        }
    }
    for at in kept {
        let mut without = options.without.clone();
        without.push(at);
        tries.push(Options { without, ..options.clone() });
    }
    let mut less = |change: &dyn Fn(&mut Options) -> Option<()>| {
        let mut options = options.clone();
        if change(&mut options).is_some() {
            tries.push(options);
        }
    };
    fn down(number: &mut usize, least: usize) -> Option<()> {
        (*number > least).then(|| *number -= 1)
    }
    less(&|options| down(&mut options.runs, 0));
    less(&|options| down(&mut options.boards, 0));
    less(&|options| down(&mut options.attached, 0));
    less(&|options| down(&mut options.collectors, 0));
    less(&|options| down(&mut options.persons, 1));
    less(&|options| down(&mut options.executors, 1));
    less(&|options| down(&mut options.workers, 1));
    less(&|options| down(&mut options.agents, 0));
    less(&|options| down(&mut options.steps, 1));
    tries
}
