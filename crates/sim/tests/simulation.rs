//! The whole engine under faults. `cargo xtask sim --seed S` runs one seed again, prints its event log and shrinks a
//! failure.

use sprag_sim::simulation::{Options, StoreKind, Summary, run, run_many, shrink};

/// Returns the number of seeds, which is larger in the nightly run.
fn count(seeds: u64) -> u64 {
    if std::env::var_os("SPRAG_NIGHTLY").is_some() { seeds * 100 } else { seeds }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Runs seeds. Shrinks and prints a failure.
fn all(first: u64, seeds: u64, options: &Options) -> Summary {
    run_many(first, seeds, threads(), options).unwrap_or_else(|failure| panic!("{}", shrink(failure)))
}

#[test]
fn i04_i06_i09_i10_i12_i15_i20_i26_o14_every_seed_keeps_what_is_promised() {
    let summary = all(0, count(50_000), &Options::default());
    println!("figure: simulation: {summary}");
    // A fault that never occurred was not tested.
    for kind in ["crash", "pause", "stop", "clock jump", "disk full", "answer lost", "write lost"] {
        assert!(summary.faults[kind] > 1_000, "{kind}: {summary}");
    }
    for kind in ["message lost", "message doubled", "slow line", "process killed", "files lost"] {
        assert!(summary.faults[kind] > 1_000, "{kind}: {summary}");
    }
    assert!(summary.forgotten > 1_000, "runs are forgotten: {summary}");
    assert!(summary.again > 1_000, "work is lost, and begun again: {summary}");
    assert!(summary.simulated_ms > 1_000 * 3_600_000, "{summary}");
}

/// Rules whose ticks and events reach any of several servers, while these die, hesitate and lose answers.
#[test]
fn r01_r02_r10_r14_r15_each_tick_and_each_event_of_a_rule_counts_once() {
    let options = Options { senders: 2, persons: 0, boards: 0, runs: 0, steps: 2, ..Options::default() };
    let summary = all(0, count(3_000), &options);
    println!("figure: simulation of rules: {summary}");
    for kind in ["crash", "pause", "disk full", "answer lost", "write lost"] {
        assert!(summary.faults[kind] > 500, "{kind}: {summary}");
    }
    assert!(summary.runs > 5 * summary.seeds, "rules start runs: {summary}");
}

/// Processes that start their own run and are lost: another worker continues it.
#[test]
fn i20_every_reservation_is_checked() {
    let options = Options { persons: 0, boards: 0, agents: 1, workers: 1, runs: 0, ..Options::default() };
    all(0, count(2_000), &options);
}

/// Processes that work only on their own run, in one group: each live one finishes, whatever happened to the others.
#[test]
fn i10_without_a_server_no_dead_run_blocks_a_live_process() {
    let options = Options {
        serverless: true,
        executors: 0,
        workers: 0,
        boards: 0,
        attached: 5,
        runs: 0,
        ..Options::default()
    };
    let summary = all(0, count(5_000), &options);
    println!("figure: simulation without a server: {summary}");
    for kind in ["crash", "pause"] {
        assert!(summary.faults[kind] > 1_000, "{kind}: {summary}");
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..200 {
        let [first, second] = [(), ()].map(|()| run(seed, &Options { keep_log: true, ..Options::default() }));
        let (Ok(first), Ok(second)) = (first, second) else { panic!("seed {seed} fails") };
        let differs = first.event_log.iter().zip(&second.event_log).find(|(first, second)| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn i27_memory_and_sqlite_have_the_same_trace() {
    for seed in 0..count(200) {
        let of = |store| run(seed, &Options { keep_log: true, store, ..Options::default() });
        let (memory, sqlite) = match (of(StoreKind::Memory), of(StoreKind::Sqlite)) {
            (Ok(memory), Ok(sqlite)) => (memory, sqlite),
            (Err(failure), _) | (_, Err(failure)) => panic!("{failure}"),
        };
        let differs =
            memory.event_log.iter().zip(&sqlite.event_log).find(|(memory, sqlite)| memory != sqlite);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(memory.hash, sqlite.hash, "seed {seed}");
    }
    println!("figure: simulation on SQLite and in memory, the same traces: {} seeds", count(200));
}

#[test]
fn a_reduced_world_is_valid() {
    let least = Options {
        executors: 1,
        workers: 1,
        agents: 0,
        boards: 0,
        attached: 0,
        collectors: 0,
        persons: 1,
        runs: 1,
        steps: 1,
        ..Options::default()
    };
    let calm = Options { without: (0..100).collect(), ..Options::default() };
    for options in [least, calm] {
        let summary = all(0, 200, &options);
        assert!(summary.steps > 100, "{summary}");
    }
}
