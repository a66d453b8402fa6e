//! `sprag token`: the access tokens of a server.

use serde_json::json;
use sprag_app::ErrorKind;
use sprag_app::TokenRow;
use sprag_app::tokens::{Grant, Scope, TokenLimits, TokenView};

use super::wait::parse_time;
use crate::args::TokenCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table};

pub(crate) async fn token(context: &Context, command: &TokenCommand) -> Result<Exit, Failure> {
    match command {
        TokenCommand::New { name, scopes, expires, pipelines, queues, labels, hosts } => {
            let labels = sprag_app::parse_labels(labels.iter().map(String::as_str))?;
            let (pipelines, queues, hosts) = (pipelines.clone(), queues.clone(), hosts.clone());
            let limits = TokenLimits { pipelines, queues, labels, hosts };
            new(context, name, scopes, limits, expires.as_deref()).await
        }
        TokenCommand::Rotate { token, overlap } => rotate(context, token, overlap).await,
        TokenCommand::Ls => ls(context),
        TokenCommand::Rm { token } => rm(context, token).await,
    }
}

async fn new(
    context: &Context,
    name: &str,
    scopes: &[String],
    limits: TokenLimits,
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
    let added = context.app()?.add_token(name, &wanted, limits, expires).await;
    // An invalid name is a mistake in the command line.
    let (row, secret) = added.map_err(|error| match error.kind {
        ErrorKind::Refused => Failure { exit: Exit::Usage, ..error.into() },
        _ => error.into(),
    })?;
    show_secret(context, &row, secret);
    Ok(Exit::Ok)
}

fn show_secret(context: &Context, row: &TokenRow, secret: String) {
    if context.json {
        let mut told = json!(TokenView::of(row));
        told["token"] = secret.into();
        line(&told.to_string());
    } else {
        line(&secret);
        eprintln!("keep it: it is not shown again");
    }
}

async fn rotate(context: &Context, token: &str, overlap: &str) -> Result<Exit, Failure> {
    let time = parse_time("--overlap", overlap)?;
    let (row, secret) = context.app()?.rotate_token(token, time).await?;
    show_secret(context, &row, secret);
    if !context.json {
        eprintln!("the old secret is valid for {overlap}");
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
            let Grant { scopes, limits, .. } = Grant::of(token);
            let words: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
            let limits = if limits.is_empty() { "none".to_owned() } else { plain(&limits.to_string()) };
            vec![plain(&token.name), words.join(", "), limits, local(token.created_ms), ends]
        })
        .collect();
    table(context.style, &["NAME", "SCOPES", "LIMITS", "CREATED", "ENDS"], &rows);
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
