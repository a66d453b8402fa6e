//! A power loss at every operation of the disk: acknowledged changes are there, and the others are complete or absent.
//!
//! The test records a history once, with every request of SQLite to the disk. Then it builds the disk as it
//! may be found after each operation: with all synced writes and any part of the others. The shipped store opens each
//! such disk, checks it, and completes its runs.

mod crash;
mod rules;
mod vfs;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::check::check;
use crate::common::*;
use crash::{Image, LOSSES, Medium};
use sprag_lifecycle::{ExecutionId, ExecutionStatus, Policy, RunId};
use sprag_store::testing::Table;
use sprag_store::{
    Created, Ending, Entropy, Error, ExecutionRow, Lease, Manual, NewRun, Row, RunRow, SqliteOptions, Store,
};
use vfs::{Fault, Op};

/// Something that a caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fact {
    Created(RunId),
    Received(Lease),
    Finished(ExecutionId),
    Cancelled(RunId),
}

/// One history at a time: the disk is the whole program's.
static ALONE: Mutex<()> = Mutex::new(());

fn clock() -> Arc<Manual> {
    Arc::new(Manual::new(1_800_000_000_000, 7))
}

fn open(folder: &Path, seed: u64) -> sprag_store::Result<Store> {
    Store::open_with(folder, SqliteOptions::simulated(), clock(), Arc::new(Manual::new(0, seed)))
}

fn folder() -> tempfile::TempDir {
    // Where memory is a disk, nothing is waited for: what is durable is worked out, not tried.
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The answers that callers received, in order; the disk's log contains their numbers.
struct Told<F = Fact>(Vec<F>);

impl<F> Default for Told<F> {
    fn default() -> Self {
        Told(Vec::new())
    }
}

impl<F> Told<F> {
    fn tell(&mut self, fact: F) {
        self.0.push(fact);
        vfs::answered(self.0.len() - 1);
    }
}

/// Work on a store: some runs, several callers whose writes share commits, an opening and a closing.
async fn work(folder: &Path, seed: u64, told: &mut Told) -> Result<(), Error> {
    let chance = Manual::new(0, seed);
    let store = open(folder, seed)?;
    let plan = match seed % 3 {
        0 => sequence(3),
        1 => graph(&[&[], &[], &[0, 1]], |_| tries(2)),
        _ => graph(&[&[], &[0], &[0]], |_| Policy::default()),
    };
    for _ in 0..2 {
        let new = store.person().new_run(Arc::clone(&plan));
        if let Created::New(run) = store.person().create_run(NewRun { ..new }).await? {
            told.tell(Fact::Created(run));
        }
    }
    for round in 0..6 {
        let (one, two) = tokio::join!(
            store.claims().claim(claimer(2 * round + 1), 1),
            store.claims().claim(claimer(2 * round + 2), 2)
        );
        let got: Vec<_> = one?.into_iter().chain(two?).collect();
        for assignment in &got {
            told.tell(Fact::Received(assignment.lease));
        }
        let ends = got.iter().map(|assignment| {
            let ending = if chance.next_u64().is_multiple_of(4) { badly() } else { well() };
            let store = store.clone();
            let lease = assignment.lease;
            async move { (lease, store.worker(lease).finish(ending, None).await) }
        });
        for (lease, done) in futures(ends).await {
            if done?.outcome.is_applied() {
                told.tell(Fact::Finished(lease.execution));
            }
        }
        if chance.next_u64().is_multiple_of(8)
            && let Some(Fact::Created(run)) = told.0.iter().find(|fact| matches!(fact, Fact::Created(_)))
            && store.person().cancel_run(*run).await?.is_applied()
        {
            told.tell(Fact::Cancelled(*run));
        }
    }
    Ok(())
}

/// Waits for all of them at once.
async fn futures<T: Send + 'static>(
    all: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let handles: Vec<_> = all.map(tokio::spawn).collect();
    let mut done = Vec::with_capacity(handles.len());
    for handle in handles {
        done.push(handle.await.unwrap());
    }
    done
}

/// Asserts that every acknowledged change is in the store.
fn expect(store: &Store, facts: &[Fact]) {
    let mut fences: BTreeMap<ExecutionId, u32> = BTreeMap::new();
    for fact in facts {
        match *fact {
            Fact::Created(run) => {
                assert!(look(store, |db| Table::<RunRow>::load(db, run)).is_some(), "run {run} was answered");
            }
            Fact::Cancelled(run) => {
                let row = look(store, |db| Table::<RunRow>::load(db, run)).unwrap();
                assert_ne!(row.status().to_string(), "running", "the cancel of {run} was answered");
            }
            Fact::Received(lease) => {
                fences.insert(lease.execution, lease.fence);
                let row = look(store, |db| Table::<ExecutionRow>::load(db, lease.execution)).unwrap();
                assert!(
                    row.fence >= lease.fence,
                    "{} was received with fence {}",
                    lease.execution,
                    lease.fence
                );
            }
            Fact::Finished(id) => {
                let row = look(store, |db| Table::<ExecutionRow>::load(db, id)).unwrap();
                assert!(row.status().is_terminal(), "the end of {id} was answered");
            }
        }
    }
}

