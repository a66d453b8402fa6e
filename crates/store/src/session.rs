//! One operation's unit of work: rows are read once, changed in memory, and written back together.
//!
//! ```text
//!   operation ──▶ Session ──load once──▶ Backend          (inside one transaction)
//!                   │ apply(event): evaluate, change, journal
//!                   └──flush: one compare-and-set per changed row, then journal, outbox, timers
//! ```
//!
//! An operation that fails has written nothing. An operation that a table refuses writes only the refusal.

mod flush;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{
    Actor, ExecutionId, Lifecycle, Plan, RunId, StepNo, StepStatus, Verdict, Word, evaluate, mutant,
};

use crate::answers::{Answer, Answers, OpenQuestion};
use crate::author::Author;
use crate::backend::{Backend, Table};
use crate::clock::Now;
use crate::error::{Error, Result};
use crate::evaluator::{SpecError, SpecEvaluator};
use crate::outcome::Outcome;
use crate::rows::{
    AccountRow, EnforcementRow, EnvironmentRow, Event, ExecutionRow, GateRow, Id, JournalEntry, OutboxRow,
    Position, Refusal, Row, RuleRow, RunRow, Status, StepRow, ThreadRow, TimerRow, WorkerRow, WriterOnly,
};
use crate::service::ActRow;
use crate::wake::Topic;

pub use flush::Flushed;

/// A row in the session, and its state when it was read.
#[derive(Debug)]
struct Slot<R: Row> {
    row: R,
    /// The status and version in the database; absent for a new row.
    was: Option<(Status<R>, u32)>,
    dirty: bool,
}

/// The rows of one kind that an operation has touched.
#[derive(Debug)]
pub(crate) struct Cache<R: Row>(BTreeMap<R::Key, Slot<R>>);

impl<R: Row> Default for Cache<R> {
    fn default() -> Self {
        Cache(BTreeMap::new())
    }
}

/// The session's cache for one kind of row.
pub(crate) trait Holds<R: Row> {
    fn cache(&mut self) -> &mut Cache<R>;
    /// Returns the cache and the database at once.
    fn split(&mut self) -> (&mut Cache<R>, &mut dyn Table<R>);
}

/// An operation's view of the database.
pub struct Session<'a> {
    db: &'a mut dyn Backend,
    answers: Option<Arc<Answers>>,
    now: Now,
    /// The number of the last journal entry, once this operation has something to add to it.
    seq: Option<u64>,
    /// The reason why that number could not be read: nothing may then be written.
    broken: Option<Error>,
    /// The author of the operation's transitions, as `KIND:NAME`, if it is known.
    by: Option<Arc<str>>,
    journal: Vec<JournalEntry>,
    refusals: Vec<Refusal>,
    outbox: Vec<OutboxRow>,
    timers: Vec<TimerRow>,
    spent_timers: Vec<ExecutionId>,
    places: Vec<(Arc<str>, RunId, bool)>,
    /// Topics that no changed row implies: a run that may start although this operation does not touch it, or a
    /// worker that holds an execution which is to stop.
    announced: BTreeSet<Topic>,
    runs: Cache<RunRow>,
    steps: Cache<StepRow>,
    executions: Cache<ExecutionRow>,
    environments: Cache<EnvironmentRow>,
    threads: Cache<ThreadRow>,
    gates: Cache<GateRow>,
    workers: Cache<WorkerRow>,
    rules: Cache<RuleRow>,
    enforcements: Cache<EnforcementRow>,
    accounts: Cache<AccountRow>,
}

macro_rules! holds {
    ($($row:ty => $field:ident),+ $(,)?) => {$(
        impl Holds<$row> for Session<'_> {
            fn cache(&mut self) -> &mut Cache<$row> {
                &mut self.$field
            }

            fn split(&mut self) -> (&mut Cache<$row>, &mut dyn Table<$row>) {
                (&mut self.$field, self.db)
            }
        }
    )+};
}

holds! {
    RunRow => runs,
    StepRow => steps,
    ExecutionRow => executions,
    EnvironmentRow => environments,
    ThreadRow => threads,
    GateRow => gates,
    WorkerRow => workers,
    RuleRow => rules,
    EnforcementRow => enforcements,
    AccountRow => accounts,
}

/// The only instance of the token that allows changing a row's status.
const WRITER: WriterOnly = WriterOnly(());

impl<'a> Session<'a> {
    /// Starts an operation inside the backend's transaction.
    pub fn new(db: &'a mut dyn Backend) -> Result<Self> {
        Ok(Session {
            answers: None,
            now: db.now(),
            seq: None,
            broken: None,
            by: None,
            db,
            journal: Vec::new(),
            refusals: Vec::new(),
            outbox: Vec::new(),
            timers: Vec::new(),
            spent_timers: Vec::new(),
            places: Vec::new(),
            announced: BTreeSet::new(),
            runs: Cache::default(),
            steps: Cache::default(),
            executions: Cache::default(),
            environments: Cache::default(),
            threads: Cache::default(),
            gates: Cache::default(),
            workers: Cache::default(),
            rules: Cache::default(),
            enforcements: Cache::default(),
            accounts: Cache::default(),
        })
    }

