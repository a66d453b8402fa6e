//! Messages of people to agents: sent once, even if their worker is lost.

use std::sync::Arc;

use sprag_app::talk_policy;
use sprag_lifecycle::{Plan, PlanStep};
use sprag_store::{Claimer, Created, Row, Store, System};

#[tokio::test]
async fn t06_a_message_whose_worker_is_lost_is_not_sent_again() {
    let store = Store::in_memory(Arc::new(System), Arc::new(System));
    let step = PlanStep { policy: talk_policy(), ..PlanStep::new("work", Vec::new()) };
    let plan = Arc::new(Plan::new("talk", vec![step]).expect("a plan"));
    let new = store.person().new_run(plan);
    let Created::New(run) = store.person().create_run(new).await.expect("it is created") else {
        panic!("the run is new");
    };
    let claimer = Claimer {
        services_only: false,
        worker: 1,
        queues: vec!["default".into()],
        reserved_only: false,
        lease_ms: 60_000,
        nonce: 0,
    };
    let claimed = store.claims().claim(claimer.clone(), 10).await.expect("it can be claimed");
    assert_eq!(claimed.len(), 1);
    assert!(store.reaper().owner_died(claimed[0].lease).await.expect("it is written").is_applied());
    assert!(store.claims().claim(claimer, 10).await.expect("claims work").is_empty(), "it is not sent again");
    assert!(store.queries().run(run).expect("a read").expect("the run").status().is_terminal());
}
