//! One process of an agent: sends the prompt, follows the events until the turn has ended, and sees the whole tree end.
//!
//! ```text
//!   start ──▶ Started: the session is stored, the prompt is sent ──▶ events ──▶ TurnEnded: stdin is closed ──▶ tree empty
//!                       cancel, stall, budget: interrupt ──(grace)──▶ TERM, KILL ──────────────────────────────┘
//! ```

use std::path::Path;
use std::time::Duration;

use sprag_agent::{
    AgentControl, Answer, Event, Exit, Failure, FailureKind, Launch, Limits, Message, Permissions, Refused,
    RunnerSettings, TurnEnd, Usage, explain_exit,
};
use sprag_pipeline::AgentBudget;
use sprag_process::{
    Ended as ProcessEnded, LogReader, Order, Reason, Running, Stream, TreeActivity, boot_ms,
};
use sprag_store::Ending;

use super::SPRAG_TOOLS;
use super::asking::{Asked, Asking, send_answer};
use super::thread::HeldThread;
use super::transcript::Transcript;
use crate::command::{Work, failed, guard_until_ms};
use crate::control::{Control, Signal, left, pause};
use crate::slots::Ended;

/// The time that an agent gets to end its turn after an interrupt, before its tree is stopped.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// The time that an agent gets to exit after its stdin was closed.
const EXIT_GRACE: Duration = Duration::from_secs(10);
/// The longest time in which the last events are read after the process has ended.
const LAST_EVENTS: Duration = Duration::from_secs(5);
/// The largest number of bytes at the end of the log that are searched for the agent's stderr.
const STDERR_BYTES: u64 = 64 << 10;
/// The part of a processor that a tree must use to count as active.
const ACTIVE_PERCENT: u64 = 5;

/// The reason why the worker stops an agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop {
    /// The step is cancelled.
    Cancelled,
    /// The agent showed no sign of life for this long.
    Stalled(Duration),
    /// The step's budget is used up.
    Budget(String),
    /// The session could not be stored.
    NotStored(String),
    /// The agent's question had no answer in time.
    Unanswered(String),
    /// The agent's question could not be asked.
    NotAsked(String),
    /// The agent is stopped until its question is answered.
    Parked,
}

/// The end of a process.
pub(crate) struct Finished {
    /// The exit, as the supervisor saw it.
    pub(crate) process: ProcessEnded,
    /// The end of the turn, or the reason why there is none.
    pub(crate) turn: Result<TurnEnd, Failure>,
    /// The reason why the worker stopped it; `None` if it ended by itself.
    pub(crate) stopped: Option<Stop>,
    /// The tokens and cost of this process.
    pub(crate) usage: Usage,
    /// The tool calls of this process.
    pub(crate) tool_calls: u64,
    /// Whether the agent got as far as a session.
    pub(crate) has_started: bool,
}

/// The limits of one process.
pub(crate) struct Bounds {
    pub(crate) stall: Duration,
    pub(crate) budget: AgentBudget,
    /// The number of times that a person has granted the budget again.
    pub(crate) granted: u32,
    /// The tool calls of the step before this process.
    pub(crate) tool_calls: u64,
    /// The tokens and cost of the step before this process.
    pub(crate) usage: Usage,
}

impl Bounds {
    /// Returns which part of the budget is used up, if any.
    fn exceeded(&self, usage: &Usage, tool_calls: u64) -> Option<String> {
        let (usage, tool_calls) = (self.usage.plus(usage), self.tool_calls + tool_calls);
        let times = u64::from(self.granted) + 1;
        let AgentBudget { turns, tokens, usd, .. } = self.budget;
        let (turns, tokens) =
            (turns.map(|most| most.saturating_mul(times)), tokens.map(|most| most.saturating_mul(times)));
        let usd = usd.map(|most| most * times as f64);
        if let Some(most) = turns.filter(|most| tool_calls > *most) {
            return Some(format!("it made {tool_calls} tool calls, and its budget is {most}"));
        }
        if let Some(most) = tokens.filter(|most| usage.total_tokens() > *most) {
            return Some(format!("it used {} tokens, and its budget is {most}", usage.total_tokens()));
        }
        let cost = usage.cost_usd.unwrap_or(0.0);
        usd.filter(|most| cost > *most)
            .map(|most| format!("it cost ${cost:.2}, and its budget is ${most:.2}"))
    }

    /// Returns which part of the budget an attempt would start without, if any.
    pub(crate) fn is_used_up(&self) -> Option<String> {
        self.exceeded(&Usage::default(), 0)
    }
}

