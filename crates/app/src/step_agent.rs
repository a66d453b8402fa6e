//! The agent of a step as a caller: the tools of `mcp: [sprag]`, with the step's own token.
//!
//! ```text
//!   token ──▶ App::step_agent: signature, fence, status, cancel ──▶ StepAgent ──▶ report, note, ask; claim on its board
//!                                                                      └ each write checks the same in its transaction
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_pipeline::{Kind, StepSpec};
use sprag_store::{
    Author, BoardRow, Id, Lease, NoteRow, PermissionAsk, QuestionState, Topic, acting_for_step, why_void,
};
use sprag_worker::{read_step_token, sign_step_token};

use crate::App;
use crate::boards::{
    self, ClaimRequest, Claimed, NoteSpec, NoteView, Nothing, agent_id, agent_name, lease_of,
};
use crate::error::{Error, ErrorKind};
use crate::known::RunWithPlan;
use crate::text::rfc3339;
use crate::tokens::token_hash;

/// The tag of notes that are reports of a step's agent. No note of a board can have it.
const REPORT_TAG: &str = "@report";
/// The tag of notes that a step's agent leaves on its run. No note of a board can have it.
const NOTE_TAG: &str = "@note";
/// The most notes that are shown with a run: the last ones.
const MOST_SHOWN: usize = 20;
/// The most notes of a run that are searched for the last ones; the store takes no more of a kind.
const MOST_SEARCHED: usize = 1_000;
/// The longest wait for an answer in one call. Agents give up on a tool after a minute.
const LONGEST_WAIT: Duration = Duration::from_secs(50);
/// The wait for an answer, if the agent names none.
const USUAL_WAIT: Duration = Duration::from_secs(45);
/// The time after which a question without an answer expires.
const ANSWER_WITHIN_MS: u64 = 24 * 3600 * 1000;
/// The longest question, in bytes.
const LONGEST_QUESTION: usize = 4 << 10;
/// The most choices of a question, and the longest choice in characters.
const MOST_CHOICES: usize = 10;
const LONGEST_CHOICE: usize = 100;

/// The agent of a step that is being executed.
#[derive(Debug, Clone)]
pub struct StepAgent {
    lease: Lease,
    /// The name of the step.
    step: String,
    /// The board on which it claims tasks.
    board: Option<String>,
}

/// A note or a report of a step's agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepNote {
    /// The step whose agent wrote it.
    pub step: String,
    /// `report` or `note`.
    pub kind: String,
    /// The text.
    pub text: String,
    /// The time at which it was written.
    pub at: String,
}

/// The state of a question that the agent asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum StepAnswer {
    /// A person has answered.
    Answered {
        /// The choice.
        choice: String,
        /// The person's words.
        #[serde(skip_serializing_if = "Option::is_none")]
        comment: Option<String>,
    },
    /// There is no answer yet.
    Open {
        /// The advice for the agent.
        next: &'static str,
    },
    /// There was no answer within a day.
    Expired,
}

/// A question of a step's agent to a person.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepQuestion {
    /// The question. The same question again waits for the same answer.
    pub question: String,
    /// The possible answers [default: yes, no]. A person can add a comment to each.
    #[serde(default)]
    pub choices: Vec<String>,
    /// The seconds to wait for the answer in this call [default: 45; at most 50].
    #[serde(default)]
    pub wait_s: Option<u64>,
}

impl App {
    /// Returns the token of an execution for its own agent.
    pub(crate) fn step_token(&self, lease: Lease) -> Result<String, Error> {
        Ok(sign_step_token(&self.store.queries().token_key()?, lease))
    }

    /// Returns the agent that a token of a step belongs to, while its execution is running and was not cancelled.
    pub async fn step_agent(&self, token: &str) -> Result<StepAgent, Error> {
        let void = |why: &str| {
            Error::new(ErrorKind::Forbidden, format!("the attempt that this token belongs to {why}"))
                .coded("step_over")
                .next("stop: nothing that you report counts any more")
        };
        let lease = read_step_token(&self.store.queries().token_key()?, token).ok_or_else(|| {
            Error::new(ErrorKind::Forbidden, "this is not the token of a step").coded("no_token")
        })?;
        let row = self.store.queries().execution(lease.execution)?;
        if let Some(why) = why_void(row.as_ref(), lease, self.store.now().steady_ms) {
            return Err(void(why));
        }
        let assignment = self.store.worker(lease).assignment().await?.ok_or_else(|| void("has ended"))?;
        let spec: StepSpec = serde_json::from_str(&assignment.step().spec)
            .map_err(|error| Error::bug(format!("the spec of a running step: {error}")))?;
        let board = match &spec.kind {
            Kind::Agent(agent) if agent.has_sprag_tools() => match &agent.board {
                // Rendered from the store's own rows, so that no worker chooses the board.
                Some(board) if board.contains("{{") => {
                    let rendered = sprag_worker::render(&assignment, &spec, None).map_err(Error::failed)?;
                    let Kind::Agent(agent) = rendered.kind else { return Err(void("has no agent")) };
                    agent.board
                }
                board => board.clone(),
            },
            _ => {
                let message = "the step of this token does not have `mcp: [sprag]`";
                return Err(Error::new(ErrorKind::Forbidden, message));
            }
        };
        Ok(StepAgent { lease, step: assignment.name.clone(), board })
    }

