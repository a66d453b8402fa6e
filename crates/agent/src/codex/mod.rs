//! Codex: `codex app-server`, JSON-RPC on stdio.
//!
//! ```text
//!   us                                            codex
//!   initialize, initialized ──────────────────▶
//!   thread/start | thread/resume ─────────────▶
//!                               ◀─────────────── the thread                  Started
//!   turn/start ───────────────────────────────▶
//!                               ◀─────────────── turn/started                TurnStarted
//!                               ◀─────────────── item/started, completed     Text, ToolCall, ToolResult, MessageDelivered
//!                               ◀─────────────── item/…/requestApproval      PermissionRequested
//!   {"decision": …} ──────────────────────────▶
//!   turn/steer, turn/interrupt ───────────────▶
//!                               ◀─────────────── error                       Retrying or Problem
//!                               ◀─────────────── turn/completed              TurnEnded
//!   thread/backgroundTerminals/clean ─────────▶  after an interrupt, which leaves tools running
//! ```
//!
//! Everything but the trust in the folder goes over the wire. Written against 0.166.0, with the schemas that it generates itself.

mod adapter;
mod items;
mod requests;

use std::path::Path;

pub(crate) use adapter::CodexAdapter;

use crate::launch::{CommandLine, Launch};

/// Adds the arguments that the driver needs.
pub(crate) fn command_line(launch: &Launch, line: &mut CommandLine) {
    line.arg("app-server").arg("-c").arg(trust(&launch.dir));
}

/// Returns the setting that trusts the folder for this process. Without it Codex adds every worktree to the user's
/// settings.
fn trust(dir: &Path) -> String {
    // TOML's basic strings use JSON's escapes.
    let path = serde_json::Value::from(dir.to_string_lossy());
    format!("projects={{{path}={{trust_level=\"trusted\"}}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Session;

    #[test]
    fn the_command_trusts_the_folder() {
        let mut launch = Launch::new(
            "codex",
            Path::new("/w t/\"x\""),
            Path::new("/s"),
            Session::New { id: "u".to_owned() },
        );
        launch.args = vec!["-c".to_owned(), "a=1".to_owned()];
        let line = launch.command_line();
        let expected =
            ["codex", "app-server", "-c", r#"projects={"/w t/\"x\""={trust_level="trusted"}}"#, "-c", "a=1"];
        assert_eq!(line.argv, expected);
    }
}
