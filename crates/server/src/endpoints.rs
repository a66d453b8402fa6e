//! The object of each endpoint's requests, by which the guard decides whether a limited caller may send one.
//!
//! An endpoint that is not in the table is closed to callers with limits, so that a new one cannot be forgotten.

use axum::RequestPartsExt;
use axum::extract::{MatchedPath, RawPathParams, Request};
use axum::http::Method;
use sprag_app::{Reach, Subject};

use crate::problem::Problem;
use crate::state::ServerState;

/// The object of the requests to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concern {
    /// The run in the path.
    Run,
    /// The gate in the path.
    Gate,
    /// The environment in the path.
    Environment,
    /// The board in the path.
    Board,
    /// The pipeline in the path.
    Pipeline,
    /// The rule in the path.
    Rule,
    /// The event of a rule in the path.
    Delivery,
    /// The queue in the path.
    Queue,
    /// Several objects, of which the endpoint shows those in reach.
    Listed,
    /// An object that only the body names; the endpoint checks it.
    InBody,
    /// Work that the caller holds: the worker's key or the task's token proves it.
    Own,
    /// Nothing that a limit could exclude.
    Nothing,
    /// The whole server.
    Everything,
}

use Concern::*;

/// The endpoints.
pub(crate) const ENDPOINTS: &[(&str, &str, Concern)] = &[
    ("GET", "/healthz", Nothing),
    ("GET", "/readyz", Nothing),
    ("GET", "/openapi.json", Nothing),
    ("GET", "/metrics", Everything),
    ("POST", "/in/{pipeline}/{rule}", Nothing),
    ("POST", "/v1/session", Nothing),
    ("DELETE", "/v1/session", Nothing),
    ("GET", "/v1/me", Nothing),
    ("GET", "/v1/lifecycles", Nothing),
    // Each tool checks its own object.
    ("GET", "/mcp", InBody),
    ("POST", "/mcp", InBody),
    ("DELETE", "/mcp", InBody),
    ("GET", "/v1/pipelines", Listed),
    ("POST", "/v1/pipelines/validate", Nothing),
    ("GET", "/v1/pipelines/{pipeline}", Pipeline),
    ("GET", "/v1/runs", Listed),
    ("POST", "/v1/runs", InBody),
    ("GET", "/v1/runs/find", Listed),
    ("GET", "/v1/waiting", Listed),
    ("GET", "/v1/durations", Listed),
    ("GET", "/v1/runs/{run}", Run),
    ("GET", "/v1/runs/{run}/questions", Run),
    ("POST", "/v1/runs/{run}/cancel", Run),
    ("POST", "/v1/runs/{run}/retry", Run),
    ("POST", "/v1/runs/{run}/resume", Run),
    ("POST", "/v1/runs/{run}/rewind", Run),
    ("POST", "/v1/runs/{run}/fork", Run),
    ("POST", "/v1/runs/{run}/skip", Run),
    ("POST", "/v1/runs/{run}/signals", Run),
    ("GET", "/v1/runs/{run}/steps", Run),
    ("GET", "/v1/runs/{run}/steps/{step}", Run),
    ("GET", "/v1/runs/{run}/executions", Run),
    ("GET", "/v1/runs/{run}/explain", Run),
    ("GET", "/v1/runs/{run}/graph", Run),
    ("GET", "/v1/runs/{run}/changes", Run),
    ("GET", "/v1/runs/{run}/diff", Run),
    ("GET", "/v1/runs/{run}/comments", Run),
    ("POST", "/v1/runs/{run}/comments", Run),
    ("POST", "/v1/runs/{run}/comments/sent", Run),
    ("DELETE", "/v1/runs/{run}/comments/{id}", Run),
    ("GET", "/v1/runs/{run}/artifacts", Run),
    ("GET", "/v1/runs/{run}/artifacts/{*path}", Run),
    ("GET", "/v1/runs/{run}/steps/{step}/log", Run),
    ("GET", "/v1/runs/{run}/steps/{step}/log/lines", Run),
    ("GET", "/v1/runs/{run}/steps/{step}/log/search", Run),
    ("GET", "/v1/runs/{run}/steps/{step}/thread", Run),
    ("POST", "/v1/runs/{run}/steps/{step}/thread/messages", Run),
    ("DELETE", "/v1/runs/{run}/steps/{step}/thread", Run),
    ("POST", "/v1/runs/{run}/steps/{step}/thread/archive", Run),
    ("POST", "/v1/runs/{run}/steps/{step}/thread/stop", Run),
    ("GET", "/v1/runs/{run}/steps/{step}/thread/transcript", Run),
    ("GET", "/v1/threads", Listed),
    ("GET", "/v1/gates", Listed),
    ("GET", "/v1/gates/{id}", Gate),
    ("POST", "/v1/gates/{id}/answer", Gate),
    ("GET", "/v1/environments", Listed),
    ("GET", "/v1/environments/{id}", Environment),
    ("POST", "/v1/environments/{id}/cleanup", Environment),
    ("GET", "/v1/landings", Listed),
    ("GET", "/v1/queues", Listed),
    ("POST", "/v1/queues/{queue}/hold", Queue),
    ("POST", "/v1/queues/{queue}/release", Queue),
    ("PUT", "/v1/queues/{queue}/limit", Queue),
    ("GET", "/v1/workers", Listed),
    ("GET", "/v1/accounts", Listed),
    ("POST", "/v1/accounts/{account}/hold", Everything),
    ("POST", "/v1/accounts/{account}/release", Everything),
    ("GET", "/v1/rules", Listed),
    ("POST", "/v1/rules", Everything),
    ("GET", "/v1/rules/{pipeline}/{rule}", Rule),
    ("DELETE", "/v1/rules/{pipeline}/{rule}", Rule),
    ("GET", "/v1/rules/{pipeline}/{rule}/explain", Rule),
    ("POST", "/v1/rules/{pipeline}/{rule}/backfill", Rule),
    ("POST", "/v1/rules/{pipeline}/{rule}/pause", Rule),
    ("POST", "/v1/rules/{pipeline}/{rule}/resume", Rule),
    ("POST", "/v1/rules/{pipeline}/{rule}/fire", Rule),
    ("POST", "/v1/rules/{pipeline}/{rule}/test", Rule),
    ("GET", "/v1/deliveries", Listed),
    ("GET", "/v1/deliveries/{id}", Delivery),
    ("POST", "/v1/deliveries/{id}/replay", Delivery),
    ("GET", "/v1/events", Listed),
    ("GET", "/v1/journal", Listed),
    ("GET", "/v1/refusals", Listed),
    ("GET", "/v1/audit", Everything),
    ("GET", "/v1/hooks", Everything),
    ("POST", "/v1/hooks", Everything),
    ("GET", "/v1/hooks/{id}", Everything),
    ("DELETE", "/v1/hooks/{id}", Everything),
    ("POST", "/v1/hooks/{id}/retry", Everything),
    ("POST", "/v1/hooks/{id}/test", Everything),
    ("GET", "/v1/tokens", Everything),
    ("POST", "/v1/tokens", Everything),
    ("DELETE", "/v1/tokens/{id}", Everything),
    ("POST", "/v1/tokens/{id}/rotate", Everything),
    ("GET", "/v1/boards", Listed),
    ("POST", "/v1/boards", InBody),
    ("GET", "/v1/boards/{board}", Board),
    ("PUT", "/v1/boards/{board}/plan", Board),
    ("POST", "/v1/boards/{board}/close", Board),
    ("GET", "/v1/boards/{board}/report", Board),
    ("GET", "/v1/boards/{board}/tasks", Board),
    ("POST", "/v1/boards/{board}/tasks", Board),
    ("GET", "/v1/boards/{board}/tasks/{task}", Board),
    ("POST", "/v1/boards/{board}/tasks/{task}/cancel", Board),
    ("POST", "/v1/boards/{board}/tasks/{task}/retry", Board),
    ("GET", "/v1/boards/{board}/notes", Board),
    ("POST", "/v1/boards/{board}/notes", Board),
    ("GET", "/v1/tasks", Listed),
    ("POST", "/v1/tasks/claim", InBody),
    ("POST", "/v1/tasks/{token}/start", Own),
    ("POST", "/v1/tasks/{token}/heartbeat", Own),
    ("POST", "/v1/tasks/{token}/done", Own),
    ("POST", "/v1/tasks/{token}/fail", Own),
    ("POST", "/v1/tasks/{token}/release", Own),
    ("POST", "/v1/work/register", InBody),
    ("POST", "/v1/work/claim", InBody),
    ("POST", "/v1/work/heartbeat", Own),
    ("POST", "/v1/work/watch", Own),
    ("POST", "/v1/work/drain", Own),
    ("POST", "/v1/work/leave", Own),
    ("POST", "/v1/work/finish", Own),
    ("POST", "/v1/work/release", Own),
    ("POST", "/v1/work/vanished", Own),
    ("POST", "/v1/work/logs", Own),
    ("POST", "/v1/work/files", Own),
    ("POST", "/v1/work/file", Own),
    ("POST", "/v1/work/environment", Own),
    ("POST", "/v1/work/tidy", Own),
    ("POST", "/v1/work/destroy", Own),
    ("POST", "/v1/work/destroyed", Own),
];

