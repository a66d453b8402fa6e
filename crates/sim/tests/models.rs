//! Exhaustive exploration, with bounds that every test run can afford.

use std::sync::{Arc, Mutex};

use sprag_lifecycle::{OnFail, Plan, PlanStep, Policy, Spread, WorkKind};
use sprag_sim::graphs::{Script, Scripts, WaitsFor};
use sprag_sim::model::accounts::{self, AccountModel};
use sprag_sim::model::boards::{self, BoardModel};
use sprag_sim::model::environments::{self, EnvironmentModel};
use sprag_sim::model::rule_limits::{Limit, RuleLimitModel};
use sprag_sim::model::rules::RuleModel;
use sprag_sim::model::threads::{self, ThreadModel};
use sprag_sim::model::{Budget, PipelineModel, plan, retrying, reworking};
use sprag_store::Overlap;
use stateright::{Checker, Expectation, Model};

const NONE: Budget = Budget {
    failures: 0,
    crashes: 0,
    expiries: 0,
    lost_replies: 0,
    releases: 0,
    redispatches: 0,
    cancels: 0,
    resumes: 0,
    rewinds: 0,
};

/// Explores all states, prints their number, and fails on the first violation with its trace.
fn explore(name: &str, plan: Arc<Plan>, budget: Budget) -> usize {
    explore_scripted(name, plan, Scripts::default(), 3, budget)
}

fn explore_scripted(name: &str, plan: Arc<Plan>, scripts: Scripts, workers: usize, budget: Budget) -> usize {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let model = PipelineModel { plan, scripts, workers, budget, quiet_every: 8 };
    let stop = stateright::HasDiscoveries::AnyFailures;
    let checker = model.checker().threads(2).finish_when(stop).spawn_bfs().join();
    println!("figure: model, {name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    for property in ["the invariants hold", "looking changes nothing", "without further faults the run ends"]
    {
        if let Some(path) = checker.discovery(property) {
            let last = path.last_state();
            let acts = path.clone().into_actions();
            panic!("{name}: not true that {property}\nafter {acts:#?}\n{last:#?}");
        }
    }
    assert!(checker.discovery("a run completes").is_some(), "{name}: nothing ever completes");
    checker.unique_state_count()
}

/// Returns 1 in the nightly run, as an additional fault.
fn more() -> u8 {
    u8::from(std::env::var_os("SPRAG_NIGHTLY").is_some())
}

/// An exploration uses both cores and some gigabytes, so only one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn sequence_with_every_fault() {
    let plan = plan(&[&[], &[0], &[1]], |no| Policy { at_most_once: no == 2, ..retrying(2) });
    explore(
        "sequence",
        plan,
        Budget {
            failures: 1,
            crashes: 1,
            expiries: 1 + more(),
            lost_replies: 1,
            releases: 1,
            redispatches: 1,
            cancels: 1,
            ..NONE
        },
    );
}

#[test]
fn sequence_resumed_and_rewound() {
    let plan = plan(&[&[], &[0], &[1]], |_| Policy::default());
    explore(
        "sequence, resumed",
        plan,
        Budget { failures: 1, expiries: 1, cancels: 1, resumes: 1, rewinds: 1, ..NONE },
    );
}

#[test]
fn join_with_an_always_step() {
    let plan = plan(&[&[], &[], &[0, 1]], |no| Policy { always: no == 2, ..retrying(2) });
    explore("join", plan, Budget { failures: 2, crashes: 1, expiries: 1, cancels: 1, rewinds: 1, ..NONE });
}

#[test]
fn fan_out_that_tolerates_a_failure() {
    let plan = plan(&[&[], &[0], &[0]], |no| Policy {
        on_fail: if no == 1 { OnFail::Continue } else { OnFail::Fail },
        ..Policy::default()
    });
    explore(
        "fan-out",
        plan,
        Budget {
            failures: 2,
            crashes: 1,
            expiries: 1,
            releases: 1,
            redispatches: 1,
            cancels: 1,
            resumes: 1,
            ..NONE
        },
    );
}

