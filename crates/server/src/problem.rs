//! Errors as `application/problem+json`: what happened, under which code, and what to do next.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use sprag_app::{Diagnostics, Error, ErrorKind, Hint, NotApplied};
use utoipa::ToSchema;

/// The result of an endpoint.
pub type Answer<T> = Result<T, Problem>;

/// A problem on its way to its caller. It is boxed, because most answers are successes and should stay small.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem(Box<ProblemView>);

impl std::ops::Deref for Problem {
    type Target = ProblemView;

    fn deref(&self) -> &ProblemView {
        &self.0
    }
}

impl std::ops::DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut ProblemView {
        &mut self.0
    }
}

/// An unsuccessful answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemView {
    /// `urn:sprag:problem:CODE`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// A code for programs.
    pub code: &'static str,
    /// A description of the problem.
    pub message: String,
    /// The part of the request that is wrong, if it is the caller's mistake and in one part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<&'static str>,
    /// The advised next action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The request's id, which is also in the server's log.
    pub request_id: String,
    /// The outcome of the event, if a transition was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Refused>,
    /// The mistakes in a pipeline, with their positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub diagnostics: Option<Value>,
    /// After how many seconds to come back.
    #[serde(skip)]
    pub retry_after_s: Option<u64>,
}

/// A refused transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Refused {
    /// The entity does not exist.
    NotFound {
        /// The kind of the entity.
        entity: &'static str,
    },
    /// The event came too late.
    Superseded {
        /// The kind of the entity.
        entity: &'static str,
        /// The condition that no longer holds.
        predicate: &'static str,
    },
    /// The event is not allowed in this status, or not from this caller.
    Illegal {
        /// The kind of the entity.
        entity: &'static str,
        /// The current status.
        status: &'static str,
        /// Whether another actor may report the event.
        wrong_actor: bool,
    },
}

impl Problem {
    /// Returns a problem with this status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Problem(Box::new(ProblemView {
            kind: format!("urn:sprag:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code,
            message: message.into(),
            field: None,
            next: None,
            request_id: String::new(),
            outcome: None,
            diagnostics: None,
            retry_after_s: None,
        }))
    }

    /// Sets a more specific code.
    pub(crate) fn called(mut self, code: &'static str) -> Self {
        self.0.code = code;
        self.0.kind = format!("urn:sprag:problem:{code}");
        self
    }

    /// Sets another HTTP status.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = status.as_u16();
        self.0.title = status.canonical_reason().unwrap_or("Error").to_owned();
        self
    }

    /// Sets the advice on what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Returns the problem for a request that cannot be read.
    pub fn malformed(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    /// Returns the problem for a request that can be read, but makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    /// Returns the problem for something that does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Returns the problem for a request that makes sense, but not in the present state.
    pub fn refused(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, "refused", message)
    }

    /// Returns the problem for too many requests: the caller should retry after this many seconds.
    pub fn too_many(retry_after_s: u64) -> Self {
        let message = "too many requests from this caller";
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message);
        problem.retry_after_s = Some(retry_after_s.max(1));
        problem.next(format!("try again in {} s", retry_after_s.max(1)))
    }

    /// Returns the problem for a body that is longer than `limit` bytes.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Returns the problem for something that cannot be done at the moment, through no fault of the caller.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        problem.retry_after_s = Some(1);
        problem.next("try again")
    }

    /// Returns the answer, once it is known which request it is for.
    pub(crate) fn answer(mut self, request_id: &str) -> Response {
        self.request_id = request_id.to_owned();
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&*self.0).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The guard writes the body, because it knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(std::sync::Arc::new(self));
        response
    }
}

