//! The real Claude Code and Codex, offline against the loopback stand-in for the models' APIs.
//!
//! They come from the npm registry, in the versions that were recorded, without install scripts. A machine that cannot
//! install them skips these tests and says so. One smoke test runs always, the others nightly.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use sprag_testkit::models::{Failure, Models, Reply, Script};
use sprag_tests::{Answer, Project, Signal, Started, is_running, now_ms, signal, until, until_some};

/// The packages, in the versions whose streams are recorded in crates/agent.
const PACKAGES: [&str; 2] = ["@anthropic-ai/claude-code@2.1.325", "@openai/codex@0.166.0"];
/// The longest time of an installation: the packages have 250 MB.
const INSTALL: &str = "400";
/// The longest time of one run.
const RUN: Duration = Duration::from_secs(300);
const COMMIT: &str = "printf %s \"$SPRAG_RUN_ID\" > \"$SPRAG_RUN_ID.txt\" && git add . && git -c user.name=a -c user.email=a@b commit -qm \"by an agent\"";

/// Returns the folder of the installed programs; `None` if this machine cannot install them.
fn installed() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| install().map_err(|why| println!("skipped: {why}")).ok()).as_deref()
}

/// Installs the packages beside the other temporary files of the tests, once for all later runs.
fn install() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-agents");
    let programs = folder.join("node_modules/.bin");
    let marker = folder.join("installed");
    if std::fs::read_to_string(&marker).is_ok_and(|what| what == PACKAGES.join(" ")) {
        return Ok(programs);
    }
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let answer = Command::new("timeout")
        .args([INSTALL, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"])
        .arg(&folder)
        .args(PACKAGES)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("npm cannot be started: {error}"))?;
    if !answer.status.success() {
        let said = String::from_utf8_lossy(&answer.stderr);
        return Err(format!("npm cannot install the agents: {}", said.lines().last().unwrap_or_default()));
    }
    std::fs::write(marker, PACKAGES.join(" ")).map_err(|error| error.to_string())?;
    Ok(programs)
}

/// A repository, the real agents, and the stand-in for their models.
struct Stage {
    project: Project,
    models: Models,
    programs: &'static Path,
}

impl Stage {
    fn new(programs: &'static Path, script: Script) -> Stage {
        let models = Models::start(script);
        let project = Project::new();
        let sandbox = &project.sandbox;
        for folder in ["config/sprag", "home"] {
            std::fs::create_dir_all(sandbox.path(folder)).expect("a folder");
        }
        let url = models.url();
        sandbox.write(
            "config/sprag/agents.toml",
            &format!(
                "[claude]\nenv = {{ ANTHROPIC_BASE_URL = \"{url}\", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = \"1\" }}\n\
                 [codex]\nsecrets = [\"FAKE_KEY\"]\nargs = [\"-c\", \"model_provider=\\\"fake\\\"\", \"-c\", \"model_providers.fake={{name=\\\"fake\\\",base_url=\\\"{url}/v1\\\",wire_api=\\\"responses\\\",env_key=\\\"FAKE_KEY\\\"}}\"]\n"
            ),
        );
        Stage { project, models, programs }
    }

    fn start(&self, args: &[&str]) -> Started {
        let sandbox = &self.project.sandbox;
        let mut command = self.project.command_in(&self.project.repo(), args);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command.env("HOME", sandbox.path("home")).env("XDG_CONFIG_HOME", sandbox.path("config"));
        command.env("ANTHROPIC_API_KEY", "sk-test").env("FAKE_KEY", "sk-test");
        sandbox.start_command(command)
    }

    fn sprag(&self, args: &[&str]) -> Answer {
        self.start(args).finish_within(RUN)
    }

    /// Writes a pipeline in which these agents work at once, each in a run and a worktree of its own, and land.
    fn many(&self, agents: &[(&str, &str)]) -> String {
        let mut steps = String::new();
        for (name, agent) in agents {
            let model = if *agent == "codex" { ", model: test-model" } else { "" };
            let file = format!("one-{agent}.yaml");
            steps += &format!(
                "  - id: {name}\n    needs: []\n    pipeline: {{ file: {file}, inputs: {{ name: {name} }} }}\n"
            );
            self.project.sandbox.write(
                &file,
                &format!(
                    "name: {agent}\ninputs: {{ name: string }}\nenvironment: {{ worktree: {{ branch: 'work/{{{{ inputs.name }}}}' }} }}\nsteps:\n  - id: work\n    agent: {{ use: {agent}{model}, prompt: SCENE-COMMIT }}\n    check: {{ run: 'git mv \"$SPRAG_RUN_ID.txt\" \"{{{{ inputs.name }}}}.txt\" && git -c user.name=a -c user.email=a@b commit -qm named' }}\n  - id: again\n    agent: {{ use: {agent}{model}, prompt: SCENE-AGAIN, session: {{ continue: work }} }}\n  - {{ id: land, land: main, on_fail: {{ rework: work, max: 1 }} }}\n"
                ),
            );
        }
        self.project.pipeline("real", "", &steps).to_str().expect("a path").to_owned()
    }