#[test]
fn diamond_reworked() {
    let plan = plan(&[&[], &[0], &[0], &[1, 2]], |no| match no {
        1 => reworking(0, 1),
        3 => reworking(0, 2),
        _ => Policy::default(),
    });
    explore("diamond, reworked", plan, Budget { failures: 2, expiries: 1, cancels: 1, ..NONE });
}

#[test]
fn sequence_reworked_and_resumed() {
    let plan = plan(&[&[], &[0], &[1]], |no| if no == 2 { reworking(0, 1) } else { Policy::default() });
    explore(
        "sequence, reworked",
        plan,
        // The larger bounds have eleven million states, and need 20 GB.
        Budget { failures: 2, expiries: more(), cancels: 1, resumes: 1, rewinds: more(), ..NONE },
    );
}

#[test]
fn sequence_given_back_by_workers_that_do_not_hear_the_answer() {
    let plan = plan(&[&[], &[0]], |_| Policy::default());
    explore(
        "sequence, given back",
        plan,
        Budget { releases: 2, lost_replies: 2, redispatches: 1, expiries: 1, cancels: 1, ..NONE },
    );
}

/// Returns a plan of these steps, each with its script.
fn scripted(steps: Vec<(PlanStep, Script)>) -> (Arc<Plan>, Scripts) {
    let (mut planned, mut scripts) = (Vec::new(), Scripts::default());
    for (no, (step, script)) in steps.into_iter().enumerate() {
        planned.push(PlanStep { spec: no.to_string(), ..step });
        scripts.0.push(script);
    }
    (Arc::new(Plan::new("model", planned).expect("the models' graphs are sound")), scripts)
}

#[test]
fn p14_two_items_one_at_a_time() {
    let each = PlanStep {
        spread: Some(Spread { max_parallel: Some(1), ..Spread::default() }),
        ..PlanStep::new("each", Vec::new())
    };
    let (plan, scripts) = scripted(vec![
        (each, Script { items: Ok(2), ..Script::default() }),
        (PlanStep::new("then", vec![0]), Script::default()),
    ]);
    let budget = Budget { failures: 2, crashes: 1, expiries: 1, cancels: 1, resumes: 1, ..NONE };
    explore_scripted("items", plan, scripts, 2, budget);
}

#[test]
fn p14_two_items_that_fail_together_and_are_sent_back() {
    let each = PlanStep {
        spread: Some(Spread { fail_fast: true, ..Spread::default() }),
        ..PlanStep::new("each", vec![0])
    };
    let each = PlanStep { policy: reworking(0, 1), ..each };
    let (plan, scripts) = scripted(vec![
        (PlanStep::new("first", Vec::new()), Script::default()),
        (each, Script { items: Ok(2), ..Script::default() }),
    ]);
    let budget = Budget { failures: 2, crashes: 1, cancels: 1, rewinds: more(), ..NONE };
    explore_scripted("items, reworked", plan, scripts, 2, budget);
}

#[test]
fn i10_a_gate_answered_expired_or_cancelled() {
    let gate = PlanStep { work: WorkKind::Gate, ..PlanStep::new("gate", vec![0]) };
    let beside = PlanStep::new("beside", Vec::new());
    let (plan, scripts) = scripted(vec![
        (PlanStep::new("first", Vec::new()), Script::default()),
        (gate, Script { waits_for: WaitsFor::Gate, ..Script::default() }),
        (beside, Script::default()),
        (PlanStep::new("then", vec![1]), Script::default()),
    ]);
    let budget = Budget { failures: 2, crashes: 1, cancels: 1, resumes: 1, ..NONE };
    explore_scripted("gate", plan, scripts, 2, budget);
}

#[test]
fn i16_a_child_run_ends_with_its_parent() {
    let (inner, _) = scripted(vec![
        (PlanStep::new("a", Vec::new()), Script::default()),
        (PlanStep::new("b", vec![0]), Script::default()),
    ]);
    let policy = Policy { attempts: 2, ..Policy::default() };
    let child = PlanStep { work: WorkKind::Child, policy, ..PlanStep::new("child", Vec::new()) };
    let (plan, scripts) = scripted(vec![
        (child, Script { waits_for: WaitsFor::Child(inner), ..Script::default() }),
        (PlanStep::new("then", vec![0]), Script::default()),
    ]);
    let budget = Budget { failures: 2, crashes: 1, expiries: 1, cancels: 1, resumes: 1, ..NONE };
    explore_scripted("child", plan, scripts, 2, budget);
}

