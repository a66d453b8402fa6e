//! The state that all adapters share: phase, open turn, open permission requests, usage, queues.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::conversation::{Answer, Limits, Message, Phase, Queues, Refused};
use crate::event::{
    End, Event, LimitNotice, PermissionClosing, PermissionRequest, Retry, SessionInfo, ToolCall, ToolResult,
    ToolStatus, TurnEnd, UsageReport,
};
use crate::failure::{Failure, FailureKind};
use crate::launch::{Driver, Session};
use crate::lines::left_out_remark;
use crate::turn::{Reported, Turn};
use crate::usage::{Usage, UsageMeter};

/// The number of refused logins after which the driver gives up.
const AUTH_ATTEMPTS: u32 = 2;

/// The most open permission requests; the driver denies further ones.
const MAX_OPEN_PERMISSIONS: usize = 64;

/// The state that all adapters share.
pub(crate) struct Core {
    pub(crate) driver: Driver,
    pub(crate) limits: Limits,
    pub(crate) is_closing: bool,
    /// The session that the launch requested.
    wanted: Session,
    /// The session that the agent reported.
    session: Option<String>,
    wants_output: bool,
    phase: Phase,
    turn: Option<Turn>,
    turns: u64,
    meter: UsageMeter,
    permissions: BTreeSet<String>,
    /// The reason why no turn of this process can succeed, if there is one.
    poison: Option<Failure>,
    wants_interrupt: bool,
    queues: Queues,
    unsent: usize,
}

impl Core {
    pub(crate) fn new(driver: Driver, wanted: Session, wants_output: bool, limits: Limits) -> Core {
        let meter = UsageMeter::new(wanted.is_resumed());
        Core {
            driver,
            limits,
            is_closing: false,
            wanted,
            session: None,
            wants_output,
            phase: Phase::Starting,
            turn: None,
            turns: 0,
            meter,
            permissions: BTreeSet::new(),
            poison: None,
            wants_interrupt: false,
            queues: Queues::default(),
            unsent: 0,
        }
    }

    // Queues.

    pub(crate) fn push(&mut self, event: Event) {
        self.queues.events.push_back(event);
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.queues.events.pop_front()
    }

    /// Queues one message for the agent.
    pub(crate) fn send(&mut self, message: &Value) {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        self.unsent += line.len();
        self.queues.writes.push_back(line);
    }

    pub(crate) fn next_write(&mut self) -> Option<Vec<u8>> {
        let line = self.queues.writes.pop_front()?;
        self.unsent -= line.len();
        Some(line)
    }

    /// Returns whether so many bytes wait to be written that the agent should not be read.
    pub(crate) fn is_backlogged(&self) -> bool {
        self.unsent > self.limits.max_unsent_bytes
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent
    }

    /// Checks a message against the size limit and the limit of waiting bytes.
    pub(crate) fn check_room(&self, message: &Message) -> Result<(), Refused> {
        let (bytes, limit) = (message.text.len(), self.limits.max_message_bytes);
        if bytes > limit {
            return Err(Refused::TooLarge { bytes, limit });
        }
        if self.unsent + bytes > self.limits.max_unsent_bytes {
            return Err(Refused::Backlog { waiting: self.unsent });
        }
        Ok(())
    }

    // The session.

    pub(crate) fn phase(&self) -> Phase {
        match (&self.phase, &self.turn) {
            (Phase::Idle, Some(_)) => Phase::Busy,
            (phase, _) => *phase,
        }
    }

    pub(crate) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    pub(crate) fn wanted(&self) -> &Session {
        &self.wanted
    }

    /// Ends the handshake: the agent is ready.
    pub(crate) fn ready(&mut self, info: SessionInfo) {
        if self.phase != Phase::Starting {
            return;
        }
        self.saw_session(&info.session);
        self.phase = Phase::Idle;
        self.push(Event::Started(info));
        // Notices that came before the start are reported after it.
        if let Some(failure) = self.poison.clone() {
            self.push(Event::Problem(failure));
        }
    }

