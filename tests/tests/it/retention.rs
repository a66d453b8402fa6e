//! `sprag gc` deletes old runs with their files, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, PlanStep, RunId, RunStatus, StepNo};
use sprag_store::{Claimer, Created, Ending, Row, Store, Topic};
use sprag_testkit::Postgres;
use sprag_tests::{Random, Sandbox, Server, now_ms, until};

/// Returns a plan of this many sequential steps.
fn sequence(steps: usize) -> Arc<Plan> {
    let step = |no: usize| {
        let needs: Vec<StepNo> = no.checked_sub(1).map(|before| before as StepNo).into_iter().collect();
        PlanStep { spec: "{}".into(), ..PlanStep::new(format!("s{no}"), needs) }
    };
    Arc::new(Plan::new("many", (0..steps).map(step).collect()).expect("a plan"))
}

fn claimer() -> Claimer {
    let queues = vec![sprag_store::DEFAULT_QUEUE.into()];
    Claimer { worker: 1, queues, reserved_only: false, services_only: false, lease_ms: 600_000, nonce: 0 }
}

/// Works off runs of one step that were all submitted first: the whole journal lies between a run's first and last
/// entry. Each has a folder with a log, as a worker would leave it.
pub(crate) async fn finished(store: &Store, data: &Path, runs: usize) -> Vec<RunId> {
    let plan = sequence(1);
    let mut made = Vec::new();
    for _ in 0..runs {
        match store.person().create_run(store.person().new_run(Arc::clone(&plan))).await.expect("a run") {
            Created::New(run) => made.push(run),
            other => panic!("{other:?}"),
        }
    }
    let changes = store.subscribe(vec![Topic::Journal]);
    let is_over = |run: &RunId| {
        let row = store.queries().run(*run).expect("a look");
        row.is_some_and(|row| row.status().is_terminal())
    };
    // A worker of the test may claim some of them too.
    for round in 0.. {
        assert!(round < 10_000, "not all runs end");
        let got = store.claims().claim(claimer(), 100).await.expect("work");
        for held in &got {
            let well = Ending::Completed { result: None };
            store.worker(held.lease).finish(well, None).await.expect("a report");
        }
        if got.is_empty() {
            if made.iter().all(is_over) {
                break;
            }
            changes.wait(Duration::from_millis(20)).await;
        }
    }
    for row in store.queries().outbox_due(i64::MAX, 2 * runs).expect("effects") {
        store.executor().effect_done(row.id).await.expect("done");
    }
    for run in &made {
        let folder = data.join("runs").join(run.to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("s0.1.log"), "said\n").expect("a log");
    }
    made
}

/// Returns the runs that have a folder.
fn folders(data: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(data.join("runs")).expect("a folder");
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.parse::<RunId>().is_ok()).collect()
}

#[test]
fn i10_gc_runs_the_effects_of_an_ended_run_without_a_server() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: 'true'")]);
    let run = sandbox.detach(&sandbox.path("one.yaml"));
    // Its end comes in a process that does nothing after it.
    sandbox.sprag(["cancel", &run]).expect(0);
    assert_eq!(sandbox.status_word(&run), "cancelled");
    let told = sandbox.sprag(["gc", "--keep", "0s"]).expect(0);
    assert!(told.stdout.starts_with("forgot 1 run, "), "{}", told.stdout);
}

#[test]
fn old_runs_are_deleted_with_their_logs() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo hello")]);
    sandbox.sprag(["run", "one.yaml"]).expect(0);
    let run = sandbox.newest().expect("a run");
    assert!(sandbox.sprag(["logs", &run]).expect(0).stdout.contains("hello"));

    let none = sandbox.sprag(["gc", "--keep", "30d"]).expect(0);
    assert_eq!(none.stdout, "nothing to forget: no run ended more than 30d ago\n");
    let dry = sandbox.sprag(["gc", "--keep", "0s", "--dry-run"]).expect(0);
    assert!(dry.stdout.starts_with("would forget 1 run, "), "{}", dry.stdout);
    sandbox.sprag(["status", &run]).expect(0);

    let told = sandbox.sprag(["gc", "--keep", "0s", "--json"]).expect(0);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["forgotten"]["runs"], 1, "{told}");
    assert!(told["forgotten"]["bytes"].as_u64().unwrap() > 0, "{told}");
    sandbox.sprag(["status", &run]).expect(2);
    assert!(!sandbox.data().join("runs").join(&run).exists(), "its logs are gone");
    assert_eq!(sandbox.sprag(["ls", "--json"]).expect(0).stdout.trim(), "[]");
    sandbox.sprag(["run", "one.yaml"]).expect(0);
}

#[test]
fn an_invalid_age_is_reported_with_its_remedy() {
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(["gc", "--keep", "soon"]).expect(2);
    assert!(told.stderr.contains("--keep") && told.stderr.contains("30d"), "{}", told.stderr);
}