/// Explores the other models, and fails on the first violation with its trace.
fn explore_all<M>(name: &str, model: M) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: std::fmt::Debug + std::hash::Hash + Clone + PartialEq + Send + Sync,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let properties = model.properties();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("figure: model, {name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    for property in properties {
        match (property.expectation, checker.discovery(property.name)) {
            (Expectation::Sometimes, None) => panic!("{name}: it never is so that {}", property.name),
            (Expectation::Always, Some(path)) => {
                let last = path.last_state().clone();
                let acts = path.into_actions();
                panic!("{name}: not true that {}\nafter {acts:#?}\n{last:#?}", property.name);
            }
            _ => {}
        }
    }
    checker.unique_state_count()
}

#[test]
fn l09_l10_l11_l12_ht1_ht3_a_thread_with_everything_that_can_be_said_of_it() {
    let budget = threads::Budget { turns: 3, deaths: 1, releases: more(), cancels: more() };
    explore_all("thread", ThreadModel { runs: 2, budget });
}

#[test]
fn r01_r02_r10_a_rule_with_two_servers_that_is_paused_and_changed() {
    let changes = 2 + more();
    explore_all("rule", RuleModel { servers: 2, ticks: 2, events: 1, changes, finds: false });
}

#[test]
fn r19_r21_a_rule_that_finds_its_events_with_two_servers() {
    let changes = 2 + more();
    explore_all("found events", RuleModel { servers: 2, ticks: 2, events: 1, changes, finds: true });
}

#[test]
fn r07_hr9_one_run_of_a_rule_is_at_work_whatever_is_resumed() {
    let resumes = 1 + more();
    for overlap in [Overlap::Skip, Overlap::Queue, Overlap::CancelOlder] {
        let limit = Limit::Overlap(overlap);
        explore_all("overlap", RuleLimitModel { limit, events: 3, time: 0, resumes });
    }
}

#[test]
fn hr10_events_that_wait_for_a_rate_start_in_their_order() {
    let time = 5 + i64::from(more());
    explore_all("rate", RuleLimitModel { limit: Limit::Rate, events: 3, time, resumes: 0 });
}

#[test]
fn r22_events_of_a_window_become_one_run_in_time() {
    let time = 6 + i64::from(more());
    explore_all("window", RuleLimitModel { limit: Limit::Window, events: 4, time, resumes: 0 });
}

#[test]
fn i23_i24_l13_l14_an_environment_made_used_lost_and_removed() {
    let budget = environments::Budget {
        failures: 1,
        lost_replies: 1,
        deaths: 1 + more(),
        losses: 1,
        resumes: 1 + more(),
    };
    explore_all("environment", EnvironmentModel { keepers: 2, budget });
}

#[test]
fn c03_c07_a_board_whose_tasks_need_each_other() {
    let budget =
        boards::Budget { failures: 1, expiries: 1, releases: 1, cancels: 1, retries: 1, ends: more() };
    let tasks = vec![(vec![], false), (vec![1], false), (vec![1, 2], true)];
    explore_all("board", BoardModel { tasks, attempts: 2, agents: 2, budget, quiet_every: 8 });
}

#[test]
fn c07_i15_a_board_that_is_cancelled() {
    let budget =
        boards::Budget { failures: 1, expiries: 1, releases: 0, cancels: 1, retries: 1 + more(), ends: 1 };
    let tasks = vec![(vec![], false), (vec![1], false)];
    explore_all("board, cancelled", BoardModel { tasks, attempts: 1, agents: 2, budget, quiet_every: 4 });
}

#[test]
fn ha1_ha5_an_account_limited_held_released_and_tried() {
    let budget =
        accounts::Budget { limits: 2, late: 1, deaths: more(), holds: more(), lifts: 1, ticks: 2 + more() };
    explore_all("account", AccountModel { runs: 3, maximum: 2, budget });
}