/// Returns the object of the requests to an endpoint; the whole server if the table does not have it.
fn concern(method: &Method, route: &str) -> Concern {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let found = ENDPOINTS.iter().find(|(of, path, _)| *of == method && *path == route);
    found.map_or(Everything, |(_, _, concern)| *concern)
}

/// Refuses a request about something that the caller does not reach.
pub(crate) async fn require_reach(
    app: &ServerState,
    request: &mut Request,
    reach: &Reach,
) -> Result<(), Problem> {
    if reach.is_everything() {
        return Ok(());
    }
    // A path without an endpoint is answered with 404.
    let Some(route) = request.extensions().get::<MatchedPath>().cloned() else { return Ok(()) };
    let concern = concern(request.method(), route.as_str());
    if matches!(concern, Listed | InBody | Own | Nothing) {
        return Ok(());
    }
    let (mut parts, body) = std::mem::take(request).into_parts();
    let parameters = parts.extract::<RawPathParams>().await;
    *request = Request::from_parts(parts, body);
    let parameters = parameters.map_err(|error| Problem::malformed(error.to_string()))?;
    let values: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let reach = reach.clone();
    app.blocking(move |app| {
        let value = |name: &str| {
            let found = values.iter().find(|(of, _)| of == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let rule = format!("{}/{}", value("pipeline"), value("rule"));
        // A value that is no number or id names nothing: the endpoint answers that it is malformed.
        let number = |name: &str| value(name).parse().ok();
        let subject = match concern {
            Run => value("run").parse().ok().map(Subject::Run),
            Gate => number("id").map(Subject::Gate),
            Environment => number("id").map(Subject::Environment),
            Delivery => number("id").map(Subject::Delivery),
            Board => Some(Subject::Board(value("board"))),
            Pipeline => Some(Subject::Pipeline(value("pipeline"))),
            Rule => Some(Subject::Rule(&rule)),
            Queue => Some(Subject::Queue(value("queue"))),
            Everything | Listed | InBody | Own | Nothing => Some(Subject::Everything),
        };
        let Some(subject) = subject else { return Ok(()) };
        Ok(app.core().require_reach(&reach, subject)?)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e04_every_endpoint_has_its_object() {
        let described = crate::openapi();
        for (path, operations) in described["paths"].as_object().expect("paths") {
            for method in operations.as_object().expect("operations").keys() {
                let known = ENDPOINTS.iter().any(|(of, route, _)| {
                    of.eq_ignore_ascii_case(method) && route.replace("{*", "{") == *path
                });
                assert!(known, "{method} {path} is not in the table of endpoints");
            }
        }
        assert_eq!(concern(&Method::GET, "/v1/new"), Everything, "closed until it is in the table");
    }

    #[test]
    fn the_table_has_each_endpoint_once() {
        let mut seen = std::collections::BTreeSet::new();
        for (method, path, _) in ENDPOINTS {
            assert!(seen.insert((method, path)), "{method} {path}");
        }
    }
}
