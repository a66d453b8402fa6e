//! Sending one message of a hook: over HTTP, or to a command of this machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_app::hooks::{HookEvent, HookMessage, HookSettings, messages, sample_run, test_event};
use sprag_app::{App, Error, HookRow};
use sprag_process::{Order, Reason};
use sprag_tls::Connector;

use super::post::{PostError, post};

/// The time limit of a command that receives a message.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// The most bytes that a command may print.
const COMMAND_LOG: u64 = 1 << 20;

/// The means of this process to send messages.
#[derive(Debug, Clone)]
pub struct Means {
    /// Whether addresses of private networks may be used.
    pub allow_private: bool,
    /// The encrypted connections, with the authorities that they trust.
    pub outgoing: Connector,
    /// The program that supervises commands; none if this process starts no commands.
    pub program: Option<PathBuf>,
    /// The data directory, in which a command's message and its output are stored.
    pub data: PathBuf,
}

/// The reason why a message was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The receiver of a POST did not accept it.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The settings of the hook cannot be read.
    #[error("{0}")]
    Settings(String),
    /// The command could not be started or supervised.
    #[error("cannot run the command: {0}")]
    NotRun(String),
    /// The command failed.
    #[error("the command {0}")]
    Failed(String),
}

/// Sends a message. Returns what the receiver answered; an error if it did not accept the message.
pub(super) async fn send(
    hook: &HookRow,
    message: &HookMessage,
    wall_ms: i64,
    means: &Means,
) -> Result<String, SendError> {
    let settings = HookSettings::of(hook).map_err(|error| SendError::Settings(error.message))?;
    match settings.delivery.command {
        Some(command) => {
            run(hook, &command, message, means).await?;
            Ok("exit code 0".into())
        }
        None => Ok(post(hook, message, wall_ms, means).await?.to_string()),
    }
}

/// Sends a test message to a hook at once. Its position in the journal does not change. Returns what the receiver
/// answered.
pub async fn test_hook(app: &App, hook: &HookRow, means: &Means) -> Result<String, Error> {
    let delivery = HookSettings::of(hook)?.delivery;
    let wall_ms = app.now().wall_ms;
    let (json, run) = (test_event(wall_ms, &hook.id.to_string()), sample_run());
    let event = HookEvent { seq: 0, json: &json, run: Some(&run), failures: Vec::new() };
    let message = messages(hook.id, &delivery, &[event])?.into_iter().next();
    let message = message.ok_or_else(|| Error::bug("a test has no message"))?;
    let sent = send(hook, &message, wall_ms, means).await;
    sent.map_err(|error| Error::failed(error.to_string()))
}

/// Runs the command of a hook with the message on its stdin, under a supervisor.
async fn run(hook: &HookRow, command: &str, message: &HookMessage, means: &Means) -> Result<(), SendError> {
    let not_run = |error: String| SendError::NotRun(error);
    let program = means.program.as_deref().ok_or_else(|| not_run("this server starts no commands".into()))?;
    let folder = means.data.join("hooks");
    let (body, log) = (folder.join(format!("{}.json", hook.id)), folder.join(format!("{}.log", hook.id)));
    let written = sprag_process::make_private_folder(&folder)
        .and_then(|()| sprag_process::replace_private(&body, &message.body))
        .and_then(|()| match std::fs::remove_file(&log) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
    written.map_err(|error| not_run(format!("{}: {error}", folder.display())))?;
    let script = format!("exec < \"$SPRAG_HOOK_MESSAGE\"\n{command}");
    let mut order = Order::new(["/bin/sh", "-c", script.as_str()], &log);
    order.label = format!("hook {}", hook.id);
    order.timeout_ms = Some(COMMAND_LIMIT.as_millis() as u64);
    order.log_limit_bytes = COMMAND_LOG;
    order.secrets = vec![hook.secret.to_string()];
    order.env.insert("SPRAG_HOOK".into(), hook.id.to_string());
    order.env.insert("SPRAG_HOOK_MESSAGE".into(), body.display().to_string());
    let ended = async { sprag_process::spawn(order, program).await?.wait().await };
    let ended = ended.await.map_err(|error| not_run(error.to_string()))?;
    if ended.success() {
        return Ok(());
    }
    let how = match (&ended.reason, ended.exit_code, ended.signal) {
        (Reason::Timeout, ..) => format!("took longer than {} s", COMMAND_LIMIT.as_secs()),
        (Reason::CouldNotStart { message, .. }, ..) => format!("did not start: {message}"),
        (_, Some(code), _) => format!("ended with exit code {code}"),
        (_, None, Some(signal)) => format!("was ended by signal {signal}"),
        (reason, None, None) => format!("was stopped ({reason:?})"),
    };
    Err(SendError::Failed(format!("{how}{}", last_line(&log))))
}

/// Returns the last line that a command printed, after a colon; empty if it printed nothing.
fn last_line(log: &Path) -> String {
    let bytes = sprag_process::read_regular(log, 2 * COMMAND_LOG).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().rev().find_map(sprag_process::LogEntry::parse);
    last.map(|entry| format!(": {}", sprag_app::text::plain(&entry.text))).unwrap_or_default()
}
