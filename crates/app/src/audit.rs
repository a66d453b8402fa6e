//! Who did what: the requests of people, agents, rules and tokens, read back from the journal and from the acts of
//! administration.

use serde::Serialize;
use sprag_lifecycle::{Actor, RunId};
use sprag_store::{ActRow, JournalEntry, JournalPage};

use crate::App;
use crate::environments::is_landing;
use crate::error::Error;
use crate::known::Names;
use crate::text::rfc3339;

/// The most entries of one answer.
pub const MOST_AUDITED: usize = 10_000;
/// The number of journal entries that are read at once.
const PAGE: u64 = 2_000;
/// The most journal entries that one answer looks back over. `looked_back_to` then tells where it stopped.
const MOST_READ: u64 = 500_000;

/// The entries that a caller wants to see.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only acts of this author: `KIND:NAME`, or the name alone.
    pub by: Option<String>,
    /// Only acts of this kind, such as `run.created`, or of a kind that starts with this word, such as `token`.
    pub act: Option<String>,
    /// Only acts on this run.
    pub run: Option<RunId>,
    /// Only acts since this time (wall clock).
    pub since_ms: Option<i64>,
    /// The most entries to return; the newest are preferred.
    pub limit: usize,
}

/// One act, and who did it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditView {
    /// The time of the act.
    pub at: String,
    /// The user, token, agent, rule or worker, as `KIND:NAME`; absent if it was not recorded.
    pub by: Option<String>,
    /// The act: the event of the journal, `landed`, or an act of administration such as `token.created`.
    pub act: String,
    /// The run, if the act was on one.
    pub run: Option<String>,
    /// The step, if the act was on one.
    pub step: Option<String>,
    /// The pipeline, rule, account, token, webhook or queue.
    pub subject: Option<String>,
    /// The answer of a gate, or the reason that was given.
    pub detail: Option<String>,
    /// The number of the journal entry; absent for acts of administration.
    pub seq: Option<u64>,
    #[serde(skip)]
    at_ms: i64,
}

/// The acts that a caller asked for.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Audit {
    /// The acts, newest first.
    pub acts: Vec<AuditView>,
    /// The number of the journal entry at which the search stopped, if the journal has earlier ones that were not read.
    pub looked_back_to: Option<u64>,
}

impl AuditFilter {
    fn wants(&self, act: &AuditView) -> bool {
        let is_by = |wanted: &String| {
            let by = act.by.as_deref().unwrap_or_default();
            by == wanted || by.split_once(':').is_some_and(|(_, name)| name == wanted)
        };
        let is_kind = |wanted: &String| {
            let rest = act.act.strip_prefix(wanted.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.by.as_ref().is_none_or(is_by)
            && self.act.as_ref().is_none_or(is_kind)
            && self.since_ms.is_none_or(|since| act.at_ms >= since)
    }
}

impl AuditView {
    fn of_administration(row: ActRow) -> AuditView {
        AuditView {
            at: rfc3339(row.at_ms),
            by: row.by.map(|by| by.to_string()),
            act: row.act.to_string(),
            run: None,
            step: None,
            subject: Some(row.subject.to_string()),
            detail: None,
            seq: None,
            at_ms: row.at_ms,
        }
    }
}

/// Whether an entry is an act of its own: a request of a person, a rule or an agent, or a landing, and not a consequence.
fn is_act(entry: &JournalEntry) -> bool {
    let by_agent = || entry.by.as_deref().is_some_and(|by| by.starts_with("agent:"));
    let is_claim = || entry.entity == "execution" && entry.actor == Actor::Worker && by_agent();
    entry.actor == Actor::Person || entry.event == "run.created" || is_claim()
}

impl App {
    /// Returns who did what, newest first.
    pub fn audit(&self, filter: &AuditFilter) -> Result<Audit, Error> {
        let limit = filter.limit.min(MOST_AUDITED);
        let mut reader = Reader { app: self, names: Names::new(self), filter, acts: Vec::new() };
        let looked_back_to = match filter.run {
            Some(run) => reader.read_run(run).map(|()| None)?,
            None => reader.read_back(limit)?,
        };
        let mut acts = reader.acts;
        if filter.run.is_none() {
            let administration = self.store.queries().acts(MOST_AUDITED)?;
            let views = administration.into_iter().map(AuditView::of_administration);
            acts.extend(views.filter(|act| filter.wants(act)));
        }
        acts.sort_by_key(|act| std::cmp::Reverse((act.at_ms, act.seq)));
        acts.truncate(limit);
        Ok(Audit { acts, looked_back_to })
    }
}

/// A search of the journal for acts.
struct Reader<'a> {
    app: &'a App,
    names: Names,
    filter: &'a AuditFilter,
    acts: Vec<AuditView>,
}

impl Reader<'_> {
    /// Reads all entries of a run.
    fn read_run(&mut self, run: RunId) -> Result<(), Error> {
        let mut after = 0;
        loop {
            let JournalPage { entries, .. } = self.app.journal(after, Some(run), PAGE as usize)?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.seq;
            for entry in &entries {
                self.take(entry)?;
            }
        }
    }