    /// Ends the conversation before it started.
    pub(crate) fn fail_start(&mut self, failure: Failure) {
        self.end(End { open_turn: None, failure: Some(failure) });
    }

    /// Records the session id that the agent reported, and whether it differs from the requested one.
    pub(crate) fn saw_session(&mut self, id: &str) {
        let expected = self.session.as_deref().or(match &self.wanted {
            Session::Resume { id } => Some(id),
            Session::New { id } if self.driver == Driver::ClaudeStream => Some(id),
            Session::New { .. } => None,
        });
        match expected {
            Some(expected) if expected != id => {
                if self.poison.is_none() {
                    let message =
                        format!("the agent works in session {id}, and not in {expected} as it was told to");
                    let failure = Failure::new(FailureKind::SessionChanged, message);
                    self.poison = Some(failure.clone());
                    if self.phase != Phase::Starting {
                        self.problem(failure);
                    }
                }
            }
            _ => self.session = Some(id.to_owned()),
        }
    }

    pub(crate) fn end_of_stream(&mut self) {
        let open_turn = self.turn.as_ref().map(|turn| turn.number);
        let failure = match (self.phase, open_turn) {
            (Phase::Starting, _) => Some("the agent ended before it was ready".to_owned()),
            (_, Some(turn)) => Some(format!("the agent ended in the middle of turn {turn}")),
            (_, None) if self.is_closing => None,
            (_, None) => Some("the agent ended between two turns and nobody had asked it to".to_owned()),
        };
        self.end(End {
            open_turn,
            failure: failure.map(|message| Failure::new(FailureKind::Exited, message)),
        });
    }

    fn end(&mut self, end: End) {
        if self.phase == Phase::Ended {
            return;
        }
        self.finish_text();
        self.withdraw_permissions();
        self.phase = Phase::Ended;
        self.turn = None;
        self.queues.writes.clear();
        self.unsent = 0;
        self.push(Event::Ended(end));
    }

    // Turns.

    /// Opens a turn and returns its number.
    pub(crate) fn open_turn(&mut self, message: Option<String>) -> u64 {
        self.turns += 1;
        self.meter.begin_turn();
        self.turn =
            Some(Turn { number: self.turns, messages: message.into_iter().collect(), ..Turn::default() });
        self.turns
    }

    /// Opens a turn that the agent started by itself, unless one is open.
    pub(crate) fn ensure_turn(&mut self, message: Option<String>) {
        if self.turn.is_none() && self.phase == Phase::Idle {
            self.open_turn(message);
            self.turn_started();
        }
    }