/// `gc` once held the write lock for seconds, and each run cost a look at the whole journal.
#[test]
fn e12_a_live_writer_commits_while_many_runs_are_deleted() {
    const RUNS: usize = 3_000;
    const LONGEST_MS: u64 = 1_000;
    let sandbox = Sandbox::new();
    let data = sandbox.data();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = Store::open(&data).expect("a store");
        finished(&store, &data, RUNS).await;
        let mut gc = sandbox.start(["gc", "--keep", "0s", "--json"]);
        let plan = sequence(1);
        let (mut longest_ms, mut live) = (0, Vec::new());
        while gc.is_running() {
            let since_ms = now_ms();
            let new = store.person().new_run(Arc::clone(&plan));
            live.push(new.id);
            store.person().create_run(new).await.expect("a live run is made");
            longest_ms = longest_ms.max(now_ms() - since_ms);
            store.runtime().pause(std::time::Duration::from_millis(2)).await;
        }
        let told = gc.finish().expect(0).json();
        assert_eq!(told["forgotten"]["runs"], RUNS, "{told}");
        assert!(longest_ms < LONGEST_MS, "a live write waited for {longest_ms} ms");
        for run in live {
            let row = store.queries().run(run).expect("a look");
            assert_eq!(row.map(|row| row.status()), Some(RunStatus::Running), "a live run stays");
        }
        assert_eq!(store.queries().runs(None, &[RunStatus::Completed], 10).expect("a look").len(), 0);
    });
}

/// One process forgets a pipeline's runs and its plan while another remembers it.
#[test]
fn e12_a_server_continues_after_another_process_deleted_its_plan() {
    let database = Postgres::shared().database();
    for sandbox in [Sandbox::new(), Sandbox::on(&database.tcp_url)] {
        let server = Server::start(&sandbox, &[]);
        let yaml = "name: again\nsteps:\n  - id: say\n    run: echo hello\n";
        for _ in 0..3 {
            let run = server.run(yaml);
            server.until(&run, "completed");
            until("everything is done after its end, and it is forgotten", || {
                let told = sandbox.json(["gc", "--keep", "0s", "--json"]);
                told["forgotten"]["runs"] == 1 && told["forgotten"]["plans"] == 1
            });
            server.request("GET", &format!("/v1/runs/{run}")).send().problem(404, "not_found");
        }
        let run = server.run(yaml);
        server.until(&run, "completed");
        assert_eq!(server.get(&format!("/v1/runs/{run}/steps"))["steps"][0]["id"], "say");
    }
}

/// Killed between any two of its acts, `gc` leaves nothing that the next one does not find.
#[test]
fn e13_a_gc_that_is_killed_at_any_moment_leaks_no_folder() {
    const KILLS: usize = 30;
    let sandbox = Sandbox::new();
    let data = sandbox.data();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = Store::open(&data).expect("a store");
    let mut random = Random::new(3);
    let live = runtime.block_on(async {
        let mut new = store.person().new_run(sequence(1));
        // Reserved, so that no worker claims it with the others.
        new.pin = Some(99);
        let live = new.id;
        store.person().create_run(new).await.expect("a live run");
        live
    });
    let folder = data.join("runs").join(live.to_string());
    sprag_process::make_private_folder(&folder).expect("a folder");
    for _ in 0..KILLS {
        runtime.block_on(finished(&store, &data, 60));
        let mut gc = sandbox.start(["gc", "--keep", "0s"]);
        let left = 1 + random.below(60) as usize;
        until("some are gone, or all", || !gc.is_running() || folders(&data).len() <= left);
        gc.kill();
    }
    drop(store);
    sandbox.sprag(["gc", "--keep", "0s"]).expect(0);
    assert_eq!(folders(&data), BTreeSet::from([live.to_string()]));
    let told = sandbox.sprag(["doctor"]).expect(0);
    assert!(!told.stdout.contains("leftovers"), "{}", told.stdout);
}

/// A folder that no run names is shown and removed, unless another store may have the run.
#[test]
fn e13_a_folder_that_no_run_names_is_found() {
    const STRAY: &str = "0123456789ab";
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo hello")]);
    sandbox.sprag(["run", "one.yaml"]).expect(0);
    let run = sandbox.newest().expect("a run");
    let stray = sandbox.data().join("runs").join(STRAY);
    let leave_stray = || {
        std::fs::create_dir_all(&stray).expect("a folder");
        std::fs::write(stray.join("a.1.log"), "said\n").expect("a log");
    };
    leave_stray();
    let told = sandbox.sprag(["doctor"]).expect(0);
    assert!(told.stdout.contains("1 folder of runs that the store does not have"), "{}", told.stdout);
    let told = sandbox.sprag(["gc", "--keep", "1d"]).expect(0);
    assert!(told.stdout.contains("removed 1 folder of runs that were forgotten before"), "{}", told.stdout);
    assert_eq!(folders(&sandbox.data()), BTreeSet::from([run.clone()]));

    // The same data directory with a database elsewhere: its runs have folders here too.
    let database = Postgres::shared().database();
    let elsewhere = ["--store", &database.tcp_url];
    let args = ["run", "one.yaml", "--json"].iter().chain(&elsewhere).copied();
    sandbox.sprag(args).expect(0);
    let both = folders(&sandbox.data());
    assert_eq!(both.len(), 2, "{both:?}");
    leave_stray();
    sandbox.sprag(["gc", "--keep", "1d"]).expect(0);
    assert_eq!(folders(&sandbox.data()).len(), 3, "none of them is removed");
    let told = sandbox.sprag(["doctor"]).expect(0);
    assert!(told.stdout.contains("another store may have them"), "{}", told.stdout);
}
