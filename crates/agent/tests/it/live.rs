//! The real agents, offline: each talks to a loopback stand-in for its model's API.
//!
//! `SPRAG_LIVE_AGENTS` names the folders in which the programs are found, as `PATH` does. With `SPRAG_RECORD=1` each conversation is written
//! to `tests/data` as it happened, with this machine's paths and ports replaced.

use std::path::{Path, PathBuf};

use sprag_agent::{Launch, Session, catalog};
use sprag_testkit::models::{Failure, Models, Reply, Script};

use super::common::process::{AgentProcess, real, repository};
use super::common::recording;

/// The time at which the stand-in's limits are reset.
pub const RESETS_AT: i64 = 1_900_000_000;
/// The command of the scene `commit`.
pub const COMMIT: &str = "date >f.txt && git add f.txt && git -c user.name=a -c user.email=a@b commit -qm hi";
const FOREVER: &str = "until test -e never; do sleep 1; done";

/// Returns the answers of the models. A prompt names its scene.
fn script() -> Script {
    let shell = |say: &str, command: &str| Reply::Shell { say: say.to_owned(), command: command.to_owned() };
    Script::new()
        .scene("scene-commit", [shell("I will commit.", COMMIT), Reply::text("Committed.")])
        .scene("scene-hello", [Reply::text("Hello there.")])
        .scene("scene-forever", [shell("", FOREVER), Reply::text("Never said.")])
        .scene("scene-slow", [shell("", "for i in 1 2 3; do sleep 0.5; done"), Reply::text("Slept.")])
        .scene("scene-401", [Reply::Failure(Failure::Unauthorized)])
        .scene("scene-limit", [Reply::Failure(Failure::UsageLimit { resets_at: RESETS_AT })])
        .scene("scene-500", [Reply::Failure(Failure::ServerError)])
        .scene("scene-529", [Reply::Failure(Failure::Overloaded)])
        .scene("scene-flaky", [Reply::flaky(1, Failure::ServerError, Reply::text("After one failure."))])
        .scene("scene-hang", [Reply::Hang])
        .scene("scene-empty", [Reply::Empty])
        .scene("scene-refusal", [Reply::Refusal])
        .scene("scene-cut", [Reply::CutOff("half a sen".to_owned())])
        .scene(
            "scene-output",
            [Reply::Output(serde_json::json!({"verdict": "good"})), Reply::text("Finished.")],
        )
        .scene("scene-unmet", [Reply::text("I would rather talk.")])
}

/// Returns the schema of the scene `output`.
pub fn schema() -> serde_json::Value {
    serde_json::json!({"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"],
        "additionalProperties": false})
}

/// A real agent with its own home, repository and model.
pub struct Real {
    name: &'static str,
    program: PathBuf,
    version: String,
    pub models: Models,
    folder: tempfile::TempDir,
    /// Variables for the process, in addition to `HOME` and `PATH`.
    pub env: Vec<(String, String)>,
    recorded: bool,
}

