//! `sprag mcp`: tools for an agent, over stdin and stdout.

use sprag_mcp::{Agents, Relay, RelayError};

use crate::context::Context;
use crate::exit::{Exit, Failure};

pub(crate) async fn mcp(
    context: &Context,
    server: Option<&str>,
    token: Option<String>,
) -> Result<Exit, Failure> {
    match server {
        Some(server) => Relay::new(server, token)?.run().await?,
        None => {
            let store = context.store()?;
            Agents::new(store, &context.data, &std::env::current_dir()?).serve_stdio().await?;
        }
    }
    Ok(Exit::Ok)
}

impl From<RelayError> for Failure {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Io(error) => error.into(),
            error => Failure::usage(error.to_string()).next("write it like --server http://127.0.0.1:7717"),
        }
    }
}
