//! The agents that Sprag knows by name: how to find, start and check them, and their known problems.
//!
//! This is data and pure parsing; only [`probe()`] runs anything. An agent that is not listed here also works, if
//! `agents.toml` names its driver and command.

mod probe;
mod version;

use std::path::{Path, PathBuf};

pub use probe::{Login, Probe, parse_login, probe};
pub use version::Version;

use crate::launch::Driver;

/// An agent that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAgent {
    /// The name in pipeline files and `agents.toml`: `claude`.
    pub name: &'static str,
    /// The name for people: `Claude Code`.
    pub title: &'static str,
    /// The wire that it speaks.
    pub driver: Driver,
    /// The program's file name, to be found in `PATH`.
    pub program: &'static str,
    /// The arguments that make it print its version and exit.
    pub version_args: &'static [&'static str],
    /// The way to check whether it is logged in.
    pub login: LoginCheck,
    /// Variables that contain its credentials; only this agent's process gets them.
    pub credentials: &'static [&'static str],
    /// The variable that moves its settings, sessions and login elsewhere, for several accounts; absent if it has none.
    pub home_variable: Option<&'static str>,
    /// The version that was recorded and tested.
    pub tested: Version,
    /// The command that installs it.
    pub install: &'static str,
    /// Known problems, with the versions that have them.
    pub problems: &'static [KnownProblem],
}

/// The way to check whether an agent is logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginCheck {
    /// A command that exits with 0 if the agent is logged in.
    Command(&'static [&'static str]),
    /// One of its variables is set, or one of these files exists in the home folder.
    Files(&'static [&'static str]),
    /// It needs no login.
    NotNeeded,
}

/// A known problem of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownProblem {
    /// The first version that has it.
    pub from: Version,
    /// The first version that does not have it any more; absent if it is not known to be fixed.
    pub fixed_in: Option<Version>,
    /// The symptom, and the remedy by Sprag or the user.
    pub text: &'static str,
}

impl KnownProblem {
    /// Returns whether a version has the problem.
    pub fn affects(&self, version: Version) -> bool {
        version >= self.from && self.fixed_in.is_none_or(|repaired| version < repaired)
    }
}

const ANY: Version = Version::new(0, 0, 0);

const fn problem(text: &'static str) -> KnownProblem {
    KnownProblem { from: ANY, fixed_in: None, text }
}

/// The known agents.
pub const AGENTS: &[KnownAgent] = &[
    KnownAgent {
        name: "claude",
        title: "Claude Code",
        driver: Driver::ClaudeStream,
        program: "claude",
        version_args: &["--version"],
        login: LoginCheck::Command(&["auth", "status"]),
        credentials: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
        home_variable: Some("CLAUDE_CONFIG_DIR"),
        tested: Version::new(2, 1, 325),
        install: "npm install -g @anthropic-ai/claude-code",
        problems: &[
            problem(
                "Two processes may resume one session, and the turn of the second vanishes silently. Sprag starts the second only after \
                 the first one's processes are gone.",
            ),
            problem("A refused key is retried for minutes. Sprag ends the turn at the second refusal."),
            problem("As root it starts only with IS_SANDBOX=1, which Sprag sets for `permissions: auto`."),
        ],
    },
    KnownAgent {
        name: "codex",
        title: "Codex",
        driver: Driver::CodexAppServer,
        program: "codex",
        version_args: &["--version"],
        login: LoginCheck::Command(&["login", "status"]),
        credentials: &["OPENAI_API_KEY", "CODEX_API_KEY"],
        home_variable: Some("CODEX_HOME"),
        tested: Version::new(0, 166, 0),
        install: "npm install -g @openai/codex",
        problems: &[
            problem(
                "`codex login status` knows no custom model providers, so that a missing login may be none.",
            ),
            problem(
                "An interrupted turn leaves its tool running. Sprag tells Codex to end it, and ends the process tree with the step.",
            ),
            problem(
                "The npm package starts a wrapper. Sprag starts the program inside it, so that signals reach it.",
            ),
        ],
    },
    KnownAgent {
        name: "gemini",
        title: "Gemini CLI",
        driver: Driver::Acp,
        program: "gemini",
        version_args: &["--version"],
        login: LoginCheck::Files(&[".gemini/oauth_creds.json"]),
        credentials: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        home_variable: None,
        tested: Version::new(0, 61, 0),
        install: "npm install -g @google/gemini-cli",
        problems: &[
            problem("It is silent while it retries after 429 and 500; only `stall` notices."),
            problem(
                "It may ignore a cancel during retries for 20 s and more; the step's grace period ends it then.",
            ),
            problem(
                "A session cannot be loaded in the clock minute in which it began; the next attempt begins a new one.",
            ),
            problem("It reports a refusal as an empty success, which Sprag counts as failed."),
        ],
    },
    KnownAgent {
        name: "opencode",
        title: "opencode",
        driver: Driver::Acp,
        program: "opencode",
        version_args: &["--version"],
        login: LoginCheck::Files(&[".local/share/opencode/auth.json"]),
        credentials: &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENCODE_API_KEY"],
        home_variable: Some("OPENCODE_CONFIG_DIR"),
        tested: Version::new(1, 18, 33),
        install: "npm install -g opencode-ai",
        problems: &[
            problem("It is silent while it retries after 429 and 500; only `stall` notices."),
            problem(
                "A turn that is cancelled during retries ends as a success without content, which Sprag counts as interrupted.",
            ),
            problem("It tells the tokens of a turn's last request only; the cost is complete."),
        ],
    },
    KnownAgent {
        name: "qwen",
        title: "Qwen Code",
        driver: Driver::Acp,
        program: "qwen",
        version_args: &["--version"],
        login: LoginCheck::Files(&[".qwen/oauth_creds.json", ".qwen/settings.json"]),
        credentials: &["OPENAI_API_KEY", "DASHSCOPE_API_KEY", "ANTHROPIC_API_KEY"],
        home_variable: None,
        tested: Version::new(0, 24, 4),
        install: "npm install -g @qwen-code/qwen-code",
        problems: &[problem("It is silent while it retries after 429 and 500; only `stall` notices.")],
    },
    KnownAgent {
        name: "fake",
        title: "the fake agent",
        driver: Driver::ClaudeStream,
        program: "sprag",
        version_args: &["--version"],
        login: LoginCheck::NotNeeded,
        credentials: &[],
        home_variable: None,
        tested: ANY,
        install: "it is a part of sprag",
        problems: &[],
    },
];

