//! The values that a step's texts can name, gathered as unparsed JSON. The writer only copies pointers; the thread that
//! fills in the texts parses them. So no output, however large, keeps the writer busy.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use sprag_lifecycle::{ExecutionStatus, StepStatus};

use crate::answers::READ_AT_ONCE_BYTES;
use crate::evaluator::SpecEvaluator;
use crate::names::{execution_failure, outputs_of};

/// The most bytes that one step's texts can name in all.
const MAX_BYTES: usize = 16 << 20;

/// Bytes that one more entry counts besides its text.
const ENTRY_BYTES: usize = 128;

/// The outputs of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Handed {
    /// None, or none yet.
    Nothing,
    /// The result that its worker reported, as JSON.
    Result(Arc<str>),
    /// The answer to its gate, or the payload of its signal, as JSON.
    Answer(Arc<str>),
    /// Each item, in the order of the list.
    Items(Vec<StepEnd>),
    /// The outputs of the steps of its child run, by their ids.
    Run(Vec<(String, Handed)>),
    /// The outputs that the pipeline of its child run declares.
    Declared(Box<DeclaredOutputs>),
}

/// The declared outputs of a run, not evaluated yet.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredOutputs {
    pub(crate) evaluator: Arc<dyn SpecEvaluator>,
    /// The outputs as the run's plan declares them.
    pub(crate) spec: Arc<str>,
    pub(crate) inputs: Arc<str>,
    /// The names of the run itself.
    pub(crate) run: Value,
    pub(crate) steps: StepsRead,
}

/// Two declarations are equal if they name the same values: there is one evaluator in a store.
impl PartialEq for DeclaredOutputs {
    fn eq(&self, other: &Self) -> bool {
        (&self.spec, &self.inputs, &self.run, &self.steps)
            == (&other.spec, &other.inputs, &other.run, &other.steps)
    }
}

impl DeclaredOutputs {
    pub(crate) fn value(&self) -> Value {
        let inputs: Value = serde_json::from_str(&self.inputs).unwrap_or(Value::Null);
        let mut names = json!({ "inputs": inputs, "run": self.run, "steps": self.steps.value() });
        crate::names::unfold_outer(&mut names);
        self.evaluator.outputs(&self.spec, &names)
    }
}

impl Handed {
    fn value(&self) -> Value {
        match self {
            Handed::Nothing => json!({}),
            Handed::Result(text) => outputs_of(text),
            Handed::Answer(text) => serde_json::from_str(text).unwrap_or_else(|_| json!({})),
            Handed::Items(items) => lists(items),
            Handed::Run(steps) => steps.iter().map(|(id, handed)| (id.clone(), handed.value())).collect(),
            Handed::Declared(declared) => declared.value(),
        }
    }
}

/// The end of a step or an item: its outputs, and the reason if it failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepEnd {
    pub(crate) handed: Handed,
    pub(crate) failure: Failure,
}

/// The reason why a step or an item failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// It did not fail.
    None,
    /// Its execution ended with this status and this result.
    Execution(ExecutionStatus, Option<Arc<str>>),
    /// An answer, a missing answer, or a child run.
    Outside {
        /// The reason in words.
        message: String,
        /// Whether its time was over.
        timed_out: bool,
    },
}

impl StepEnd {
    /// Returns the outputs, and the fields that tell of a failure: lists over the items of a fan-out.
    fn fields(&self) -> Value {
        let Handed::Items(items) = &self.handed else {
            let (error, exit_code, timed_out) = self.failure();
            return json!({
                "outputs": self.handed.value(), "error": error, "exit_code": exit_code, "timed_out": timed_out,
            });
        };
        let ends: Vec<(Value, Value, bool)> = items.iter().map(StepEnd::failure).collect();
        json!({
            "outputs": self.handed.value(),
            "error": ends.iter().map(|(error, ..)| error.clone()).collect::<Value>(),
            "exit_code": ends.iter().map(|(_, code, _)| code.clone()).collect::<Value>(),
            "timed_out": ends.iter().map(|(.., timed_out)| *timed_out).collect::<Vec<bool>>(),
        })
    }

    /// Returns the reason of the failure, the exit code of a command, and whether the time was over.
    fn failure(&self) -> (Value, Value, bool) {
        let code = |result: &Option<Arc<str>>| {
            let result: Value =
                result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            result["exit_code"].clone()
        };
        match (&self.failure, &self.handed) {
            (Failure::None, Handed::Result(text)) => (Value::Null, code(&Some(Arc::clone(text))), false),
            (Failure::None, _) => (Value::Null, Value::Null, false),
            (Failure::Execution(status, result), _) => {
                let timed_out = *status == ExecutionStatus::TimedOut;
                (execution_failure(*status, result.as_deref()).into(), code(result), timed_out)
            }
            (Failure::Outside { message, timed_out }, _) => {
                (message.as_str().into(), Value::Null, *timed_out)
            }
        }
    }
}

