//! The beginning of a transaction that writes: it holds and reads the rows of all its jobs at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sprag_lifecycle::{ExecutionId, RunId};
use tokio_postgres::Row as Columns;

use super::Shared;
use super::cells::{Cell, Column};
use super::fault::Fault;
use super::state::Lock;
use super::tx::{HEAD, QUEUES, STATE, Tx, begin_with, held, wait_for};
use super::wire::{Ask, Wire};
use crate::clock::{Clock, System};
use crate::columns::Declared;
use crate::job::JobScope;
use crate::rows::{ExecutionRow, Id, Row, RunRow, StepRow};

/// The most steps of a run that is read as a whole. The statement `SMALL` has the same limit.
const SMALL_RUN: u32 = 64;
/// The most executions that are fetched from one queue for all its claimers.
const MOST_WAITING: usize = 1_000;

const RUNS_THERE: &str = "SELECT id FROM runs WHERE id = ANY($1)";
/// The statement that selects the runs to read as a whole.
const SMALL: &str = "SELECT id FROM runs WHERE id = ANY($1) AND steps <= 64";
const TOLD: &str = "status = 'scheduled' AND (run, step, attempt) IN \
     (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]))";
const WAITING_COUNTS: &str = "SELECT w.queue, w.pin, (SELECT count(*) FROM (SELECT FROM executions AS e \
     WHERE e.status = 'scheduled' AND e.queue = w.queue COLLATE \"C\" AND e.pin = w.pin LIMIT w.n + 1) AS s) \
     AS there FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w (queue, pin, n)";

/// The rows that the jobs of a transaction need.
#[derive(Default)]
pub(super) struct Prefetch {
    runs: Vec<RunId>,
    /// The number of wanted executions by queue and worker (0: any worker).
    claims: BTreeMap<(Arc<str>, Id), usize>,
    /// Executions that messages named.
    told: Vec<ExecutionId>,
}

impl Prefetch {
    pub(super) fn by<'j>(jobs: impl Iterator<Item = &'j JobScope>) -> Prefetch {
        let (mut runs, mut claims, mut told) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        for about in jobs {
            runs.extend(about.runs.iter().copied());
            told.extend(about.told);
            let Some((claimer, limit)) = &about.claim else { continue };
            for queue in &claimer.queues {
                let anyones = (!claimer.reserved_only).then_some(0);
                for pin in anyones.into_iter().chain([claimer.worker]) {
                    let wanted = claims.entry((Arc::clone(queue), pin)).or_insert(0);
                    *wanted = (*wanted + limit).min(MOST_WAITING);
                }
            }
        }
        Prefetch { runs: runs.into_iter().collect(), claims, told: told.into_iter().collect() }
    }

    /// Returns the runs, steps and attempts of the executions that messages named, as parameters.
    fn told_columns<'a>(&self) -> [Cell<'a>; 3] {
        let column = |of: fn(&ExecutionId) -> i64| Cell::from(self.told.iter().map(of).collect::<Vec<i64>>());
        [column(|id| id.run.to_i64()), column(|id| id.step.into()), column(|id| id.attempt.into())]
    }

    /// Returns the queues, the workers and the numbers, as parameters.
    fn claim_columns<'a>(&'a self) -> Vec<Box<dyn tokio_postgres::types::ToSql + Sync + 'a>> {
        let queues = self.claims.keys().map(|(queue, _)| Some((&**queue).into())).collect();
        let pins = self.claims.keys().map(|(_, pin)| Some(*pin)).collect();
        let limits = self.claims.values().map(|limit| Some(*limit as i64)).collect();
        vec![Box::new(Column::Text(queues)), Box::new(Column::Int(pins)), Box::new(Column::Int(limits))]
    }
}

/// Returns the statement that holds the executions that wait for each of several workers in each of several queues.
fn waiting_sql() -> String {
    format!(
        "SELECT found.* FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS w (queue, pin, n) \
         CROSS JOIN LATERAL (SELECT {} FROM executions AS e WHERE e.status = 'scheduled' \
         AND e.queue = w.queue COLLATE \"C\" AND e.pin = w.pin \
         ORDER BY e.priority DESC, e.published_ms, e.run, e.step, e.attempt LIMIT w.n \
         FOR UPDATE SKIP LOCKED) AS found",
        ExecutionRow::statements().names
    )
}