/// One start of an agent.
pub(crate) struct Start<'s> {
    pub(crate) order: Order,
    pub(crate) launch: &'s Launch,
    pub(crate) message: Message,
    pub(crate) thread: &'s HeldThread,
}

/// Stores the id of the agent's session.
pub(crate) type OnSession<'s> = &'s mut (dyn FnMut(&str) -> std::io::Result<()> + Send);

/// Runs an agent until its tree is empty. `on_session` stores the session before the prompt is sent. Returns the step's
/// ending as the error if the agent's own result does not count.
pub(crate) async fn run(
    work: &Work<'_>,
    start: Start<'_>,
    bounds: &Bounds,
    mut asking: Asking,
    transcript: &mut Transcript,
    on_session: OnSession<'_>,
    control: &mut Control,
) -> Result<Finished, Ended> {
    let Start { order, launch, message, thread } = start;
    let log = order.log.clone();
    let (mut running, duplex) = match work.commands.start_duplex(order, work.assignment).await {
        Ok(started) => started,
        Err(message) => {
            return Err(failed(
                &serde_json::json!({ "reason": "could_not_start", "message": message }),
                true,
            ));
        }
    };
    let conversation = launch.conversation(Limits::default());
    let (agent, mut events, task) =
        sprag_agent::run(conversation, duplex.stdout, duplex.stdin, RunnerSettings::default());
    let conversing = tokio::spawn(task);
    let mut state = State::new(bounds, message);
    let mut watch = Watch::new(bounds.stall);
    let mut is_open = true;
    let ended = loop {
        let wake_ms = state.deadline_ms.map_or(watch.next_ms, |deadline_ms| deadline_ms.min(watch.next_ms));
        tokio::select! {
            biased;
            signal = control.next(), if !state.is_killed => {
                let told = match signal {
                    Signal::Renewed { until_ms } => running.renew(guard_until_ms(until_ms)),
                    Signal::Cancel => {
                        state.stop(Stop::Cancelled, &agent).await;
                        Ok(())
                    }
                    Signal::Lost => {
                        state.is_killed = true;
                        running.kill()
                    }
                };
                warn(work, told);
            }
            event = events.next(), if is_open => match event {
                Some(event) => {
                    watch.saw_event();
                    transcript.add(&event);
                    match &event {
                        // The tools of the step itself have no effect that a person would have to allow.
                        Event::PermissionRequested(request) if is_own_tool(launch, &request.tool) => {
                            send_answer(&agent, request.request.clone(), Answer::Allow).await;
                        }
                        Event::PermissionRequested(request) if launch.permissions == Permissions::Ask => {
                            asking.requested(request.clone());
                        }
                        Event::PermissionClosed { request, how } => {
                            asking.closed(request, *how, state.stopped.is_some()).await;
                        }
                        _ => {}
                    }
                    let has_started = matches!(event, Event::Started(_));
                    state.on(event, &agent, on_session).await;
                    if has_started {
                        // The agent works on its prompt meanwhile.
                        thread.started().await;
                    }
                }
                None => is_open = false,
            },
            asked = asking.next(), if asking.is_open() && state.stopped.is_none() => {
                watch.saw_event();
                match asked {
                    Asked::Answered { request, answer } => send_answer(&agent, request, answer).await,
                    Asked::Expired => state.stop(Stop::Unanswered(asking.text()), &agent).await,
                    Asked::Failed(why) => state.stop(Stop::NotAsked(why), &agent).await,
                    Asked::Parked => {
                        transcript.note("sprag: no answer yet: the agent is stopped, and continues when there is one");
                        state.stop(Stop::Parked, &agent).await;
                    }
                    Asked::NotHeld => {}
                }
            }
            ended = running.wait() => break ended,
            () = pause(left(wake_ms)) => {}
        }
        if state.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= boot_ms()) {
            state.deadline_ms = None;
            warn(work, running.cancel());
        }
        if state.stopped.is_some() {
            asking.stop();
        } else if asking.is_open() {
            // An agent that waits for a person is not stalled.
            watch.saw_event();
        }
        if let Some(verdict) = watch.look(running.supervisor_pid()).await.filter(|_| state.stopped.is_none())
        {
            match verdict {
                Silence::Suspicious(silence) => transcript.note(&format!(
                    "sprag: the agent has been silent for {}; it is stopped after {}",
                    shown(silence),
                    shown(bounds.stall)
                )),
                Silence::Stalled(silence) => state.stop(Stop::Stalled(silence), &agent).await,
            }
        }
    };
    // The tree is gone, so its pipe is closed: only events that were written before remain.
    let rest = async {
        while let Some(event) = events.next().await {
            transcript.add(&event);
            state.on(event, &agent, on_session).await;
        }
    };
    let _ = tokio::time::timeout(LAST_EVENTS, rest).await;
    conversing.abort();
    let ended = ended.map_err(|error| {
        let execution = work.assignment.lease.execution;
        tracing::error!(%execution, %error, "could not see the end of the process tree");
        Ended::Lost
    })?;
    state.finish(work, ended, &log, control)
}

