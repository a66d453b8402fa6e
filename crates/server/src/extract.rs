//! Extractors: what endpoints read from a request, with errors reported as problems.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use sprag_lifecycle::RunId;

use crate::access::Caller;
use crate::bodies::{BodyOf, ReadBody};
use utoipa::IntoParams;

use crate::problem::Problem;
use crate::state::ServerState;

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ServerState> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &ServerState) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body must be JSON",
            )
            .next("send it with `content-type: application/json`"));
        }
        let body = read_body(request, app.options().body_limit, app).await?;
        parse(&body.bytes).map(Json)
    }
}

/// A JSON body that may be absent.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<ServerState> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &ServerState) -> Result<Self, Problem> {
        let json = is_json(request.headers());
        let body = read_body(request, app.options().body_limit, app).await?;
        match (body.bytes.is_empty(), json) {
            (true, _) => Ok(OptionalJson(T::default())),
            (false, true) => parse(&body.bytes).map(OptionalJson),
            (false, false) => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body must be JSON",
            )
            .next("send it with `content-type: application/json`")),
        }
    }
}

/// Reads the whole body, no longer than the limit. Its bytes count for the caller until it is dropped.
pub(crate) async fn read_body(
    request: Request,
    limit: usize,
    app: &ServerState,
) -> Result<ReadBody, Problem> {
    // Refused before any of it is read.
    if announced_too_long(request.headers(), limit) {
        return Err(Problem::body_too_large(limit));
    }
    let caller = request.extensions().get::<Caller>();
    let token = caller.filter(|caller| !caller.is_own()).and_then(|caller| caller.token);
    app.bodies().read(request.into_body(), limit, BodyOf::token(token)).await
}

/// Whether the headers announce a body of more bytes than this.
pub(crate) fn announced_too_long(headers: &HeaderMap, limit: usize) -> bool {
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    announced.is_some_and(|length| length > limit as u64)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Fields need names: a list of values in the order of the fields is refused.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::invalid("the body must be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::invalid(error.to_string()),
        _ => Problem::malformed(format!("the body is not JSON: {error}")),
    })
}

/// The query, which may hold no unknown parameter.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<ServerState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &ServerState) -> Result<Self, Problem> {
        let read = axum::extract::Query::<T>::from_request_parts(parts, app).await;
        read.map(|query| Query(query.0))
            .map_err(|error: QueryRejection| Problem::malformed(error.body_text()))
    }
}

/// The run that the path names. Its id goes into the log.
pub struct RunPath(pub RunId);

impl FromRequestParts<ServerState> for RunPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &ServerState) -> Result<Self, Problem> {
        let named = Path::<std::collections::BTreeMap<String, String>>::from_request_parts(parts, app).await;
        let named = named.map_err(|error| Problem::not_found(error.body_text()))?;
        let text = named.get("run").map(String::as_str).unwrap_or_default();
        text.parse().map(RunPath).map_err(|error: sprag_lifecycle::RunIdError| {
            Problem::not_found(error.to_string()).next("list the runs: GET /v1/runs")
        })
    }
}

/// Returns one part of the path, by its name.
pub(crate) async fn part(parts: &mut Parts, app: &ServerState, name: &str) -> Result<String, Problem> {
    let named = Path::<std::collections::BTreeMap<String, String>>::from_request_parts(parts, app).await;
    let named = named.map_err(|error| Problem::not_found(error.body_text()))?;
    Ok(named.get(name).cloned().unwrap_or_default())
}

macro_rules! path_parts {
    ($($(#[$doc:meta])* $type:ident = $name:literal),+ $(,)?) => {$(
        $(#[$doc])*
        pub struct $type(pub String);

        impl FromRequestParts<ServerState> for $type {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, app: &ServerState) -> Result<Self, Problem> {
                part(parts, app, $name).await.map($type)
            }
        }
    )+};
}

path_parts! {
    /// The step that the path names.
    StepPath = "step",
    /// The pipeline that the path names.
    PipelinePath = "pipeline",
    /// The queue that the path names.
    QueuePath = "queue",
    /// The account that the path names.
    AccountPath = "account",
    /// The number that the path names.
    IdPath = "id",
    /// The rest of the path.
    RestPath = "path",
    /// The board that the path names.
    BoardPath = "board",
    /// The task that the path names.
    TaskPath = "task",
    /// The token that the path shows.
    TokenPath = "token",
}

/// The rule that a path names.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct RulePath {
    /// The name of the pipeline
    pipeline: String,
    /// The id of its rule
    rule: String,
}

impl RulePath {
    /// Returns the rule's full name: `PIPELINE/RULE`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.pipeline, self.rule)
    }
}

impl FromRequestParts<ServerState> for RulePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &ServerState) -> Result<Self, Problem> {
        Ok(RulePath { pipeline: part(parts, app, "pipeline").await?, rule: part(parts, app, "rule").await? })
    }
}

impl IdPath {
    /// Returns the part as a number. A part that is not a number names nothing, so the answer is not found.
    pub fn number(&self) -> Result<i64, Problem> {
        self.0
            .parse()
            .map_err(|_| Problem::not_found(format!("there is no object with the number {:?}", self.0)))
    }
}

/// The version in `If-Match` that the caller has seen; none if the header is absent.
pub struct IfMatch(pub Option<u32>);

impl FromRequestParts<ServerState> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ServerState) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(IfMatch(None)) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(IfMatch(None));
        }
        let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match number.and_then(|number| number.parse().ok()) {
            Some(version) => Ok(IfMatch(Some(version))),
            None => Err(Problem::malformed(format!("if-match: {text} is not an etag of this server"))
                .next("send the etag unchanged, such as \"7\"")),
        }
    }
}

impl IfMatch {
    /// Refuses the request if the version is not the one that the caller has seen.
    pub fn check(&self, version: u32) -> Result<(), Problem> {
        match self.0 {
            Some(seen) if seen != version => Err(Problem::new(
                StatusCode::PRECONDITION_FAILED,
                "precondition_failed",
                format!("the version is now {version}, not {seen}"),
            )
            .next("read it again, then decide")),
            _ => Ok(()),
        }
    }
}

impl<T: serde::Serialize> axum::response::IntoResponse for Json<T> {
    fn into_response(self) -> axum::response::Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => crate::problem::internal(error.to_string()).into_response(),
        }
    }
}
