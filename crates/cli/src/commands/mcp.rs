//! `sprag mcp`: tools for an agent, over stdin and stdout.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use sprag_app::{STEP_SOCKET, STEP_TOKEN};
use sprag_mcp::{Agents, Relay, RelayError, ShownToken, TokenError};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::own_server::{self, Own};

pub(crate) async fn mcp(
    context: &Context,
    server: Option<&str>,
    token: Option<String>,
) -> Result<Exit, Failure> {
    match server {
        Some(server) => {
            let relay = match token.filter(|token| !token.trim().is_empty()) {
                Some(token) => Relay::new(server, ShownToken::Given(token), context.connector())?,
                None => {
                    let (data, address) = (context.data.clone(), server.to_owned());
                    let find = move || match own_server::local_token(&data, &address) {
                        Ok(Own::Token(token)) => Ok(Some(token)),
                        Ok(Own::Elsewhere | Own::NotThere) => Ok(None),
                        Err(failure) => Err(TokenError(failure.message)),
                    };
                    Relay::new(server, ShownToken::Found(Box::new(find)), context.connector())?
                }
            };
            relay.run().await?;
        }
        None => {
            let app = context.app()?;
            Agents::new(app, &std::env::current_dir()?).serve_stdio().await?;
        }
    }
    Ok(Exit::Ok)
}

/// `sprag mcp --step`: connects the agent of a step, on stdin and stdout, with the worker that runs the step.
pub(crate) async fn step() -> Result<Exit, Failure> {
    let given = |name: &str| {
        sprag_process::variable(name).ok_or_else(|| {
            Failure::usage(format!("--step: {name} is not set"))
                .next("the agent of a step with `mcp: [sprag]` starts this; use `sprag mcp` otherwise")
        })
    };
    let (socket, token) = (PathBuf::from(given(STEP_SOCKET)?), given(STEP_TOKEN)?);
    let talking = tokio::task::spawn_blocking(move || talk(&socket, &token.to_string_lossy()));
    match talking.await {
        Ok(Ok(())) => Ok(Exit::Ok),
        Ok(Err(error)) => Err(Failure::error(format!("the step's worker cannot be reached: {error}"))
            .next("its step has ended, or its worker has")),
        Err(error) => Err(Failure::error(error.to_string())),
    }
}

/// Copies between the agent and the worker until the worker closes the connection.
fn talk(socket: &std::path::Path, token: &str) -> std::io::Result<()> {
    let (_folder, short) = sprag_process::short_socket_path(socket)?;
    let mut worker = UnixStream::connect(short)?;
    worker.write_all(format!("{token}\n").as_bytes())?;
    let mut to_worker = worker.try_clone()?;
    // It ends with this process: nothing can interrupt a read from stdin.
    std::thread::spawn(move || {
        let _ = copy(std::io::stdin().lock(), &mut to_worker);
        let _ = to_worker.shutdown(std::net::Shutdown::Write);
    });
    copy(worker, std::io::stdout().lock())
}

/// Copies what there is, at once.
fn copy(mut from: impl Read, mut to: impl Write) -> std::io::Result<()> {
    let mut part = vec![0; 64 << 10];
    loop {
        match from.read(&mut part)? {
            0 => return Ok(()),
            count => to.write_all(&part[..count]).and_then(|()| to.flush())?,
        }
    }
}

impl From<RelayError> for Failure {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Io(error) => error.into(),
            error => Failure::usage(error.to_string()).next("write it like --server http://127.0.0.1:7717"),
        }
    }
}
