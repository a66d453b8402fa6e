//! One module per resource, each with its own routes; together they are the API.

mod artifacts;
mod boards;
mod environments;
mod events;
mod gates;
mod health;
mod hooks;
mod logs;
mod pipelines;
mod queues;
mod runs;
mod steps;
mod tasks;
mod tokens;
mod work;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use serde_json::Value;
use utoipa::openapi::{OpenApi, RefOr, Response};
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use crate::problem::Problem;

pub(crate) use work::Waiting;

/// All routes, with their description.
pub(crate) fn all() -> OpenApiRouter<App> {
    let described = utoipa::openapi::OpenApiBuilder::new()
        .info(
            utoipa::openapi::InfoBuilder::new()
                .title("Sprag")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some("Runs pipelines: durably, in order, and never a step twice."))
                .build(),
        )
        .build();
    OpenApiRouter::with_openapi(described)
        .merge(health::routes())
        .merge(pipelines::routes())
        .merge(runs::routes())
        .merge(steps::routes())
        .merge(logs::routes())
        .merge(artifacts::routes())
        .merge(gates::routes())
        .merge(environments::routes())
        .merge(queues::routes())
        .merge(events::routes())
        .merge(hooks::routes())
        .merge(tokens::routes())
        .merge(boards::routes())
        .merge(tasks::routes())
        .merge(work::routes())
}

/// What the API says of itself.
pub fn openapi() -> Value {
    describe(all().split_for_parts().1)
}

/// Adds what holds for every endpoint: any other answer is a problem, and a token may be needed.
fn describe(mut api: OpenApi) -> Value {
    let problem = Response::builder()
        .description("What went wrong, and what to do next")
        .content("application/problem+json", problem_content())
        .build();
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            // A function's name is unique among its resource only.
            let resource = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
            operation.operation_id = operation.operation_id.take().map(|name| format!("{resource}_{name}"));
            for response in operation.responses.responses.values_mut() {
                if let RefOr::T(response) = response
                    && response.content.is_empty()
                    && response.description.starts_with("Problem")
                {
                    response
                        .content
                        .insert("application/problem+json".to_owned(), RefOr::T(problem_content()));
                }
            }
            operation.responses.responses.entry("default".to_owned()).or_insert(RefOr::T(problem.clone()));
        }
    }
    let mut told = serde_json::to_value(api).unwrap_or_default();
    // The rest of a path has a sign of its own in the router, and none in the description.
    if let Some(paths) = told["paths"].as_object_mut() {
        *paths =
            std::mem::take(paths).into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    }
    told["components"]["schemas"]["Problem"] =
        serde_json::to_value(<crate::problem::ProblemView as utoipa::PartialSchema>::schema())
            .unwrap_or_default();
    told["components"]["schemas"]["Refused"] =
        serde_json::to_value(<crate::problem::Refused as utoipa::PartialSchema>::schema())
            .unwrap_or_default();
    told["components"]["securitySchemes"] = serde_json::json!({ "token": { "type": "http", "scheme": "bearer", "description": "`sprag token new`" } });
    // Nothing, or a token: a server on this machine alone wants none.
    told["security"] = serde_json::json!([{}, { "token": [] }]);
    told
}

fn problem_content() -> utoipa::openapi::Content {
    utoipa::openapi::ContentBuilder::new()
        .schema(Some(utoipa::openapi::Ref::from_schema_name("Problem")))
        .build()
}

/// The finished router: what is not there is told as a problem too.
pub(crate) fn finish(router: Router<App>, api: &OpenApi, app: App) -> Router {
    let described = describe(api.clone()).to_string();
    router
        .merge(crate::agents::router(&app))
        .route(
            "/openapi.json",
            get(move || async move { ([(axum::http::header::CONTENT_TYPE, "application/json")], described) }),
        )
        .fallback(not_there)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), crate::guard::guard))
        .with_state(app)
}

async fn not_there(uri: Uri) -> Problem {
    Problem::not_found(format!("there is nothing at {}", uri.path()))
        .next("see /openapi.json for what there is")
}

async fn wrong_method(State(_): State<App>, method: Method, uri: Uri) -> Problem {
    let message = format!("{} does not understand {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        .next("see /openapi.json for what there is")
}
