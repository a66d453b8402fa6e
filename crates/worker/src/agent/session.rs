//! The session of an agent step, stored beside the step's logs.
//!
//! ```text
//!   runs/RUN/STEP.session          the agent, the session's id, what it has used; replaced as a whole
//!   runs/RUN/STEP.AGENT.session    the session of an agent that another one stands in for
//! ```
//!
//! A retry, a crash and a resume continue this session. The file is written before the first prompt is sent, so that a
//! worker which is killed loses no session that contains work. A session belongs to the agent's home on one host, and so
//! does the file: an attempt on another host starts a new session.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sprag_agent::{AgentSettings, Driver, Session, Usage};
use sprag_pipeline::AgentSpec;
use sprag_process::{boot_ms, read_regular, replace_private};
use sprag_store::Assignment;

use super::thread::ThreadTarget;
use crate::files::Files;

/// The largest file of a session: it holds a few names and numbers.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredSession {
    /// The agent's name.
    pub(crate) agent: String,
    /// The wire that it speaks.
    pub(crate) driver: Driver,
    /// The id with which the session can be resumed.
    pub(crate) id: String,
    /// The round of the step in which it was used last.
    pub(crate) round: u32,
    /// Whether the step succeeded in it.
    pub(crate) is_done: bool,
    /// Whether a usage limit of the account stopped it.
    #[serde(default)]
    pub(crate) is_limited: bool,
    /// The number of times that a person has granted the step's budget again.
    #[serde(default)]
    pub(crate) granted: u32,
    /// The tool calls of all attempts of this step.
    pub(crate) tool_calls: u64,
    /// The tokens and cost of all attempts of this step.
    pub(crate) usage: Usage,
}

impl StoredSession {
    /// Reads a session; `None` if there is none that can be read.
    fn load(path: &Path) -> Option<StoredSession> {
        serde_json::from_slice(&read_regular(path, MAX_FILE_BYTES).ok()?).ok()
    }

    /// Replaces the file.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        replace_private(path, &serde_json::to_vec(self)?)
    }
}

/// The session that an attempt works in.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    /// The session for the agent's start.
    pub(crate) session: Session,
    /// Whether the step itself has worked in the session before, and not only the step that it continues.
    pub(crate) is_own: bool,
    /// Whether a usage limit of the account stopped the session.
    pub(crate) is_limited: bool,
    /// Another agent that has worked on the step since, or before.
    pub(crate) after: Option<String>,
    /// The number of times that a person has granted the step's budget again.
    pub(crate) granted: u32,
    /// The tool calls of earlier attempts.
    pub(crate) tool_calls: u64,
    /// The tokens and cost of earlier attempts.
    pub(crate) usage: Usage,
    /// The session as it was before a person talked to it; none in a step's own attempt.
    pub(crate) talked_to: Option<StoredSession>,
    /// A remark for the step's log, if the session is not the expected one.
    pub(crate) remark: Option<String>,
}

/// Chooses the session of an attempt: the step's own, else the one that it continues, else a new one.
pub(crate) fn choose(
    files: &Files,
    assignment: &Assignment,
    agent: &AgentSpec,
    settings: &AgentSettings,
) -> Chosen {
    let id = assignment.lease.execution;
    let fits = |stored: &StoredSession| stored.agent == settings.name && stored.driver == settings.driver;
    let (mut used_calls, mut used) = (0, Usage::default());
    let mut granted = 0;
    let path = files.session(id, &assignment.name);
    let last = StoredSession::load(&path);
    if let Some(last) = &last {
        granted = last.granted;
    }
    let after = last.as_ref().filter(|last| !fits(last)).map(|last| last.agent.clone());
    let mut own = last.clone().filter(fits);
    if let Some(last) = last.filter(|_| after.is_some()) {
        // The session of the other agent is kept: it continues when its account is free again.
        let aside = files.session_of(id, &assignment.name, &last.agent);
        if let Err(error) = last.save(&aside) {
            tracing::warn!(path = %aside.display(), %error, "the session of an agent was not kept");
        }
        // The budget is the step's, whichever agents work on it.
        let before = StoredSession::load(&files.session_of(id, &assignment.name, &settings.name));
        own = before.filter(fits).map(|own| StoredSession {
            tool_calls: last.tool_calls,
            usage: last.usage,
            ..own
        });
        (used_calls, used) = (last.tool_calls, last.usage);
    }
    // A step that succeeded and starts again in the same round was rewound: its work is undone, its session too.
    let is_rewound =
        |stored: &StoredSession| stored.is_done && stored.round == assignment.round && !assignment.is_retry;
    let (tool_calls, usage) = own.as_ref().map_or((used_calls, used), |own| (own.tool_calls, own.usage));
    let chosen = |session, is_own, remark| Chosen {
        session,
        is_own,
        is_limited: false,
        after: after.clone(),
        granted,
        tool_calls,
        usage,
        talked_to: None,
        remark,
    };
    if let Some(own) = own.filter(|own| !is_rewound(own)) {
        let is_limited = own.is_limited;
        return Chosen { is_limited, ..chosen(Session::Resume { id: own.id }, true, None) };
    }
    let Some(from) = &agent.continues else { return chosen(new(assignment), false, None) };
    match StoredSession::load(&files.session(id, from)).filter(fits) {
        Some(other) => chosen(Session::Resume { id: other.id }, false, None),
        None => {
            let remark = format!("step `{from}` left no session on this host: the agent starts a new one");
            chosen(new(assignment), false, Some(remark))
        }
    }
}

/// Chooses the session of a thread that a person talks to.
pub(crate) fn talk(
    files: &Files,
    assignment: &Assignment,
    target: &ThreadTarget,
    settings: &AgentSettings,
) -> Result<Chosen, String> {
    let id = target.execution(assignment.lease.execution.attempt);
    let Some(stored) = StoredSession::load(&files.session(id, &target.name)) else {
        return Err(format!("step {} of run {} has no session on this host", target.name, id.run));
    };
    if stored.agent != settings.name || stored.driver != settings.driver {
        return Err(format!("the session is of agent {}, not of {}", stored.agent, settings.name));
    }
    Ok(Chosen {
        session: Session::Resume { id: stored.id.clone() },
        is_own: true,
        is_limited: false,
        after: None,
        granted: stored.granted,
        tool_calls: stored.tool_calls,
        usage: stored.usage,
        talked_to: Some(stored),
        remark: None,
    })
}

/// Returns a new session.
pub(crate) fn new(assignment: &Assignment) -> Session {
    Session::New { id: unique_id(assignment, "session") }
}

/// Returns an id in the form of a UUID that no other attempt uses.
pub(crate) fn unique_id(assignment: &Assignment, purpose: &str) -> String {
    let lease = assignment.lease;
    let mut hash = Sha256::new();
    hash.update(format!(
        "{} {} {purpose} {} {}",
        lease.execution,
        lease.guard(),
        boot_ms(),
        std::process::id()
    ));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    // The version and the variant of a random UUID.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