impl From<NotApplied> for Problem {
    fn from(refused: NotApplied) -> Self {
        let status = StatusCode::from_u16(refused.http_status()).unwrap_or(StatusCode::CONFLICT);
        let code = if status == StatusCode::NOT_FOUND { "not_found" } else { "refused" };
        let mut problem = Problem::new(status, code, refused.to_string());
        problem.outcome = Some(match refused {
            NotApplied::NotFound { entity } => Refused::NotFound { entity },
            NotApplied::Superseded { entity, predicate } => Refused::Superseded { entity, predicate },
            NotApplied::Illegal { entity, status, wrong_actor } => {
                Refused::Illegal { entity, status, wrong_actor }
            }
        });
        problem.next("read it again, then decide")
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let Error { kind, code, message, field, hint, refused, diagnostics } = error;
        let mut problem = match (kind, &refused) {
            // A refusal has the table's own status and outcome.
            (_, Some(refused)) => Problem::from(NotApplied::clone(refused)),
            (ErrorKind::NotFound, None) => Problem::not_found(""),
            (ErrorKind::Invalid, None) => Problem::invalid(""),
            (ErrorKind::Refused, None) => Problem::refused(""),
            (ErrorKind::Forbidden, None) => Problem::new(StatusCode::FORBIDDEN, "forbidden", ""),
            (ErrorKind::TooLarge, None) => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", ""),
            (ErrorKind::TooMany { retry_after_s }, None) => Problem::too_many(retry_after_s),
            (ErrorKind::Unavailable, None) => Problem::unavailable(""),
            // Whether it was done is not known: only the caller can tell whether it may be done again.
            (ErrorKind::UnknownOutcome, None) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unknown", ""),
            (ErrorKind::Failed | ErrorKind::Bug, None) => internal(message.as_str()),
        };
        // An error's own word says more than that of its kind.
        if code != kind.code() {
            problem = problem.called(code);
            // A token whose execution is gone is lost like any other.
            if kind == ErrorKind::Refused {
                problem = problem.with_status(StatusCode::CONFLICT);
            }
        }
        problem.message = message;
        problem.field = field;
        problem.diagnostics = diagnostics.and_then(|problems| serde_json::to_value(&problems).ok());
        if problem.diagnostics.is_some() {
            problem = problem.next("correct the mistakes listed in `diagnostics`");
        }
        if let Some(hint) = hint {
            problem.next = Some(next(*hint));
        }
        problem
    }
}

/// Puts advice into words for callers of the API.
fn next(hint: Hint) -> String {
    match hint {
        Hint::Text(text) => text,
        Hint::ExplainRun(run) => format!("see what it waits for: GET /v1/runs/{run}/explain"),
        Hint::NameStep { step, .. } => format!("name the step, such as {step:?}"),
        Hint::LookAtRun(run) => format!("look at it: GET /v1/runs/{run}"),
        Hint::WatchOrCancel(run) => {
            format!("watch it: GET /v1/runs/{run}/events; or cancel it: POST /v1/runs/{run}/cancel")
        }
        Hint::StartARun => "start one: POST /v1/runs".into(),
        Hint::ListRuns => "list the runs: GET /v1/runs".into(),
        Hint::ListBoards { near } => {
            let near = near.map(|near| format!("did you mean {near:?}? ")).unwrap_or_default();
            format!("{near}list the boards: GET /v1/boards")
        }
        Hint::NearestRun { run, pipeline, status } => {
            format!("the nearest is {run} ({pipeline}, {status}); GET /v1/runs lists them")
        }
        Hint::StatesForgotten => {
            "the states of old runs are forgotten when cleaning up; start a new run".into()
        }
        Hint::RegisterWorker => "POST /v1/work/register first".into(),
        Hint::StopWork => "stop the work: another worker has it, or it is over".into(),
        Hint::AskForLogSize => "send an empty piece at offset 0: the answer says how many have".into(),
    }
}

impl From<Diagnostics> for Problem {
    fn from(problems: Diagnostics) -> Self {
        Error::from(problems).into()
    }
}

/// Returns the problem for a failure that the caller can do nothing about; the log has the details.
pub(crate) fn internal(message: impl Into<String>) -> Problem {
    let message = message.into();
    tracing::error!(message, "request failed");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
        .next("see the server's log under this request's id")
}
