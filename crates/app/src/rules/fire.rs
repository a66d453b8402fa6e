//! Firing: the due ticks of schedules. Commits of different rules wait for the disk together.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use sprag_lifecycle::RuleStatus;
use sprag_pipeline::{MissedRuns, Tick};
use sprag_store::{
    Clock, FireTick, Fired, Id, NewDelivery, NextTick, Result, Row, RuleRow, RuleSeen, System,
};
use tokio::task::JoinSet;

use super::LoadedRule;
use super::clocks::{Clocks, JUMP_MS};
use super::decide::tick_names;
use super::ended::Progress;
use super::watch::Looks;
use crate::App;

/// The most rules that one look handles; the next look handles the rest.
const BATCH: usize = 1_024;
/// The most commits of ticks that are under way at once. The store's writer makes one transaction of those that wait.
const AT_ONCE: usize = 64;
/// The age up to which a tick counts as on time.
const ON_TIME_MS: i64 = 60_000;
/// The most missed ticks of one rule that start runs.
const MOST_CAUGHT_UP: usize = 100;
/// The most missed ticks that are counted one by one; older ones are left out of the count.
const MOST_COUNTED: i64 = 100_000;

/// Fires rules. Any number of processes may do so at once: the store decides each tick once.
pub struct RuleKeeper {
    pub(super) app: App,
    clocks: Mutex<Clocks>,
    /// The progress of rules about other runs in the journal.
    pub(super) progress: Mutex<Progress>,
    /// The looks at repositories of this process.
    pub(super) looks: Looks,
    /// The lock that shows that this process watches; absent until its first look.
    pub(super) presence: Mutex<Option<std::fs::File>>,
}

/// A rule whose next tick is due.
struct DueRule {
    row: RuleRow,
    /// The number of its ticks that this look has fired.
    ticks: usize,
    /// Whether the row was just read.
    is_fresh: bool,
}

/// The due ticks of a rule.
struct DueTicks {
    first: Tick,
    /// The latest ones, in order.
    latest: VecDeque<Tick>,
    count: i64,
}

impl RuleKeeper {
    /// Returns a keeper of the rules of a store.
    pub fn new(app: &App) -> RuleKeeper {
        RuleKeeper {
            app: app.clone(),
            clocks: Mutex::default(),
            progress: Mutex::default(),
            looks: Looks::default(),
            presence: Mutex::default(),
        }
    }

    /// Fires all due ticks and all ends of runs, and decides all enforcements that wait. Returns the number of runs that
    /// started.
    pub async fn fire_due(&self) -> Result<usize> {
        self.fire_due_at(System.boot_ms()).await
    }

    /// Does the same at this time of the machine's own clock.
    async fn fire_due_at(&self, boot_ms: i64) -> Result<usize> {
        let wall_ms = self.app.now().wall_ms;
        let mut started = 0;
        let (may_fire, realign) = {
            let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
            let is_first = clocks.is_new();
            let may_fire = clocks.look(wall_ms, boot_ms);
            if let Some(jump_ms) = clocks.jumped_ms.take() {
                self.app.note_clock_jump(jump_ms, boot_ms);
            }
            (may_fire, may_fire && (is_first || std::mem::take(&mut clocks.set_back)))
        };
        if realign {
            self.realign(wall_ms).await?;
        }
        if may_fire {
            started += self.fire_rules(self.app.store.queries().rules_due(wall_ms, BATCH)?, wall_ms).await?;
        }
        started += self.fire_ended().await?;
        Ok(started + self.decide_waiting().await?)
    }

    /// Returns the time at which something is due next (steady).
    pub fn next_due(&self) -> Result<Option<i64>> {
        let queries = self.app.store.queries();
        let now = self.app.now();
        let tick = queries.next_tick()?.map(|wall_ms| now.steady_ms + (wall_ms - now.wall_ms));
        Ok([tick, queries.next_enforcement()?].into_iter().flatten().min())
    }

    /// Returns a rule with its parsed definition. A definition that cannot be used breaks the rule.
    pub(super) async fn load(&self, row: RuleRow) -> Result<Option<LoadedRule>> {
        let key = (row.id, row.generation);
        match self.app.loaded_rule(row) {
            Ok(rule) => Ok(Some(rule)),
            Err(why) => {
                tracing::warn!(rule = key.0, %why, "a rule is broken");
                let _ = self.app.store.executor().rule_broke(key.0, key.1, why).await?;
                Ok(None)
            }
        }
    }

