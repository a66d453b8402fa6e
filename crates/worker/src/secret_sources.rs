//! The values of secrets that do not come from the worker's environment: from files, commands and systemd credentials.
//!
//! The value of a step's own secret is read anew for each attempt. It is kept in memory, so that every later step of this
//! process masks it too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sprag_pipeline::{SecretSource, StepSpec};
use sprag_process::{OnParentExit, guard, inherited, read_regular, variable};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// The largest value of a secret.
const MAX_BYTES: u64 = 1 << 20;
/// The time after which a stopped command is killed. Its guard needs less to stop the tree.
const STOP: Duration = Duration::from_secs(5);
/// The most values that are kept for masking; the oldest is dropped first.
const MAX_KNOWN: usize = 10_000;

/// A value, by the name and the source of its secret.
type Known = BTreeMap<(String, String), String>;

static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(name: &str, source: &SecretSource) -> (String, String) {
    (name.to_owned(), format!("{source:?}"))
}

/// Returns the value of a step's secret: the one that was read for it, or the variable of the worker.
pub(crate) fn value(spec: &StepSpec, name: &str) -> Option<String> {
    match spec.sources.get(name) {
        Some(source) => known().get(&key(name, source)).cloned(),
        None => variable(name)?.into_string().ok(),
    }
}

/// Returns all values that were read from sources in this process.
pub(crate) fn all_read() -> Vec<String> {
    known().values().cloned().collect()
}

/// Reads the values of the step's own secrets. The error names the secret and never its value.
pub(crate) async fn read(spec: &StepSpec) -> Result<(), String> {
    for (name, source) in spec.sources.iter().filter(|(name, _)| spec.secrets.contains(name)) {
        let value = one(source, &spec.inherit).await.map_err(|why| format!("the secret {name}: {why}"))?;
        let mut known = known();
        if known.len() >= MAX_KNOWN {
            known.pop_first();
        }
        known.insert(key(name, source), value);
    }
    Ok(())
}

async fn one(source: &SecretSource, inherit: &[String]) -> Result<String, String> {
    let bytes = match source {
        SecretSource::Env { env } => {
            let value =
                variable(env).ok_or_else(|| format!("{env} is not set in the worker's environment"))?;
            return text(value.into_encoded_bytes());
        }
        SecretSource::File { file } => {
            let path = match (file.strip_prefix("~/"), variable("HOME")) {
                (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
                _ => PathBuf::from(file),
            };
            from_file(path).await?
        }
        SecretSource::Credential { credential } => {
            let folder = variable("CREDENTIALS_DIRECTORY").ok_or(
                "systemd has passed no credentials to the worker: add `LoadCredential=` to its unit, and restart it",
            )?;
            from_file(Path::new(&folder).join(credential)).await?
        }
        SecretSource::Run { run, timeout_ms } => {
            from_command(run, Duration::from_millis(*timeout_ms), inherit).await?
        }
    };
    text(bytes)
}

async fn from_file(path: PathBuf) -> Result<Vec<u8>, String> {
    let shown = path.display().to_string();
    let reading = tokio::task::spawn_blocking(move || read_regular(&path, MAX_BYTES));
    match reading.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(format!("{shown} cannot be read: {error}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs a command and returns its stdout. It runs outside of the step's sandbox and folder, as the worker's user.
async fn from_command(run: &str, limit: Duration, inherit: &[String]) -> Result<Vec<u8>, String> {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", run]).current_dir("/").env_clear().envs(inherited(inherit, &[]));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    guard(command.as_std_mut(), OnParentExit::Stop);
    let mut child = command.spawn().map_err(|error| format!("its command could not be started: {error}"))?;
    let mut said = Vec::new();
    let stdout = child.stdout.take();
    let ended = async {
        if let Some(stdout) = stdout {
            stdout.take(MAX_BYTES).read_to_end(&mut said).await?;
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(limit, ended).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(said),
        Ok(Ok(status)) => Err(match status.code() {
            Some(code) => format!("its command ended with exit code {code}"),
            None => "its command was killed".to_owned(),
        }),
        Ok(Err(error)) => Err(format!("the output of its command cannot be read: {error}")),
        Err(_) => {
            // The guard stops the whole tree of the command.
            if let Some(pid) = child.id() {
                sprag_process::terminate(pid);
            }
            if tokio::time::timeout(STOP, child.wait()).await.is_err() {
                let _ = child.start_kill();
            }
            Err(format!("its command did not end within {} s", limit.as_secs().max(1)))
        }
    }
}

/// Returns a value without the line end that files and commands add.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes).map_err(|_| "its value is not UTF-8 text".to_owned())?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        return Err("its value is empty".to_owned());
    }
    if text.contains('\0') {
        return Err("its value contains a zero byte, which no variable can have".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn s19_a_command_gives_a_value_in_time_or_an_error_without_it() {
        let run = |run: &str, timeout_ms| SecretSource::Run { run: run.to_owned(), timeout_ms };
        assert_eq!(one(&run("echo 's3cret w0rd'", 30_000), &[]).await, Ok("s3cret w0rd".to_owned()));
        for (command, timeout_ms, expected) in [
            ("echo s3cret; exit 3", 30_000, "exit code 3"),
            ("true", 30_000, "its value is empty"),
            ("printf 'a\\000b'", 30_000, "zero byte"),
            ("echo s3cret; sleep 60", 100, "did not end within 1 s"),
        ] {
            let why = one(&run(command, timeout_ms), &[]).await.unwrap_err();
            assert!(why.contains(expected) && !why.contains("s3cret"), "{command}: {why}");
        }
    }

    #[tokio::test]
    async fn s19_a_file_is_read_and_a_pipe_is_refused() {
        let folder = std::env::temp_dir().join(format!("sprag-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("key");
        std::fs::write(&file, "first\nsecond\n\n").unwrap();
        let source = SecretSource::File { file: file.display().to_string() };
        assert_eq!(one(&source, &[]).await, Ok("first\nsecond".to_owned()));
        let missing = SecretSource::File { file: folder.join("none").display().to_string() };
        assert!(one(&missing, &[]).await.unwrap_err().contains("cannot be read"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