    /// Reads the journal from its end, until there are enough acts. Returns the number at which it stopped, if earlier
    /// entries were not read.
    fn read_back(&mut self, limit: usize) -> Result<Option<u64>, Error> {
        let end = self.app.last_seq()?;
        let mut upto = end;
        while upto > 0 && self.acts.len() < limit {
            if end - upto >= MOST_READ {
                return Ok(Some(upto));
            }
            let after = upto.saturating_sub(PAGE);
            let JournalPage { entries, .. } = self.app.journal(after, None, PAGE as usize)?;
            for entry in entries.iter().rev().filter(|entry| entry.seq <= upto) {
                if self.filter.since_ms.is_some_and(|since| entry.at_ms < since) {
                    return Ok(None);
                }
                self.take(entry)?;
            }
            upto = after;
        }
        Ok(None)
    }

    /// Keeps an entry that is a wanted act.
    fn take(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        let landed = entry.event == "execution.completed" && self.is_landing(entry)?;
        if !landed && !is_act(entry) {
            return Ok(());
        }
        let told = self.names.view(entry)?;
        let act = if landed { "landed" } else { entry.event };
        let detail = match (entry.entity, entry.place.id) {
            ("gate", Some(gate)) => {
                self.app.gate(gate)?.and_then(|gate| gate.answer.as_deref().and_then(choice_in))
            }
            _ => told.reason,
        };
        let pipeline = match entry.place.run {
            Some(run) => self.app.run(run)?.map(|run| run.pipeline.to_string()),
            None => self.name_of(entry)?,
        };
        let view = AuditView {
            at: told.at,
            by: told.by,
            act: act.to_owned(),
            run: told.run,
            step: told.step,
            subject: pipeline,
            detail,
            seq: Some(entry.seq),
            at_ms: entry.at_ms,
        };
        if self.filter.wants(&view) {
            self.acts.push(view);
        }
        Ok(())
    }

    /// Returns the name of a rule or an account.
    fn name_of(&self, entry: &JournalEntry) -> Result<Option<String>, Error> {
        let Some(id) = entry.place.id else { return Ok(None) };
        Ok(match entry.entity {
            "rule" => self.app.store.queries().rule(id)?.map(|rule| rule.name.to_string()),
            "account" => {
                let accounts = self.app.store.queries().accounts()?;
                accounts
                    .into_iter()
                    .find(|account| account.row.id == id)
                    .map(|found| found.row.name.to_string())
            }
            _ => Some(id.to_string()),
        })
    }

    fn is_landing(&mut self, entry: &JournalEntry) -> Result<bool, Error> {
        let (Some(run), Some(no)) = (entry.place.run, entry.place.step) else { return Ok(false) };
        let plan = self.names.plan(run)?;
        let step = plan.as_ref().and_then(|plan| plan.steps.get(no as usize));
        Ok(step.is_some_and(|step| is_landing(&step.spec)))
    }
}

/// Returns the choice in a gate's answer.
fn choice_in(answer: &str) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    answer["choice"].as_str().map(str::to_owned)
}
