//! The tools of `mcp: [sprag]`: a socket in the step's private folder, over which the agent of the step reaches them.
//!
//! ```text
//!   agent ──stdio──▶ `sprag mcp --step` ──socket, token──▶ this worker ──▶ StepTools: the store itself, or a server
//! ```
//!
//! The agent needs neither the data directory nor the network for it, so that it works in a sandbox. The socket exists
//! while the agent's process does; the token is void as soon as the store says so.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sprag_agent::{McpServer, McpTransport};
use sprag_process::short_socket_path;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::control::pause;

/// The name of the tool set in a pipeline's `mcp`.
pub const SPRAG_TOOLS: &str = "sprag";
/// The variable with the path of the socket, for `sprag mcp --step`.
pub const STEP_SOCKET: &str = "SPRAG_STEP_SOCKET";
/// The variable with the token, for `sprag mcp --step`.
pub const STEP_TOKEN: &str = "SPRAG_STEP_TOKEN";
/// The name of the socket in the step's private folder.
const SOCKET: &str = "mcp";
/// The most connections at once. An agent needs one.
const MOST_CONNECTIONS: usize = 8;
/// The time in which a client has to send its token.
const TOKEN_WITHIN: Duration = Duration::from_secs(10);
/// The longest first line, in bytes: a token.
const LONGEST_TOKEN: u64 = 256;
/// The pause after a failure to accept a connection, for example when the process has no descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The longest time for releasing the tasks that the agent holds.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// The future of serving a client.
pub type ServedTools = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tools for the agent of a step, as the store's process or a server offers them.
pub trait StepTools: Debug + Send + Sync {
    /// Serves a client that has shown the token of its step, until the client leaves.
    fn serve(&self, token: Arc<str>, client: BufReader<UnixStream>) -> ServedTools;

    /// Releases the tasks that the step's agent has claimed and not reported.
    fn release(&self, token: Arc<str>) -> ServedTools;
}

/// The open socket of one agent process. Closed when dropped.
pub(super) struct ToolSocket {
    accepting: AbortHandle,
    tools: Arc<dyn StepTools>,
    token: Arc<str>,
    path: PathBuf,
}

impl ToolSocket {
    /// Opens a socket in a private folder.
    pub(super) fn open(folder: &Path, tools: Arc<dyn StepTools>, token: String) -> io::Result<ToolSocket> {
        let token: Arc<str> = token.into();
        let path = folder.join(SOCKET);
        let _ = std::fs::remove_file(&path);
        let (_folder, short) = short_socket_path(&path)?;
        let listener = UnixListener::bind(&short)?;
        let accepting = tokio::spawn(accept(listener, Arc::clone(&tools), Arc::clone(&token))).abort_handle();
        Ok(ToolSocket { accepting, tools, token, path })
    }

    /// Returns the server that the agent starts to reach the tools.
    pub(super) fn server(&self, program: &Path) -> McpServer {
        let env = BTreeMap::from([
            (STEP_SOCKET.to_owned(), self.path.display().to_string()),
            (STEP_TOKEN.to_owned(), self.token.to_string()),
        ]);
        let args = vec!["mcp".to_owned(), "--step".to_owned()];
        let transport = McpTransport::Stdio { command: program.display().to_string(), args, env };
        McpServer { name: SPRAG_TOOLS.to_owned(), transport }
    }

    /// Closes the socket when the agent has ended, and releases the tasks that it still holds.
    pub(super) async fn close(self) {
        self.accepting.abort();
        let release = self.tools.release(Arc::clone(&self.token));
        if tokio::time::timeout(RELEASE_WITHIN, release).await.is_err() {
            tracing::warn!("the tasks of a step's agent were not released in time; their leases will lapse");
        }
    }
}

impl Drop for ToolSocket {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, tools: Arc<dyn StepTools>, token: Arc<str>) {
    // Dropped with this task: all connections end then.
    let mut clients = JoinSet::new();
    loop {
        while clients.len() >= MOST_CONNECTIONS {
            clients.join_next().await;
        }
        match listener.accept().await {
            Ok((client, _)) => {
                clients.spawn(greet(client, Arc::clone(&tools), Arc::clone(&token)));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection of a step's agent failed");
                pause(ACCEPT_AGAIN).await;
            }
        }
        while clients.try_join_next().is_some() {}
    }
}

/// Serves a client whose first line is the token. Another process of the same user can open the socket, too.
async fn greet(client: UnixStream, tools: Arc<dyn StepTools>, token: Arc<str>) {
    let mut client = BufReader::new(client);
    let shown = async {
        let mut line = Vec::new();
        while line.len() as u64 <= LONGEST_TOKEN {
            match client.read_u8().await {
                Ok(b'\n') => return Some(line),
                Ok(byte) => line.push(byte),
                Err(_) => return None,
            }
        }
        None
    };
    let shown = tokio::time::timeout(TOKEN_WITHIN, shown).await.ok().flatten();
    if shown.is_some_and(|shown| is_same(&shown, token.as_bytes())) {
        tools.serve(token, client).await;
    }
}

/// Compares two texts in a time that depends on their lengths alone.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |seen, (a, b)| seen | (a ^ b)) == 0
}
