//! The filter of a hook: which entries of the journal it receives.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Account, Enforcement, Environment, Execution, Gate, Lifecycle, Run, RunId, RunStatus, Step, Thread,
    TriggerRule, Word, WorkerPresence,
};

use crate::error::Error;
use crate::text::nearest;
use crate::view::RunView;

/// The entries that a hook receives. A missing part selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HookFilter {
    /// Only entries of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only entries of these kinds of entities, such as `run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
    /// Only these events, such as `run.succeeded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Only entries of runs of these pipelines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pipelines: Vec<String>,
    /// Only the entries with which a run gets one of these statuses, such as `failed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<String>,
    /// Only entries of runs with all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl HookFilter {
    /// Returns whether the filter allows an event by its kind and by the status that it leads to.
    pub fn allows(&self, entity: &str, event: &str, to: &str) -> bool {
        let among = |all: &[String], one: &str| all.is_empty() || all.iter().any(|word| word == one);
        let leads_there = self.statuses.is_empty() || entity == Run::NAME && among(&self.statuses, to);
        among(&self.entities, entity) && among(&self.events, event) && leads_there
    }

    /// Returns whether the filter asks about the run of an entry.
    pub fn asks_about_runs(&self) -> bool {
        !self.pipelines.is_empty() || !self.labels.is_empty()
    }

    /// Returns whether the filter allows entries of a run.
    pub fn allows_run(&self, run: &RunView) -> bool {
        let is_named = self.pipelines.is_empty() || self.pipelines.contains(&run.pipeline);
        is_named && self.labels.iter().all(|(key, value)| run.labels.get(key) == Some(value))
    }

    /// Returns whether the filter selects by no kind of event at all.
    pub(super) fn is_open(&self) -> bool {
        self.entities.is_empty() && self.events.is_empty() && self.statuses.is_empty()
    }

    /// Refuses words that no entry has: the hook would never be sent.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(run) = &self.run {
            run.parse::<RunId>().map_err(|error| Error::invalid(format!("filter.run: {error}")))?;
        }
        check_words("entity", "filter.entities", &self.entities, &entities(), |_| entities())?;
        check_words("event", "filter.events", &self.events, &events_of(""), |wrong| {
            events_of(wrong.split('.').next().unwrap_or_default())
        })?;
        let statuses = || RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>();
        check_words("status of a run", "filter.statuses", &self.statuses, &statuses(), |_| statuses())?;
        let words = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
        crate::labels::parse_labels(words.iter().map(String::as_str)).map(drop)
    }

    /// Returns the run whose entries alone are sent, if there is one.
    pub fn run(&self) -> Option<RunId> {
        self.run.as_deref().and_then(|run| run.parse().ok())
    }
}

/// Refuses a word of a filter that no journal entry has: the hook would never be sent. The error lists the words that
/// `alike` returns for the wrong one.
fn check_words(
    what: &str,
    field: &str,
    given: &[String],
    known: &[&'static str],
    alike: impl Fn(&str) -> Vec<&'static str>,
) -> Result<(), Error> {
    let Some(wrong) = given.iter().find(|word| !known.contains(&word.as_str())) else { return Ok(()) };
    let error = Error::invalid(format!("{field}: there is no {what} {wrong:?}"));
    let alike = alike(wrong);
    Err(match nearest(wrong, alike.iter().copied()) {
        Some(near) => error.next(format!("did you mean {near:?}?")),
        None => error.next(format!("use one of: {}", alike.join(", "))),
    })
}

/// Returns the names of the entities that journal entries are about.
fn entities() -> Vec<&'static str> {
    vec![
        Run::NAME,
        Step::NAME,
        Execution::NAME,
        Environment::NAME,
        Thread::NAME,
        Account::NAME,
        Gate::NAME,
        WorkerPresence::NAME,
        TriggerRule::NAME,
        Enforcement::NAME,
    ]
}

/// The events that create an entity. No table has them, because they lead from no status.
const CREATIONS: [&str; 11] = [
    "run.created",
    "step.added",
    "step.inherited",
    "execution.requested",
    "execution.inherited",
    "environment.created",
    "thread.created",
    "account.created",
    "gate.opened",
    "rule.created",
    "enforcement.created",
];

/// Returns the events that journal entries of an entity tell of; those of all entities if there is no such entity.
fn events_of(entity: &str) -> Vec<&'static str> {
    fn of<L: Lifecycle>() -> Vec<&'static str> {
        let made = CREATIONS.iter().copied().filter(|event| event.split('.').next() == Some(L::NAME));
        made.chain(L::Event::ALL.iter().map(|event| event.as_str())).collect()
    }
    match entity {
        Run::NAME => of::<Run>(),
        Step::NAME => of::<Step>(),
        Execution::NAME => of::<Execution>(),
        Environment::NAME => of::<Environment>(),
        Thread::NAME => of::<Thread>(),
        Account::NAME => of::<Account>(),
        Gate::NAME => of::<Gate>(),
        WorkerPresence::NAME => of::<WorkerPresence>(),
        TriggerRule::NAME => of::<TriggerRule>(),
        Enforcement::NAME => of::<Enforcement>(),
        _ => entities().into_iter().flat_map(events_of).collect(),
    }
}
