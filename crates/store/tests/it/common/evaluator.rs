//! An evaluator for tests: a spec is JSON that states a step's answers directly.
//!
//! `{"when": true | "an error", "first_attempt_only": true, "items": 3, "gate_ms": 50, "pause_ms": 5,
//! "signal": "name", "child": PLAN}`

use std::sync::Arc;

use serde_json::{Value, json};
use sprag_lifecycle::{Plan, PlanStep};
use sprag_store::{ITEM, Prepared, SpecError, SpecEvaluator, Store};

/// Reads such specs.
#[derive(Debug)]
pub struct Plain;

impl Plain {
    /// Gives a store this evaluator.
    pub fn on(store: Store) -> Store {
        store.with_evaluator(Arc::new(Plain))
    }

    fn spec(step: &PlanStep) -> Value {
        serde_json::from_str(&step.spec).expect("a spec is JSON")
    }
}

impl SpecEvaluator for Plain {
    fn wanted(&self, step: &PlanStep, names: &Value) -> Result<bool, SpecError> {
        let spec = Plain::spec(step);
        if spec["first_attempt_only"] == true {
            return Ok(names["steps"][&step.id]["attempt"] == 1);
        }
        match (&spec["when"], names.get(ITEM).and_then(Value::as_u64)) {
            (Value::String(why), _) => Err(SpecError::new(why)),
            (Value::Bool(wanted), _) => Ok(*wanted),
            (_, item) => Ok(item.is_none_or(|item| item % 2 == 0)),
        }
    }

    fn items(&self, step: &PlanStep, _: &Value) -> Result<Vec<Value>, SpecError> {
        let count = Plain::spec(step)["items"].as_u64().ok_or_else(|| SpecError::new("no list"))?;
        Ok((0..count).map(|item| json!(item)).collect())
    }

    fn prepare(&self, step: &PlanStep, _: &Value) -> Result<Prepared, SpecError> {
        let spec = Plain::spec(step);
        Ok(if let Some(ms) = spec["gate_ms"].as_u64() {
            Prepared::Gate {
                ask: "?".into(),
                choices: vec!["yes".into()],
                default: None,
                fields: Value::Null,
                routes: Value::Null,
                answerers: serde_json::from_value(spec.clone()).unwrap_or_default(),
                timeout_ms: Some(ms),
            }
        } else if let Some(ms) = spec["pause_ms"].as_u64() {
            Prepared::Pause { ms }
        } else if let Some(name) = spec["signal"].as_str() {
            Prepared::Signal { name: name.into(), timeout_ms: Some(50) }
        } else {
            let plan: Plan = serde_json::from_value(spec["child"].clone()).map_err(SpecError::new)?;
            Prepared::Child { plan: Arc::new(plan), inputs: "{}".into() }
        })
    }
}
