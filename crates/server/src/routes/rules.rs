//! Rules: what starts runs by itself, and the events that reached them.

use std::collections::BTreeMap;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use sprag_app::rules::{
    AppliedRule, Backfill, Backfilled, DecisionView, DeliveryView, EventView, ExplainedRule, GivenEvent,
    RuleView, TestView,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{MayRead, MayRun};
use crate::extract::{IdPath, Json, OptionalJson, Query, RulePath};
use crate::pipelines;
use crate::problem::{Answer, Problem};
use crate::routes::runs;
use crate::state::ServerState;

/// The most events in one answer.
const MOST_EVENTS: usize = 1_000;
/// The most ticks in one answer.
const MOST_TICKS: usize = 1_000;

pub(crate) fn routes() -> OpenApiRouter<ServerState> {
    OpenApiRouter::new()
        .routes(routes!(list, apply))
        .routes(routes!(show, retire))
        .routes(routes!(explain))
        .routes(routes!(backfill))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(fire))
        .routes(routes!(test))
        .routes(routes!(deliveries))
        .routes(routes!(delivery))
        .routes(routes!(replay))
}

/// Rules.
#[derive(Debug, Serialize, ToSchema)]
struct Rules {
    /// The rules, by name, each with its next tick and its last decision.
    rules: Vec<RuleView>,
}

/// The rules to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// Whether to list retired rules too.
    #[serde(default)]
    all: bool,
}

/// List rules
#[utoipa::path(get, path = "/v1/rules", tag = "rules", params(Listed), responses((status = 200, body = Rules)))]
async fn list(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(wanted): Query<Listed>,
) -> Answer<Json<Rules>> {
    let mut rules = app.blocking(move |app| Ok(app.core().rule_views(wanted.all)?)).await?;
    rules.retain(|rule| caller.reach.shows_rule(&rule.name));
    Ok(Json(Rules { rules }))
}

/// A request to apply the rules of a pipeline: its text, or the name of one of the project's pipelines.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Apply {
    /// The pipeline itself, in YAML.
    yaml: Option<String>,
    /// The name of one of the project's pipelines.
    pipeline: Option<String>,
    /// The folder in which the runs work; the project's folder if it is left out.
    dir: Option<String>,
    /// Whether only to tell what would happen.
    #[serde(default)]
    dry: bool,
}

/// Applied rules.
#[derive(Debug, Serialize, ToSchema)]
struct Applied {
    /// Whether nothing was written.
    dry: bool,
    /// The rules, each with what became of it.
    rules: Vec<AppliedRule>,
}

/// Apply the rules of a pipeline: rules that it no longer has are retired
#[utoipa::path(
    post, path = "/v1/rules", tag = "rules", request_body = Apply,
    responses(
        (status = 200, body = Applied),
        (status = 422, description = "Problem: there is no such pipeline, or it has an error"),
    )
)]
async fn apply(
    _: MayRun,
    State(app): State<ServerState>,
    Json(wanted): Json<Apply>,
) -> Answer<Json<Applied>> {
    let dir = runs::folder(&app, wanted.dir.as_deref())?;
    let dry = wanted.dry;
    let (pipeline, file) = app
        .blocking(move |app| {
            let project = app.options().project.as_deref();
            let (yaml, name) = (wanted.yaml.as_deref(), wanted.pipeline.as_deref());
            let loaded = pipelines::given(project, yaml, &BTreeMap::new(), name)?;
            let file = wanted.pipeline.and_then(|name| pipelines::file_of(project?, &name));
            let shown = file.map_or_else(|| "a request".to_owned(), |file| file.display().to_string());
            Ok((loaded.pipeline, shown))
        })
        .await?;
    let rules = app.core().apply_rules(&pipeline, &file, &dir, dry).await?;
    Ok(Json(Applied { dry, rules }))
}

/// Remove a rule; its history stays
#[utoipa::path(
    delete, path = "/v1/rules/{pipeline}/{rule}", tag = "rules", params(RulePath),
    responses(
        (status = 200, body = RuleView),
        (status = 404, description = "Problem: there is no such rule"),
        (status = 409, description = "Problem: it is retired"),
    )
)]
async fn retire(_: MayRun, State(app): State<ServerState>, path: RulePath) -> Answer<Json<RuleView>> {
    app.core().retire_rule(&path.name()).await?;
    view(&app, path, 0).await
}