    /// Fires the due ticks of rules, each in one commit. Returns the number of runs that started.
    ///
    /// Servers that see the same rules begin at different ones, so that they share the work.
    async fn fire_rules(&self, mut rows: Vec<RuleRow>, wall_ms: i64) -> Result<usize> {
        if rows.len() > AT_ONCE {
            let first = self.app.new_id() as usize % rows.len();
            rows.rotate_left(first);
        }
        let fresh = rows.len().min(AT_ONCE);
        // Another server may have fired the later ones meanwhile: they are read again before they are evaluated.
        let mut waiting: VecDeque<DueRule> = rows
            .into_iter()
            .enumerate()
            .map(|(at, row)| DueRule { row, ticks: 0, is_fresh: at < fresh })
            .collect();
        let mut commits = JoinSet::new();
        let mut started = 0;
        loop {
            while commits.len() < AT_ONCE
                && let Some(due) = waiting.pop_front()
            {
                let (id, name, ticks) = (due.row.id, Arc::clone(&due.row.name), due.ticks);
                match self.next_fire(due, wall_ms).await {
                    Ok(Some(fire)) => {
                        let store = self.app.store.clone();
                        let has_more = fire.next.as_ref().is_some_and(|next| next.due_ms <= wall_ms);
                        commits.spawn(async move {
                            let fired = store.executor().fire_tick(fire).await;
                            (id, name, ticks, has_more, fired)
                        });
                    }
                    Ok(None) => {}
                    Err(error) => left_behind(&name, &error),
                }
            }
            let Some(committed) = commits.join_next().await else { return Ok(started) };
            let Ok((id, name, ticks, has_more, fired)) = committed else { continue };
            match fired {
                Ok(Fired::Decided { run, .. }) => {
                    started += usize::from(run.is_some());
                    if has_more && ticks < MOST_CAUGHT_UP {
                        // The rule has further ticks that are due; they follow in order.
                        waiting.extend(self.read_again(id, wall_ms)?.map(|row| DueRule {
                            row,
                            ticks: ticks + 1,
                            is_fresh: true,
                        }));
                    }
                }
                Ok(Fired::Superseded) => {}
                Err(error) => left_behind(&name, &error),
            }
        }
    }

    /// Returns the next commit of a rule that was due when it was read; none if nothing is left to fire.
    async fn next_fire(&self, due: DueRule, wall_ms: i64) -> Result<Option<FireTick>> {
        let row = if due.is_fresh { Some(due.row) } else { self.read_again(due.row.id, wall_ms)? };
        let Some(row) = row else { return Ok(None) };
        let Some(rule) = self.load(row).await? else { return Ok(None) };
        Ok(self.due_tick(&rule, wall_ms))
    }

    /// Returns a rule as it is now; none if it has no due tick.
    fn read_again(&self, rule: Id, wall_ms: i64) -> Result<Option<RuleRow>> {
        let is_due = |row: &RuleRow| {
            row.status() == RuleStatus::Active && row.next_ms.is_some_and(|next_ms| next_ms <= wall_ms)
        };
        Ok(self.app.store.queries().rule(rule)?.filter(is_due))
    }

