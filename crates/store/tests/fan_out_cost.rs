//! A settled item costs the same in a long list as in a short one. The bound is generous: what it must catch is
//! a cost that grows with the list. `cargo xtask bench fanout` measures how flat it is.
//!
//! Measured in the process's own time on the processor, so that a busy machine or disk changes nothing.

#[path = "it/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::evaluator::Plain;
use common::*;
use serde_json::json;
use sprag_lifecycle::{Plan, PlanStep, RunId, Spread};
use sprag_store::testing::{RawStore, ops};
use sprag_store::{Ending, Lease, Store};

const SHORT: u32 = 100;
const LONG: u32 = 5_000;
const BATCH: usize = 64;
/// A cost that grows with the list would be fifty times as high.
const BOUND: f64 = 3.0;

fn processor_us() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// Runs everything that can be claimed, in batches. Returns how many executions that were.
async fn drain(store: &Store, ending: Ending) -> usize {
    let mut settled = 0;
    loop {
        let claimed = store.claims().claim(claimer(1), BATCH).await.unwrap();
        if claimed.is_empty() {
            return settled;
        }
        settled += claimed.len();
        let leases: Vec<Lease> = claimed.iter().map(|assignment| assignment.lease).collect();
        let ending = ending.clone();
        let reported = store.write(move |session| {
            leases.iter().try_for_each(|lease| ops::finish(session, *lease, &ending, None).map(drop))
        });
        reported.await.unwrap();
    }
}

/// Lists of this length, `LONG` items in all: each is worked off badly, resumed, and worked off well. The
/// costs of an item in both.
async fn costs_us(items: u32) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let store = Plain::on(Store::open(folder.path()).unwrap());
    let step = PlanStep {
        spec: json!({ "items": items }).to_string(),
        spread: Some(Spread { max_parallel: Some(BATCH as u32), ..Spread::default() }),
        ..PlanStep::new("each", Vec::new())
    };
    let plan = Arc::new(Plan::new("cost", vec![step]).unwrap());
    let runs: Vec<RunId> = (1..=i64::from(LONG / items)).map(RunId::from_i64).collect();
    let mut costs = [0.0; 2];
    for run in &runs {
        let began = processor_us();
        store.person().create_run(named(run.to_i64(), &plan)).await.unwrap();
        assert_eq!(drain(&store, badly()).await, items as usize);
        let between = processor_us();
        assert!(store.person().resume_run(*run, None).await.unwrap().is_applied());
        assert_eq!(drain(&store, well()).await, items as usize);
        assert_eq!(status(&store, *run), "completed");
        costs[0] += between - began;
        costs[1] += processor_us() - between;
    }
    costs.map(|us| us / f64::from(LONG))
}

#[test]
fn p14_an_item_costs_the_same_in_a_long_list() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (short, long) = runtime.block_on(async { (costs_us(SHORT).await, costs_us(LONG).await) });
    println!(
        "µs of an item, first and resumed: {short:.0?} in lists of {SHORT}, {long:.0?} in one of {LONG}"
    );
    for (short, long) in short.into_iter().zip(long) {
        assert!(
            long < BOUND * short,
            "an item costs {long:.0} µs in a long list, {short:.0} µs in a short one"
        );
    }
}