/// Takes every run to its end, and asserts that no fence is given twice.
async fn go_on(store: &Store, facts: &[Fact]) {
    let runs = look(store, |db| db.live_runs(None, 100));
    for run in &runs {
        for row in look(store, |db| db.executions(*run)) {
            if row.status() == ExecutionStatus::Running {
                let lease = Lease { execution: row.id, fence: row.fence };
                assert!(store.reaper().owner_died(lease).await.unwrap().is_applied(), "{lease:?}");
            }
        }
    }
    for _ in 0..200 {
        let got = store.claims().claim(claimer(99), 8).await.unwrap();
        if got.is_empty() {
            break;
        }
        for assignment in got {
            let again = Fact::Received(assignment.lease);
            assert!(!facts.contains(&again), "{again:?} is given twice");
            let done = store.worker(assignment.lease).finish(Ending::Completed { result: None }, None);
            assert!(done.await.unwrap().outcome.is_applied());
        }
    }
    assert_eq!(look(store, |db| db.live_runs(None, 100)), vec![], "every run has come to its end");
}

/// Opens the store on a disk as it was found.
fn found(folder: &tempfile::TempDir, image: &Image, seed: u64) -> Store {
    for (name, bytes) in image {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    open(folder.path(), seed).expect("a disk that lost its power is opened")
}

/// Opens a disk as it was found, and looks at it.
fn recover(image: &Image, facts: &[Fact], seed: u64) {
    let folder = folder();
    let store = found(&folder, image, seed);
    check(&store, 0);
    expect(&store, facts);
    runtime().block_on(go_on(&store, facts));
    check(&store, 0);
}

/// Records a history of two openings. Returns the disk's log and the answers.
fn record(seed: u64) -> (Vec<Op>, Vec<Fact>) {
    let folder = folder();
    let mut told = Told::default();
    vfs::watch(folder.path(), None);
    for opening in 0..2 {
        runtime().block_on(work(folder.path(), seed * 2 + opening, &mut told)).unwrap();
    }
    let (ops, _) = vfs::unwatch();
    (ops, told.0)
}

fn nightly() -> bool {
    std::env::var_os("SPRAG_NIGHTLY").is_some()
}

/// The disks that a history may leave.
#[derive(Debug, Default)]
struct Losses {
    /// The number of disks that were opened.
    points: usize,
    /// The number of writes that could be lost at them.
    losable: usize,
}

impl Losses {
    /// Gives every disk that a loss of power may leave to `recover`, with the number of answers before the loss.
    fn at_every_operation(&mut self, ops: &[Op], seed: u64, recover: impl Fn(&Image, usize)) {
        let chance = Manual::new(0, seed);
        let mut medium = Medium::default();
        let mut known = 0;
        for (at, op) in ops.iter().enumerate() {
            medium.apply(op);
            if let Op::Answered(no) = op {
                known = no + 1;
                continue;
            }
            self.losable += medium.pending();
            // With nothing to lose, all kinds of loss leave the same disk.
            let kinds = if medium.pending() == 0 { &LOSSES[..1] } else { &LOSSES[..] };
            for loss in kinds {
                let image = medium.image(*loss, &chance);
                let found = std::panic::catch_unwind(AssertUnwindSafe(|| recover(&image, known)));
                assert!(found.is_ok(), "seed {seed}, after operation {at} of {}, loss {loss:?}", ops.len());
                self.points += 1;
            }
        }
    }
}

#[test]
fn i26_the_power_goes_at_every_operation() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let wanted = if nightly() { 500_000 } else { 5_000 };
    let (mut losses, mut seed) = (Losses::default(), 0);
    while losses.points < wanted {
        let (ops, facts) = record(seed);
        losses.at_every_operation(&ops, seed, |image, known| recover(image, &facts[..known], seed));
        seed += 1;
    }
    let Losses { points, losable } = losses;
    println!("figure: power loss: {points} crash points in {seed} histories, {losable} writes to lose");
    assert!(losable > 1_000, "there was something to lose");
}

#[test]
fn a_full_or_broken_disk_at_every_operation() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // Every operation in the nightly run, otherwise one in this many.
    let stride = if nightly() { 1 } else { 7 };
    let (mut tried, mut told_of) = (0, 0);
    for (seed, fault) in [(1, Fault::Full), (2, Fault::Broken), (3, Fault::Broken)] {
        let asked = {
            let folder = folder();
            vfs::watch(folder.path(), None);
            runtime().block_on(work(folder.path(), seed, &mut Told::default())).unwrap();
            vfs::unwatch().1
        };
        for number in (1..=asked).skip((seed as usize * 3) % stride).step_by(stride) {
            let folder = folder();
            let mut told = Told::default();
            vfs::watch(folder.path(), Some((number, fault)));
            let done = runtime().block_on(work(folder.path(), seed, &mut told));
            vfs::unwatch();
            tried += 1;
            if let Err(error) = done {
                told_of += 1;
                let typed = matches!(
                    error,
                    Error::Full { .. }
                        | Error::Io { .. }
                        | Error::Unknown { .. }
                        | Error::Open { .. }
                        | Error::Corrupt { .. }
                        | Error::Locked { .. }
                );
                assert!(typed, "operation {number}, {fault:?}: {error:?}");
            }
            // The disk is well again: nothing that was answered is gone, nothing is half done.
            let store = open(folder.path(), seed).unwrap_or_else(|error| {
                panic!("operation {number} of seed {seed}, {fault:?}: cannot be opened again: {error}")
            });
            check(&store, 0);
            expect(&store, &told.0);
            runtime().block_on(go_on(&store, &told.0));
        }
    }
    println!("figure: disk faults: {tried} operations failed, {told_of} of them were reported");
    assert!(told_of > tried / 4, "faults reach the callers: {told_of} of {tried}");
}