    /// Returns the run of a step by the step's token, whether the step is still running or not; none if this store did not
    /// sign the token.
    pub fn run_of_step_token(&self, token: &str) -> Result<Option<RunId>, Error> {
        let lease = read_step_token(&self.store.queries().token_key()?, token);
        Ok(lease.map(|lease| lease.execution.run))
    }

    /// Releases all tasks that the agent of a step has claimed and not reported. The token need not be valid any more: the
    /// tasks of an attempt that was cancelled are released, too.
    pub async fn release_step_tasks(&self, token: &str) -> Result<usize, Error> {
        let Some(lease) = read_step_token(&self.store.queries().token_key()?, token) else { return Ok(0) };
        let known = RunWithPlan::load(self, lease.execution.run)?;
        let step = known.name_of(self, lease.execution.step);
        boards::release_held(self, agent_id(&step, &caller(lease))).await
    }

    /// Returns the last notes and reports of the agents of a run's steps.
    pub fn step_notes(&self, run: RunId) -> Result<Vec<StepNote>, Error> {
        let mut notes = Vec::new();
        for tag in [REPORT_TAG, NOTE_TAG] {
            notes.extend(self.store.queries().notes(run, Some(tag), 0, MOST_SEARCHED)?);
        }
        notes.sort_by_key(|note| note.id);
        let last = notes.len().saturating_sub(MOST_SHOWN);
        Ok(notes[last..].iter().map(StepNote::of).collect())
    }
}

impl StepNote {
    fn of(note: &NoteRow) -> StepNote {
        StepNote {
            step: note.author.to_string(),
            kind: note.tag.trim_start_matches('@').to_owned(),
            text: note.text.to_string(),
            at: rfc3339(note.at_ms),
        }
    }
}

impl StepAgent {
    /// Whether the step has a board on which it can claim tasks.
    pub fn has_board(&self) -> bool {
        self.board.is_some()
    }

    /// Does `work` in the name of the agent. Each write of it fails as soon as the execution has ended.
    pub async fn act<T>(&self, work: impl Future<Output = T>) -> T {
        acting_for_step(Author::agent(&self.name()), self.lease, work).await
    }

    /// Returns the name under which others see the agent.
    fn name(&self) -> String {
        agent_name(&self.step, &self.caller())
    }

    /// Stores a report about the work on the step, for people.
    pub async fn report(&self, app: &App, text: &str) -> Result<(), Error> {
        self.leave(app, REPORT_TAG, text).await
    }

    /// Leaves a note: on the board for the others who work on it, else on the run.
    pub async fn note(&self, app: &App, text: &str, tag: Option<&str>) -> Result<(), Error> {
        match self.known_board(app)? {
            Some(board) => {
                let tag = tag.map(str::to_owned);
                let note = NoteSpec { author: self.name(), tag, text: text.to_owned() };
                boards::add_note(app, &board, &note).await.map(drop)
            }
            None => self.leave(app, NOTE_TAG, text).await,
        }
    }

    async fn leave(&self, app: &App, tag: &str, text: &str) -> Result<(), Error> {
        if text.trim().is_empty() {
            return Err(Error::invalid("the text is empty"));
        }
        boards::check_text("the text", text)?;
        let holder = app.store.worker(self.lease);
        holder.add_note(self.step.as_str().into(), tag.into(), text.into()).await?;
        Ok(())
    }

    /// Returns the notes of the board, or those of the run's own steps.
    pub fn notes(&self, app: &App, after: i64) -> Result<Vec<NoteView>, Error> {
        if let Some(board) = self.known_board(app)? {
            return boards::notes(app, &board, None, after, 1000);
        }
        let found = app.store.queries().notes(self.lease.execution.run, Some(NOTE_TAG), after, 1000)?;
        Ok(found.iter().map(boards::told).collect())
    }

