//! Events that a person gives to a rule: from a file to the rule itself, or signed to a server.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::App;
use sprag_app::rules::GivenEvent;
use sprag_remote::{Address, Client};

use super::server::problem;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::line;

/// The longest time to wait for the answer of a server.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the event in a file, which holds JSON.
pub(super) fn given(
    file: Option<&str>,
    headers: Vec<(String, String)>,
) -> Result<Option<GivenEvent>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let bytes = read(Path::new(file))?;
    let body = serde_json::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("{file} is not JSON: {error}")))?;
    Ok(Some(GivenEvent { body, headers: headers.into_iter().collect() }))
}

/// Signs the payload in a file and posts it to a server.
pub(super) async fn send(
    context: &Context,
    app: &App,
    rule: &str,
    file: &Path,
    to: &str,
    headers: &[(String, String)],
) -> Result<Exit, Failure> {
    let request = app.signed_request(rule, headers, read(file)?)?;
    let address = Address::parse(to).map_err(|error| Failure::usage(error.to_string()))?;
    let client = Client::new(address, None, context.connector());
    let client = client.map_err(|error| Failure::usage(error.to_string()))?;
    let answer = client.request("POST", &request.path, &request.headers, request.body, LIMIT).await;
    let (status, bytes) = answer.map_err(|error| {
        Failure::error(error.to_string()).next("start `sprag serve`, or name the server with --to URL")
    })?;
    if !(200..300).contains(&status) {
        return Err(problem(status, &bytes));
    }
    let mut told: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if context.json {
        told["status"] = json!(status);
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    let how = if status == 200 { "was taken before" } else { "is taken" };
    match told["event"].as_str() {
        Some(event) => {
            line(&format!("event {event} {how}"));
            line(&format!("see its decision: sprag delivery show {event}"));
        }
        None => line(&told.to_string()),
    }
    Ok(Exit::Ok)
}

/// Reads a file, or the standard input if it is called `-`.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let done = match file.to_str() {
        Some("-") => std::io::stdin().read_to_end(&mut bytes).map(drop),
        _ => std::fs::read(file).map(|read| bytes = read),
    };
    done.map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?;
    Ok(bytes)
}
