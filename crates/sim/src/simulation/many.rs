//! Runs many seeds on all threads; each seed is single-threaded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Failure, Options, Summary, run};
use crate::check::Violation;

/// Runs `count` seeds from `first` on and stops at the first failure. The order in which threads take seeds does not
/// affect the results.
pub fn run_many(first: u64, count: u64, threads: usize, options: &Options) -> Result<Summary, Box<Failure>> {
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count);
    let all = Mutex::new(Ok(Summary::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    match run_caught(seed, options) {
                        Ok(summary) => own.add(&summary),
                        Err(failure) => {
                            next.store(end, Ordering::Relaxed);
                            *all.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Err(failure);
                        }
                    }
                }
                if let Ok(all) = &mut *all.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                    all.add(&own);
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs one seed. A panic in the engine is a failure like any other.
pub fn run_caught(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    catch_unwind(AssertUnwindSafe(|| run(seed, options))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
        let violation = Violation { invariant: "nothing panics", seen: words.unwrap_or_default() };
        let options = options.clone();
        Err(Box::new(Failure { seed, options, violation, event_log: Vec::new(), faults: Vec::new() }))
    })
}
