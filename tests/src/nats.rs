//! A real nats-server with its own port and data. It can be killed, wiped and started again.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::wait::until_some;

/// A broker.
pub struct Nats {
    folder: TempDir,
    child: Option<Child>,
    starts: u32,
    /// The address on which it listens, the same after each start.
    pub addr: SocketAddr,
}

impl Default for Nats {
    fn default() -> Self {
        Nats::start()
    }
}

impl Nats {
    /// Starts one on any port.
    pub fn start() -> Self {
        Nats::with("jetstream: enabled")
    }

    /// Starts one with these settings, in its own words.
    pub fn with(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let addr = "127.0.0.1:0".parse().expect("an address");
        fs::write(folder.path().join("settings"), settings).expect("a file");
        let mut nats = Nats { folder, child: None, starts: 0, addr };
        nats.again();
        nats
    }

    /// Starts it again, where it was and with the data that it had.
    pub fn again(&mut self) {
        assert!(self.child.is_none(), "it is killed before it is started again");
        self.starts += 1;
        let log = self.folder.path().join(format!("{}.log", self.starts));
        // To nats-server, -1 is any port.
        let port = match self.addr.port() {
            0 => "-1".to_owned(),
            port => port.to_string(),
        };
        let mut command = Command::new("nats-server");
        command.args(["--addr", "127.0.0.1", "--port", &port, "--store_dir"]);
        command
            .arg(self.data())
            .arg("--config")
            .arg(self.folder.path().join("settings"))
            .arg("--log")
            .arg(&log)
            .stdin(Stdio::null());
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nats-server"));
        self.addr = until_some("nats-server listens", || {
            let said = fs::read_to_string(&log).ok()?;
            assert!(!said.contains("[FTL]"), "{said}");
            let (_, rest) = said.split_once("Listening for client connections on ")?;
            said.contains("Server is ready").then_some(())?;
            rest.lines().next()?.trim().parse().ok()
        });
    }

    /// Returns the URL for programs.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr)
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it, and it forgets everything.
    pub fn wipe(&mut self) {
        self.kill();
        fs::remove_dir_all(self.data()).expect("its data");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
