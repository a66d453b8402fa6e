//! The plan of a board: one fan-out of tasks whose list is empty at first.

use serde_json::{Value, json};
use sprag_lifecycle::{Backoff, Growth, Plan, PlanStep, Policy, Spread, WorkKind};

use crate::spec::{FanOut, FanOutItems, Kind, StepSpec};

/// The step id of a board's fan-out. Task ids start with it.
const TASK: &str = "task";

/// Returns a board's plan. Tasks wait in `queue`; each has up to `attempts` attempts, the first retry after `delay_ms`.
pub fn board_plan(name: &str, queue: &str, attempts: u32, delay_ms: u64) -> Plan {
    let mut spec = StepSpec::new(Kind::Task { prompt: "{{ item.text }}".into(), with: Value::Null });
    spec.fan_out = Some(FanOut { over: FanOutItems::Each(json!([])), ..FanOut::default() });
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
