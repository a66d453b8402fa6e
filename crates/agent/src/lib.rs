//! Talks to coding agents: one event model over Claude Code, Codex, ACP agents, and a fake one.
//!
//! ```text
//!                    ┌──────────── launch ───────────┐
//!   Launch ─────────▶│ command_line()  conversation()│
//!                    └──────┬────────────────┬───────┘
//!          argv, env, files │                │ Conversation (no I/O)
//!                           ▼                │   ├─ claude   stream-json
//!            the worker spawns the process   │   ├─ codex    app-server, JSON-RPC
//!            under its supervisor            │   └─ acp      Gemini, opencode, Qwen, …
//!                           │ stdin, stdout  ▼
//!                           └──────────▶ runner::run ──▶ AgentControl  prompt, steer, interrupt, answer, close
//!                                                   └──▶ AgentEvents   Started … TurnEnded … Ended
//!                                                                        │
//!                                                    judge(TurnEnd) ◀────┘  success, or a Failure and what follows from it
//! ```
//!
//! The crate knows wires, and nothing of runs, steps, stores or accounts. It never spawns an agent ([`catalog::probe`] asks one for
//! its version), takes the time from nowhere but [`Failure::until_reset`], and bounds everything that an agent can make large.
//!
//! ```no_run
//! # async fn example(stdout: tokio::process::ChildStdout, stdin: tokio::process::ChildStdin) {
//! use std::path::Path;
//! use sprag_agent::{Event, Launch, Limits, Message, RunnerSettings, Session, Verdict, judge, run};
//!
//! let session = Session::New { id: "0b5e3bd6-54c3-4d43-a6f4-90cf6c1a9f6e".to_owned() };
//! let launch = Launch::new("claude", Path::new("/worktree"), Path::new("/private"), session);
//! let process = launch.command_line(); // for the supervisor
//! let (control, mut events, task) = run(launch.conversation(Limits::default()), stdout, stdin, RunnerSettings::default());
//! tokio::spawn(task);
//! while let Some(event) = events.next().await {
//!     match event {
//!         Event::Started(_) => {
//!             control.prompt(Message::new("9f6b…", "Fix the flaky test.")).await.expect("it is ready");
//!         }
//!         Event::TurnEnded(end) => {
//!             assert_eq!(judge(&end, None), Verdict::Success);
//!             control.close().await;
//!         }
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//!
//! What holds:
//! - No word of an agent alone is success: see [`Outcome`] and [`judge`].
//! - An agent's output is data. ANSI, invalid UTF-8, huge lines and text that looks like an event change nothing but the event
//!   they are in.
//! - Prompts, schemas and secrets are in no argv.
//! - [`Event::Ended`] comes exactly once and last; every [`Event::TurnEnded`] belongs to a turn that was open.

mod acp;
pub mod catalog;
mod claude;
mod codex;
mod conversation;

mod event;
mod failure;
pub mod fake;
mod launch;
mod lines;
mod rpc;
mod runner;
mod servers;
mod settings;
mod state;
mod structured;
mod surrogates;
mod text;
mod toml;
mod turn;
mod usage;
mod verdict;

pub use conversation::{Answer, Conversation, Limits, Message, Phase, Refused, Steer};
pub use event::{
    End, Event, LimitNotice, Outcome, PermissionClosing, PermissionRequest, Retry, SessionInfo, ToolCall,
    ToolResult, ToolStatus, TurnEnd, Unreadable, UsageReport,
};
pub use failure::{Failure, FailureKind, FollowUp, Reset};
pub use launch::{
    CommandLine, Driver, Launch, McpServer, McpTransport, OWN_SERVER, Permissions, PrivateFile, Session,
    is_root,
};
pub use lines::{Line, LineLimits, LineSplitter};
pub use runner::{AgentControl, AgentEvents, RunnerSettings, run};
pub use servers::McpSettings;
pub use settings::{AgentSettings, Agents};
pub use text::{classify_answer, classify_error, reset_in};
pub use usage::Usage;
pub use verdict::{Exit, SchemaCheck, Verdict, explain_exit, judge};
