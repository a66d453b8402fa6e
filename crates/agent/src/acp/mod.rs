//! The Agent Client Protocol, version 1: JSON-RPC on stdio, spoken by Gemini, opencode, Qwen and about thirty more.
//!
//! ```text
//!   us                                            agent
//!   initialize ───────────────────────────────▶
//!   session/new | session/resume | session/load ▶                            what is replayed of the history is dropped
//!   session/set_model, session/set_mode ──────▶                              where the agent offers them
//!                               ◀─────────────── the session                 Started
//!   session/prompt ───────────────────────────▶
//!                               ◀─────────────── session/update              TurnStarted, Text, ToolCall, ToolResult, Usage
//!                               ◀─────────────── session/request_permission  PermissionRequested
//!   {"outcome": …} ───────────────────────────▶
//!   session/cancel ───────────────────────────▶
//!                               ◀─────────────── the answer to the prompt    TurnEnded
//! ```
//!
//! False success is common here: agents answer `end_turn` after errors and cancels, with nothing said and hints only in `_meta`. System
//! prompts and output schemas have no place on this wire; they stand in the prompt. Written against gemini-cli 0.61.0,
//! opencode 1.18.33 and qwen-code 0.24.4.

mod adapter;
mod quirks;
mod updates;

pub(crate) use adapter::AcpAdapter;
pub(crate) use quirks::command_line;
