//! Runs an agent step: one turn of a coding agent, judged by Sprag and not by the agent.
//!
//! ```text
//!   resolve ─▶ session ─▶ process ─▶ judge ─┬─ success ─▶ outputs, checks ─▶ completed
//!      │          ▲                         ├─ limit ───▶ wait for the reset, same attempt ─▶ session
//!      │          └─ lost session: a new one┤
//!      └ missing, unknown: fail at once     └─ else ────▶ failed; the next attempt continues the session
//! ```
//!
//! An agent process lives only inside an execution, under the supervisor of a command: it is owned, fenced and leased like
//! one, and its whole tree is gone before the attempt is reported.

mod asking;
mod budget;
mod process;
mod prompt;
mod resolve;
mod servers;
mod session;
mod thread;
mod tools;
mod transcript;
mod trust;

use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_agent::{Failure, FailureKind, FollowUp, Message, Session, TurnEnd, Usage, Verdict, judge};
use sprag_lifecycle::mutant;
use sprag_pipeline::{AgentSpec, Kind, StepSpec};
use sprag_process::{Ended as ProcessEnded, boot_ms};
use sprag_store::{Assignment, Ending, UsageLimit};

use crate::command::{Commands, Work, failed};
use crate::control::{Control, Signal, pause};
use crate::environment::RunEnvironment;
use crate::evidence::{self, MAX_VALUE_BYTES};
use crate::secrets::masker;
use crate::slots::Ended;
use asking::{AskTerms, Asking};
use process::{Finished, Start, Stop, shown};
use prompt::{Situation, prompt};
pub use resolve::{FAKE_AGENTS, MissingAgent, agents, check_agents};
use resolve::{Resolved, ScratchFolder};
pub(crate) use resolve::{credentials, start_folder};
use session::StoredSession;
pub use thread::TALKS_TO;
use thread::{HeldThread, ThreadTarget};
use tools::ToolSocket;
pub use tools::{SPRAG_TOOLS, STEP_SOCKET, STEP_TOKEN, ServedTools, StepTools};
use transcript::Transcript;
pub use transcript::transcript_text;
pub use trust::{RepositoryAgents, repository_agents, set_trust};

/// The wait for a limit whose reset is unknown. It doubles each time.
const UNKNOWN_RESET: Duration = Duration::from_secs(15 * 60);
/// The longest such wait.
const LONGEST_UNKNOWN_RESET: Duration = Duration::from_secs(5 * 3600);
/// The longest time that one attempt waits for resets. Weekly limits are the longest that agents report.
const LONGEST_LIMITED: Duration = Duration::from_secs(8 * 24 * 3600);
/// The time after a reset at which the agent is started again: clocks differ.
const AFTER_RESET: Duration = Duration::from_secs(1);

impl Commands {
    /// Runs the agent of a step and its checks in `place`, or in the folder where the run was started.
    pub(crate) async fn agent_in(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        place: Option<&RunEnvironment>,
        control: &mut Control,
    ) -> Ended {
        let Kind::Agent(agent) = &spec.kind else { return Ended::Lost };
        let resolved = match self.resolve(assignment, agent, spec) {
            Ok(resolved) => resolved,
            Err(ended) => return ended,
        };
        // The checks run without the credentials of the agent.
        let plain =
            StepSpec { kind: Kind::Exec { argv: vec!["true".to_owned()], each: Vec::new() }, ..spec.clone() };
        let (order, places) = match self.order(assignment, &plain, place, control) {
            Ok(order) => order,
            Err(message) => {
                return failed(&json!({ "reason": "could_not_start", "message": message }), false);
            }
        };
        let target = match ThreadTarget::of(assignment) {
            Ok(target) => target,
            Err(message) => return failed(&json!({ "reason": "thread", "message": message }), false),
        };
        let step = AgentStep {
            target,
            work: Work { commands: self, assignment, order: &order, places: &places },
            agent,
            spec,
            place,
            resolved: &resolved,
        };
        step.run(control).await
    }

    /// Fails a step whose agent cannot be started here, before an environment is made for it.
    pub(crate) fn preflight(&self, assignment: &Assignment, spec: &StepSpec) -> Result<(), Ended> {
        match &spec.kind {
            Kind::Agent(agent) => self.resolve(assignment, agent, spec).map(drop),
            _ => Ok(()),
        }
    }
}