/// The statements that read small runs as a whole, after the free ones were held: their steps, their live executions,
/// and the list of their executions. They hold nothing of a run that another transaction holds.
struct Whole {
    ids: Vec<i64>,
    steps_sql: String,
    live_sql: String,
    there_sql: String,
}

impl Whole {
    fn of(ids: Vec<i64>) -> Whole {
        Whole {
            ids,
            steps_sql: format!("{} WHERE run = ANY(ARRAY({SMALL}))", StepRow::statements().select),
            live_sql: format!(
                "SELECT found.* FROM ({SMALL} FOR UPDATE SKIP LOCKED) AS r \
                 CROSS JOIN LATERAL (SELECT {} FROM executions AS e WHERE e.run = r.id \
                 AND e.status IN ('requested', 'scheduling', 'scheduled', 'running') \
                 FOR UPDATE SKIP LOCKED) AS found",
                ExecutionRow::statements().names
            ),
            there_sql: format!("SELECT run, step, attempt FROM executions WHERE run = ANY(ARRAY({SMALL}))"),
        }
    }

    /// Returns no statements, or three.
    fn asks(&self) -> Vec<Ask<'_>> {
        let ask = |sql| Ask::new(sql, [Cell::from(self.ids.clone())]);
        if self.ids.is_empty() {
            Vec::new()
        } else {
            vec![ask(&self.steps_sql), ask(&self.live_sql), ask(&self.there_sql)]
        }
    }
}

