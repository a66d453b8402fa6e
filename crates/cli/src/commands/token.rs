//! `sprag token`: who may call a server.

use serde_json::json;
use sprag_server::{Scope, new_token};
use sprag_store::TokenRow;

use super::wait::parse_time;
use crate::args::TokenCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, rfc3339, table};

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
    let store = context.store()?;
    if store.read(|db| db.tokens())?.iter().any(|token| &*token.name == name) {
        return Err(Failure::usage(format!("there is a token {name:?} already"))
            .next(format!("choose another name, or remove it: sprag token rm {name}")));
    }
    let expires = expires.map(|text| parse_time("--expires", text)).transpose()?;
    let expires_ms = expires.map(|span| store.now().wall_ms + span.as_millis() as i64);
    let (secret, row) = new_token(&store, name, &wanted, expires_ms);
    store.service().add_token(row.clone()).await?;
    if context.json {
        let mut told = as_json(&row);
        told["token"] = secret.into();
        line(&told.to_string());
    } else {
        line(&secret);
        eprintln!("keep it: it is not shown again");
    }
    Ok(Exit::Ok)
}

fn as_json(token: &TokenRow) -> serde_json::Value {
    json!({
        "id": token.id.to_string(),
        "name": &*token.name,
        "scopes": token.scopes.split(',').collect::<Vec<_>>(),
        "created_at": rfc3339(token.created_ms),
        "expires_at": token.expires_ms.map(rfc3339),
    })
}

fn ls(context: &Context) -> Result<Exit, Failure> {
    let store = context.store()?;
    let tokens = store.read(|db| db.tokens())?;
    if context.json {
        line(&json!(tokens.iter().map(as_json).collect::<Vec<_>>()).to_string());
        return Ok(Exit::Ok);
    }
    if tokens.is_empty() {
        line("no tokens yet; make one: sprag token new NAME");
        return Ok(Exit::Ok);
    }
    let now = store.now().wall_ms;
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
    let store = context.store()?;
    let tokens = store.read(|db| db.tokens())?;
    let found = tokens.iter().find(|token| &*token.name == wanted || token.id.to_string() == wanted);
    let Some(token) = found else {
        return Err(Failure::error(format!("there is no token {wanted:?}")).next("list them: sprag token ls"));
    };
    store.service().remove_token(token.id).await?;
    if context.json {
        line(&json!({ "removed": token.id.to_string() }).to_string());
    } else {
        line(&format!("removed {}", plain(&token.name)));
    }
    Ok(Exit::Ok)
}
