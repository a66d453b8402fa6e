//! Runs an agent's own version and login commands, and reads their output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::{KnownAgent, KnownProblem, LoginCheck, Version, find_program};
use crate::text::shorten;

/// The most bytes that are read of a command's output.
const MAX_OUTPUT: u64 = 64 << 10;

/// Whether an agent is logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "login", rename_all = "snake_case")]
pub enum Login {
    /// The agent is logged in.
    Yes {
        /// The evidence: a variable, a file, the agent's own answer.
        by: String,
    },
    /// The agent says that it is not logged in, or no credentials were found.
    No {
        /// The reason.
        reason: String,
    },
    /// The check itself failed.
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// The state of an agent on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// The program's path; absent if it is not installed.
    pub program: Option<PathBuf>,
    /// The version, if the program printed one.
    pub version: Option<Version>,
    /// Whether the version is older than the tested one.
    pub is_older_than_tested: bool,
    /// Whether it is logged in.
    pub login: Login,
    /// The known problems of this version.
    pub problems: Vec<&'static KnownProblem>,
}

/// Finds an agent and asks it for its version and login. `env` is the environment that the agent would get; each
/// command gets `timeout`.
pub async fn probe(
    agent: &'static KnownAgent,
    program: &str,
    env: &BTreeMap<String, String>,
    timeout: Duration,
) -> Probe {
    let path = env.get("PATH").map_or("", String::as_str);
    let Some(program) = find_program(program, path) else {
        let login = Login::Unknown { reason: format!("{program} is not in PATH") };
        return Probe {
            program: None,
            version: None,
            is_older_than_tested: false,
            login,
            problems: Vec::new(),
        };
    };
    let version = match run(&program, agent.version_args, env, timeout).await {
        Ok(output) => Version::find(&output.stdout).or_else(|| Version::find(&output.stderr)),
        Err(_) => None,
    };
    let login = match agent.login {
        LoginCheck::NotNeeded => Login::Yes { by: "it needs no login".to_owned() },
        LoginCheck::Files(files) => login_by_files(agent, files, env),
        LoginCheck::Command(args) => match run(&program, args, env, timeout).await {
            Ok(output) => parse_login(agent, output.code, &output.stdout, &output.stderr, env),
            Err(reason) => Login::Unknown { reason },
        },
    };
    let shown = version.unwrap_or(agent.tested);
    Probe {
        program: Some(program),
        version,
        is_older_than_tested: version.is_some_and(|version| version < agent.tested),
        login,
        problems: agent.problems.iter().filter(|problem| problem.affects(shown)).collect(),
    }
}

/// Reads the output of an agent's login command.
pub fn parse_login(
    agent: &KnownAgent,
    code: Option<i32>,
    stdout: &str,
    stderr: &str,
    env: &BTreeMap<String, String>,
) -> Login {
    let said = [stdout, stderr].join("\n");
    let last = said
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !line.starts_with("WARNING"))
        .unwrap_or("");
    // Claude Code answers with JSON.
    let status: Option<serde_json::Value> = serde_json::from_str(stdout.trim()).ok();
    let says_no = status.as_ref().is_some_and(|status| status["loggedIn"] == false) || code == Some(1);
    match code {
        Some(0) if !says_no => {
            let method = status.and_then(|status| status["authMethod"].as_str().map(str::to_owned));
            Login::Yes { by: method.unwrap_or_else(|| shorten(last)) }
        }
        _ if says_no => match set_credential(agent, env) {
            // The command checks the stored login, not keys in variables.
            Some(variable) => Login::Yes { by: variable.to_owned() },
            None => Login::No {
                reason: if status.is_some() { "not logged in".to_owned() } else { shorten(last) },
            },
        },
        _ => Login::Unknown { reason: shorten(last) },
    }
}

fn login_by_files(agent: &KnownAgent, files: &[&str], env: &BTreeMap<String, String>) -> Login {
    if let Some(variable) = set_credential(agent, env) {
        return Login::Yes { by: variable.to_owned() };
    }
    let home = env.get("HOME").map_or(Path::new("/"), Path::new);
    match files.iter().map(|file| home.join(file)).find(|file| file.exists()) {
        Some(file) => Login::Yes { by: file.display().to_string() },
        None => Login::No {
            reason: format!("neither {} nor ~/{}", agent.credentials.join(", "), files.join(", ~/")),
        },
    }
}

fn set_credential(agent: &KnownAgent, env: &BTreeMap<String, String>) -> Option<&'static str> {
    agent
        .credentials
        .iter()
        .copied()
        .find(|variable| env.get(*variable).is_some_and(|value| !value.is_empty()))
}

struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn run(
    program: &Path,
    args: &[&str],
    env: &BTreeMap<String, String>,
    timeout: Duration,
) -> Result<Output, String> {
    let said = |reason: String| format!("{} {}: {reason}", program.display(), args.join(" "));
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(env).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| said(error.to_string()))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let all = async {
        let (stdout, stderr) = tokio::join!(read_some(stdout), read_some(stderr));
        child.wait().await.map(|status| Output { code: status.code(), stdout, stderr })
    };
    match tokio::time::timeout(timeout, all).await {
        Err(_) => Err(said(format!("no answer within {} s", timeout.as_secs()))),
        Ok(output) => output.map_err(|error| said(error.to_string())),
    }
}

/// Reads the first part of a pipe and closes it, so that a program that never stops writing exits.
async fn read_some(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After an error, the bytes read so far are all there is.
        pipe.take(MAX_OUTPUT).read_to_end(&mut bytes).await.ok();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::catalog::agent;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn logins_are_read_from_what_real_agents_print() {
        let (claude, codex) = (agent("claude").expect("known"), agent("codex").expect("known"));
        let none = env(&[]);
        let out = r#"{"loggedIn": false, "authMethod": "none"}"#;
        assert_eq!(
            parse_login(claude, Some(1), out, "", &none),
            Login::No { reason: "not logged in".to_owned() }
        );
        let key = env(&[("ANTHROPIC_API_KEY", "x")]);
        assert_eq!(
            parse_login(claude, Some(1), out, "", &key),
            Login::Yes { by: "ANTHROPIC_API_KEY".to_owned() }
        );
        let inside = r#"{"loggedIn": true, "authMethod": "claude.ai"}"#;
        assert_eq!(
            parse_login(claude, Some(0), inside, "", &none),
            Login::Yes { by: "claude.ai".to_owned() }
        );
        let warned = "WARNING: proceeding\nNot logged in\n";
        assert_eq!(
            parse_login(codex, Some(1), "", warned, &none),
            Login::No { reason: "Not logged in".to_owned() }
        );
        let chatgpt = parse_login(codex, Some(0), "", "Logged in using ChatGPT\n", &none);
        assert_eq!(chatgpt, Login::Yes { by: "Logged in using ChatGPT".to_owned() });
        assert!(matches!(parse_login(codex, None, "", "killed", &none), Login::Unknown { .. }));
    }

    #[tokio::test]
    async fn a_probe_finds_asks_and_warns() {
        let bin = tempfile::tempdir().expect("a folder");
        let file = bin.path().join("claude");
        let script = "#!/bin/sh\ncase $1 in --version) echo '2.0.1 (Claude Code)';; *) echo '{\"loggedIn\": false}'; exit 1;; esac\n";
        std::fs::write(&file, script).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let claude = agent("claude").expect("known");
        let path = format!("{}:/usr/bin:/bin", bin.path().display());
        let found = probe(claude, "claude", &env(&[("PATH", &path)]), Duration::from_secs(20)).await;
        assert_eq!(found.program, Some(file));
        assert_eq!(found.version, Some(Version::new(2, 0, 1)));
        assert!(found.is_older_than_tested);
        assert!(matches!(found.login, Login::No { .. }), "{:?}", found.login);
        assert!(!found.problems.is_empty());
        let missing = probe(claude, "claude", &env(&[("PATH", "/nowhere")]), Duration::from_secs(20)).await;
        assert_eq!(missing.program, None);
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_given_up() {
        let bin = tempfile::tempdir().expect("a folder");
        let file = bin.path().join("codex");
        std::fs::write(&file, "#!/bin/sh\nexec sleep 60\n").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let path = format!("{}:/usr/bin:/bin", bin.path().display());
        let found = probe(
            agent("codex").expect("known"),
            "codex",
            &env(&[("PATH", &path)]),
            Duration::from_millis(200),
        )
        .await;
        assert_eq!(found.version, None);
        assert!(
            matches!(found.login, Login::Unknown { ref reason } if reason.contains("no answer")),
            "{:?}",
            found.login
        );
    }

    #[test]
    fn files_and_variables_are_logins() {
        let gemini = agent("gemini").expect("known");
        let home = tempfile::tempdir().expect("a folder");
        let at_home = env(&[("HOME", &home.path().to_string_lossy())]);
        let LoginCheck::Files(files) = gemini.login else { panic!("gemini is checked by files") };
        assert!(matches!(login_by_files(gemini, files, &at_home), Login::No { .. }));
        std::fs::create_dir(home.path().join(".gemini")).expect("a folder");
        std::fs::write(home.path().join(".gemini/oauth_creds.json"), "{}").expect("a file");
        assert!(matches!(login_by_files(gemini, files, &at_home), Login::Yes { .. }));
        let key = env(&[("GEMINI_API_KEY", "k")]);
        assert_eq!(login_by_files(gemini, files, &key), Login::Yes { by: "GEMINI_API_KEY".to_owned() });
    }
}
