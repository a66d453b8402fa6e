//! One module per resource, each with its own routes; together they are the API.

mod accounts;
mod artifacts;
mod audit;
mod boards;
mod changes;
mod durations;
mod environments;
mod events;
mod gates;
mod health;
mod hooks;
mod incoming;
mod landings;
mod logs;
mod pipelines;
mod queues;
mod rules;
mod runs;
mod session;
mod steps;
mod tasks;
mod threads;
mod tokens;
mod work;

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use serde_json::{Map, Value};
use utoipa::openapi::{OpenApi, RefOr, Response};
use utoipa_axum::router::OpenApiRouter;

use crate::problem::Problem;
use crate::state::ServerState;

/// Returns all routes, with their description.
pub(crate) fn all() -> OpenApiRouter<ServerState> {
    let described = utoipa::openapi::OpenApiBuilder::new()
        .info(
            utoipa::openapi::InfoBuilder::new()
                .title("Sprag")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(
                    "Runs pipelines durably and in order, and never starts an attempt of a step twice.",
                ))
                .build(),
        )
        .build();
    OpenApiRouter::with_openapi(described)
        .merge(health::routes())
        .merge(pipelines::routes())
        .merge(runs::routes())
        .merge(steps::routes())
        .merge(changes::routes())
        .merge(durations::routes())
        .merge(logs::routes())
        .merge(artifacts::routes())
        .merge(gates::routes())
        .merge(environments::routes())
        .merge(landings::routes())
        .merge(queues::routes())
        .merge(audit::routes())
        .merge(accounts::routes())
        .merge(rules::routes())
        .merge(threads::routes())
        .merge(events::routes())
        .merge(hooks::routes())
        .merge(tokens::routes())
        .merge(boards::routes())
        .merge(tasks::routes())
        .merge(work::routes())
        .merge(session::routes())
        .merge(incoming::routes())
}

/// Returns the OpenAPI description of the API.
pub fn openapi() -> Value {
    describe(all().split_for_parts().1)
}

/// Adds what applies to every endpoint: any other answer is a problem, and a token may be needed.
fn describe(mut api: OpenApi) -> Value {
    let problem = Response::builder()
        .description("Problem: what failed, and what to do next")
        .content("application/problem+json", problem_content())
        .build();
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            // A function's name is unique within its resource only.
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
    // The router marks the rest of a path with a sign that the description does not have.
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
    if let Some(schemas) = told["components"]["schemas"].as_object_mut() {
        open_flattened(schemas);
    }
    say_bytes_are_bytes(&mut told["paths"]);
    told["components"]["securitySchemes"] = serde_json::json!({ "token": { "type": "http", "scheme": "bearer", "description": "`sprag token new`" } });
    told["security"] = serde_json::json!([{ "token": [] }]);
    for path in crate::guard::OPEN {
        if let Some(operation) = told["paths"].get_mut(path).and_then(|item| item.get_mut("get")) {
            operation["security"] = serde_json::json!([]);
        }
    }
    for method in ["post", "delete"] {
        told["paths"]["/v1/session"][method]["security"] = serde_json::json!([]);
    }
    told["paths"][incoming::PATH]["post"]["security"] = serde_json::json!([]);
    told
}

/// Has a type that refuses unknown fields accept those of the type into which it is flattened.
fn open_flattened(schemas: &mut Map<String, Value>) {
    let closed: BTreeMap<String, Value> = schemas
        .iter()
        .filter(|(_, schema)| schema["additionalProperties"] == false)
        .map(|(name, schema)| {
            let mut open = schema.clone();
            if let Some(open) = open.as_object_mut() {
                open.remove("additionalProperties");
            }
            (format!("#/components/schemas/{name}"), open)
        })
        .collect();
    let parts = schemas.values_mut().filter_map(|schema| schema.get_mut("allOf")?.as_array_mut()).flatten();
    for part in parts {
        if let Some(open) = part["$ref"].as_str().and_then(|name| closed.get(name)) {
            *part = open.clone();
        }
    }
}

/// Describes bodies of bytes as such: the generator takes a vector of bytes for a list of numbers.
fn say_bytes_are_bytes(described: &mut Value) {
    match described {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "application/octet-stream" {
                    *value = serde_json::json!({ "schema": { "type": "string", "format": "binary" } })
                } else {
                    say_bytes_are_bytes(value)
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(say_bytes_are_bytes),
        _ => {}
    }
}

fn problem_content() -> utoipa::openapi::Content {
    utoipa::openapi::ContentBuilder::new()
        .schema(Some(utoipa::openapi::Ref::from_schema_name("Problem")))
        .build()
}

/// Returns the finished router. Unknown paths are answered with a problem too.
pub(crate) fn finish(router: Router<ServerState>, api: &OpenApi, app: ServerState) -> Router {
    let described = describe(api.clone()).to_string();
    router
        .merge(crate::agents::router(&app))
        .merge(crate::pages::router())
        .route(
            "/openapi.json",
            get(move || async move { ([(axum::http::header::CONTENT_TYPE, "application/json")], described) }),
        )
        .fallback(not_there)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), crate::guard::guard))
        .with_state(app)
}

/// Returns the router of an address that takes requests for rules and answers nothing else.
pub(crate) fn only_incoming(app: ServerState) -> Router {
    incoming::only()
        .fallback(not_there)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), crate::guard::guard))
        .layer(axum::Extension(crate::guard::OnlyIncoming))
        .with_state(app)
}

async fn not_there(uri: Uri) -> Problem {
    Problem::not_found(format!("there is no endpoint {}", uri.path()))
        .next("see /openapi.json for the endpoints")
}

async fn wrong_method(State(_): State<ServerState>, method: Method, uri: Uri) -> Problem {
    let message = format!("{} does not support {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        .next("see /openapi.json for the endpoints")
}
