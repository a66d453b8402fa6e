//! Rules: servers that fire ticks and decide events in their sweeps, and senders who apply a rule, send it events, and
//! pause, resume and change it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sprag_lifecycle::{Plan, RuleEvent, RuleStatus};
use sprag_store::{
    FireTick, Fired, Id, NewDelivery, NewRule, NextTick, Overlap, Result, Row, RuleChange, RuleSeen, Settled,
    Store, TriggerDecision, TriggeredRun, plan_hash,
};
use sprag_sweeper::Triggers;

use super::super::record::Acknowledged;
use super::super::world::{ProgramHandle, START_MS};
use crate::graphs::Chance;

/// The number of ticks of each rule.
pub const TICKS: i64 = 5;
/// The number of different events that each sender sends.
pub const REQUESTS: usize = 4;
/// The time between two ticks.
const PERIOD_MS: i64 = 7_000;
/// The most rules and events that one look handles.
const BATCH: usize = 8;

/// The rules of the world, as one server fires them.
pub struct FiredRules {
    pub handle: Arc<ProgramHandle>,
    /// The plan of the runs that rules start.
    pub plan: Arc<Plan>,
}

fn tick(n: i64) -> NextTick {
    NextTick { due_ms: START_MS + n * PERIOD_MS, key: format!("tick {n}").into() }
}

fn event(store: &Store, key: &str) -> NewDelivery {
    NewDelivery {
        id: store.new_id(),
        enforcement: store.new_id(),
        key: key.into(),
        kind: "tick",
        body: "{}".into(),
        chain: "[]".into(),
    }
}

impl FiredRules {
    fn decision(&self, store: &Store) -> TriggerDecision {
        let new = store.person().new_run(Arc::clone(&self.plan));
        let (plan_hash, overlap) = (plan_hash(&self.plan), Overlap::Allow);
        TriggerDecision::Start(Box::new(TriggeredRun { new, plan_hash, overlap, window: None, rate: None }))
    }

    /// Lets others act between a read and the commit that follows from it.
    async fn hesitate(&self) {
        let ms = self.handle.world.state().chance.below(300) as u64;
        self.handle.world.pause(Duration::from_millis(ms)).await;
    }

    async fn fire_all(&self) -> Result<usize> {
        let store = self.handle.store();
        let mut started = 0;
        for row in store.queries().rules_due(store.now().wall_ms, BATCH)? {
            let n = row.cursor + 1;
            let fire = FireTick {
                seen: RuleSeen::of(&row),
                missed: None,
                tick: Some((event(&store, &format!("tick {n}")), self.decision(&store))),
                next: (n < TICKS).then(|| tick(n + 1)),
                cursor: n,
            };
            self.hesitate().await;
            if let Fired::Decided { run: Some(_), .. } = store.executor().fire_tick(fire).await? {
                started += 1;
            }
        }
        for (row, rule, _) in store.queries().enforcements_due(store.now().steady_ms, BATCH)? {
            let decision = self.decision(&store);
            self.hesitate().await;
            let settled = store.executor().decide(row.id, rule.generation, decision).await?;
            started += usize::from(matches!(settled, Settled::Requested(_)));
        }
        Ok(started)
    }
}

impl Triggers for FiredRules {
    fn fire(&self) -> Pin<Box<dyn Future<Output = Result<usize>> + Send + '_>> {
        Box::pin(self.fire_all())
    }

    fn next_due(&self) -> Result<Option<i64>> {
        let store = self.handle.store();
        let now = store.now();
        let tick = store.queries().next_tick()?.map(|wall_ms| now.steady_ms + (wall_ms - now.wall_ms));
        Ok([tick, store.queries().next_enforcement()?].into_iter().flatten().min())
    }
}

/// A sender, and the person who looks after its rule.
struct Sender {
    handle: Arc<ProgramHandle>,
    store: Store,
    chance: Chance,
    rule: Id,
    name: Arc<str>,
}

/// Applies a rule and sends it events, each until its answer is known. Starts again after a crash, from the first one.
pub async fn send(handle: Arc<ProgramHandle>) {
    let chance = handle.world.chance(0x5e ^ handle.node as u64 ^ (u64::from(handle.life) << 8));
    let store = handle.store();
    let name: Arc<str> = format!("p/r{}", handle.node).into();
    let mut sender = Sender { handle, store, chance, rule: 0, name };
    if !sender.apply("first").await {
        return;
    }
    for n in 0..REQUESTS {
        sender.pause(6_000).await;
        sender.change_mind().await;
        sender.request(n).await;
    }
    sender.resume().await;
    let node = sender.handle.node;
    sender.handle.world.state().record.done_persons.insert(node);
}

impl Sender {
    async fn pause(&mut self, ms: usize) {
        let ms = 1 + self.chance.below(ms) as u64;
        self.handle.world.pause(Duration::from_millis(ms)).await;
    }

    /// Applies a definition. Ticks that were fired before it are not due again, unless one is fired at this moment.
    async fn apply(&mut self, hash: &str) -> bool {
        let store = self.store.clone();
        let cursor = match store.queries().rule_called(&self.name) {
            Ok(row) => row.map_or(0, |row| row.cursor),
            Err(_) => return false,
        };
        let new = NewRule {
            id: store.new_id(),
            name: Arc::clone(&self.name),
            definition: "{}".into(),
            hash: hash.into(),
            auto: false,
            source: "schedule",
            next: (cursor < TICKS).then(|| tick(cursor + 1)),
            cursor: Some(cursor),
        };
        let applied = until_known!(self.handle, store.person().apply_rule(new.clone()));
        applied.inspect(|applied| self.rule = applied.id()).is_some()
    }

    /// Sends event `n`, sometimes twice.
    async fn request(&mut self, n: usize) {
        let key = format!("request {n}");
        for _ in 0..1 + self.chance.below(2) {
            let (store, event) = (self.store.clone(), event(&self.store, &key));
            let rule = self.rule;
            if let Some(receipt) =
                until_known!(self.handle, store.person().receive_event(rule, event.clone()))
            {
                let told = Acknowledged::Event(self.rule, key.as_str().into(), receipt.event);
                self.handle.world.state().record.acknowledged.push(told);
            }
        }
    }

    async fn change_mind(&mut self) {
        if self.handle.world.state().quiet {
            return;
        }
        match self.chance.below(5) {
            0 => self.report(RuleEvent::Paused).await,
            1 => self.resume().await,
            2 => {
                let hash = format!("{}-{}", self.handle.life, self.chance.below(1 << 20));
                self.apply(&hash).await;
            }
            _ => {}
        }
    }

    async fn resume(&mut self) {
        let row = self.store.queries().rule(self.rule).ok().flatten();
        if row.is_some_and(|row| row.status() == RuleStatus::Paused) {
            self.report(RuleEvent::Resumed).await;
        }
    }

    async fn report(&mut self, event: RuleEvent) {
        let store = self.store.clone();
        let Ok(Some(row)) = store.queries().rule(self.rule) else { return };
        let change = RuleChange { event, generation: row.generation, reason: None, next: None };
        let _ = until_known!(self.handle, store.person().change_rule(row.id, change.clone()));
    }
}