/// One attempt at an agent step.
struct AgentStep<'s> {
    /// The thread in which the attempt works: the step's own, or the one that a person talks to.
    target: ThreadTarget,
    work: Work<'s>,
    agent: &'s AgentSpec,
    spec: &'s StepSpec,
    place: Option<&'s RunEnvironment>,
    resolved: &'s Resolved,
}

/// The state of an attempt over its processes: there is a further one after each limit.
struct Progress {
    session: Session,
    is_own: bool,
    is_after_limit: bool,
    /// Another agent that has worked on the step last.
    after: Option<String>,
    /// The session as it was before a person talked to it; none in a step's own attempt.
    talked_to: Option<StoredSession>,
    /// Whether a lost session was replaced in this attempt already.
    is_replaced: bool,
    granted: u32,
    tool_calls: u64,
    usage: Usage,
    /// The time that the processes of this attempt have run.
    ran_ms: u64,
    limited: Duration,
    limits: u32,
}

impl AgentStep<'_> {
    async fn run(&self, control: &mut Control) -> Ended {
        let began_ms = boot_ms();
        let (assignment, commands) = (self.work.assignment, self.work.commands);
        let id = assignment.lease.execution;
        let chosen = match &self.target.talk {
            Some(_) => session::talk(&commands.files, assignment, &self.target, &self.resolved.settings),
            None => Ok(session::choose(&commands.files, assignment, self.agent, &self.resolved.settings)),
        };
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(message) => return failed(&json!({ "reason": "thread", "message": message }), false),
        };
        let events = commands.files.events(id, &assignment.name);
        let mut transcript = Transcript::open(&self.work.order.log, &events, masker(self.spec));
        if let Some(remark) = &chosen.remark {
            transcript.note(&format!("sprag: {remark}"));
        }
        if let Some(other) = &chosen.after {
            transcript.note(&format!("sprag: {} continues the work of {other}", self.resolved.settings.name));
        }
        let mut progress = Progress {
            session: chosen.session,
            is_own: chosen.is_own,
            is_after_limit: chosen.is_limited,
            after: chosen.after,
            talked_to: chosen.talked_to,
            is_replaced: false,
            granted: chosen.granted,
            tool_calls: chosen.tool_calls,
            usage: chosen.usage,
            ran_ms: 0,
            limited: Duration::ZERO,
            limits: 0,
        };
        loop {
            let finished = match self.one_process(&mut progress, &mut transcript, control).await {
                Ok(finished) => finished,
                Err(ended) => return ended,
            };
            let verdict = self.verdict(&finished).await;
            let failure = match verdict {
                Verdict::Success => {
                    drop(transcript);
                    return self.succeed(finished, &progress, began_ms, control).await;
                }
                Verdict::Interrupted => {
                    Failure::new(FailureKind::Other, "the turn was interrupted before its end")
                }
                Verdict::Failed(failure) => failure,
            };
            if matches!(finished.stopped, Some(Stop::Budget(_))) && self.agent.budget.asks {
                // The next process starts with the question.
                continue;
            }
            let follow_up =
                if finished.stopped.is_some() { FollowUp::Feedback } else { failure.kind.follow_up() };
            match follow_up {
                FollowUp::HoldAccount if assignment.step().account.is_some() => {
                    return self.give_back(&failure, &progress, &mut transcript);
                }
                FollowUp::HoldAccount => {
                    if let Err(ended) =
                        self.wait_for_reset(&failure, &mut progress, &mut transcript, control).await
                    {
                        return ended;
                    }
                }
                FollowUp::NewSession
                    if progress.session.is_resumed()
                        && !progress.is_replaced
                        && self.target.talk.is_none() =>
                {
                    transcript.note(&format!(
                        "sprag: the session cannot be continued ({failure}): starting a new one"
                    ));
                    progress.session = session::new(assignment);
                    (progress.is_own, progress.is_replaced) = (false, true);
                }
                _ => return self.fail(&finished, &failure, follow_up, &progress),
            }
        }
    }

    /// Runs one process of the agent until its tree is gone.
    async fn one_process(
        &self,
        progress: &mut Progress,
        transcript: &mut Transcript,
        control: &mut Control,
    ) -> Result<Finished, Ended> {
        let (assignment, commands) = (self.work.assignment, self.work.commands);
        let id = assignment.lease.execution;
        let not_started =
            |message: String| failed(&json!({ "reason": "could_not_start", "message": message }), true);
        match control.now() {
            Signal::Renewed { .. } => {}
            Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
            Signal::Lost => return Err(Ended::Lost),
        }
        let records = commands.records();
        let bounds = self.within_budget(progress, records.as_deref()).await?;
        let thread = HeldThread::enter(records.clone(), assignment.lease, &self.target).await?;
        let scratch = ScratchFolder::make(&commands.files, id, &assignment.name)
            .map_err(|error| not_started(format!("cannot make a private folder: {error}")))?;
        let socket = self.tool_socket(scratch.path()).await.map_err(not_started)?;
        let mut launch =
            self.resolved.launch(self.agent, self.dir(), scratch.path(), progress.session.clone());
        if let (Some(socket), Some(program)) = (&socket, &commands.fake_agent) {
            launch.mcp_servers.push(socket.server(program));
        }
        let mut order = self
            .resolved
            .order(commands, assignment, self.spec, self.place, control, &launch)
            .map_err(not_started)?;
        // One lock for all processes of the session: the step's own attempts, and those of people's messages.
        order.owner_lock = Some(commands.files.lock(self.target.of.run, &self.target.name));
        order.timeout_ms = self.spec.timeout_ms.map(|limit| limit.saturating_sub(progress.ran_ms).max(1));
        let situation = Situation {
            is_own_session: progress.is_own,
            is_after_limit: progress.is_after_limit,
            after: progress.after.as_deref(),
            feedback: assignment.feedback.as_deref(),
        };
        let text = match &self.target.talk {
            Some(_) => self.agent.prompt.clone(),
            None => prompt(self.agent, &situation),
        };
        transcript.prompt(&text);
        let message =
            Message::new(session::unique_id(assignment, &format!("message {}", progress.limits)), text);
        let path = self.session_path();
        let mut stored = self.stored(progress);
        let mut on_session = |id: &str| {
            id.clone_into(&mut stored.id);
            stored.save(&path)
        };
        let terms = AskTerms {
            answer_within_ms: self.agent.answer_within_ms,
            park_after_ms: self.agent.park_after_ms,
        };
        let asking =
            Asking::new(&self.resolved.settings.name, assignment.lease, records, terms, masker(self.spec));
        let began_ms = boot_ms();
        let finished = process::run(
            &self.work,
            Start { order, launch: &launch, message, thread: &thread },
            &bounds,
            asking,
            transcript,
            &mut on_session,
            control,
        )
        .await;
        progress.ran_ms += boot_ms().saturating_sub(began_ms);
        if let Some(socket) = socket {
            socket.close().await;
        }
        drop(scratch);
        let finished = finished?;
        thread.ended(&finished).await;
        progress.tool_calls += finished.tool_calls;
        progress.usage = progress.usage.plus(&finished.usage);
        if finished.has_started {
            progress.session = Session::Resume { id: stored.id.clone() };
            progress.is_own = true;
            stored.tool_calls = progress.tool_calls;
            stored.usage = progress.usage;
            self.store(&stored);
        }
        Ok(finished)
    }

    /// Opens the socket of the tools of `mcp: [sprag]`, if the step has them.
    async fn tool_socket(&self, folder: &std::path::Path) -> Result<Option<ToolSocket>, String> {
        if !self.agent.has_sprag_tools() {
            return Ok(None);
        }
        let commands = self.work.commands;
        let (Some(tools), Some(records), Some(_)) =
            (&commands.step_tools, commands.records(), &commands.fake_agent)
        else {
            return Err(format!("this program cannot offer the tools of `mcp: [{SPRAG_TOOLS}]`"));
        };
        let token = records.step_token(self.work.assignment.lease).await?;
        let opened = ToolSocket::open(folder, std::sync::Arc::clone(tools), token);
        opened.map(Some).map_err(|error| format!("the socket of its tools cannot be opened: {error}"))
    }

    /// Returns the session as it is stored while an attempt works in it.
    fn stored(&self, progress: &Progress) -> StoredSession {
        StoredSession {
            agent: self.resolved.settings.name.clone(),
            driver: self.resolved.settings.driver,
            id: session_id(progress),
            round: progress.talked_to.as_ref().map_or(self.work.assignment.round, |before| before.round),
            is_done: progress.talked_to.as_ref().is_some_and(|before| before.is_done),
            is_limited: false,
            granted: progress.granted,
            tool_calls: progress.tool_calls,
            usage: progress.usage,
        }
    }

    /// Stores what the session has used. Without it, a later attempt counts less than was used.
    fn store(&self, stored: &StoredSession) {
        let path = self.session_path();
        if let Err(error) = stored.save(&path) {
            tracing::warn!(path = %path.display(), %error, "the session of an agent was not stored");
        }
    }

    fn session_path(&self) -> std::path::PathBuf {
        let attempt = self.work.assignment.lease.execution.attempt;
        self.work.commands.files.session(self.target.execution(attempt), &self.target.name)
    }

    fn dir(&self) -> std::path::PathBuf {
        let dir = self.work.order.dir.clone();
        dir.or_else(|| std::env::current_dir().ok()).unwrap_or_default()
    }

    async fn verdict(&self, finished: &Finished) -> Verdict {
        let end = match &finished.turn {
            Ok(end) => end,
            Err(failure) => return Verdict::Failed(failure.clone()),
        };
        let Some(schema) = self.agent.output_schema.clone() else { return judged_end(end, None) };
        // A schema of the pipeline and a value of the agent can take long together.
        let end = end.clone();
        let judged = tokio::task::spawn_blocking(move || judged_end(&end, Some(&schema)));
        judged.await.unwrap_or_else(|error| {
            Verdict::Failed(Failure::new(
                FailureKind::SchemaNotMet,
                format!("the output was not checked: {error}"),
            ))
        })
    }

    /// Runs the checks of a step whose agent has succeeded, and returns its ending.
    async fn succeed(
        &self,
        finished: Finished,
        progress: &Progress,
        began_ms: u64,
        control: &mut Control,
    ) -> Ended {
        let Ok(end) = &finished.turn else { return Ended::Lost };
        if !self.dir().is_dir() {
            let message =
                format!("{}: its folder {} is gone", self.resolved.settings.name, self.dir().display());
            return failed(&json!({ "reason": "workspace", "message": message }), true);
        }
        let outputs = match outputs(end, progress) {
            Ok(outputs) => outputs,
            Err(message) => return failed(&json!({ "reason": "output", "message": message }), true),
        };
        let process = ProcessEnded { reason: sprag_process::Reason::Exited, ..finished.process };
        let ended = self.work.settle(process, self.spec, outputs, began_ms, control).await;
        if let Ended::Report(Ending::Completed { .. }) = &ended
            && self.target.talk.is_none()
        {
            self.store(&StoredSession { is_done: true, ..self.stored(progress) });
        }
        ended
    }

    fn fail(
        &self,
        finished: &Finished,
        failure: &Failure,
        follow_up: FollowUp,
        progress: &Progress,
    ) -> Ended {
        let (reason, message, retriable) = match &finished.stopped {
            Some(Stop::Stalled(silence)) => {
                ("stalled", format!("the agent was silent for {} and was stopped", shown(*silence)), true)
            }
            Some(Stop::Budget(why)) => ("budget", format!("the budget of the step is used up: {why}"), false),
            Some(Stop::NotStored(why)) => {
                ("session", format!("the agent's session could not be stored: {why}"), true)
            }
            Some(Stop::NotAsked(why)) => ("permission", format!("its question was not asked: {why}"), true),
            Some(Stop::Unanswered(asked)) => {
                let within = shown(Duration::from_millis(self.agent.answer_within_ms));
                let facts = json!({
                    "reason": "permission",
                    "message": format!("{}: there was no answer within {within}: {asked}", self.resolved.settings.name),
                    "remedy": "resume the run: the agent continues its session and asks again",
                });
                return Ended::Report(Ending::Blocked { result: Some(facts.to_string().into()) });
            }
            Some(Stop::Parked) => return Ended::Report(Ending::Parked),
            Some(Stop::Cancelled) => return Ended::Report(Ending::Cancelled),
            None => ("agent", failure.message.clone(), follow_up != FollowUp::GiveUp),
        };
        let name = &self.resolved.settings.name;
        let mut facts = json!({
            "reason": reason,
            "message": format!("{name}: {message}"),
            "exit_code": finished.process.exit_code,
            "signal": finished.process.signal,
            "leftovers": finished.process.leftovers,
            "usage": finished.process.usage,
            "agent": { "name": name, "failure": failure.kind, "session": session_id(progress), "tokens": progress.usage.total_tokens() },
        });
        if failure.kind == FailureKind::Auth && finished.stopped.is_none() {
            facts["message"] = format!("{name}: {message}. {}", self.resolved.login_remedy()).into();
        }
        failed(&facts, retriable)
    }

    /// Ends the attempt because of the account's limit. The store holds the account for all runs, and hands the same
    /// attempt out again when the limit has ended.
    fn give_back(&self, failure: &Failure, progress: &Progress, transcript: &mut Transcript) -> Ended {
        let next = if self.agent.fallback.is_empty() {
            "the step waits for its reset"
        } else {
            "another agent takes over, or the step waits for a reset"
        };
        let account = &self.resolved.settings.account;
        transcript.note(&format!(
            "sprag: the usage limit of account {account} is reached ({}): {next}",
            failure.message
        ));
        if progress.is_own {
            self.store(&StoredSession { is_limited: true, ..self.stored(progress) });
        }
        let message = failure.message.as_str().into();
        Ended::Report(Ending::Limited(UsageLimit { until_ms: failure.resets_at_ms(), message }))
    }

    /// Waits until the account's limit is reset, where the plan names no account. The attempt continues then, so that no
    /// try is lost.
    async fn wait_for_reset(
        &self,
        failure: &Failure,
        progress: &mut Progress,
        transcript: &mut Transcript,
        control: &mut Control,
    ) -> Result<(), Ended> {
        let doubled = UNKNOWN_RESET.saturating_mul(1 << progress.limits.min(8)).min(LONGEST_UNKNOWN_RESET);
        let wait = failure.until_reset().map_or(doubled, |left| left + AFTER_RESET);
        progress.limits += 1;
        progress.limited += wait;
        let longest = self.agent.limit_wait_ms.map_or(LONGEST_LIMITED, Duration::from_millis);
        if progress.limited > longest.min(LONGEST_LIMITED) {
            let message = format!("{}; its reset is too far away ({})", failure.message, shown(wait));
            return Err(failed(&json!({ "reason": "limit", "message": message }), false));
        }
        let account = &self.resolved.settings.account;
        transcript.note(&format!(
            "sprag: the usage limit of account {account} is reached ({}): the step waits {} for its reset",
            failure.message,
            shown(wait)
        ));
        let until_ms = boot_ms().saturating_add(wait.as_millis() as u64);
        loop {
            match control.now() {
                Signal::Renewed { .. } => {}
                Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
                Signal::Lost => return Err(Ended::Lost),
            }
            let left = until_ms.saturating_sub(boot_ms());
            if left == 0 {
                break;
            }
            tokio::select! {
                _ = control.next() => {}
                () = pause(Duration::from_millis(left)) => {}
            }
        }
        progress.is_after_limit = progress.is_own;
        Ok(())
    }
}