    /// Returns the next commit of a rule with a due tick, by its policy about missed ones.
    fn due_tick(&self, rule: &LoadedRule, wall_ms: i64) -> Option<FireTick> {
        let (schedule, name) = (rule.schedule()?, &*rule.row.name);
        let seen = RuleSeen::of(&rule.row);
        let next_after = |cursor: i64| {
            schedule.next_after(cursor).map(|tick| NextTick {
                due_ms: schedule.fires_ms(name, &tick),
                key: tick.key.as_str().into(),
            })
        };
        let Some(due) = due_ticks(rule, wall_ms) else {
            // The stored timer was earlier than the tick: only the timer moves.
            let next = next_after(rule.row.cursor);
            return (next.as_ref().map(|next| next.due_ms) != rule.row.next_ms).then(|| FireTick {
                seen,
                missed: None,
                tick: None,
                next,
                cursor: rule.row.cursor,
            });
        };
        let policy = rule.trigger.missed;
        let late = |tick: &Tick| wall_ms - schedule.fires_ms(name, tick) > ON_TIME_MS;
        let counts = |tick: &Tick| !late(tick) || wall_ms - tick.nominal_ms <= policy.within_ms;
        let at = match policy.run {
            MissedRuns::None => due.latest.len().checked_sub(1).filter(|last| !late(&due.latest[*last])),
            MissedRuns::Latest => due.latest.len().checked_sub(1).filter(|last| counts(&due.latest[*last])),
            MissedRuns::All => due.latest.iter().position(counts),
        };
        let last = due.latest.back()?;
        let (fired, before) = match at {
            Some(at) => (Some(&due.latest[at]), due.count - (due.latest.len() - at) as i64),
            None => (None, due.count),
        };
        let missed = (before > 0).then(|| {
            let to = match at {
                Some(at) if at > 0 => &due.latest[at - 1],
                Some(_) => &due.first,
                None => last,
            };
            let body = json!({ "missed": before, "from": due.first.time, "to": to.time });
            let key = format!("missed {} to {}", due.first.key, to.key);
            (self.event(&key, "missed", &body), before)
        });
        let tick = fired.map(|tick| {
            let names = tick_names(tick);
            (self.event(&tick.key, "tick", &names), self.app.decide(rule, &names, &[]))
        });
        let cursor = fired.unwrap_or(last).nominal_ms;
        Some(FireTick { seen, missed, tick, next: next_after(cursor), cursor })
    }

    /// Returns an event to store, with new numbers.
    fn event(&self, key: &str, kind: &'static str, body: &Value) -> NewDelivery {
        new_event(&self.app, key, kind, body, &[])
    }

    /// Moves timers that are too late, because the wall clock was set back after they were set.
    async fn realign(&self, wall_ms: i64) -> Result<()> {
        for row in self.app.store.queries().rules()? {
            if &*row.source == "git" {
                if let Some(rule) = self.load(row).await? {
                    self.realign_look(&rule, wall_ms, JUMP_MS).await?;
                }
                continue;
            }
            if row.cursor <= wall_ms + JUMP_MS || row.next_ms.is_none() {
                continue;
            }
            let Some(rule) = self.load(row).await? else { continue };
            let Some(schedule) = rule.schedule() else { continue };
            let Some(tick) = schedule.next_after(wall_ms) else { continue };
            let due_ms = schedule.fires_ms(&rule.row.name, &tick);
            let next = NextTick { due_ms, key: tick.key.as_str().into() };
            self.app.store.executor().reschedule_rule(RuleSeen::of(&rule.row), next, wall_ms).await?;
        }
        Ok(())
    }
}

/// Reports a rule that cannot be read or written. It must not stop the others.
fn left_behind(rule: &str, error: &sprag_store::Error) {
    tracing::warn!(%rule, %error, "firing a rule failed: left to the next sweep");
}

/// Returns an event to store, with new numbers, that runs of these rules led to.
pub(super) fn new_event(
    app: &App,
    key: &str,
    kind: &'static str,
    body: &Value,
    chain: &[String],
) -> NewDelivery {
    NewDelivery {
        id: app.new_id(),
        enforcement: app.new_id(),
        key: key.into(),
        kind,
        body: body.to_string().into(),
        chain: json!(chain).to_string().into(),
    }
}

/// Returns the ticks after the rule's cursor that are due; none if no tick is.
fn due_ticks(rule: &LoadedRule, wall_ms: i64) -> Option<DueTicks> {
    let (schedule, name) = (rule.schedule()?, &*rule.row.name);
    let is_due = |tick: &Tick| schedule.fires_ms(name, tick) <= wall_ms;
    let first = schedule.next_after(rule.row.cursor).filter(is_due)?;
    let mut due = DueTicks { latest: VecDeque::from([first.clone()]), first, count: 1 };
    let mut after_ms = due.first.nominal_ms;
    while let Some(tick) = schedule.next_after(after_ms).filter(is_due) {
        after_ms = tick.nominal_ms;
        due.count += 1;
        if due.count == MOST_COUNTED {
            after_ms = after_ms.max(wall_ms - 24 * 3_600_000);
        }
        if due.latest.len() == MOST_CAUGHT_UP {
            due.latest.pop_front();
        }
        due.latest.push_back(tick);
    }
    Some(due)
}