impl Real {
    /// Looks for an agent. Prints a message if it is not installed.
    pub fn find(name: &'static str) -> Option<Real> {
        let known = catalog::agent(name).expect("a known agent");
        let Some(path) = std::env::var("SPRAG_LIVE_AGENTS").ok() else {
            println!("skipped: SPRAG_LIVE_AGENTS does not say where {name} is");
            return None;
        };
        let Some(program) = catalog::find_program(known.program, &path) else {
            println!("skipped: {name} is not in {path}");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("worktree");
        repository(&dir);
        for name in ["home", "scratch"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let models = Models::start(script());
        let told = std::process::Command::new(&program)
            .arg("--version")
            .env("HOME", folder.path().join("home"))
            .output();
        let told = String::from_utf8_lossy(&told.expect("a version").stdout).into_owned();
        let version = catalog::Version::find(&told).expect("a version").to_string();
        println!("{name} {version}");
        let url = models.url();
        let pairs: Vec<(&str, String)> = match name {
            "claude" => vec![
                ("ANTHROPIC_BASE_URL", url),
                ("ANTHROPIC_API_KEY", "sk-test".to_owned()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ],
            "codex" => vec![("FAKE_KEY", "sk-test".to_owned())],
            "gemini" => vec![("GEMINI_API_KEY", "test".to_owned()), ("GOOGLE_GEMINI_BASE_URL", url)],
            "opencode" => vec![
                ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
                ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
                (
                    "OPENCODE_CONFIG_CONTENT",
                    serde_json::json!({"provider": {"anthropic": {"options": {"baseURL": format!("{url}/v1"), "apiKey": "test"}}},
                        "model": "anthropic/claude-sonnet-4-5", "small_model": "anthropic/claude-sonnet-4-5", "autoupdate": false,
                        "share": "disabled"})
                    .to_string(),
                ),
            ],
            _ => vec![
                ("ANTHROPIC_API_KEY", "test".to_owned()),
                ("ANTHROPIC_BASE_URL", url),
                ("ANTHROPIC_MODEL", "test-model".to_owned()),
            ],
        };
        let env = pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let recorded = std::env::var_os("SPRAG_RECORD").is_some();
        Some(Real { name, program, version, models, folder, env, recorded })
    }

    /// Returns the folder that the agent works in.
    pub fn dir(&self) -> PathBuf {
        real(&self.folder.path().join("worktree"))
    }

    /// Returns a launch in a new session.
    pub fn launch(&self) -> Launch {
        let session = Session::New { id: "11111111-1111-4111-8111-111111111111".to_owned() };
        let mut launch =
            Launch::new(self.name, &self.dir(), &real(&self.folder.path().join("scratch")), session);
        launch.command = vec![self.program.to_string_lossy().into_owned()];
        launch.is_root = rustix_is_root();
        match self.name {
            "codex" => {
                let provider = format!(
                    "model_providers.fake={{name=\"fake\",base_url=\"{}/v1\",wire_api=\"responses\",env_key=\"FAKE_KEY\",\
                     request_max_retries=1,stream_max_retries=1}}",
                    self.models.url()
                );
                launch.args = ["-c", "model_provider=\"fake\"", "-c", &provider].map(str::to_owned).to_vec();
                launch.model = Some("test-model".to_owned());
            }
            // This model is chosen without a further request to the model.
            "gemini" => launch.model = Some("gemini-2.5-pro".to_owned()),
            "qwen" => {
                launch.args = ["--auth-type", "anthropic"].map(str::to_owned).to_vec();
                launch.model = Some("test-model".to_owned());
            }
            _ => {}
        }
        launch
    }

    /// Starts the agent.
    pub fn start(&self, launch: &Launch) -> AgentProcess {
        let home = real(&self.folder.path().join("home"));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut env =
            vec![("HOME".to_owned(), home.to_string_lossy().into_owned()), ("PATH".to_owned(), path)];
        env.push(("LANG".to_owned(), "C.UTF-8".to_owned()));
        env.extend(self.env.iter().cloned());
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut scrub = vec![
            (text(&self.dir()), recording::DIR.to_owned()),
            // Claude Code names its folders after paths.
            (text(&self.dir()).replace(['/', '.'], "-"), "-worktree".to_owned()),
            (text(&home), "/home/user".to_owned()),
            (text(&real(self.folder.path())), "/tmp/test".to_owned()),
            (self.models.url().replace("http://", ""), "127.0.0.1:1".to_owned()),
        ];
        // Where the agent is installed.
        if let Some((before, _)) = text(&real(&self.program)).split_once("/node_modules/") {
            scrub.push((before.to_owned(), "/usr/lib".to_owned()));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        scrub.push((format!("\"serverName\":\"{}\"", host.trim()), "\"serverName\":\"host\"".to_owned()));
        AgentProcess::start(launch, &env, &self.version, scrub)
    }

    /// Writes a recording, if `SPRAG_RECORD` is set.
    pub fn keep(&self, scene: &str, recording: &str) {
        if self.recorded {
            let folder = recording::data().join(format!("{}-{}", self.name, self.version));
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join(format!("{scene}.rec")), recording).expect("a recording");
        }
    }
}

fn rustix_is_root() -> bool {
    rustix::process::geteuid().is_root()
}