/// Explain why a rule did or did not fire last, or what it waits for
#[utoipa::path(
    get, path = "/v1/rules/{pipeline}/{rule}/explain", tag = "rules", params(RulePath),
    responses((status = 200, body = ExplainedRule), (status = 404, description = "Problem: there is no such rule"))
)]
async fn explain(_: MayRead, State(app): State<ServerState>, path: RulePath) -> Answer<Json<ExplainedRule>> {
    Ok(Json(app.blocking(move |app| Ok(app.core().explain_rule(&path.name())?)).await?))
}

/// The ticks to give to a rule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Span {
    /// The first time, such as 2030-01-31T08:00:00Z.
    from: String,
    /// The last time.
    to: String,
    /// Whether ticks that the rule has taken before are decided again.
    #[serde(default)]
    again: bool,
}

/// Give the ticks between two times to a rule; those that it has taken start nothing
#[utoipa::path(
    post, path = "/v1/rules/{pipeline}/{rule}/backfill", tag = "rules", request_body = Span, params(RulePath),
    responses(
        (status = 200, body = Backfilled),
        (status = 404, description = "Problem: there is no such rule"),
        (status = 409, description = "Problem: it is not active"),
        (status = 422, description = "Problem: it has no schedule, or there are too many ticks between these times"),
    )
)]
async fn backfill(
    _: MayRun,
    State(app): State<ServerState>,
    path: RulePath,
    Json(wanted): Json<Span>,
) -> Answer<Json<Backfilled>> {
    let (from_ms, to_ms) = (time(&wanted.from)?, time(&wanted.to)?);
    let span = Backfill { from_ms, to_ms, again: wanted.again };
    Ok(Json(app.core().backfill_rule(&path.name(), span).await?))
}

/// Parses a time of a request.
fn time(text: &str) -> Answer<i64> {
    sprag_app::time_ms(text).ok_or_else(|| {
        Problem::invalid(format!("{text:?} is not a time")).next("write it like 2030-01-31T08:00:00Z")
    })
}

/// The ticks to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Shown {
    /// The number of ticks; 3 by default, 1000 at most.
    next: Option<usize>,
}

/// Show a rule with its next ticks and its last decisions
#[utoipa::path(
    get, path = "/v1/rules/{pipeline}/{rule}", tag = "rules",
    params(RulePath, Shown),
    responses((status = 200, body = RuleView), (status = 404, description = "Problem: there is no such rule"))
)]
async fn show(
    _: MayRead,
    State(app): State<ServerState>,
    path: RulePath,
    Query(wanted): Query<Shown>,
) -> Answer<Json<RuleView>> {
    view(&app, path, wanted.next.unwrap_or(3).min(MOST_TICKS)).await
}

async fn view(app: &ServerState, path: RulePath, ticks: usize) -> Answer<Json<RuleView>> {
    Ok(Json(app.blocking(move |app| Ok(app.core().rule_view(&path.name(), ticks)?)).await?))
}

/// A request to pause a rule.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Pause {
    /// The reason, in a few words.
    #[schema(max_length = 200)]
    reason: Option<String>,
}

/// Pause a rule: from now on its events start nothing
#[utoipa::path(
    post, path = "/v1/rules/{pipeline}/{rule}/pause", tag = "rules", request_body = Option<Pause>,
    params(RulePath),
    responses(
        (status = 200, body = RuleView),
        (status = 404, description = "Problem: there is no such rule"),
        (status = 409, description = "Problem: it is paused or retired"),
    )
)]
async fn pause(
    _: MayRun,
    State(app): State<ServerState>,
    path: RulePath,
    OptionalJson(wanted): OptionalJson<Pause>,
) -> Answer<Json<RuleView>> {
    app.core().pause_rule(&path.name(), wanted.reason.as_deref()).await?;
    view(&app, path, 1).await
}

/// A request to resume a rule.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// Whether ticks of the pause count as missed ones; otherwise they start nothing.
    #[serde(default)]
    missed: bool,
}

/// Resume a paused rule, or mend a broken one
#[utoipa::path(
    post, path = "/v1/rules/{pipeline}/{rule}/resume", tag = "rules", request_body = Option<Resume>,
    params(RulePath),
    responses(
        (status = 200, body = RuleView),
        (status = 404, description = "Problem: there is no such rule"),
        (status = 409, description = "Problem: it is active or retired"),
    )
)]
async fn resume(
    _: MayRun,
    State(app): State<ServerState>,
    path: RulePath,
    OptionalJson(wanted): OptionalJson<Resume>,
) -> Answer<Json<RuleView>> {
    app.core().resume_rule(&path.name(), wanted.missed).await?;
    view(&app, path, 1).await
}