impl sprag_sweeper::Triggers for RuleKeeper {
    fn fire(&self) -> Pin<Box<dyn Future<Output = Result<usize>> + Send + '_>> {
        Box::pin(async {
            self.show_presence();
            if let Err(error) = self.start_looks().await {
                tracing::warn!(%error, "looking at repositories failed: left to the next sweep");
            }
            self.fire_due().await
        })
    }

    fn next_due(&self) -> Result<Option<i64>> {
        RuleKeeper::next_due(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicI64, Ordering};

    use sprag_store::{Clock, Store};

    use super::*;

    const SECOND: i64 = 1_000;
    const MINUTE: i64 = 60 * SECOND;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;

    /// A wall clock that can be set, beside a clock that only runs forward.
    #[derive(Debug)]
    struct Settable {
        wall_ms: AtomicI64,
        boot_ms: AtomicI64,
    }

    impl Clock for Settable {
        fn wall_ms(&self) -> i64 {
            self.wall_ms.load(Ordering::SeqCst)
        }

        fn boot_ms(&self) -> i64 {
            self.boot_ms.load(Ordering::SeqCst)
        }
    }

    /// A store with a rule that ticks every ten seconds, and its clock.
    struct Scene {
        app: App,
        keeper: RuleKeeper,
        clock: Arc<Settable>,
        _folder: tempfile::TempDir,
    }

    impl Scene {
        async fn new() -> Scene {
            let folder = tempfile::tempdir().unwrap();
            let start_ms = 1_900_000_000_000;
            let clock =
                Arc::new(Settable { wall_ms: AtomicI64::new(start_ms), boot_ms: AtomicI64::new(DAY) });
            let store = Store::in_memory(clock.clone(), Arc::new(System));
            let app = App::with_store(store, folder.path());
            let text = "name: p\non:\n  - id: r\n    schedule: { every: 10s }\n    overlap: allow\nsteps:\n  - id: a\n    run: 'true'\n";
            let pipeline = crate::parse("p.yaml", text).unwrap();
            app.apply_rules(&pipeline, "p.yaml", folder.path(), false).await.unwrap();
            let keeper = RuleKeeper::new(&app);
            Scene { app, keeper, clock, _folder: folder }
        }

        /// Lets this time pass in steps of a second. Returns the number of runs that started.
        async fn pass(&self, ms: i64) -> usize {
            let mut started = 0;
            for _ in 0..ms / SECOND {
                self.clock.wall_ms.fetch_add(SECOND, Ordering::SeqCst);
                self.clock.boot_ms.fetch_add(SECOND, Ordering::SeqCst);
                started += self.keeper.fire_due_at(self.clock.boot_ms()).await.unwrap();
            }
            started
        }

        fn set_by(&self, ms: i64) {
            self.clock.wall_ms.fetch_add(ms, Ordering::SeqCst);
        }

        /// Returns the keys of all ticks that started runs.
        fn fired(&self) -> Vec<String> {
            let events = self.app.delivery_views(None, 10_000).unwrap();
            let ticks = events.into_iter().filter(|event| event.decision.run.is_some());
            ticks.map(|event| event.decision.key).collect()
        }
    }

    #[tokio::test]
    async fn r05_a_clock_that_is_set_repeats_no_tick_and_makes_no_burst() {
        let scene = Scene::new().await;
        assert_eq!(scene.pass(MINUTE).await, 6, "one run every ten seconds");
        // The ticks of the last two minutes have fired: of these, none fires again.
        for by_ms in [DAY, -HOUR, -2 * MINUTE, HOUR, -scene.clock.wall_ms() + DAY] {
            scene.set_by(by_ms);
            let settling = scene.pass(MINUTE + 10 * SECOND).await;
            assert!(settling <= 2, "{settling} runs started after a jump by {by_ms} ms");
            let before = scene.fired().len();
            let later = scene.pass(MINUTE).await;
            let most = if by_ms == -2 * MINUTE { 0..=6 } else { 6..=6 };
            assert!(most.contains(&later), "{later} runs started a minute after a jump by {by_ms} ms");
            assert_eq!(scene.fired().len(), before + later);
        }
        let fired = scene.fired();
        assert_eq!(
            fired.iter().collect::<BTreeSet<_>>().len(),
            fired.len(),
            "no tick has two runs: {fired:?}"
        );
    }
}