    /// Returns the time of this operation.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Returns a random number.
    pub(crate) fn random(&mut self) -> u64 {
        self.db.random()
    }

    /// Returns the database, for queries. It does not see the changes of this session.
    pub fn db(&mut self) -> &mut dyn Backend {
        self.db
    }

    /// Gives the operation the answers to the questions of its earlier run.
    pub(crate) fn use_answers(&mut self, answers: Arc<Answers>) {
        self.answers = Some(answers);
    }

    /// Names the author of the transitions that follow.
    pub(crate) fn set_author(&mut self, author: &Author) {
        self.by = Some(author.text());
    }

    /// Returns the author of the operation, as `KIND:NAME`, if it is known.
    pub(crate) fn author(&self) -> Option<Arc<str>> {
        self.by.clone()
    }

    /// Records an act of administration, which no table decides, with the author of this operation.
    pub(crate) fn note_act(&mut self, act: &'static str, subject: &str) -> Result<()> {
        let (at_ms, by) = (self.now.wall_ms, self.by.clone());
        let id = (self.random() >> 2) as Id + 1;
        self.db.put_act(&ActRow { id, at_ms, by, act: act.into(), subject: subject.into() })
    }

    /// Returns the answer to a question that is much work, or [`Error::Unanswered`] if there is none yet. A store in
    /// memory answers immediately.
    pub(crate) fn answer(&self, open: OpenQuestion) -> Result<std::result::Result<Answer, SpecError>> {
        match &self.answers {
            None => Ok(open.answer()),
            Some(answers) => answers.find(&open).ok_or_else(|| Error::Unanswered(Arc::new(open))),
        }
    }

