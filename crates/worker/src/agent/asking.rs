//! The questions of an agent to a person: one at a time becomes a gate of the run, and the answer goes back to the agent.
//!
//! ```text
//!   agent ──PermissionRequested──▶ Asking ──▶ gate of the run ──▶ a person
//!     ▲                              │                               │
//!     └────── allow or deny ◀────────┴───────── answer ◀─────────────┘
//!                      no answer for `park_after`: the process ends, and the execution waits without it
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_agent::{AgentControl, Answer, PermissionClosing, PermissionRequest};
use sprag_process::{Secrets, boot_ms};
use sprag_store::{Lease, PermissionAsk, PermissionState};

use super::transcript::one_line;
use crate::control::{left, pause};
use crate::records::Records;

/// The longest time between two looks for an answer. A change of the run is noticed at once.
const LOOK: Duration = Duration::from_secs(2);
/// The shortest time between two looks, because a busy run changes often.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The number of failures in a row after which the store counts as unavailable for questions.
const MOST_FAILURES: u32 = 30;
/// The most bytes of a tool's input in the question.
const MOST_INPUT_BYTES: usize = 16 << 10;
/// The answer to an agent that may not ask.
const NOT_ASKED: &str = "this program cannot ask a person";

/// The terms of asking.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskTerms {
    /// The longest wait for an answer.
    pub(crate) answer_within_ms: u64,
    /// The wait after which the agent is stopped.
    pub(crate) park_after_ms: u64,
}

/// The end of a question.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// A person has answered.
    Answered { request: String, answer: Answer },
    /// There was no answer in time.
    Expired,
    /// The agent is to be stopped until there is an answer.
    Parked,
    /// The store could not be asked.
    Failed(String),
    /// The step belongs to another worker, or is cancelled: the control says so soon.
    NotHeld,
}

type Question = Pin<Box<dyn Future<Output = Asked> + Send>>;

/// The questions of one process.
pub(crate) struct Asking {
    agent: String,
    lease: Lease,
    records: Option<Arc<dyn Records>>,
    terms: AskTerms,
    secrets: Secrets,
    waiting: VecDeque<PermissionRequest>,
    open: Option<(PermissionRequest, Question)>,
}

impl Asking {
    pub(crate) fn new(
        agent: &str,
        lease: Lease,
        records: Option<Arc<dyn Records>>,
        terms: AskTerms,
        secrets: Secrets,
    ) -> Asking {
        Asking {
            agent: agent.to_owned(),
            lease,
            records,
            terms,
            secrets,
            waiting: VecDeque::new(),
            open: None,
        }
    }

    /// Notes a request of the agent.
    pub(crate) fn requested(&mut self, request: PermissionRequest) {
        self.waiting.push_back(request);
    }

    /// Notes that a request is closed. Withdraws its question, unless the worker closed it.
    pub(crate) async fn closed(&mut self, request: &str, how: PermissionClosing, is_stopped: bool) {
        self.waiting.retain(|waiting| waiting.request != request);
        let is_open = self.open.as_ref().is_some_and(|(open, _)| open.request == request);
        if !is_open || matches!(how, PermissionClosing::Allowed | PermissionClosing::Denied) {
            return;
        }
        self.open = None;
        if let Some(records) = self.records.as_ref().filter(|_| !is_stopped)
            && let Err(error) = records.withdraw_permission(self.lease).await
        {
            tracing::warn!(execution = %self.lease.execution, %error, "a question was not withdrawn");
        }
    }

    /// Forgets all requests, because the agent is being stopped.
    pub(crate) fn stop(&mut self) {
        self.waiting.clear();
        self.open = None;
    }

    /// Whether a question waits for an answer.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some() || !self.waiting.is_empty()
    }

    /// Returns the text of the open question.
    pub(crate) fn text(&self) -> String {
        self.open.as_ref().map(|(request, _)| described(request)).unwrap_or_default()
    }

    /// Waits for the end of the oldest question. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Asked {
        if self.open.is_none() {
            match self.waiting.pop_front() {
                Some(request) => self.open = Some((request.clone(), self.question(request))),
                None => return std::future::pending().await,
            }
        }
        let Some((_, question)) = &mut self.open else { return std::future::pending().await };
        let asked = question.as_mut().await;
        if matches!(asked, Asked::Answered { .. } | Asked::NotHeld) {
            self.open = None;
        }
        asked
    }

    fn question(&self, request: PermissionRequest) -> Question {
        let Some(records) = self.records.clone() else {
            let answer = Answer::Deny { message: NOT_ASKED.to_owned() };
            return Box::pin(async move { Asked::Answered { request: request.request, answer } });
        };
        let mut details = json!({ "agent": self.agent, "tool": request.tool, "input": request.input });
        if details.to_string().len() > MOST_INPUT_BYTES {
            details["input"] = Value::Null;
            details["input_is_too_large"] = true.into();
        }
        self.secrets.mask_json(&mut details);
        let ask = format!("{} asks for permission: {}", self.agent, described(&request));
        let asked = PermissionAsk {
            key: request.key(),
            request: request.request,
            ask: self.secrets.mask(&ask),
            details,
            timeout_ms: self.terms.answer_within_ms,
        };
        let park_ms = boot_ms().saturating_add(self.terms.park_after_ms);
        Box::pin(wait_for_answer(records, self.lease, asked, park_ms))
    }
}

/// Asks, and waits for the answer.
async fn wait_for_answer(
    records: Arc<dyn Records>,
    lease: Lease,
    asked: PermissionAsk,
    park_ms: u64,
) -> Asked {
    let mut failures = 0;
    loop {
        match records.ask_permission(lease, asked.clone()).await {
            Ok(PermissionState::Open) => {
                failures = 0;
                if boot_ms() >= park_ms {
                    return Asked::Parked;
                }
            }
            Ok(PermissionState::Answered { approved: true, .. }) => {
                return Asked::Answered { request: asked.request, answer: Answer::Allow };
            }
            Ok(PermissionState::Answered { comment, .. }) => {
                let message = comment.unwrap_or_else(|| "a person denied it".to_owned());
                return Asked::Answered { request: asked.request, answer: Answer::Deny { message } };
            }
            Ok(PermissionState::Expired) => return Asked::Expired,
            Ok(PermissionState::NotHeld) => return Asked::NotHeld,
            Err(error) => {
                failures += 1;
                tracing::warn!(execution = %lease.execution, %error, "asking for a permission failed");
                if failures >= MOST_FAILURES {
                    return Asked::Failed(error);
                }
            }
        }
        pause(LOOK_AGAIN).await;
        let limit = LOOK.min(left(park_ms));
        if let Err(error) = records.wait(lease.execution.run, None, limit).await {
            tracing::debug!(%error, "waiting for an answer failed");
            pause(LOOK).await;
        }
    }
}

/// Sends an answer to the agent. An agent that is gone needs none.
pub(crate) async fn send_answer(agent: &AgentControl, request: String, answer: Answer) {
    if let Err(refused) = agent.answer(request, answer).await {
        tracing::debug!(%refused, "an answer came too late for its agent");
    }
}

/// Returns a request in one line, for people.
fn described(request: &PermissionRequest) -> String {
    let what = if request.title.is_empty() { request.input.to_string() } else { request.title.clone() };
    let what = one_line(&what);
    let why = request.reason.as_deref().map(|reason| format!(" ({})", one_line(reason))).unwrap_or_default();
    format!("{}: {what}{why}", one_line(&request.tool))
}