/// Returns the agent with this name.
pub fn agent(name: &str) -> Option<&'static KnownAgent> {
    AGENTS.iter().find(|agent| agent.name == name)
}

/// Finds a program in the folders of `path` (the value of `PATH`). For the npm packages of Codex and Claude
/// Code, returns the native program behind the wrapper.
pub fn find_program(program: &str, path: &str) -> Option<PathBuf> {
    let found = if program.contains('/') {
        is_executable(Path::new(program)).then(|| PathBuf::from(program))?
    } else {
        path.split(':')
            .filter(|dir| !dir.is_empty())
            .map(|dir| Path::new(dir).join(program))
            .find(|file| is_executable(file))?
    };
    Some(behind_wrapper(&found).unwrap_or(found))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the native program of an npm package, if `program` is its wrapper: `@openai/codex/bin/codex.js` starts
/// `@openai/codex-linux-x64/vendor/TRIPLE/bin/codex`, and `@anthropic-ai/claude-code/bin/claude.exe` is a stub that asks for
/// its install script where npm ran none.
fn behind_wrapper(program: &Path) -> Option<PathBuf> {
    let wrapper = program.canonicalize().ok()?;
    if wrapper.ends_with("@anthropic-ai/claude-code/bin/claude.exe") {
        let package = wrapper.parent()?.parent()?;
        let platform =
            if cfg!(target_arch = "aarch64") { "claude-code-linux-arm64" } else { "claude-code-linux-x64" };
        let folders = [package.parent()?.to_owned(), package.join("node_modules/@anthropic-ai")];
        return folders
            .iter()
            .map(|scope| scope.join(platform).join("claude"))
            .find(|file| is_executable(file));
    }
    if !wrapper.ends_with("@openai/codex/bin/codex.js") {
        return None;
    }
    let package = wrapper.parent()?.parent()?;
    let siblings = [package.parent()?.to_owned(), package.join("node_modules/@openai")];
    siblings.iter().find_map(|scope| {
        let platform = if cfg!(target_arch = "aarch64") { "codex-linux-arm64" } else { "codex-linux-x64" };
        let vendor = std::fs::read_dir(scope.join(platform).join("vendor")).ok()?;
        vendor.flatten().map(|triple| triple.path().join("bin/codex")).find(|native| is_executable(native))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn agents_are_known_by_name() {
        for name in ["claude", "codex", "gemini", "opencode", "qwen", "fake"] {
            assert_eq!(agent(name).map(|agent| agent.name), Some(name));
        }
        assert_eq!(agent("nobody"), None);
    }

    #[test]
    fn problems_concern_a_range_of_versions() {
        let known =
            KnownProblem { from: Version::new(1, 2, 0), fixed_in: Some(Version::new(1, 4, 0)), text: "" };
        let rows = [((1, 1, 9), false), ((1, 2, 0), true), ((1, 3, 9), true), ((1, 4, 0), false)];
        for ((major, minor, patch), expected) in rows {
            assert_eq!(known.affects(Version::new(major, minor, patch)), expected, "{major}.{minor}.{patch}");
        }
    }

    #[test]
    fn codex_is_found_behind_its_wrapper() {
        let root = tempfile::tempdir().expect("a folder");
        let file = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(&path, "#!/bin/sh\n").expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
            path
        };
        let wrapper = file("lib/node_modules/@openai/codex/bin/codex.js");
        let platform = if cfg!(target_arch = "aarch64") { "codex-linux-arm64" } else { "codex-linux-x64" };
        let bin = root.path().join("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        symlink(&wrapper, bin.join("codex")).expect("a link");
        let path = format!("/nowhere::{}", bin.display());
        assert_eq!(
            find_program("codex", &path),
            Some(bin.join("codex")),
            "the wrapper is better than nothing"
        );
        let native = file(&format!("lib/node_modules/@openai/{platform}/vendor/some-triple/bin/codex"));
        let found = find_program("codex", &path).expect("it is there");
        assert_eq!(found.canonicalize().expect("a path"), native.canonicalize().expect("a path"));
        assert_eq!(find_program("codex", "/nowhere"), None);
        assert_eq!(find_program(&native.to_string_lossy(), ""), Some(native));
        let stub = file("lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe");
        symlink(&stub, bin.join("claude")).expect("a link");
        assert_eq!(find_program("claude", &path), Some(bin.join("claude")), "its install script has run");
        let platform = platform.replace("codex", "claude-code");
        let native = file(&format!("lib/node_modules/@anthropic-ai/{platform}/claude"));
        let found = find_program("claude", &path).expect("it is there");
        assert_eq!(found.canonicalize().expect("a path"), native.canonicalize().expect("a path"));
    }
}