    /// Returns the evaluator that reads the specs of steps.
    pub(crate) fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        self.db.evaluator()
    }

    /// Returns the items of a fan-out from its present list, in order.
    pub(crate) fn item_rows(&mut self, run: RunId, of: StepNo) -> Result<Vec<StepRow>> {
        let Some(list) = self.get::<StepRow>((run, of))?.and_then(|row| row.items) else {
            return Ok(Vec::new());
        };
        let mut numbers: BTreeSet<StepNo> = self.db.item_steps(run, of, list.first)?.into_iter().collect();
        let made_now = self.seen::<StepRow>().filter(|row| row.run == run && row.item_of == Some(of));
        numbers.extend(made_now.map(|row| row.no).filter(|no| *no >= list.first));
        let mut rows = Vec::with_capacity(numbers.len());
        for no in numbers {
            rows.extend(self.get::<StepRow>((run, no))?);
        }
        Ok(rows)
    }

    /// Returns the highest attempt of any item of a fan-out, in any of its lists; 0 if there was none.
    pub(crate) fn last_item_attempt(&mut self, run: RunId, of: StepNo) -> Result<u32> {
        let kept = self.db.last_item_attempt(run, of)?;
        // Rows that this operation has changed override those in the database.
        let seen = self.seen::<StepRow>().filter(|row| row.run == run && row.item_of == Some(of));
        Ok(seen.map(|row| row.attempt).fold(kept, u32::max))
    }

    /// Returns the first waiting items of a fan-out's present list, at most `limit`, in order.
    pub(crate) fn waiting_items(&mut self, run: RunId, of: StepNo, limit: usize) -> Result<Vec<StepNo>> {
        let Some(list) = self.get::<StepRow>((run, of))?.and_then(|row| row.items) else {
            return Ok(Vec::new());
        };
        // Rows that this operation has changed override those in the database.
        let seen: BTreeMap<StepNo, bool> = self
            .seen::<StepRow>()
            .filter(|row| row.run == run && row.item_of == Some(of) && row.no >= list.first)
            .map(|row| (row.no, row.status() == StepStatus::Waiting))
            .collect();
        let kept = self.db.waiting_item_steps(run, of, list.first, limit.saturating_add(seen.len()))?;
        let mut waiting: BTreeSet<StepNo> = kept.into_iter().filter(|no| !seen.contains_key(no)).collect();
        waiting.extend(seen.into_iter().filter(|(_, waits)| *waits).map(|(no, _)| no));
        Ok(waiting.into_iter().take(limit).collect())
    }

    /// Returns the run's plan.
    pub(crate) fn plan(&mut self, run: RunId, hash: i64) -> Result<Arc<Plan>> {
        self.db
            .plan(hash)?
            .ok_or_else(|| Error::bug(format!("run {run} has no plan: the database is incomplete")))
    }

    /// Returns a copy of the row.
    pub(crate) fn get<R: Row>(&mut self, key: R::Key) -> Result<Option<R>>
    where
        Self: Holds<R>,
    {
        let (cache, db) = self.split();
        if let Some(slot) = cache.0.get(&key) {
            return Ok(Some(slot.row.clone()));
        }
        let Some(row) = db.load(key)? else { return Ok(None) };
        let was = Some((row.status(), row.version()));
        cache.0.insert(key, Slot { row: row.clone(), was, dirty: false });
        Ok(Some(row))
    }

    /// Returns the rows of a kind that this operation has read or created, in order.
    pub(crate) fn seen<R: Row>(&mut self) -> impl Iterator<Item = &R>
    where
        Self: Holds<R>,
    {
        self.cache().0.values().map(|slot| &slot.row)
    }

    /// Returns the same rows, with their statuses in the database.
    pub(crate) fn seen_and_was<R: Row>(&mut self) -> impl Iterator<Item = (&R, Option<Status<R>>)>
    where
        Self: Holds<R>,
    {
        self.cache().0.values().map(|slot| (&slot.row, slot.was.map(|(status, _)| status)))
    }

    /// Replaces a row that this operation has added, and adds the journal entry of its creation.
    pub(crate) fn replace_new<R: Row>(&mut self, row: R, event: &'static str, actor: Actor)
    where
        Self: Holds<R>,
    {
        debug_assert!(self.cache().0.get(&row.key()).is_none_or(|slot| slot.was.is_none()));
        self.cache().0.remove(&row.key());
        self.create(row, event, actor);
    }

    /// Adds a row and the journal entry of its creation.
    pub(crate) fn create<R: Row>(&mut self, row: R, event: &'static str, actor: Actor)
    where
        Self: Holds<R>,
    {
        let told = Told::of(&row, row.holder());
        self.record(R::Life::NAME, told, event, None, row.status().as_str(), actor);
        self.create_quietly(row);
    }

    /// Adds a row without a journal entry, because its creation follows from another's: a run's steps come with the
    /// run.
    pub(crate) fn create_quietly<R: Row>(&mut self, row: R)
    where
        Self: Holds<R>,
    {
        let before = self.cache().0.insert(row.key(), Slot { row, was: None, dirty: true });
        debug_assert!(before.is_none(), "a row is created once");
    }

    /// Changes facts of a row other than its status. Every such write raises the version, so that the compare-and-set
    /// of an operation whose predicates read them before fails.
    pub(crate) fn note<R: Row>(&mut self, key: R::Key, change: impl FnOnce(&mut R)) -> Result<()>
    where
        Self: Holds<R>,
    {
        if self.get(key)?.is_some()
            && let Some(slot) = self.cache().0.get_mut(&key)
        {
            let status = slot.row.status();
            change(&mut slot.row);
            debug_assert_eq!(status, slot.row.status(), "only the writer moves a status");
            mark(slot);
        }
        Ok(())
    }

    /// Reports an event: the table decides, `change` changes the row, and the journal gets an entry.
    pub(crate) fn apply<R: Row>(
        &mut self,
        key: R::Key,
        event: Event<R>,
        actor: Actor,
        given: &R::Report,
        change: impl FnOnce(&mut R, Now),
    ) -> Result<Outcome<R::Life>>
    where
        Self: Holds<R>,
    {
        let Some(row) = self.get(key)? else {
            tracing::info!(entity = R::Life::NAME, ?key, event = event.as_str(), "refused: not found");
            return Ok(Outcome::NotFound);
        };
        let from = row.status();
        match evaluate::<R::Life>(from, event, actor, &row.facts(given)) {
            Verdict::Apply(to) => {
                let now = self.now;
                let slot = self.cache().0.get_mut(&key).expect("it was just read");
                change(&mut slot.row, now);
                slot.row.set_status(to, WRITER);
                mark(slot);
                // A worker that loses or releases the execution is the one that the entry is about.
                let told = Told::of(&slot.row, row.holder().or_else(|| slot.row.holder()));
                let seq =
                    self.record(R::Life::NAME, told, event.as_str(), Some(from.as_str()), to.as_str(), actor);
                Ok(Outcome::Applied { from, to, seq })
            }
            Verdict::Superseded(predicate) => {
                if mutant!(RefusalWrites) {
                    self.note::<R>(key, |_| {})?;
                }
                self.refuse(&row, event, actor, "superseded", predicate.to_string());
                Ok(Outcome::Superseded(predicate))
            }
            Verdict::NoCell => {
                self.refuse(&row, event, actor, "illegal", format!("it is {from}"));
                Ok(Outcome::Illegal { status: from, wrong_actor: false })
            }
            Verdict::WrongActor => {
                self.refuse(&row, event, actor, "illegal", format!("it is {from}, and not the {actor}'s"));
                Ok(Outcome::Illegal { status: from, wrong_actor: true })
            }
        }
    }

    fn record(
        &mut self,
        entity: &'static str,
        Told { place, holder, note }: Told,
        event: &'static str,
        from: Option<&'static str>,
        to: &'static str,
        actor: Actor,
    ) -> u64 {
        if mutant!(JournalSkips) && event == "step.failed" {
            return self.last_seq();
        }
        let seq = self.last_seq() + 1;
        self.seq = Some(seq);
        let at_ms = self.now.wall_ms;
        let (worker, fence) = holder.unzip();
        let by = self.by.clone();
        let entry =
            JournalEntry { seq, at_ms, entity, place, event, from, to, actor, worker, fence, by, note };
        self.journal.push(entry);
        seq
    }

    /// Returns the number of the last journal entry. Reads the journal head as late as possible, because it stays
    /// locked until the transaction ends.
    fn last_seq(&mut self) -> u64 {
        if let Some(seq) = self.seq {
            return seq;
        }
        let seq = self.db.last_seq().unwrap_or_else(|error| {
            self.broken.get_or_insert(error);
            0
        });
        self.seq = Some(seq);
        seq
    }

    fn refuse<R: Row>(
        &mut self,
        row: &R,
        event: Event<R>,
        actor: Actor,
        reason: &'static str,
        detail: String,
    ) {
        let refusal = Refusal {
            at_ms: self.now.wall_ms,
            entity: R::Life::NAME,
            place: row.place(),
            event: event.as_str(),
            actor,
            reason,
            detail,
        };
        tracing::info!(
            entity = refusal.entity,
            id = ?row.key(),
            run = refusal.place.run.map(tracing::field::display),
            event = refusal.event,
            reason,
            detail = %refusal.detail,
            "refused"
        );
        self.refusals.push(refusal);
    }

    /// Adds an effect to carry out after the commit.
    pub(crate) fn after_commit(&mut self, kind: &str, run: RunId, payload: &serde_json::Value) {
        if mutant!(OutboxForgotten) {
            return;
        }
        let not_before_ms = self.now.steady_ms;
        self.outbox.push(OutboxRow {
            id: 0,
            kind: kind.into(),
            run,
            payload: payload.to_string().into(),
            attempts: 0,
            not_before_ms,
            error: None,
        });
    }

    /// Sets an attempt's timer.
    pub(crate) fn set_timer(&mut self, timer: TimerRow) {
        self.timers.push(timer);
    }

    /// Removes an attempt's timer, if it has one.
    pub(crate) fn clear_timer(&mut self, execution: ExecutionId) {
        self.timers.retain(|timer| timer.execution != execution);
        self.spent_timers.push(execution);
    }

    /// Returns the runs that hold a group's places, with the changes of this operation.
    pub(crate) fn places_of(&mut self, group: &str) -> Result<Vec<RunId>> {
        let mut holders: BTreeSet<RunId> = self.db.places(group)?.into_iter().collect();
        for (_, run, held) in self.places.iter().filter(|(name, _, _)| &**name == group) {
            if *held {
                holders.insert(*run);
            } else {
                holders.remove(run);
            }
        }
        Ok(holders.into_iter().collect())
    }

    /// Gives a run a place in its group, or takes it back.
    pub(crate) fn set_place(&mut self, group: &Arc<str>, run: RunId, held: bool) {
        self.places.push((Arc::clone(group), run, held));
    }

    /// Wakes the subscribers of a topic after the commit.
    pub(crate) fn announce(&mut self, topic: Topic) {
        self.announced.insert(topic);
    }

    /// Returns the number of transitions that this operation has applied.
    pub fn applied(&self) -> usize {
        self.journal.len()
    }

    /// Returns the entries of the transitions applied so far, in order.
    pub fn entries(&self) -> &[JournalEntry] {
        &self.journal
    }
}

/// The facts of a row for its journal entry.
struct Told {
    place: Position,
    /// The worker that the entry is about, and its fence.
    holder: Option<(Id, u32)>,
    note: Option<Arc<str>>,
}

impl Told {
    fn of<R: Row>(row: &R, holder: Option<(Id, u32)>) -> Told {
        Told { place: row.place(), holder, note: row.note() }
    }
}

fn mark<R: Row>(slot: &mut Slot<R>) {
    // The row is written once, however often the operation changed it: the version counts writes.
    if !slot.dirty {
        slot.dirty = true;
        slot.row.touch(WRITER);
    }
}

impl Session<'_> {
    /// Returns the run's row, if this operation has read it.
    pub(crate) fn peek_run(&self, id: RunId) -> Option<&RunRow> {
        self.runs.0.get(&id).map(|slot| &slot.row)
    }
}
