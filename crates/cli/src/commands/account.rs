//! `sprag account`: the accounts of coding agents, and the holds on them.

use serde_json::json;
use sprag_app::AccountView;

use super::wait::parse_time;
use crate::args::AccountCommand;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table};

pub(crate) async fn account(context: &Context, command: &AccountCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        AccountCommand::Ls => {
            let accounts = app.accounts()?;
            if context.json {
                line(&json!(accounts).to_string());
            } else if accounts.is_empty() {
                line("no accounts: no step with an agent has run here");
            } else {
                show(context, &accounts);
            }
            Ok(Exit::Ok)
        }
        AccountCommand::Hold { account, time, reason } => {
            let time = time.as_deref().map(|text| parse_time("--for", text)).transpose()?;
            let is_new = !app.accounts()?.iter().any(|known| known.name == *account);
            let held = app.hold_account(account, time, reason.as_deref()).await?;
            if is_new {
                eprintln!("account {} is new: no run has used it yet", plain(account));
            }
            one(context, held)
        }
        AccountCommand::Release { account } => {
            let released = app.release_account(account).await?;
            one(context, released)
        }
    }
}

fn one(context: &Context, account: AccountView) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(account).to_string());
    } else {
        show(context, &[account]);
    }
    Ok(Exit::Ok)
}

fn show(context: &Context, accounts: &[AccountView]) {
    let rows: Vec<Vec<String>> = accounts
        .iter()
        .map(|account| {
            let until = match (account.status, account.held_until_ms) {
                ("held", None) => "released".to_owned(),
                (_, until_ms) => until_ms.map(local).unwrap_or_default(),
            };
            let why = match (&account.run, &account.reason) {
                (Some(run), Some(reason)) => format!("{}: {reason}", run),
                (run, reason) => run.as_ref().or(reason.as_ref()).cloned().unwrap_or_default(),
            };
            vec![
                plain(&account.name),
                account.status.to_owned(),
                account.running.to_string(),
                account.max_parallel.map_or_else(|| "-".to_owned(), |most| most.to_string()),
                account.waiting.to_string(),
                until,
                plain(&why),
            ]
        })
        .collect();
    table(context.style, &["ACCOUNT", "STATUS", "RUNNING", "LIMIT", "WAITING", "UNTIL", "WHY"], &rows);
}
