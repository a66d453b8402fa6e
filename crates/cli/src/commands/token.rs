//! `sprag token`: the access tokens of a server.

use serde_json::json;
use sprag_app::ErrorKind;
use sprag_app::tokens::{Scope, TokenView};

use super::wait::parse_time;
use crate::args::TokenCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table};

pub(crate) async fn token(context: &Context, command: &TokenCommand) -> Result<Exit, Failure> {
    match command {
        TokenCommand::New { name, scopes, expires } => new(context, name, scopes, expires.as_deref()).await,
        TokenCommand::Ls => ls(context),
        TokenCommand::Rm { token } => rm(context, token).await,
    }
}

async fn new(
    context: &Context,
    name: &str,
    scopes: &[String],
    expires: Option<&str>,
) -> Result<Exit, Failure> {
    let mut wanted = Vec::new();
    for word in scopes.iter().flat_map(|text| text.split(',')) {
        wanted.push(Scope::parse(word).ok_or_else(|| {
            Failure::usage(format!("{word:?} is no scope")).next("one of: read, run, work, admin")
        })?);
    }
    wanted.sort();
    wanted.dedup();
    let expires = expires.map(|text| parse_time("--expires", text)).transpose()?;
    let added = context.app()?.add_token(name, &wanted, expires).await;
    // An invalid name is a mistake in the command line.
    let (row, secret) = added.map_err(|error| match error.kind {
        ErrorKind::Refused => Failure { exit: Exit::Usage, ..error.into() },
        _ => error.into(),
    })?;
    if context.json {
        let mut told = json!(TokenView::of(&row));
        told["token"] = secret.into();
        line(&told.to_string());
    } else {
        line(&secret);
        eprintln!("keep it: it is not shown again");
    }
    Ok(Exit::Ok)
}

fn ls(context: &Context) -> Result<Exit, Failure> {
    let app = context.app()?;
    let tokens = app.tokens()?;
    if context.json {
        line(&json!(tokens.iter().map(TokenView::of).collect::<Vec<_>>()).to_string());
        return Ok(Exit::Ok);
    }
    if tokens.is_empty() {
        line("no tokens besides the server's own; create one: sprag token new NAME");
        return Ok(Exit::Ok);
    }
    let now = app.now().wall_ms;
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let ends = match token.expires_ms {
                None => "never".to_owned(),
                Some(at) if at <= now => "has ended".to_owned(),
                Some(at) => local(at),
            };
            vec![plain(&token.name), token.scopes.replace(',', ", "), local(token.created_ms), ends]
        })
        .collect();
    table(context.style, &["NAME", "SCOPES", "CREATED", "ENDS"], &rows);
    Ok(Exit::Ok)
}

async fn rm(context: &Context, wanted: &str) -> Result<Exit, Failure> {
    let app = context.app()?;
    let tokens = app.tokens()?;
    let found = tokens.iter().find(|token| &*token.name == wanted || token.id.to_string() == wanted);
    let Some(token) = found else {
        return Err(Failure::usage(format!("there is no token {wanted:?}")).next("list them: sprag token ls"));
    };
    app.remove_token(token.id).await?;
    if context.json {
        line(&json!({ "removed": token.id.to_string() }).to_string());
    } else {
        line(&format!("removed {}", plain(&token.name)));
    }
    Ok(Exit::Ok)
}
