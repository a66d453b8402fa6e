//! Runs schemathesis against the real server: no 5xx, no answer that the API description does not contain.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The duration of the generated requests in seconds.
const SECONDS: &str = "120";
/// The checks of every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
response_schema_conformance,response_headers_conformance,unsupported_method,negative_data_rejection";

/// A server that is killed with this program.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn check(root: &Path) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let folder = target.join("schemathesis");
    let _ = std::fs::remove_dir_all(folder.join("data"));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = install(&folder)?;
    let mut child = Command::new(target.join("debug/sprag"))
        .args(["serve", "--no-worker", "--listen", "127.0.0.1:0"])
        .env("SPRAG_DATA", folder.join("data"))
        .env("SPRAG_LOG", "error")
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("sprag serve: {error}"))?;
    let out = child.stdout.take();
    let server = Server(child);
    let mut line = String::new();
    out.and_then(|out| BufReader::new(out).read_line(&mut line).ok());
    let url = line.trim().strip_prefix("listening on ").ok_or("the server does not listen")?;
    let token = std::fs::read_to_string(folder.join("data/token"))
        .map_err(|error| format!("the server's token: {error}"))?;
    let status = Command::new(program)
        .args(["run", &format!("{url}/openapi.json"), "--max-time", SECONDS, "--checks", CHECKS])
        .args(["--header", &format!("Authorization: Bearer {}", token.trim())])
        // A stream has no end to wait for.
        .args(["--exclude-path", "/v1/events", "--phases", "examples,coverage,fuzzing", "--workers", "2"])
        .current_dir(&folder)
        .status()
        .map_err(|error| format!("schemathesis: {error}"))?;
    drop(server);
    if status.success() {
        Ok(())
    } else {
        Err("schemathesis has found answers that the API description does not contain".into())
    }
}

/// Installs schemathesis by name into a separate folder.
fn install(folder: &Path) -> Result<std::path::PathBuf, String> {
    let program = folder.join("venv/bin/schemathesis");
    if program.exists() {
        return Ok(program);
    }
    let run = |command: &mut Command| match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("schemathesis cannot be installed: {command:?} ended with {status}")),
        Err(error) => Err(format!("schemathesis cannot be installed: {command:?}: {error}")),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
    run(Command::new(folder.join("venv/bin/pip")).args(["install", "--quiet", "schemathesis"]))?;
    Ok(program)
}