    /// Records that the agent works on the open turn.
    pub(crate) fn turn_started(&mut self) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_started) {
            turn.is_started = true;
            let event = Event::TurnStarted { turn: turn.number, message: turn.messages.first().cloned() };
            self.push(event);
        }
    }

    pub(crate) fn turn(&mut self) -> Option<&mut Turn> {
        self.turn.as_mut()
    }

    /// Adds a message to the open turn.
    pub(crate) fn add_message(&mut self, message: &str) {
        if let Some(turn) = &mut self.turn {
            turn.messages.push(message.to_owned());
        }
    }

    /// Returns whether one of these messages belongs to the open turn.
    pub(crate) fn is_about_open_turn(&self, messages: &[&str]) -> bool {
        let known = self.turn.as_ref().map(|turn| turn.messages.as_slice()).unwrap_or_default();
        messages.iter().any(|message| known.iter().any(|known| known == message))
    }

    /// Records that the caller wants the turn to end. Returns whether it is the first time.
    pub(crate) fn note_interrupt(&mut self) -> bool {
        self.turn.as_mut().is_some_and(|turn| !std::mem::replace(&mut turn.is_interrupted, true))
    }

    /// Returns true once if the driver itself wants the turn to end.
    pub(crate) fn take_give_up(&mut self) -> bool {
        std::mem::take(&mut self.wants_interrupt) && self.turn.is_some()
    }

    /// Ends the open turn as the agent reported it.
    pub(crate) fn end_turn(&mut self, reported: Reported) {
        self.turn_started();
        self.finish_text();
        self.withdraw_permissions();
        let Some(mut turn) = self.turn.take() else {
            return self.push(Event::Notice {
                text: format!("the agent ended a turn that was not open ({})", reported.reason),
            });
        };
        if let Some(poison) = &self.poison {
            turn.given_up = Some(poison.clone());
        }
        let outcome = turn.outcome(&reported, self.wants_output);
        let text = reported.text.filter(|text| !text.is_empty()).unwrap_or(turn.text);
        self.push(Event::TurnEnded(TurnEnd {
            turn: turn.number,
            outcome,
            text,
            output: reported.output,
            usage: self.meter.turn(),
            tool_calls: turn.tool_calls,
            denied_calls: reported.denied_calls.unwrap_or(turn.denied_calls),
            reason: reported.reason,
            raw: reported.raw,
        }));
    }

    // What happens in a turn.

    pub(crate) fn delivered(&mut self, message: &str) {
        self.push(Event::MessageDelivered { message: message.to_owned() });
    }

    /// Handles a complete message of the agent or a sub-agent.
    pub(crate) fn text(&mut self, text: &str, parent: Option<String>) {
        if text.is_empty() {
            return;
        }
        self.turn_started();
        if parent.is_none()
            && let Some(turn) = &mut self.turn
        {
            text.clone_into(&mut turn.text);
            turn.hint = None;
        }
        self.push(Event::Text { text: text.to_owned(), parent });
    }

    /// Handles a piece of a message. The complete text is reported when the message ends.
    pub(crate) fn text_piece(&mut self, piece: &str, tell: bool) {
        self.turn_started();
        let limit = self.limits.lines.max_string_bytes;
        if let Some(turn) = &mut self.turn {
            turn.hint = None;
            if turn.left_out == 0 && turn.unfinished.len() + piece.len() <= limit {
                turn.unfinished.push_str(piece);
            } else {
                turn.left_out += piece.len() as u64;
            }
        }
        if tell && !piece.is_empty() {
            self.push(Event::TextDelta { text: piece.to_owned() });
        }
    }

    /// Ends a message that arrived in pieces.
    pub(crate) fn finish_text(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        let mut text = std::mem::take(&mut turn.unfinished);
        let left_out = std::mem::take(&mut turn.left_out);
        if left_out > 0 {
            text.push_str(&left_out_remark(left_out));
        }
        if !text.trim().is_empty() {
            self.text(&text, None);
        }
    }

    pub(crate) fn thinking(&mut self, text: &str) {
        self.turn_started();
        if !text.is_empty() {
            self.push(Event::Thinking { text: text.to_owned() });
        }
    }

    pub(crate) fn tool_call(&mut self, call: ToolCall) {
        self.turn_started();
        self.finish_text();
        if let Some(turn) = &mut self.turn {
            turn.tool_calls = turn.tool_calls.saturating_add(1);
            turn.hint = None;
        }
        self.push(Event::ToolCall(call));
    }

    pub(crate) fn tool_result(&mut self, mut result: ToolResult) {
        let limit = self.limits.max_tool_output_bytes;
        if result.output.len() > limit {
            let end = (0..=limit).rev().find(|at| result.output.is_char_boundary(*at)).unwrap_or(0);
            let left_out = (result.output.len() - end) as u64;
            result.output.truncate(end);
            result.output.shrink_to_fit();
            result.output.push_str(&left_out_remark(left_out));
        }
        if result.status == ToolStatus::Denied
            && let Some(turn) = &mut self.turn
        {
            turn.denied_calls = turn.denied_calls.saturating_add(1);
        }
        self.push(Event::ToolResult(result));
    }

    // Permissions.

    /// Returns whether one more permission request may be open.
    pub(crate) fn can_ask(&self) -> bool {
        self.permissions.len() < MAX_OPEN_PERMISSIONS
    }

    /// Reports a permission request for the caller to answer. A request with the id of an open one replaces it.
    pub(crate) fn ask(&mut self, request: PermissionRequest) {
        self.turn_started();
        self.finish_text();
        self.withdraw_permission(&request.request);
        self.permissions.insert(request.request.clone());
        self.push(Event::PermissionRequested(request));
    }

    /// Reports a permission request that the driver has answered itself.
    pub(crate) fn answered_by_policy(&mut self, request: PermissionRequest) {
        self.turn_started();
        let id = request.request.clone();
        self.push(Event::PermissionRequested(request));
        self.push(Event::PermissionClosed { request: id, how: PermissionClosing::ByPolicy });
    }

    /// Closes a request that the caller answers. Returns whether it was open.
    pub(crate) fn close_permission(&mut self, request: &str, answer: &Answer) -> bool {
        let was_open = self.permissions.remove(request);
        if was_open {
            let how = match answer {
                Answer::Allow => PermissionClosing::Allowed,
                Answer::Deny { .. } => PermissionClosing::Denied,
            };
            self.push(Event::PermissionClosed { request: request.to_owned(), how });
        }
        was_open
    }

    /// Closes a request that the agent has withdrawn.
    pub(crate) fn withdraw_permission(&mut self, request: &str) {
        if self.permissions.remove(request) {
            self.push(Event::PermissionClosed {
                request: request.to_owned(),
                how: PermissionClosing::Withdrawn,
            });
        }
    }

    fn withdraw_permissions(&mut self) {
        for request in std::mem::take(&mut self.permissions) {
            self.push(Event::PermissionClosed { request, how: PermissionClosing::Withdrawn });
        }
    }

    // Figures, limits, errors.

    /// Changes the usage and reports that of the turn.
    pub(crate) fn usage(&mut self, change: impl FnOnce(&mut UsageMeter)) {
        let before = (self.meter.turn(), self.meter.session());
        change(&mut self.meter);
        if before != (self.meter.turn(), self.meter.session()) {
            let turn = self.turn.as_ref().map_or(0, |turn| turn.number);
            let report = UsageReport { turn, this_turn: self.meter.turn(), session: self.meter.session() };
            self.push(Event::Usage(report));
        }
    }

    pub(crate) fn limit(&mut self, notice: LimitNotice) {
        if let Some(turn) = self.turn.as_mut().filter(|_| notice.resets.is_some()) {
            turn.limit = Some(notice.clone());
        }
        self.push(Event::Limit(notice));
    }

    pub(crate) fn retrying(&mut self, retry: Retry) {
        self.turn_started();
        let is_hopeless = retry.failure.kind == FailureKind::Auth && retry.attempt >= AUTH_ATTEMPTS;
        if let Some(turn) = self.turn.as_mut().filter(|turn| is_hopeless && turn.given_up.is_none()) {
            turn.given_up = Some(retry.failure.clone());
            self.wants_interrupt = true;
        }
        self.push(Event::Retrying(retry));
    }

    /// Reports an error that does not end the turn, and makes a later success doubtful.
    pub(crate) fn problem(&mut self, failure: Failure) {
        if let Some(turn) = &mut self.turn {
            turn.hint = Some(failure.clone());
        }
        self.push(Event::Problem(failure));
    }
}

/// Takes a field out of a value. Returns null if there is none or the value is not an object.
pub(crate) fn take(value: &mut Value, key: &str) -> Value {
    value.get_mut(key).map(Value::take).unwrap_or(Value::Null)
}

/// Returns a number as an unsigned integer; 0 for negative numbers and other values.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_f64().map(|number| number.max(0.0) as u64)).unwrap_or(0)
}

/// Returns a text, or an empty one for any other value.
pub(crate) fn string(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// Returns the usage of a request or turn in which cached tokens are part of the input.
pub(crate) fn usage_of(input: u64, cached: u64, cache_write: u64, output: u64, reasoning: u64) -> Usage {
    Usage {
        input_tokens: input,
        cached_input_tokens: cached,
        cache_write_tokens: cache_write,
        output_tokens: output,
        reasoning_tokens: reasoning,
        cost_usd: None,
    }
}
