//! The journal, replayed: every entry is one applied transition, and none is missing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One entry, with exactly the keys that programs may rely on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The entry's number in the order of commits.
    pub seq: u64,
    /// The wall-clock time, for display.
    pub at: String,
    /// The kind of the entity.
    pub entity: String,
    /// The id of the entity.
    pub id: String,
    /// Its run.
    pub run: Option<String>,
    /// Its step.
    pub step: Option<String>,
    /// The event.
    pub event: String,
    /// The status before; none for something new.
    pub from: Option<String>,
    /// The status after.
    pub to: String,
    /// The actor that reported it.
    pub actor: String,
    /// The id of the worker that had the execution, or that received it.
    #[serde(default)]
    pub worker: Option<String>,
    /// The fence that this worker got with the execution.
    #[serde(default)]
    pub fence: Option<u32>,
    /// The token, local user, agent, rule or worker behind the actor.
    #[serde(default)]
    pub by: Option<String>,
    /// The name of a worker that is still known.
    #[serde(default)]
    pub name: Option<String>,
    /// The path of an environment.
    #[serde(default)]
    pub path: Option<String>,
    /// The reason of a failure.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Entries in their order.
#[derive(Debug, Clone)]
pub struct Journal {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether these are all that the store has.
    pub whole: bool,
}

impl Journal {
    /// Replays it: the last status of everything in it. Panics where an entry does not follow.
    pub fn replay(&self) -> BTreeMap<(String, String), String> {
        self.try_replay().unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    /// Replays it: the last status of everything in it, or the first entry that does not follow.
    pub fn try_replay(&self) -> Result<BTreeMap<(String, String), String>, String> {
        let mut now: BTreeMap<(String, String), String> = BTreeMap::new();
        let mut last = 0;
        for entry in &self.entries {
            let follows = if self.whole { entry.seq == last + 1 } else { entry.seq > last };
            if !follows {
                return Err(format!("after {last} comes {entry:?}"));
            }
            last = entry.seq;
            let key = (entry.entity.clone(), entry.id.clone());
            // Steps of a plan and workers are made without a word of their own; items, and steps that a fork
            // takes over, are told of. An item of a list that was made anew has the name of a former one.
            let before = match (entry.entity.as_str(), entry.event.as_str()) {
                ("step", "step.added" | "step.inherited") => None,
                ("step", _) => now.get(&key).map(String::as_str).or(Some("waiting")),
                ("worker", _) => now.get(&key).map(String::as_str).or(Some("offline")),
                _ => now.get(&key).map(String::as_str),
            };
            if entry.from.as_deref() != before || entry.from.as_deref() == Some(entry.to.as_str()) {
                return Err(format!("{before:?} comes before {entry:?}"));
            }
            // The executions of an item that was made anew are counted from 1 again.
            if entry.event == "step.added" {
                let its = format!("{}/", entry.id);
                now.retain(|(entity, id), _| entity != "execution" || !id.starts_with(&its));
            }
            now.insert(key, entry.to.clone());
        }
        Ok(now)
    }

    /// Replays one run's entries and compares the end with `sprag status --json`.
    pub fn agrees_with(&self, status: &Value) {
        let now = self.replay();
        let run = status["id"].as_str().expect("an id");
        let at = |entity: &str, id: &str| now.get(&(entity.to_owned(), id.to_owned())).map(String::as_str);
        assert_eq!(at("run", run), status["status"].as_str(), "{status}");
        for step in status["steps"].as_array().expect("steps") {
            let name = step["id"].as_str().expect("an id");
            if name.contains('.') {
                // A step inside a step is in the journal of its own run.
                continue;
            }
            let id = format!("{run}/{name}");
            assert_eq!(at("step", &id).unwrap_or("waiting"), step["status"], "{status}");
            let again = ["step.retried", "step.repeated", "step.reworked", "step.reset"];
            let tries = 1 + self.count(|entry| entry.id == id && again.contains(&entry.event.as_str()));
            assert_eq!(step["attempt"], tries, "{status}");
        }
        let raised = self.count(|entry| matches!(entry.event.as_str(), "run.resumed" | "run.rewound"));
        assert_eq!(status["epoch"], 1 + raised, "{status}");
    }

    /// Returns how many entries satisfy the condition.
    pub fn count(&self, like: impl Fn(&Entry) -> bool) -> usize {
        self.entries.iter().filter(|entry| like(entry)).count()
    }

    /// Returns how many entries have this event.
    pub fn events(&self, event: &str) -> usize {
        self.count(|entry| entry.event == event)
    }

    /// Returns the events of one step, in order.
    pub fn of_step(&self, step: &str) -> Vec<&str> {
        let its = |entry: &&Entry| entry.entity == "step" && entry.step.as_deref() == Some(step);
        self.entries.iter().filter(its).map(|entry| entry.event.as_str()).collect()
    }

    /// Returns the events of one step's executions, in order.
    pub fn of_executions(&self, step: &str) -> Vec<&str> {
        let its = |entry: &&Entry| entry.entity == "execution" && entry.step.as_deref() == Some(step);
        self.entries.iter().filter(its).map(|entry| entry.event.as_str()).collect()
    }

    /// Returns the position of a step's event in the order; the first one if there are several.
    pub fn seq_of(&self, step: &str, event: &str) -> u64 {
        let its = |entry: &&Entry| entry.event == event && entry.step.as_deref() == Some(step);
        self.entries.iter().find(its).unwrap_or_else(|| panic!("{step} has no {event}")).seq
    }
}