/// Whether a tool, as an agent names it, is one of the step's own tools.
fn is_own_tool(launch: &Launch, tool: &str) -> bool {
    let is_offered = launch.mcp_servers.iter().any(|server| server.name == SPRAG_TOOLS);
    let server = tool.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")).map(|(server, _)| server);
    is_offered && (server == Some(SPRAG_TOOLS) || tool.strip_prefix("mcp:") == Some(SPRAG_TOOLS))
}

fn warn(work: &Work<'_>, told: Result<(), sprag_process::Error>) {
    if let Err(error) = told {
        let execution = work.assignment.lease.execution;
        tracing::warn!(%execution, %error, "sending a message to the supervisor failed");
    }
}

/// Returns the time of the boot clock after a span.
fn after(span: Duration) -> u64 {
    boot_ms().saturating_add(span.as_millis() as u64)
}

/// Returns a time for people.
pub(crate) fn shown(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The state of one process.
struct State<'b> {
    bounds: &'b Bounds,
    message: Option<Message>,
    turn: Option<TurnEnd>,
    failure: Option<Failure>,
    stopped: Option<Stop>,
    usage: Usage,
    tool_calls: u64,
    has_started: bool,
    is_killed: bool,
    /// The time of the boot clock at which the tree is stopped, if the agent has not exited by then.
    deadline_ms: Option<u64>,
}

impl<'b> State<'b> {
    fn new(bounds: &'b Bounds, message: Message) -> State<'b> {
        State {
            bounds,
            message: Some(message),
            turn: None,
            failure: None,
            stopped: None,
            usage: Usage::default(),
            tool_calls: 0,
            has_started: false,
            is_killed: false,
            deadline_ms: None,
        }
    }

    async fn on(&mut self, event: Event, agent: &AgentControl, on_session: OnSession<'_>) {
        match event {
            Event::Started(info) => {
                self.has_started = true;
                if let Err(error) = on_session(&info.session) {
                    return self.stop(Stop::NotStored(error.to_string()), agent).await;
                }
                let Some(message) = self.message.take().filter(|_| self.stopped.is_none()) else { return };
                if let Err(refused) = agent.prompt(message).await {
                    let kind = match refused {
                        Refused::TooLarge { .. } => FailureKind::Request,
                        _ => FailureKind::Other,
                    };
                    self.failure = Some(Failure::new(kind, format!("the prompt was not sent: {refused}")));
                    self.close(agent).await;
                }
            }
            Event::ToolCall(_) => {
                self.tool_calls += 1;
                self.check_budget(agent).await;
            }
            Event::Usage(report) => {
                self.usage = self.usage.max(&report.this_turn);
                self.check_budget(agent).await;
            }
            // A further turn is one that the agent opened by itself.
            Event::TurnEnded(end) if self.turn.is_none() => {
                self.usage = self.usage.max(&end.usage);
                self.tool_calls = self.tool_calls.max(u64::from(end.tool_calls));
                self.turn = Some(end);
                self.close(agent).await;
            }
            Event::Ended(end) => {
                self.failure = self.failure.take().or(end.failure);
                self.deadline_ms.get_or_insert(after(EXIT_GRACE));
            }
            _ => {}
        }
    }

    async fn check_budget(&mut self, agent: &AgentControl) {
        if self.turn.is_none()
            && self.stopped.is_none()
            && let Some(why) = self.bounds.exceeded(&self.usage, self.tool_calls)
        {
            self.stop(Stop::Budget(why), agent).await;
        }
    }

    /// Lets the agent exit, and has it stopped if it does not.
    async fn close(&mut self, agent: &AgentControl) {
        agent.close().await;
        let grace = if self.stopped.is_some() { Duration::ZERO } else { EXIT_GRACE };
        self.deadline_ms = Some(after(grace));
    }

    /// Interrupts the agent, and has it stopped if it does not end its turn. The first reason counts.
    async fn stop(&mut self, why: Stop, agent: &AgentControl) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(why);
        let grace = if agent.interrupt().await.is_ok() { INTERRUPT_GRACE } else { Duration::ZERO };
        let until_ms = after(grace);
        self.deadline_ms = Some(self.deadline_ms.map_or(until_ms, |deadline_ms| deadline_ms.min(until_ms)));
    }

