//! The agents of a repository: `.sprag/agents.toml`, which counts only after `sprag trust`, because it names commands.
//!
//! ```text
//!   ~/.config/sprag/trusted    a line for each trusted file: the hash of its content, and its path
//! ```
//!
//! Trust is in the content: a file that changes, by a pull or by an agent, has to be trusted again.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use sprag_agent::Agents;
use sprag_process::{make_private_folder, read_regular, replace_private, variable};

/// The path of the file in a repository.
const FILE: &str = ".sprag/agents.toml";
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// The largest list of trusted files.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// The agents.toml of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryAgents {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// Its content.
    pub text: String,
    /// Whether a person has trusted this content.
    pub is_trusted: bool,
}

/// Finds the agents.toml of the repository that a folder is in.
pub fn repository_agents(folder: &Path) -> Option<RepositoryAgents> {
    let folder = folder.canonicalize().ok()?;
    for parent in folder.ancestors() {
        let file = parent.join(FILE);
        if let Ok(content) = read_regular(&file, MAX_FILE_BYTES) {
            let text = String::from_utf8(content).ok()?;
            let is_trusted = list().is_ok_and(|known| known.contains(&line(&file, &text)));
            return Some(RepositoryAgents { file, text, is_trusted });
        }
        if parent.join(".git").exists() {
            return None;
        }
    }
    None
}

/// Trusts the present content of a file, or no content of it any more.
pub fn set_trust(found: &RepositoryAgents, trusted: bool) -> io::Result<()> {
    let path = format!("  {}", found.file.display());
    let mut known = list()?;
    known.retain(|line| !line.ends_with(&path));
    if trusted {
        known.push(line(&found.file, &found.text));
    }
    let file = list_file().ok_or_else(|| io::Error::other("there is no home folder"))?;
    if let Some(folder) = file.parent() {
        make_private_folder(folder)?;
    }
    let text: String = known.iter().map(|line| format!("{line}\n")).collect();
    replace_private(&file, text.as_bytes())
}

/// Adds the agents of a folder's repository, if they are trusted.
pub(super) fn with_repository(agents: Agents, folder: &Path, home: Option<&Path>) -> Result<Agents, String> {
    match repository_agents(folder).filter(|found| found.is_trusted) {
        Some(found) => agents
            .and(&found.text, home)
            .map_err(|(line, why)| format!("{}:{line}: {why}", found.file.display())),
        None => Ok(agents),
    }
}

/// Returns a remark for an agent or server that only an untrusted file knows.
pub(super) fn hint(folder: Option<&Path>, name: &str) -> Option<String> {
    let found = repository_agents(folder?).filter(|found| !found.is_trusted)?;
    let is_there = found.text.lines().any(|line| {
        line.trim()
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
            .is_some_and(|table| table == name)
    });
    is_there
        .then(|| format!("{} has it, and is not trusted: read it, then `sprag trust`", found.file.display()))
}

fn line(file: &Path, text: &str) -> String {
    let hash: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    // A line of the list is one file: a newline in a folder's name must not add another one.
    format!("{hash}  {}", file.to_string_lossy().escape_debug())
}

fn list_file() -> Option<PathBuf> {
    let user = Agents::user_file(|name| variable(name).map(PathBuf::from))?;
    Some(user.with_file_name("trusted"))
}

fn list() -> io::Result<Vec<String>> {
    let Some(file) = list_file() else { return Ok(Vec::new()) };
    match read_regular(&file, MAX_LIST_BYTES) {
        Ok(text) => Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
