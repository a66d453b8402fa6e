//! A usage limit holds its account for all processes, survives them, and is explained.

use std::sync::Arc;

use sprag_lifecycle::{Plan, PlanAccount, PlanStep};
use sprag_store::{Claimer, Created, DEFAULT_QUEUE, Ending, Store, UsageLimit};
use sprag_tests::Sandbox;

#[test]
fn t04_a_limit_outlives_its_process_is_explained_and_can_be_lifted() {
    let sandbox = Sandbox::new();
    let store = Store::open(&sandbox.data()).expect("a store");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let account =
        PlanAccount { name: "work".into(), max_parallel: 2, longest_wait_ms: None, fallbacks: Vec::new() };
    let command = format!("echo done >> {}", sandbox.path("ran").display());
    let spec = serde_json::json!({ "kind": { "run": { "shell": command } } }).to_string();
    let step = PlanStep { spec, account: Some(account), ..PlanStep::new("agent", Vec::new()) };
    let plan = Arc::new(Plan::new("limited", vec![step]).expect("a plan"));
    let create =
        || match runtime.block_on(store.person().create_run(store.person().new_run(Arc::clone(&plan)))) {
            Ok(Created::New(run)) => run,
            other => panic!("{other:?}"),
        };
    let (first, second) = (create(), create());
    let claimer = Claimer {
        worker: 1,
        queues: vec![DEFAULT_QUEUE.into()],
        reserved_only: false,
        services_only: false,
        lease_ms: 600_000,
        nonce: 0,
    };
    let got = runtime.block_on(store.claims().claim(claimer, 2)).expect("work");
    assert_eq!(got.len(), 2);
    for held in &got {
        // The second report finds the account held, and returns its execution all the same.
        let until_ms = Some(store.now().wall_ms + 3_600_000);
        let limit = UsageLimit { until_ms, message: "5-hour limit reached".into() };
        let report = store.worker(held.lease).finish(Ending::Limited(limit), None);
        assert!(runtime.block_on(report).expect("a report").outcome.is_applied());
    }
    drop((store, runtime));
    // Nothing of it is in a process any more.
    for run in [first.to_string(), second.to_string()] {
        let told = sandbox.sprag(["explain", &run]).expect(0).stdout;
        assert!(told.contains("account work until "), "{told}");
        assert!(told.contains("(usage limit reported by run "), "{told}");
        assert!(told.contains("sprag account release work"), "{told}");
    }
    let accounts = sandbox.json(["account", "ls", "--json"]);
    assert_eq!(accounts[0]["status"], "held", "{accounts}");
    sandbox.sprag(["account", "release", "work"]).expect(0);
    assert_eq!(sandbox.json(["account", "ls", "--json"])[0]["status"], "free");
}