/// Judges the end of a turn by everything that the agent reported, and by the step's schema.
pub fn judged_end(end: &TurnEnd, schema: Option<&Value>) -> Verdict {
    if mutant!(EndTurnIsSuccess) {
        return Verdict::Success;
    }
    let Some(schema) = schema else { return judge(end, None) };
    let fits = |value: &Value| {
        if !value.is_object() {
            return Err("it is not an object".to_owned());
        }
        evidence::fits_schema(value, schema)
    };
    judge(end, Some(&fits))
}

fn session_id(progress: &Progress) -> String {
    match &progress.session {
        Session::New { id } | Session::Resume { id } => id.clone(),
    }
}

/// Returns the outputs of a successful turn.
fn outputs(end: &TurnEnd, progress: &Progress) -> Result<Map<String, Value>, String> {
    let mut outputs = match &end.output {
        Some(Value::Object(output)) => output.clone(),
        _ => Map::new(),
    };
    let bytes = Value::Object(outputs.clone()).to_string().len() as u64;
    if bytes > MAX_VALUE_BYTES {
        return Err(format!("the structured output has {bytes} bytes, more than {MAX_VALUE_BYTES}"));
    }
    let mut length = end.text.len().min(MAX_VALUE_BYTES as usize);
    while !end.text.is_char_boundary(length) {
        length -= 1;
    }
    outputs.insert("text".to_owned(), end.text[..length].into());
    outputs.insert("session".to_owned(), session_id(progress).into());
    outputs.insert("tokens".to_owned(), progress.usage.total_tokens().into());
    outputs.insert("cost_usd".to_owned(), json!(progress.usage.cost_usd));
    Ok(outputs)
}