    fn has_landed(&self, name: &str) -> bool {
        self.project.repo().join(format!("{name}.txt")).exists()
    }
}

fn script() -> Script {
    Script::new()
        .scene("SCENE-COMMIT", [Reply::shell(COMMIT), Reply::text("Committed.")])
        .scene("SCENE-AGAIN", [Reply::text("I remember.")])
}

/// Runs these agents at once, and expects all of their work on the branch.
fn all_land(agents: &[(&str, &str)]) {
    let Some(programs) = installed() else { return };
    let stage = Stage::new(programs, script());
    stage.sprag(&["run", &stage.many(agents)]).expect(0);
    for (name, _) in agents {
        assert!(stage.has_landed(name), "{name} has landed");
    }
    // The second turn is in the session of the first: the model is shown its own answer.
    let remembered = stage
        .models
        .requests()
        .iter()
        .filter(|asked| {
            asked.prompt().contains("SCENE-AGAIN") && format!("{:?}", asked.parts).contains("Committed.")
        })
        .count();
    assert!(remembered >= agents.len(), "{remembered} of {}", agents.len());
    stage.project.assert_clean();
}

#[test]
fn t01_t03_the_real_claude_code_and_codex_commit_in_their_worktrees_and_land() {
    all_land(&[("a", "claude"), ("b", "codex")]);
}

#[test]
fn t12_three_claude_code_and_two_codex_at_once_on_one_repository_all_land() {
    if std::env::var_os("SPRAG_NIGHTLY").is_none() {
        println!("skipped: nightly");
        return;
    }
    all_land(&[("a", "claude"), ("b", "claude"), ("c", "claude"), ("d", "codex"), ("e", "codex")]);
}

#[test]
fn t04_a_429_of_one_real_agent_holds_the_others_of_its_account() {
    if std::env::var_os("SPRAG_NIGHTLY").is_none() {
        println!("skipped: nightly");
        return;
    }
    let Some(programs) = installed() else { return };
    let resets_at = i64::try_from(now_ms() / 1000).expect("a time") + 3600;
    for agent in ["claude", "codex"] {
        let limited = Reply::Failure(Failure::UsageLimit { resets_at });
        let stage = Stage::new(programs, script().scene("SCENE-LIMIT", [limited]));
        let model = if agent == "codex" { ", model: test-model" } else { "" };
        let steps = format!(
            "  - id: work\n    agent: {{ use: {agent}{model}, prompt: SCENE-LIMIT, on_limit: fail }}\n"
        );
        let file = stage.project.pipeline("limited", "environment: {worktree: {}}", &steps);
        let answer = stage.sprag(&["run", file.to_str().expect("a path")]).expect(100);
        assert!(answer.stderr.contains("held for longer than the step waits"), "{answer:?}");
        let accounts = stage.sprag(&["account", "ls", "--json"]).expect(0).stdout;
        assert!(accounts.contains("\"held\""), "{accounts}");
        let asked = stage.models.requests().len();
        let other = steps.replace("SCENE-LIMIT", "SCENE-COMMIT");
        let file = stage.project.pipeline("other", "environment: {worktree: {}}", &other);
        stage.sprag(&["run", file.to_str().expect("a path")]).expect(100);
        assert_eq!(stage.models.requests().len(), asked, "{agent}: the held account is not asked");
    }
}

#[test]
fn t03_l18_kill_9_of_worker_and_agent_in_mid_tool_continues_the_same_session() {
    if std::env::var_os("SPRAG_NIGHTLY").is_none() {
        println!("skipped: nightly");
        return;
    }
    let Some(programs) = installed() else { return };
    for agent in ["claude", "codex"] {
        let slow = "echo $$ > $OUT/tool; [ -e $OUT/go ] || exec sleep 600";
        let script = Script::new()
            .scene("SCENE-SLOW", [Reply::shell(slow), Reply::text("Done."), Reply::text("Done.")]);
        let stage = Stage::new(programs, script);
        let sandbox = &stage.project.sandbox;
        let model = if agent == "codex" { ", model: test-model" } else { "" };
        let steps = format!("  - id: work\n    agent: {{ use: {agent}{model}, prompt: SCENE-SLOW }}\n");
        let file = stage.project.pipeline("slow", "environment: {worktree: {}}", &steps);
        let running = stage.start(&["run", file.to_str().expect("a path")]);
        let tool = until_some("the tool runs", || sandbox.read("tool").trim().parse::<i32>().ok());
        signal(running.pid(), Signal::KILL);
        running.finish();
        until("the tool is gone", || !is_running(tool));
        sandbox.write("go", "");
        let run = sandbox.newest().expect("a run");
        stage.sprag(&["resume", &run]).expect(0);
        let log = stage.sprag(&["logs", &run, "work"]).expect(0).stdout;
        assert!(log.contains("(resumed)"), "{agent}: {log}");
    }
}
