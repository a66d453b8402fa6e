//! Errors as `application/problem+json`: what happened, by which code, and what to do next.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use sprag::boards::BoardError;
use sprag::{Complaint, ComplaintKind, Diagnostics};
use sprag_store::NotApplied;
use utoipa::ToSchema;

/// What every endpoint's work returns.
pub type Answer<T> = Result<T, Problem>;

/// A problem on its way to its caller. In a box: answers that are good are many, and should be small.
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

/// A problem, as its caller reads it.
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
    /// A word for programs.
    pub code: &'static str,
    /// What happened.
    pub message: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What to name when asking about it: the same is in the server's log.
    pub request_id: String,
    /// What became of the event, if a transition was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Refused>,
    /// What is wrong with a pipeline, each with its place.
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
    /// There is no such thing.
    NotFound {
        /// What kind of thing.
        entity: &'static str,
    },
    /// It came too late.
    Superseded {
        /// What kind of thing.
        entity: &'static str,
        /// What does not hold any more.
        predicate: &'static str,
    },
    /// It means nothing in this status, or not from this caller.
    Illegal {
        /// What kind of thing.
        entity: &'static str,
        /// What it is.
        status: &'static str,
        /// Somebody else could have done it.
        wrong_actor: bool,
    },
}

impl Problem {
    /// A problem with this status and code.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Problem(Box::new(ProblemView {
            kind: format!("urn:sprag:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code,
            message: message.into(),
            next: None,
            request_id: String::new(),
            outcome: None,
            diagnostics: None,
            retry_after_s: None,
        }))
    }

    /// Gives it a more telling code.
    fn called(mut self, code: &'static str) -> Self {
        self.0.code = code;
        self.0.kind = format!("urn:sprag:problem:{code}");
        self
    }

    /// Says what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The request cannot be read.
    pub fn malformed(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    /// The request can be read, and makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    /// It is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// It makes sense, but not now.
    pub fn refused(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, "refused", message)
    }

    /// Too many requests: come back after so many seconds.
    pub fn too_many(retry_after_s: u64) -> Self {
        let message = "too many requests from this caller";
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message);
        problem.retry_after_s = Some(retry_after_s.max(1));
        problem.next(format!("come back in {} s", retry_after_s.max(1)))
    }

    /// It cannot be done at the moment, through no fault of the caller.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
        problem.retry_after_s = Some(1);
        problem.next("try again")
    }

    /// The answer, once it is known which request it is for.
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

/// The body is written where the request's id is known.
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
        problem.next("look at it again, and decide anew")
    }
}

impl From<sprag_store::Error> for Problem {
    fn from(error: sprag_store::Error) -> Self {
        use sprag_store::Error;
        let message = error.to_string();
        match error {
            Error::NoSuchRun(_) => Problem::not_found(message),
            Error::Refused(_) => Problem::refused(message),
            Error::Conflict { .. } => Problem::refused(message).next("look at it again, and decide anew"),
            Error::Locked { .. } | Error::Full { .. } | Error::Closed => Problem::unavailable(message),
            Error::Unknown { .. } => {
                Problem::unavailable(message).next("look whether it was done before doing it again")
            }
            _ => internal(message),
        }
    }
}

impl From<Complaint> for Problem {
    fn from(complaint: Complaint) -> Self {
        let Complaint { kind, message, next, refused } = complaint;
        let mut problem = match (refused, kind) {
            (Some(refused), _) => Problem::from(refused),
            (None, ComplaintKind::NotFound) => Problem::not_found(message),
            (None, ComplaintKind::Wrong) => Problem::invalid(message),
            (None, ComplaintKind::Refused) => Problem::refused(message),
            (None, ComplaintKind::Failed) => internal(message),
        };
        if next.is_some() {
            problem.next = next;
        }
        problem
    }
}

impl From<BoardError> for Problem {
    fn from(error: BoardError) -> Self {
        let (message, code, next) = (error.to_string(), error.code(), error.next());
        let problem = match error {
            BoardError::Store(error) => return error.into(),
            BoardError::NoBoard(_) | BoardError::NoTask { .. } | BoardError::NoToken(_) => {
                Problem::not_found(message)
            }
            BoardError::Invalid(_) => Problem::invalid(message),
            BoardError::Refused(_) | BoardError::Cancelled { .. } => Problem::refused(message),
            BoardError::Lost { why, .. } => {
                // A token whose execution is gone is lost like any other.
                let mut problem = Problem::refused(message);
                problem.0.outcome = Problem::from(why).0.outcome;
                problem
            }
        };
        problem.called(code).next(next)
    }
}

impl From<Diagnostics> for Problem {
    fn from(problems: Diagnostics) -> Self {
        let mut problem = Problem::invalid(problems.to_string());
        problem.code = "pipeline";
        problem.kind = "urn:sprag:problem:pipeline".to_owned();
        problem.diagnostics = serde_json::to_value(&problems).ok();
        problem.next("correct the places that `diagnostics` names")
    }
}

/// Something failed that the caller can do nothing about; the log says what.
pub(crate) fn internal(message: impl Into<String>) -> Problem {
    let message = message.into();
    tracing::error!(message, "request failed");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
        .next("see the server's log under this request's id")
}