/// A request to fire a rule.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Fire {
    /// The event; absent for a rule with a schedule, which fires for the present moment.
    event: Option<GivenEvent>,
}

/// Fire a rule by hand: its next tick stays as it is
#[utoipa::path(
    post, path = "/v1/rules/{pipeline}/{rule}/fire", tag = "rules", request_body = Option<Fire>,
    params(RulePath),
    responses(
        (status = 200, body = DecisionView, description = "The decision: a run, or a reason for none"),
        (status = 404, description = "Problem: there is no such rule"),
        (status = 409, description = "Problem: it is not active"),
        (status = 422, description = "Problem: it needs an event, or takes none"),
    )
)]
async fn fire(
    _: MayRun,
    State(app): State<ServerState>,
    path: RulePath,
    OptionalJson(wanted): OptionalJson<Fire>,
) -> Answer<Json<DecisionView>> {
    let (event, decision) = app.core().fire_rule(&path.name(), wanted.event.as_ref()).await?;
    Ok(Json(DecisionView::of(app.core().now(), &decision, &event)))
}

/// An event to test a rule with; without one, the next tick of its schedule.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Test {
    /// The time of a tick, such as 2030-01-31T08:00:00Z.
    at: Option<String>,
    /// The number of a recorded event.
    recorded: Option<String>,
    /// An event.
    event: Option<GivenEvent>,
}

/// Tell what an event would start; writes nothing
#[utoipa::path(
    post, path = "/v1/rules/{pipeline}/{rule}/test", tag = "rules", request_body = Option<Test>,
    params(RulePath),
    responses(
        (status = 200, body = TestView),
        (status = 404, description = "Problem: there is no such rule or event"),
        (status = 422, description = "Problem: the request names several events, or none that the rule takes"),
    )
)]
async fn test(
    _: MayRun,
    State(app): State<ServerState>,
    path: RulePath,
    OptionalJson(wanted): OptionalJson<Test>,
) -> Answer<Json<TestView>> {
    let (core, rule) = (app.core(), path.name());
    let tested = match (wanted.at, wanted.recorded, wanted.event) {
        (None, None, Some(event)) => core.test_given(&rule, &event).await?,
        (None, Some(event), None) => core.test_event(&rule, IdPath(event).number()?).await?,
        (Some(at), None, None) => core.test_rule(&rule, Some(time(&at)?)).await?,
        (None, None, None) => core.test_rule(&rule, None).await?,
        _ => return Err(Problem::invalid("give one of `at`, `recorded` and `event`")),
    };
    Ok(Json(TestView::of(&tested)))
}

/// Events that reached rules.
#[derive(Debug, Serialize, ToSchema)]
struct Deliveries {
    /// The events, newest first, each with its last decision.
    deliveries: Vec<DeliveryView>,
}

/// The events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The name of a rule; all rules without it.
    rule: Option<String>,
    /// The number of events; 20 by default, 1000 at most.
    limit: Option<usize>,
}

/// List the last events that reached rules
#[utoipa::path(
    get, path = "/v1/deliveries", tag = "deliveries", params(Wanted),
    responses((status = 200, body = Deliveries), (status = 404, description = "Problem: there is no such rule"))
)]
async fn deliveries(
    MayRead(caller): MayRead,
    State(app): State<ServerState>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Deliveries>> {
    let limit = wanted.limit.unwrap_or(20).min(MOST_EVENTS);
    let mut found =
        app.blocking(move |app| Ok(app.core().delivery_views(wanted.rule.as_deref(), limit)?)).await?;
    found.retain(|event| caller.reach.shows_rule(&event.rule));
    Ok(Json(Deliveries { deliveries: found }))
}

/// Show an event and all its decisions
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", tag = "deliveries",
    params(("id" = String, Path, description = "The event's number")),
    responses((status = 200, body = EventView), (status = 404, description = "Problem: there is no such event"))
)]
async fn delivery(_: MayRead, State(app): State<ServerState>, id: IdPath) -> Answer<Json<EventView>> {
    let event = id.number()?;
    Ok(Json(app.blocking(move |app| Ok(app.core().delivery_view(event)?)).await?))
}

/// Give an event to its rule again
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/replay", tag = "deliveries",
    params(("id" = String, Path, description = "The event's number")),
    responses((status = 200, body = DecisionView), (status = 404, description = "Problem: there is no such event"))
)]
async fn replay(_: MayRun, State(app): State<ServerState>, id: IdPath) -> Answer<Json<DecisionView>> {
    let (event, decision) = app.core().replay_event(id.number()?).await?;
    Ok(Json(DecisionView::of(app.core().now(), &decision, &event)))
}
