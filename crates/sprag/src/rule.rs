//! Rules: what starts runs by itself.

use std::path::Path;

use serde::Serialize;
use sprag_app::App;
use sprag_app::rules::{
    AppliedRule, Backfill, Backfilled, DecisionView, DeliveryView, ExplainedRule, GivenEvent, RuleView,
    TestView,
};

use crate::{Engine, Error, Pipeline};

/// The handle of a rule, which starts runs of a pipeline from events. Cloning it is cheap.
///
/// ```
/// # use sprag::{Context, Engine, Pipeline};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let engine = Engine::in_memory()
/// #     .handler("report", |_: Context, day: String| async move { Ok(day) })
/// #     .start().await?;
/// let pipeline = Pipeline::parse("
/// name: report
/// inputs: { day: string }
/// on:
///   - id: daily
///     schedule: { cron: '30 12 * * *', zone: Europe/Berlin }
///     inputs: { day: '{{ tick.date }}' }
/// steps: [{ id: write, call: { handler: report, with: '{{ inputs.day }}' } }]
/// ")?;
/// engine.apply_rules(&pipeline, ".").await?;
/// let rule = engine.rule("report/daily")?;
/// assert_eq!(rule.view(2)?.next.len(), 2, "the next two ticks");
/// assert_eq!(rule.test_at("2030-01-31T11:30:00Z").await?.decision, "start");
///
/// let fired = rule.fire().await?;
/// let run = engine.run(fired.run.expect("a run").parse().expect("an id"))?;
/// run.wait().await?;
/// rule.pause(Some("holidays")).await?;
/// # engine.shutdown().await?;
/// # Ok::<(), sprag::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Rule {
    app: App,
    name: String,
}

impl Engine {
    /// Applies the rules in the `on` of a pipeline: new ones become active, changed ones count from now on, and rules
    /// that the pipeline no longer has are retired. Their runs work in this folder.
    pub async fn apply_rules(
        &self,
        pipeline: &Pipeline,
        folder: impl AsRef<Path>,
    ) -> Result<Vec<AppliedRule>, Error> {
        let folder = std::path::absolute(folder)
            .map_err(|error| Error::invalid(format!("the folder of the rules: {error}")))?;
        Ok(self.app().apply_rules(&pipeline.0, "a program", &folder, false).await?)
    }

    /// Returns all rules that are not retired, by name, each with its next tick and its last decision.
    pub fn rules(&self) -> Result<Vec<RuleView>, Error> {
        Ok(self.app().rule_views(false)?)
    }

    /// Returns the handle of a rule: `PIPELINE/RULE`, or the id alone where it is unique.
    pub fn rule(&self, name: &str) -> Result<Rule, Error> {
        let name = self.app().find_rule(name)?.name.to_string();
        Ok(Rule { app: self.app().clone(), name })
    }
}

impl Rule {
    /// Returns the full name, `PIPELINE/RULE`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rule's status, its next ticks, the path of its webhook and its last decisions.
    pub fn view(&self, ticks: usize) -> Result<RuleView, Error> {
        Ok(self.app.rule_view(&self.name, ticks)?)
    }

    /// Explains why the rule did or did not fire last, or what it waits for.
    pub fn explain(&self) -> Result<ExplainedRule, Error> {
        Ok(self.app.explain_rule(&self.name)?)
    }

    /// Removes the rule; its history stays.
    pub async fn remove(&self) -> Result<(), Error> {
        self.app.retire_rule(&self.name).await?;
        Ok(())
    }

    /// Gives the ticks between two times, such as `2030-01-31T08:00:00Z`, to the rule, oldest first. Ticks that it has
    /// taken before start nothing, unless `again` says that they are decided once more.
    pub async fn backfill(&self, from: &str, to: &str, again: bool) -> Result<Backfilled, Error> {
        let wanted = Backfill { from_ms: time(from)?, to_ms: time(to)?, again };
        Ok(self.app.backfill_rule(&self.name, wanted).await?)
    }

    /// Pauses the rule: from now on its events start nothing.
    pub async fn pause(&self, reason: Option<&str>) -> Result<(), Error> {
        self.app.pause_rule(&self.name, reason).await?;
        Ok(())
    }

    /// Ends a pause, or mends a broken rule. Ticks of the pause start nothing, unless `missed` says that they count as
    /// missed ones.
    pub async fn resume(&self, missed: bool) -> Result<(), Error> {
        self.app.resume_rule(&self.name, missed).await?;
        Ok(())
    }

    /// Fires a rule with a schedule for the present moment. Its next tick stays as it is.
    pub async fn fire(&self) -> Result<DecisionView, Error> {
        let (event, decision) = self.app.fire_rule(&self.name, None).await?;
        Ok(DecisionView::of(self.app.now(), &decision, &event))
    }

    /// Fires a rule with a webhook, as if a sender had sent this body.
    pub async fn fire_with(&self, body: impl Serialize) -> Result<DecisionView, Error> {
        let (event, decision) = self.app.fire_rule(&self.name, Some(&given(body)?)).await?;
        Ok(DecisionView::of(self.app.now(), &decision, &event))
    }

    /// Returns the decision that a tick would get at this time, such as `2030-01-31T08:00:00Z`. Writes nothing.
    pub async fn test_at(&self, time: &str) -> Result<TestView, Error> {
        Ok(TestView::of(&self.app.test_rule(&self.name, Some(self::time(time)?)).await?))
    }

    /// Returns the decision that this body would get from a rule with a webhook. Writes nothing.
    pub async fn test_with(&self, body: impl Serialize) -> Result<TestView, Error> {
        Ok(TestView::of(&self.app.test_given(&self.name, &given(body)?).await?))
    }

    /// Returns the last events that reached the rule, newest first, each with its last decision.
    pub fn deliveries(&self, limit: usize) -> Result<Vec<DeliveryView>, Error> {
        Ok(self.app.delivery_views(Some(&self.name), limit)?)
    }

    /// Gives a recorded event to its rule again.
    pub async fn replay(&self, event: &str) -> Result<DecisionView, Error> {
        let number = event.parse();
        let number =
            number.map_err(|_| Error::invalid(format!("{event:?} is not the number of an event")))?;
        let (event, decision) = self.app.replay_event(number).await?;
        Ok(DecisionView::of(self.app.now(), &decision, &event))
    }
}

/// Parses a time.
fn time(text: &str) -> Result<i64, Error> {
    sprag_app::time_ms(text).ok_or_else(|| Error::invalid(format!("{text:?} is not a time")))
}

fn given(body: impl Serialize) -> Result<GivenEvent, Error> {
    let body = serde_json::to_value(body)
        .map_err(|error| Error::invalid(format!("the body cannot be written as JSON: {error}")))?;
    Ok(GivenEvent { body, ..GivenEvent::default() })
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").field("name", &self.name).finish_non_exhaustive()
    }
}
