//! The tools for rules and the events that reached them.

use serde_json::json;
use sprag_app::rules::{Backfill, DecisionView, TestView};

use crate::Agents;
use crate::params::{
    ApplyRules, BackfillRule, FireRule, ListDeliveries, Nothing, OneDelivery, OneRule, PauseRule, ResumeRule,
    TestRule,
};
use crate::tool_error::ToolError;
use crate::tools::{Done, pipeline_of};

pub(crate) async fn rule_list(agents: &Agents, _: Nothing) -> Done {
    let mut rules = agents.app.rule_views(false)?;
    rules.retain(|rule| agents.permit.reach.shows_rule(&rule.name));
    Ok(json!({ "rules": rules }))
}

pub(crate) async fn rule_show(agents: &Agents, given: OneRule) -> Done {
    Ok(json!(agents.app.rule_view(&given.rule, 3)?))
}

pub(crate) async fn rule_explain(agents: &Agents, given: OneRule) -> Done {
    Ok(json!(agents.app.explain_rule(&given.rule)?))
}

pub(crate) async fn rule_apply(agents: &Agents, given: ApplyRules) -> Done {
    let (dir, pipeline) =
        pipeline_of(agents, given.dir.as_deref(), given.file.as_deref(), given.yaml.as_deref())?;
    let shown = given.file.map_or_else(|| "a call".to_owned(), |file| dir.join(file).display().to_string());
    let rules = agents.app.apply_rules(&pipeline, &shown, &dir, given.dry).await?;
    Ok(json!({ "dry": given.dry, "rules": rules }))
}

pub(crate) async fn rule_remove(agents: &Agents, given: OneRule) -> Done {
    let rule = agents.app.retire_rule(&given.rule).await?;
    Ok(json!(agents.app.rule_view(&rule.name, 0)?))
}

pub(crate) async fn rule_backfill(agents: &Agents, given: BackfillRule) -> Done {
    let (from_ms, to_ms) = (time(&given.from)?, time(&given.to)?);
    let wanted = Backfill { from_ms, to_ms, again: given.again };
    Ok(json!(agents.app.backfill_rule(&given.rule, wanted).await?))
}

pub(crate) async fn rule_pause(agents: &Agents, given: PauseRule) -> Done {
    agents.app.pause_rule(&given.rule, given.reason.as_deref()).await?;
    Ok(json!(agents.app.rule_view(&given.rule, 1)?))
}

pub(crate) async fn rule_resume(agents: &Agents, given: ResumeRule) -> Done {
    agents.app.resume_rule(&given.rule, given.missed).await?;
    Ok(json!(agents.app.rule_view(&given.rule, 1)?))
}

pub(crate) async fn rule_fire(agents: &Agents, given: FireRule) -> Done {
    let (event, decision) = agents.app.fire_rule(&given.rule, given.event.as_ref()).await?;
    Ok(json!(DecisionView::of(agents.app.now(), &decision, &event)))
}

pub(crate) async fn rule_test(agents: &Agents, given: TestRule) -> Done {
    let invalid = |what: &str| ToolError::new("invalid", what, "correct the arguments and call it again");
    let tested = match (given.at, given.recorded, given.event) {
        (None, None, Some(event)) => agents.app.test_given(&given.rule, &event).await?,
        (None, Some(event), None) => agents.app.test_event(&given.rule, number(&event)?).await?,
        (Some(at), None, None) => agents.app.test_rule(&given.rule, Some(time(&at)?)).await?,
        (None, None, None) => agents.app.test_rule(&given.rule, None).await?,
        _ => return Err(invalid("give one of `at`, `recorded` and `event`")),
    };
    Ok(json!(TestView::of(&tested)))
}

pub(crate) async fn delivery_list(agents: &Agents, given: ListDeliveries) -> Done {
    let limit = given.limit.unwrap_or(20).min(200);
    let mut found = agents.app.delivery_views(given.rule.as_deref(), limit)?;
    found.retain(|event| agents.permit.reach.shows_rule(&event.rule));
    Ok(json!({ "deliveries": found }))
}

pub(crate) async fn delivery_show(agents: &Agents, given: OneDelivery) -> Done {
    Ok(json!(agents.app.delivery_view(number(&given.event)?)?))
}

pub(crate) async fn delivery_replay(agents: &Agents, given: OneDelivery) -> Done {
    let (event, decision) = agents.app.replay_event(number(&given.event)?).await?;
    Ok(json!(DecisionView::of(agents.app.now(), &decision, &event)))
}

/// Parses a time of a call.
fn time(text: &str) -> Result<i64, ToolError> {
    sprag_app::time_ms(text).ok_or_else(|| {
        ToolError::new("invalid", format!("{text:?} is not a time"), "write it like 2030-01-31T08:00:00Z")
    })
}

/// Returns the number of an event.
fn number(event: &str) -> Result<i64, ToolError> {
    event.parse().map_err(|_| {
        ToolError::new(
            "invalid",
            format!("{event:?} is not the number of an event"),
            "list them: delivery_list",
        )
    })
}
