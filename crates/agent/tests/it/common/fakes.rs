//! Fake agents as processes: a script, a home and a folder to work in.

use std::path::PathBuf;

use sprag_agent::fake::Dialect;
use sprag_agent::{Launch, Session};

use super::process::{AgentProcess, real, repository};

/// The environment of a fake agent.
pub struct Fake {
    pub dialect: Dialect,
    pub folder: tempfile::TempDir,
}

impl Fake {
    /// Prepares a fake agent that follows this script; `builtin` is its own.
    pub fn new(dialect: Dialect, script: &str) -> Fake {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["home", "scratch"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        repository(&folder.path().join("worktree"));
        let fake = Fake { dialect, folder };
        fake.rewrite(script);
        fake
    }

    /// Replaces the script.
    pub fn rewrite(&self, script: &str) {
        std::fs::write(self.folder.path().join("script.yaml"), script).expect("a script");
    }

    pub fn dir(&self) -> PathBuf {
        real(&self.folder.path().join("worktree"))
    }

    pub fn home(&self) -> PathBuf {
        real(&self.folder.path().join("home"))
    }

    /// Returns a launch in a new session.
    pub fn launch(&self) -> Launch {
        let session = Session::New { id: "11111111-1111-4111-8111-111111111111".to_owned() };
        let mut launch =
            Launch::new("fake", &self.dir(), &real(&self.folder.path().join("scratch")), session);
        launch.driver = self.dialect.driver();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let file = self.folder.path().join("script.yaml");
        let script = std::fs::read_to_string(&file).expect("a script");
        let script = if script == "builtin" { script } else { text(file) };
        launch.command = vec![
            env!("CARGO_BIN_EXE_sprag-fake-agent").to_owned(),
            script,
            "--speak".to_owned(),
            self.dialect.name().to_owned(),
            "--home".to_owned(),
            text(self.home()),
        ];
        launch
    }

    pub fn start(&self, launch: &Launch) -> AgentProcess {
        let path = std::env::var("PATH").unwrap_or_default();
        AgentProcess::start(launch, &[("PATH".to_owned(), path)], "fake", Vec::new())
    }

    /// Starts it in a new session.
    pub fn begin(&self) -> AgentProcess {
        self.start(&self.launch())
    }

    /// Returns everything that the agent received.
    pub fn given(&self) -> String {
        std::fs::read_to_string(self.home().join("given.jsonl")).expect("a record")
    }
}

/// Does something in each dialect.
pub fn in_each_dialect(test: impl Fn(Dialect)) {
    for dialect in Dialect::ALL {
        println!("{}", dialect.name());
        test(dialect);
    }
}
