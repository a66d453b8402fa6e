//! `sprag mcp`: tools for an agent, over stdin and stdout.

use sprag_mcp::Agents;

use crate::context::Context;
use crate::exit::{Exit, Failure};

pub(crate) async fn mcp(context: &Context) -> Result<Exit, Failure> {
    let store = context.store()?;
    let dir = std::env::current_dir()?;
    Agents::new(store, &context.data, &dir).serve_stdio().await?;
    Ok(Exit::Ok)
}
