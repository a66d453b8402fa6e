//! Differences between agents that speak ACP: arguments, variables and names of modes.

use serde_json::json;

use crate::launch::{CommandLine, Launch, Permissions};

/// Adds the arguments with which an agent speaks ACP with the launch's permissions and model.
pub(crate) fn command_line(launch: &Launch, line: &mut CommandLine) {
    match launch.agent.as_str() {
        "gemini" => {
            // It starts MCP servers only in a trusted folder.
            line.arg("--acp")
                .arg("--skip-trust")
                .arg("--approval-mode")
                .arg(mode(launch, "yolo", "default", "plan"));
            model_flag(launch, line);
        }
        "qwen" => {
            line.arg("--acp").arg("--approval-mode").arg(mode(launch, "yolo", "default", "plan"));
            model_flag(launch, line);
        }
        "opencode" => {
            line.arg("acp");
            // By default it runs commands without asking.
            let rule = mode(launch, "allow", "ask", "deny");
            let rules = json!({"edit": rule, "bash": rule, "webfetch": rule, "external_directory": rule});
            line.env("OPENCODE_PERMISSION", rules.to_string());
            line.env("OPENCODE_DISABLE_AUTOUPDATE", "1");
        }
        _ => {}
    }
}

/// Returns whether the model is set by an argument.
pub(crate) fn takes_model_by_argument(agent: &str) -> bool {
    matches!(agent, "gemini" | "qwen")
}

/// Returns the ids of session modes that mean these permissions, the best first. An agent that offers none of them
/// keeps its own mode.
pub(crate) fn mode_ids(permissions: Permissions) -> &'static [&'static str] {
    match permissions {
        Permissions::Auto => &["yolo", "bypassPermissions", "full-access", "auto"],
        Permissions::Ask => &["default", "ask"],
        Permissions::ReadOnly => &["plan", "read-only", "ask"],
    }
}

fn mode(launch: &Launch, auto: &'static str, ask: &'static str, read_only: &'static str) -> &'static str {
    match launch.permissions {
        Permissions::Auto => auto,
        Permissions::Ask => ask,
        Permissions::ReadOnly => read_only,
    }
}

fn model_flag(launch: &Launch, line: &mut CommandLine) {
    if let Some(model) = &launch.model {
        line.arg("--model").arg(model);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::launch::Session;

    #[test]
    fn each_agent_is_started_its_own_way() {
        let launch = |agent: &str, permissions| {
            let session = Session::New { id: "u".to_owned() };
            let mut launch = Launch::new(agent, Path::new("/wt"), Path::new("/s"), session);
            launch.permissions = permissions;
            launch.model = Some("m".to_owned());
            launch.command_line()
        };
        let gemini = launch("gemini", Permissions::Auto).argv;
        assert_eq!(gemini, ["gemini", "--acp", "--skip-trust", "--approval-mode", "yolo", "--model", "m"]);
        let qwen = launch("qwen", Permissions::ReadOnly).argv;
        assert_eq!(qwen, ["qwen", "--acp", "--approval-mode", "plan", "--model", "m"]);
        let opencode = launch("opencode", Permissions::Ask);
        assert_eq!(opencode.argv, ["opencode", "acp"]);
        assert!(opencode.env["OPENCODE_PERMISSION"].contains(r#""bash":"ask""#));
        assert_eq!(launch("goose", Permissions::Ask).argv, ["goose"]);
    }
}
