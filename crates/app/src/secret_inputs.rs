//! Secret inputs of runs: sealed when a run is created, opened for the workers, and `***` everywhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sprag_lifecycle::Plan;
use sprag_store::Assignment;
use sprag_worker::{hide_sealed, open_inputs, seal_inputs};

use crate::{App, Error};

/// The key in a step's spec that names the secret inputs.
const KEY: &str = "secret_inputs";

/// Returns the names of the secret inputs of a plan.
fn secret_names(plan: &Plan) -> Vec<String> {
    let marked = plan.steps.iter().filter(|step| step.spec.contains(KEY));
    let mut names: Vec<String> = marked.flat_map(|step| names_in(&step.spec)).collect();
    names.sort();
    names.dedup();
    names
}

fn names_in(spec: &str) -> Vec<String> {
    let spec: Value = serde_json::from_str(spec).unwrap_or_default();
    let names = spec[KEY].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Returns the inputs of a run as callers see them.
pub(crate) fn shown(inputs: &str) -> Value {
    let mut inputs = serde_json::from_str(inputs).unwrap_or(Value::Null);
    hide_sealed(&mut inputs);
    inputs
}

impl App {
    /// Returns the inputs of a new run as they are stored: secret ones are sealed.
    pub(crate) fn sealed_inputs(
        &self,
        plan: &Plan,
        inputs: &BTreeMap<String, Value>,
    ) -> Result<BTreeMap<String, Value>, Error> {
        let mut inputs = inputs.clone();
        let names = secret_names(plan);
        if !names.is_empty() {
            seal_inputs(self.data(), &names, &mut inputs).map_err(Error::failed)?;
        }
        Ok(inputs)
    }

    /// Opens the secret inputs of an assignment for a worker without this data directory. One that cannot be opened stays
    /// sealed, and the worker reports it.
    pub(crate) fn with_secret_inputs(&self, mut assignment: Assignment) -> Assignment {
        let spec = &assignment.step().spec;
        if !spec.contains(KEY) {
            return assignment;
        }
        let names = names_in(spec);
        let mut inputs: Value = serde_json::from_str(&assignment.inputs).unwrap_or_default();
        match open_inputs(self.data(), &names, &mut inputs) {
            Ok(_) => assignment.inputs = Arc::from(inputs.to_string()),
            Err(error) => tracing::warn!(%error, "the secret inputs of a run cannot be opened"),
        }
        assignment
    }
}
