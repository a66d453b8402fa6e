//! `sprag account`: the accounts of coding agents, and the holds on them.

use serde_json::{Value, json};

use super::server::escaped;
use super::source::{Source, elements};
use super::wait::parse_time;
use crate::args::{AccountCommand, Group};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table, time_in};

pub(crate) async fn account(context: &Context, group: &Group<AccountCommand>) -> Result<Exit, Failure> {
    let source = Source::open(context, &group.at)?;
    match &group.command {
        AccountCommand::Ls => {
            let accounts = all(&source).await?;
            if context.json {
                line(&accounts.to_string());
            } else if elements(&accounts).is_empty() {
                line("no accounts: no step with an agent has run here");
            } else {
                show(context, elements(&accounts));
            }
            Ok(Exit::Ok)
        }
        AccountCommand::Hold { account, time, reason } => {
            let time = time.as_deref().map(|text| parse_time("--for", text)).transpose()?;
            let is_new = !elements(&all(&source).await?).iter().any(|known| known["name"] == *account);
            let held = match &source {
                Source::Store(app) => json!(app.hold_account(account, time, reason.as_deref()).await?),
                Source::Server(remote) => {
                    let body = json!({ "seconds": time.map(|time| time.as_secs()), "reason": reason });
                    remote.post(&format!("/v1/accounts/{}/hold", escaped(account)), body).await?
                }
            };
            if is_new {
                eprintln!("account {} is new: no run has used it yet", plain(account));
            }
            one(context, held)
        }
        AccountCommand::Release { account } => {
            let released = match &source {
                Source::Store(app) => json!(app.release_account(account).await?),
                Source::Server(remote) => {
                    remote.post(&format!("/v1/accounts/{}/release", escaped(account)), json!({})).await?
                }
            };
            one(context, released)
        }
    }
}

async fn all(source: &Source<'_>) -> Result<Value, Failure> {
    match source {
        Source::Store(app) => Ok(json!(app.accounts()?)),
        Source::Server(remote) => remote.list("/v1/accounts", "accounts").await,
    }
}

fn one(context: &Context, account: Value) -> Result<Exit, Failure> {
    if context.json {
        line(&account.to_string());
    } else {
        show(context, &[account]);
    }
    Ok(Exit::Ok)
}

fn show(context: &Context, accounts: &[Value]) {
    let row = |account: &Value| {
        let text = |key: &str| account[key].as_str();
        let until = match (text("status"), time_in(account, "held_until")) {
            (Some("held"), None) => "released".to_owned(),
            (_, until_ms) => until_ms.map(local).unwrap_or_default(),
        };
        let why = match (text("run"), text("reason")) {
            (Some(run), Some(reason)) => format!("{run}: {reason}"),
            (run, reason) => run.or(reason).unwrap_or_default().to_owned(),
        };
        let count = |key: &str| account[key].as_u64();
        vec![
            plain(text("name").unwrap_or_default()),
            plain(text("status").unwrap_or_default()),
            count("running").unwrap_or(0).to_string(),
            count("max_parallel").map_or_else(|| "-".to_owned(), |most| most.to_string()),
            count("waiting").unwrap_or(0).to_string(),
            until,
            plain(&why),
        ]
    };
    let rows: Vec<Vec<String>> = accounts.iter().map(row).collect();
    table(context.style, &["ACCOUNT", "STATUS", "RUNNING", "LIMIT", "WAITING", "UNTIL", "WHY"], &rows);
}
