//! `sprag mcp`: tools for an agent, over stdin and stdout.

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

impl From<RelayError> for Failure {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Io(error) => error.into(),
            error => Failure::usage(error.to_string()).next("write it like --server http://127.0.0.1:7717"),
        }
    }
}