/// Returns each output's values over the items, in the order of the list; `null` where an item has none.
fn lists(items: &[StepEnd]) -> Value {
    let mut lists: Map<String, Value> = Map::new();
    for (at, item) in items.iter().map(|item| &item.handed).enumerate() {
        let Value::Object(of_item) = item.value() else { continue };
        for (name, value) in of_item {
            let list = lists.entry(name).or_insert_with(|| Value::Array(vec![Value::Null; items.len()]));
            // A step of a child run that has handed nothing on, such as one that failed.
            let has_none = matches!(item, Handed::Run(_)) && value.as_object().is_some_and(Map::is_empty);
            if !has_none {
                list[at] = value;
            }
        }
    }
    Value::Object(lists)
}

/// A step as another step's texts can name it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepRead {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    /// The round of its `repeat`, from 1.
    pub(crate) round: u32,
    /// The outputs of the last round that has ended, where a step with `repeat` names itself.
    pub(crate) last_round: Handed,
    pub(crate) feedback: Option<Arc<str>>,
    /// The step's status and end; absent where a step names itself.
    pub(crate) ended: Option<(StepStatus, StepEnd)>,
}

impl StepRead {
    fn value(&self) -> Value {
        let feedback = self.feedback.as_deref().unwrap_or("");
        match &self.ended {
            None => json!({
                "attempt": self.attempt, "feedback": feedback, "round": self.round,
                "outputs": self.last_round.value(),
            }),
            Some((status, end)) => {
                let mut fields = end.fields();
                fields["status"] = json!(status);
                fields["attempt"] = self.attempt.into();
                fields["round"] = self.round.into();
                fields["feedback"] = feedback.into();
                fields
            }
        }
    }
}

/// The steps that a step's texts can name.
#[derive(Debug, Clone, PartialEq)]
pub struct StepsRead(Steps);

#[derive(Debug, Clone, PartialEq)]
enum Steps {
    Texts(Vec<StepRead>),
    /// Parsed: as a remote worker has received it.
    Value(Value),
}

impl StepsRead {
    pub(crate) fn new(steps: Vec<StepRead>) -> Self {
        StepsRead(Steps::Texts(steps))
    }

    /// Returns status, attempt, feedback, outputs and failure of each step, by its id.
    pub fn value(&self) -> Value {
        match &self.0 {
            Steps::Texts(steps) => steps.iter().map(|step| (step.id.clone(), step.value())).collect(),
            Steps::Value(value) => value.clone(),
        }
    }
}

/// Serializes the steps as JSON text, for remote workers.
impl Serialize for StepsRead {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.value().to_string())
    }
}

impl<'de> Deserialize<'de> for StepsRead {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(StepsRead(Steps::Value(serde_json::from_str(&text).unwrap_or(Value::Null))))
    }
}

/// The bytes that may still be gathered for one step.
#[derive(Debug)]
pub(crate) struct Room {
    left: usize,
}

impl Default for Room {
    fn default() -> Self {
        Room { left: MAX_BYTES }
    }
}

/// A step names more than [`MAX_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl NoRoom {
    /// The reason with which the step fails.
    pub(crate) const TOLD: &'static str = "the values that its texts name have more than 16 MiB in all: name single outputs, or hand on large data in files";
}

impl Room {
    /// Counts a text.
    pub(crate) fn take(&mut self, text: &str) -> Result<(), NoRoom> {
        self.left = self.left.checked_sub(ENTRY_BYTES + text.len()).ok_or(NoRoom)?;
        Ok(())
    }

    /// Counts as much as the writer does not evaluate itself.
    pub(crate) fn take_slow(&mut self) -> Result<(), NoRoom> {
        self.left = self.left.checked_sub(READ_AT_ONCE_BYTES).ok_or(NoRoom)?;
        Ok(())
    }

    /// Returns the bytes counted so far.
    pub(crate) fn taken(&self) -> usize {
        MAX_BYTES - self.left
    }
}

/// All values that a step's texts can name.
#[derive(Debug, Clone)]
pub(crate) struct Gathered {
    pub(crate) inputs: Arc<str>,
    /// The names of the run itself, with its branch if it has one.
    pub(crate) run: Value,
    pub(crate) steps: StepsRead,
    pub(crate) item: Option<Arc<str>>,
    /// The number of the item in its list, from 0; absent if the step is no item.
    pub(crate) item_index: Option<u32>,
    /// The time, for the function `now` (wall clock, in milliseconds).
    pub(crate) now_ms: i64,
    /// The bytes of all texts together.
    pub(crate) bytes: usize,
}

/// Two are equal if they give the same answers. The time is not compared: an answer that was found out a moment ago
/// is as good as one that is found out now.
impl PartialEq for Gathered {
    fn eq(&self, other: &Self) -> bool {
        (&self.inputs, &self.run, &self.steps, &self.item, self.item_index)
            == (&other.inputs, &other.run, &other.steps, &other.item, other.item_index)
    }
}

impl Gathered {
    pub(crate) fn value(&self) -> Value {
        let parse = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let mut names =
            json!({ "inputs": parse(&self.inputs), "run": self.run, "steps": self.steps.value() });
        if let Some(item) = &self.item {
            names[crate::names::ITEM] = parse(item);
            names[crate::names::ITEM_INDEX] = self.item_index.into();
        }
        names[crate::names::NOW] = self.now_ms.into();
        crate::names::unfold_outer(&mut names);
        names
    }
}
