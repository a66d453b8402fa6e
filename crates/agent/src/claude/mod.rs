//! Claude Code: `claude -p --input-format stream-json --output-format stream-json --verbose`, many turns in one process.
//!
//! ```text
//!   us                                            claude
//!   control_request initialize ───────────────▶
//!                               ◀─────────────── control_response            Started
//!   user {uuid, message} ─────────────────────▶
//!                               ◀─────────────── user isReplay               MessageDelivered
//!                               ◀─────────────── system/init                 the session's id is checked
//!                               ◀─────────────── assistant: text, tool_use   TurnStarted, Text, ToolCall
//!                               ◀─────────────── control_request can_use_tool PermissionRequested (only if asked to ask)
//!   control_response allow | deny ────────────▶
//!                               ◀─────────────── user: tool_result           ToolResult
//!   control_request interrupt ────────────────▶
//!                               ◀─────────────── result                      TurnEnded
//! ```
//!
//! The system prompt and the output schema travel in `initialize`, so that argv holds neither. `result` says `success` in many cases
//! that are none: see `result.rs`. Written against 2.1.325.

mod adapter;
mod result;

use serde_json::json;

pub(crate) use adapter::ClaudeAdapter;

use crate::launch::{
    CommandLine, Launch, McpServer, McpTransport, OWN_SERVER, Permissions, PrivateFile, Session,
};

/// The tools that change files.
const WRITING_TOOLS: &str = "Edit,Write,NotebookEdit";

/// Adds the arguments that the driver needs.
pub(crate) fn command_line(launch: &Launch, line: &mut CommandLine) {
    line.arg("-p")
        .arg("--input-format")
        .arg("stream-json")
        .arg("--output-format")
        .arg("stream-json")
        .arg("--verbose");
    line.arg("--replay-user-messages");
    match &launch.session {
        Session::New { id } => line.arg("--session-id").arg(id),
        Session::Resume { id } => line.arg("--resume").arg(id),
    };
    if launch.deltas {
        line.arg("--include-partial-messages");
    }
    if let Some(model) = &launch.model {
        line.arg("--model").arg(model);
    }
    line.arg("--permission-mode");
    let own = launch.mcp_servers.iter().any(|server| server.name == OWN_SERVER);
    match launch.permissions {
        Permissions::Auto => {
            line.arg("bypassPermissions");
            if launch.is_root {
                line.env("IS_SANDBOX", "1");
            }
        }
        Permissions::Ask => {
            line.arg("default").arg("--permission-prompt-tool").arg("stdio");
            if own {
                line.arg(format!("--allowedTools=mcp__{OWN_SERVER}"));
            }
        }
        Permissions::ReadOnly => {
            line.arg("dontAsk").arg(format!("--disallowedTools={WRITING_TOOLS}"));
            if own {
                line.arg(format!("--allowedTools=mcp__{OWN_SERVER}"));
            }
        }
    }
    if !launch.mcp_servers.is_empty() {
        let path = launch.scratch.join("claude-mcp.json");
        line.arg("--mcp-config").arg(path.to_string_lossy());
        line.files.push(PrivateFile { path, content: mcp_config(&launch.mcp_servers) });
    }
    line.env("DISABLE_AUTOUPDATER", "1");
    // Claude Code refuses to start if it finds these, because it assumes that it runs inside another one.
    line.env_remove
        .extend(["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"].map(str::to_owned));
}

fn mcp_config(servers: &[McpServer]) -> String {
    let entries: serde_json::Map<_, _> = servers
        .iter()
        .map(|server| {
            let entry = match &server.transport {
                McpTransport::Stdio { command, args, env } => {
                    json!({"type": "stdio", "command": command, "args": args, "env": env})
                }
                McpTransport::Http { url, headers } => {
                    json!({"type": "http", "url": url, "headers": headers})
                }
            };
            (server.name.clone(), entry)
        })
        .collect();
    json!({"mcpServers": entries}).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_command_says_session_rights_and_servers() {
        let mut launch =
            Launch::new("claude", Path::new("/wt"), Path::new("/s"), Session::New { id: "u-1".to_owned() });
        launch.is_root = true;
        let line = launch.command_line();
        assert_eq!(line.argv[..2], ["claude", "-p"]);
        let text = line.argv.join(" ");
        assert!(text.contains("--session-id u-1 --permission-mode bypassPermissions"), "{text}");
        assert_eq!(line.env["IS_SANDBOX"], "1");
        launch.session = Session::Resume { id: "u-1".to_owned() };
        launch.permissions = Permissions::Ask;
        launch.model = Some("opus".to_owned());
        launch.args = vec!["--max-turns".to_owned(), "3".to_owned()];
        launch.mcp_servers = vec![McpServer {
            name: "sprag".to_owned(),
            transport: McpTransport::Http {
                url: "http://127.0.0.1:1/mcp".to_owned(),
                headers: BTreeMap::new(),
            },
        }];
        let line = launch.command_line();
        let text = line.argv.join(" ");
        for part in [
            "--resume u-1",
            "--model opus",
            "--permission-mode default --permission-prompt-tool stdio",
            "--allowedTools=mcp__sprag",
            "--mcp-config /s/claude-mcp.json",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.ends_with("--max-turns 3"), "{text}");
        assert!(!line.env.contains_key("IS_SANDBOX"));
        assert!(line.files[0].content.contains("127.0.0.1:1/mcp"));
        assert!(line.env_remove.contains(&"CLAUDECODE".to_owned()));
    }
}
