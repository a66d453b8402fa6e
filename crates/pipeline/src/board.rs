//! The plan of a board: one fan-out of tasks whose list is empty at first.

use serde_json::{Value, json};
use sprag_lifecycle::{Backoff, Growth, Plan, PlanStep, Policy, Spread, WorkKind};

use crate::spec::{FanOut, Kind, Over, StepSpec};

/// The id that a board's fan-out has; its tasks are called after it.
const TASK: &str = "task";

/// A board's plan: tasks wait in `queue`, each may be tried `attempts` times, `delay_ms` apart at first.
pub fn board_plan(name: &str, queue: &str, attempts: u32, delay_ms: u64) -> Plan {
    let mut spec = StepSpec::new(Kind::Task { prompt: "{{ item.text }}".into(), with: Value::Null });
    spec.fan_out = Some(FanOut { over: Over::Each(json!([])), max_parallel: None, fail_fast: false });
    let growth = Growth::Exponential;
    let step = PlanStep {
        queue: queue.into(),
        policy: Policy {
            attempts: attempts.max(1),
            backoff: Backoff { growth, delay_ms, max_delay_ms: 0, jitter_percent: 0 },
            ..Policy::default()
        },
        spec: serde_json::to_string(&spec).expect("a spec is plain data"),
        work: WorkKind::Task,
        spread: Some(Spread { open: true, ..Spread::default() }),
        ..PlanStep::new(TASK, Vec::new())
    };
    Plan::new(name, vec![step]).expect("one step that needs nothing")
}
