//! An event as one short line, for golden files and assertions.

use sprag_agent::{Event, Failure, Outcome, Usage};

/// Returns the event as one line.
pub fn brief(event: &Event) -> String {
    match event {
        Event::Started(info) => {
            let model = info.model.as_deref().unwrap_or("-");
            let known = if info.known_messages.is_empty() {
                String::new()
            } else {
                format!(" known={}", info.known_messages.len())
            };
            format!(
                "started session={} resumed={} agent={:?} model={model}{known}",
                info.session, info.resumed, info.agent
            )
        }
        Event::MessageDelivered { message } => format!("delivered {message}"),
        Event::MessageReturned { message, reason } => format!("returned {message}: {reason}"),
        Event::TurnStarted { turn, message } => {
            format!("turn {turn} started by {}", message.as_deref().unwrap_or("the agent"))
        }
        Event::Text { text, parent } => {
            format!("text {text:?}{}", if parent.is_some() { " (sub-agent)" } else { "" })
        }
        Event::TextDelta { text } => format!("delta {text:?}"),
        Event::Thinking { text } => format!("thinking {text:?}"),
        Event::ToolCall(call) => format!("call {} {} {:?}", call.id, call.name, call.title),
        Event::ToolResult(result) => {
            format!("result {} {:?} {:?}", result.id, result.status, cut(&result.output))
        }
        Event::PermissionRequested(ask) => format!("ask {} {} {:?}", ask.request, ask.tool, ask.title),
        Event::PermissionClosed { request, how } => format!("closed {request} {how:?}"),
        Event::Usage(report) => {
            let session =
                report.session.map(|session| format!(" session {}", usage(&session))).unwrap_or_default();
            format!("usage turn {}: {}{session}", report.turn, usage(&report.this_turn))
        }
        Event::Limit(limit) => {
            format!("limit rejected={} {:?} {}", limit.rejected, limit.resets, limit.window)
        }
        Event::Retrying(retry) => {
            format!("retrying {}/{} {}", retry.attempt, retry.max_attempts, failure(&retry.failure))
        }
        Event::Problem(problem) => format!("problem {}", failure(problem)),
        Event::TurnEnded(end) => {
            let outcome = match &end.outcome {
                Outcome::Completed => "completed".to_owned(),
                Outcome::Interrupted => "interrupted".to_owned(),
                Outcome::Failed(why) => format!("failed {}", failure(why)),
            };
            let output = end.output.as_ref().map(|output| format!(" output={output}")).unwrap_or_default();
            format!(
                "turn {} ended {outcome} reason={:?} text={:?}{output} calls={} denied={} {}",
                end.turn,
                end.reason,
                cut(&end.text),
                end.tool_calls,
                end.denied_calls,
                usage(&end.usage)
            )
        }
        Event::Notice { text } => format!("notice {:?}", cut(text)),
        Event::Unknown { raw } => format!("unknown {}", cut(&raw.to_string())),
        Event::Unreadable(line) => {
            format!("unreadable {} ({} bytes): {:?}", line.reason, line.length, cut(&line.head))
        }
        Event::Ended(end) => {
            let why = end.failure.as_ref().map(failure).unwrap_or_else(|| "as asked".to_owned());
            format!(
                "ended {why}{}",
                end.open_turn.map(|turn| format!(", turn {turn} open")).unwrap_or_default()
            )
        }
    }
}

fn usage(usage: &Usage) -> String {
    let cost = usage.cost_usd.map(|cost| format!(" ${cost:.4}")).unwrap_or_default();
    format!("{}+{}{cost}", usage.input_tokens, usage.output_tokens)
}

fn failure(failure: &Failure) -> String {
    let resets = failure.resets.map(|reset| format!(" {reset:?}")).unwrap_or_default();
    format!("{:?}{resets} ({})", failure.kind, cut(&failure.message))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