    fn finish(
        self,
        work: &Work<'_>,
        process: ProcessEnded,
        log: &Path,
        control: &Control,
    ) -> Result<Finished, Ended> {
        match &process.reason {
            _ if control.now() == Signal::Lost => return Err(Ended::Lost),
            Reason::LeaseLost | Reason::ParentGone => return Err(Ended::Lost),
            _ if control.now() == Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
            // Killed from outside: the process tree is gone, but not by its own doing.
            Reason::Signalled | Reason::SupervisorLost if self.turn.is_none() => return Err(Ended::Vanished),
            Reason::Timeout if self.turn.is_none() => {
                let result = work.facts(&process, None).to_string();
                return Err(Ended::Report(Ending::TimedOut { result: Some(result.into()) }));
            }
            Reason::MemoryLimit => return Err(failed(&work.facts(&process, None), true)),
            Reason::CouldNotStart { .. } => return Err(failed(&work.facts(&process, None), false)),
            _ => {}
        }
        let turn = match self.turn {
            Some(end) => Ok(end),
            None => {
                let seen = explain_exit(Exit {
                    code: process.exit_code,
                    signal: process.signal,
                    stderr: &stderr_of(log),
                });
                Err(match self.failure {
                    // The end of the stream says less than the exit and the stderr.
                    Some(failure) if failure.kind != FailureKind::Exited => failure,
                    _ => seen,
                })
            }
        };
        Ok(Finished {
            process,
            turn,
            stopped: self.stopped,
            usage: self.usage,
            tool_calls: self.tool_calls,
            has_started: self.has_started,
        })
    }
}

/// Returns the end of the agent's stderr, as the log has it.
fn stderr_of(log: &Path) -> String {
    let length = log.metadata().map_or(0, |found| found.len());
    let mut reader = LogReader::at(log, length.saturating_sub(STDERR_BYTES));
    let entries = reader.read(4096).unwrap_or_default();
    let mut text = String::new();
    for entry in entries.iter().filter(|entry| entry.stream == Stream::Err) {
        text.push_str(&entry.text);
        text.push('\n');
    }
    text
}

/// The verdict on a silent agent.
enum Silence {
    /// It has been silent for half of the time.
    Suspicious(Duration),
    /// It has been silent for too long.
    Stalled(Duration),
}

/// Judges silence by events, processor time and processes together. All times are of the boot clock.
struct Watch {
    stall_ms: u64,
    interval_ms: u64,
    /// The last sign of life.
    alive_ms: u64,
    /// The time of the next look.
    next_ms: u64,
    seen: Option<TreeActivity>,
    is_warned: bool,
}

impl Watch {
    fn new(stall: Duration) -> Watch {
        let (now_ms, stall_ms) = (boot_ms(), stall.as_millis() as u64);
        let interval_ms = (stall_ms / 10).clamp(100, 60_000);
        Watch {
            stall_ms,
            interval_ms,
            alive_ms: now_ms,
            next_ms: now_ms + interval_ms,
            seen: None,
            is_warned: false,
        }
    }

    fn saw_event(&mut self) {
        self.alive_ms = boot_ms();
        self.is_warned = false;
    }

    /// Looks at the tree, if it is time to.
    async fn look(&mut self, supervisor: Option<u32>) -> Option<Silence> {
        let now_ms = boot_ms();
        if now_ms < self.next_ms {
            return None;
        }
        self.next_ms = now_ms + self.interval_ms;
        // An agent that has just sent an event needs no look at all of /proc.
        if now_ms.saturating_sub(self.alive_ms) < self.interval_ms {
            self.seen = None;
            return None;
        }
        let supervisor = supervisor?;
        let seen = tokio::task::spawn_blocking(move || Running::activity(supervisor)).await.ok().flatten();
        let needed_ticks = self.interval_ms * ACTIVE_PERCENT / 1000;
        if let (Some(before), Some(after)) = (&self.seen, &seen)
            && (before.processes != after.processes
                || after.cpu_ticks.saturating_sub(before.cpu_ticks) > needed_ticks)
        {
            self.saw_event();
        }
        self.seen = seen;
        let silence_ms = now_ms.saturating_sub(self.alive_ms);
        let silence = Duration::from_millis(silence_ms);
        if silence_ms >= self.stall_ms {
            return Some(Silence::Stalled(silence));
        }
        if silence_ms >= self.stall_ms / 2 && !self.is_warned {
            self.is_warned = true;
            return Some(Silence::Suspicious(silence));
        }
        None
    }
}
