//! Firing: the due ticks of schedules, and the enforcements that wait for a decision.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use sprag_pipeline::{MissedRuns, Tick};
use sprag_store::{
    Clock, FireTick, Fired, NewDelivery, NextTick, Result, RuleRow, RuleSeen, Settled, System,
    TriggerDecision,
};

use super::LoadedRule;
use super::decide::tick_names;
use super::ended::Progress;
use super::watch::Looks;
use crate::App;

/// The most rules and enforcements that one look handles; the next look handles the rest.
const BATCH: usize = 256;
/// The age up to which a tick counts as on time.
const ON_TIME_MS: i64 = 60_000;
/// The most missed ticks of one rule that start runs.
const MOST_CAUGHT_UP: usize = 100;
/// The most missed ticks that are counted one by one; older ones are left out of the count.
const MOST_COUNTED: i64 = 100_000;
/// A change of the wall clock against the machine's own clock that counts as a jump.
const JUMP_MS: i64 = 60_000;
/// The time after a jump in which nothing fires: the clock may jump back.
const SETTLING_MS: i64 = 60_000;

/// Fires rules. Any number of processes may do so at once: the store decides each tick once.
pub struct RuleKeeper {
    pub(super) app: App,
    clocks: Mutex<Clocks>,
    /// The progress of rules about other runs in the journal.
    pub(super) progress: Mutex<Progress>,
    /// The looks at repositories of this process.
    pub(super) looks: Looks,
}

/// The comparison of the wall clock with the machine's own clock.
#[derive(Debug, Default)]
struct Clocks {
    /// The difference of the two at the last look.
    difference_ms: Option<i64>,
    /// The time of the machine's clock until which nothing fires.
    settles_ms: i64,
    /// Whether stored timers may be too late, because the wall clock was set back.
    set_back: bool,
}

impl Clocks {
    /// Notes the present times. Returns whether rules may fire.
    fn look(&mut self, wall_ms: i64, boot_ms: i64) -> bool {
        let difference_ms = wall_ms - boot_ms;
        let jump_ms = self.difference_ms.map_or(0, |before_ms| difference_ms - before_ms);
        self.difference_ms = Some(difference_ms);
        if jump_ms.abs() > JUMP_MS {
            tracing::warn!(jump_ms, "the wall clock jumped: rules fire again when it is steady");
            self.settles_ms = boot_ms + SETTLING_MS;
            self.set_back |= jump_ms < 0;
        }
        boot_ms >= self.settles_ms
    }
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
            let is_first = clocks.difference_ms.is_none();
            let may_fire = clocks.look(wall_ms, boot_ms);
            (may_fire, may_fire && (is_first || std::mem::take(&mut clocks.set_back)))
        };
        if realign {
            self.realign(wall_ms).await?;
        }
        if may_fire {
            for row in self.app.store.queries().rules_due(wall_ms, BATCH)? {
                let name = Arc::clone(&row.name);
                match self.fire_rule(row, wall_ms).await {
                    Ok(runs) => started += runs,
                    // One rule that cannot be read or written must not stop the others.
                    Err(error) => {
                        tracing::warn!(rule = %name, %error, "firing a rule failed: left to the next sweep")
                    }
                }
            }
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

    /// Fires the due ticks of a rule, each in one commit. Returns the number of runs that started.
    async fn fire_rule(&self, row: RuleRow, wall_ms: i64) -> Result<usize> {
        let mut started = 0;
        let mut row = row;
        for _ in 0..=MOST_CAUGHT_UP {
            let id = row.id;
            let Some(rule) = self.load(row).await? else { return Ok(started) };
            let Some(fire) = self.due_tick(&rule, wall_ms) else { return Ok(started) };
            match self.app.store.executor().fire_tick(fire).await? {
                Fired::Superseded => return Ok(started),
                Fired::Decided { run, .. } => started += usize::from(run.is_some()),
            }
            match self.app.store.queries().rule(id)? {
                Some(next) if next.next_ms.is_some_and(|next_ms| next_ms <= wall_ms) => row = next,
                _ => return Ok(started),
            }
        }
        Ok(started)
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

    /// Decides the enforcements that wait.
    async fn decide_waiting(&self) -> Result<usize> {
        let now_ms = self.app.now().steady_ms;
        let mut started = 0;
        for (row, rule, event) in self.app.store.queries().enforcements_due(now_ms, BATCH)? {
            let generation = rule.generation;
            let Some(loaded) = self.load(rule).await? else {
                // The rule is broken now. A decision that waited for it to be mended would be made again and again.
                let skip = TriggerDecision::Skip("the rule is broken".into());
                let _ = self.app.store.executor().decide(row.id, generation, skip).await?;
                continue;
            };
            let names: Value = serde_json::from_str(&event.body).unwrap_or_default();
            let chain: Vec<String> = serde_json::from_str(&event.chain).unwrap_or_default();
            let decision: TriggerDecision = self.app.decide(&loaded, &names, &chain);
            let settled = self.app.store.executor().decide(row.id, generation, decision).await;
            match settled {
                Ok(settled) => started += usize::from(matches!(settled, Settled::Requested(_))),
                Err(error) => {
                    tracing::warn!(enforcement = row.id, %error, "deciding failed: left to the next sweep");
                }
            }
        }
        Ok(started)
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

    #[test]
    fn r05_nothing_fires_after_a_jump_until_the_clock_is_steady() {
        let mut clocks = Clocks::default();
        let day = 24 * 3_600_000;
        assert!(clocks.look(day, 1_000));
        assert!(clocks.look(day + 5_000, 6_000), "both clocks move on");
        assert!(!clocks.look(2 * day, 7_000), "a day forward");
        assert!(!clocks.set_back);
        assert!(!clocks.look(2 * day + 10_000, 17_000), "not for a minute");
        assert!(clocks.look(2 * day + 60_000, 67_000));
        assert!(!clocks.look(0, 68_000), "back to 1970");
        assert!(clocks.set_back);
        assert!(clocks.look(60_000, 128_000));
    }
}