impl<'w> Tx<'w> {
    /// Begins to write: waits for `locks`, then holds and reads the `wanted` rows that no other transaction holds.
    pub(super) fn write<'l>(
        wire: &'w Wire,
        shared: &'w Shared,
        locks: impl Iterator<Item = &'l Lock>,
        wanted: &Prefetch,
    ) -> Result<Tx<'w>, Fault> {
        let ids: Vec<i64> = wanted.runs.iter().map(|run| run.to_i64()).collect();
        let (runs_sql, waiting_sql) = (held::<RunRow>("id = ANY($1) ORDER BY id"), waiting_sql());
        let whole = Whole::of(ids.clone());
        let told_sql = held::<ExecutionRow>(TOLD);
        let asked_ms = System.boot_ms();
        let mut asks = vec![Ask::plain("BEGIN"), Ask::plain(STATE)];
        asks.extend(locks.map(wait_for));
        let first = asks.len();
        if !ids.is_empty() {
            asks.push(Ask::new(&runs_sql, [Cell::from(ids.clone())]));
            asks.push(Ask::new(RUNS_THERE, [Cell::from(ids)]));
            asks.extend(whole.asks());
        }
        if !wanted.claims.is_empty() {
            asks.push(Ask { sql: &waiting_sql, params: wanted.claim_columns() });
            asks.push(Ask { sql: WAITING_COUNTS, params: wanted.claim_columns() });
        }
        if !wanted.told.is_empty() {
            asks.push(Ask::new(&told_sql, wanted.told_columns()));
        }
        // A job about a run mostly writes to the journal. A job that receives an execution has more to read before it
        // takes the head.
        let receives = !wanted.claims.is_empty() || !wanted.told.is_empty();
        if !receives && !wanted.runs.is_empty() {
            asks.extend([Ask::plain(&QUEUES), Ask::plain(HEAD)]);
        }
        let mut answers = wire.ask(&asks)?;
        drop(asks);
        let (now, state) = begin_with(shared, asked_ms, &answers[1])?;
        let mut tx = Tx { wire, shared, now, writes: true, state, fault: None };
        let mut answers = answers.split_off(first);
        if !wanted.runs.is_empty() {
            let rest = answers.split_off(5);
            tx.learn_runs(&wanted.runs, &answers[0], &answers[1]);
            tx.learn_whole(&wanted.runs, &answers[2..]);
            answers = rest;
        }
        let mut answers = answers.into_iter();
        let mut two = || Some((answers.next()?, answers.next()?));
        if !receives {
            if let Some((queues, head)) = two() {
                tx.learn_queues(&queues);
                tx.learn_head(&head)?;
            }
            return Ok(tx);
        }
        if !wanted.claims.is_empty()
            && let Some((found, counts)) = two()
        {
            tx.learn_waiting(wanted, &found, &counts);
        }
        // An execution that is not among them is over, or another transaction holds it. The job loads it by its key.
        let told: Vec<ExecutionRow> =
            answers.next().iter().flatten().filter_map(|row| ExecutionRow::read(row).ok()).collect();
        let ids: Vec<ExecutionId> = told.iter().map(|row| row.id).collect();
        told.into_iter().for_each(|row| tx.state.executions.learn(row.id, Some(row), true));
        tx.read_around(!wanted.runs.is_empty(), &ids)?;
        Ok(tx)
    }

    fn learn_runs(&mut self, wanted: &[RunId], found: &[Columns], there: &[Columns]) {
        self.learn_all::<RunRow>(found, true);
        let there: BTreeSet<RunId> = there.iter().map(|row| RunId::from_i64(row.get("id"))).collect();
        for run in wanted {
            match (self.state.runs.known.contains_key(run), there.contains(run)) {
                (false, true) => drop(self.state.contended.insert(*run)),
                (false, false) => self.state.runs.learn(*run, None, true),
                (true, _) => {}
            }
        }
    }

    fn learn_waiting(&mut self, wanted: &Prefetch, found: &[Columns], counts: &[Columns]) {
        for key in wanted.claims.keys() {
            self.state.waiting.entry(key.clone()).or_default();
        }
        for row in found.iter().filter_map(|row| ExecutionRow::read(row).ok()) {
            let key = (Arc::clone(&row.queue), row.pin.unwrap_or(0));
            self.state.waiting.entry(key).or_default().free.push(row.id);
            self.state.executions.learn(row.id, Some(row), true);
        }
        for row in counts {
            let key: (Arc<str>, Id) = (row.get::<_, &str>("queue").into(), row.get("pin"));
            if let Some(waiting) = self.state.waiting.get_mut(&key) {
                waiting.all = row.get::<_, i64>("there") == waiting.free.len() as i64;
            }
        }
    }

    /// Caches the rows of the runs that are held and small.
    fn learn_whole(&mut self, runs: &[RunId], answers: &[Vec<Columns>]) {
        let [steps, live, there] = answers else { return };
        let is_small = |run: &RunId| {
            let known = self.state.runs.known.get(run).and_then(|known| known.row.as_ref());
            known.is_some_and(|row| row.steps <= SMALL_RUN)
        };
        let small: BTreeSet<RunId> = runs.iter().copied().filter(is_small).collect();
        // A job must not decide by rows of a run that another transaction holds.
        let of_small = |row: &&Columns| small.contains(&RunId::from_i64(row.get("run")));
        let whole = self.learn_all::<StepRow>(steps.iter().filter(of_small), true);
        self.learn_all::<ExecutionRow>(live.iter().filter(of_small), true);
        // If a row cannot be read, the job loads it by its key and reports the error.
        if whole {
            self.state.whole.extend(small.iter().map(|run| (*run, BTreeSet::new())));
        }
        for row in there {
            if let Some(of) = self.state.whole.get_mut(&RunId::from_i64(row.get("run"))) {
                of.insert((row.get::<_, i64>("step") as u32, row.get::<_, i64>("attempt") as u32));
            }
        }
    }

    /// Reads the runs and steps of executions that may be received, and takes the journal's head if there is something
    /// to write.
    fn read_around(&mut self, about_runs: bool, told: &[ExecutionId]) -> Result<(), Fault> {
        let free = self.state.waiting.values().flat_map(|waiting| waiting.free.iter());
        let free: BTreeSet<ExecutionId> = free.chain(told).copied().collect();
        if !about_runs && free.is_empty() {
            return Ok(());
        }
        let around = super::claims::Around::of(&self.state, &free);
        let mut asks = vec![Ask::plain(&QUEUES), Ask::plain(HEAD)];
        asks.extend(around.asks());
        let answers = self.wire.ask(&asks)?;
        drop(asks);
        self.learn_queues(&answers[0]);
        self.learn_head(&answers[1])?;
        if let [held, plain, steps] = &answers[2..] {
            self.learn_all::<RunRow>(held, true);
            self.learn_all::<StepRow>(steps, true);
            for row in plain.iter().filter_map(|row| RunRow::read(row).ok()) {
                if !self.state.runs.known.contains_key(&row.key()) {
                    self.state.glimpses.insert(row.key(), row);
                }
            }
        }
        Ok(())
    }
}