    /// Asks a person, and waits a while for the answer. The same question again waits for the same answer.
    pub async fn ask(&self, app: &App, asked: StepQuestion) -> Result<StepAnswer, Error> {
        let StepQuestion { question, mut choices, wait_s } = asked;
        if question.trim().is_empty() || question.len() > LONGEST_QUESTION {
            return Err(Error::invalid(format!("a question has 1 to {LONGEST_QUESTION} bytes")));
        }
        let fits = |choice: &String| {
            (1..=LONGEST_CHOICE).contains(&choice.chars().count()) && !choice.chars().any(char::is_control)
        };
        let different: BTreeSet<&String> = choices.iter().collect();
        if choices.len() > MOST_CHOICES || !choices.iter().all(fits) || different.len() != choices.len() {
            return Err(Error::invalid(format!(
                "a question has at most {MOST_CHOICES} different choices of 1 to {LONGEST_CHOICE} characters"
            )));
        }
        if choices.is_empty() {
            choices = vec!["yes".to_owned(), "no".to_owned()];
        }
        let key = token_hash(&format!("question {} {question}", choices.join("\n")));
        let ask = PermissionAsk {
            request: key.clone(),
            key,
            ask: format!("{} asks: {question}", self.step),
            details: serde_json::json!({ "tool": "ask" }),
            timeout_ms: ANSWER_WITHIN_MS,
        };
        let wait = wait_s.map_or(USUAL_WAIT, Duration::from_secs).min(LONGEST_WAIT);
        let until_ms = app.store.now().steady_ms + wait.as_millis() as i64;
        let wake = app.store.subscribe(vec![Topic::Run(self.lease.execution.run)]);
        loop {
            let state = app.store.worker(self.lease).ask_question(ask.clone(), choices.clone()).await?;
            let next = match state {
                QuestionState::Answered { choice, comment } => {
                    return Ok(StepAnswer::Answered { choice, comment });
                }
                QuestionState::Expired => return Ok(StepAnswer::Expired),
                QuestionState::NotHeld => {
                    return Err(Error::new(ErrorKind::Forbidden, "the attempt has ended").coded("step_over"));
                }
                QuestionState::Open => "ask the same question again to wait for its answer",
                QuestionState::Busy => {
                    "another question of this step is open: ask this one again when it is answered"
                }
            };
            let left_ms = until_ms - app.store.now().steady_ms;
            if left_ms <= 0 {
                return Ok(StepAnswer::Open { next });
            }
            wake.wait(Duration::from_millis(left_ms as u64).min(crate::claims::LOOK_ANYWAY)).await;
        }
    }

    /// Claims a task of the step's board.
    pub async fn claim(&self, app: &App, wait_s: u64) -> Result<Result<Claimed, Nothing>, Error> {
        let board = self.board(app)?;
        let wanted = ClaimRequest {
            name: self.step.clone(),
            caller: self.caller(),
            board: Some(board),
            queues: Vec::new(),
            wait: Duration::from_secs(wait_s).min(LONGEST_WAIT),
            lease: lease_of(None),
            nonce: 0,
        };
        boards::claim(app, &wanted).await
    }

    /// Refuses the token of a task that this step did not claim.
    pub fn check_task(&self, app: &App, token: &str) -> Result<(), Error> {
        let owner = boards::holder(app, token)?;
        if owner == Some(self.agent_id()) {
            return Ok(());
        }
        let message = "this step did not claim the task of this token";
        Err(Error::new(ErrorKind::Forbidden, message).next("use a token that `claim` gave you"))
    }

    /// Returns the board of the step.
    pub fn board(&self, app: &App) -> Result<BoardRow, Error> {
        self.known_board(app)?.ok_or_else(|| {
            Error::new(ErrorKind::Forbidden, "this step has no board")
                .next("a person can give it one: `agent: { mcp: [sprag], board: NAME }`")
        })
    }

    fn known_board(&self, app: &App) -> Result<Option<BoardRow>, Error> {
        self.board.as_deref().map(|board| boards::known(app, board)).transpose()
    }

    /// Returns the name that keeps its claims apart from those of other attempts: the run, the attempt and the fence.
    fn caller(&self) -> Arc<str> {
        caller(self.lease)
    }

    fn agent_id(&self) -> Id {
        agent_id(&self.step, &self.caller())
    }
}

fn caller(lease: Lease) -> Arc<str> {
    let ExecutionId { run, attempt, .. } = lease.execution;
    format!("{run}.{attempt}.{}", lease.fence).into()
}
