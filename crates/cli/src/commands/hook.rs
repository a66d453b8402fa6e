//! `sprag hook`: the webhooks that a server notifies of events.

use serde_json::json;
use sprag_app::hooks::{HookFilter, HookView, NewHook};
use sprag_app::{App, HookRow};

use crate::args::HookCommand;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, table};

pub(crate) async fn hook(context: &Context, command: HookCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        HookCommand::Add { url, secret, run, entities, events, since } => {
            let run = run.map(|run| find_run(&app, Some(&run))).transpose()?.map(|run| run.id().to_string());
            let filter = HookFilter { run, entities, events };
            add(context, &app, NewHook { url, secret, filter, since }).await
        }
        HookCommand::Ls => ls(context, &app),
        HookCommand::Rm { id } => {
            let hook = find(&app, &id)?;
            app.remove_hook(hook.id).await?;
            said(context, &hook, "removed")
        }
        HookCommand::Retry { id } => {
            let hook = find(&app, &id)?;
            app.retry_hook(hook.id).await?;
            said(context, &hook, "is tried again by a running `sprag serve`")
        }
    }
}

async fn add(context: &Context, app: &App, new: NewHook) -> Result<Exit, Failure> {
    let given = new.secret.is_some();
    // The server decides whether private networks are allowed when it sends.
    let (row, secret) = app.add_hook(new, true).await?;
    if context.json {
        let mut told = json!(HookView::of(&row));
        told["secret"] = secret.into();
        line(&told.to_string());
        return Ok(Exit::Ok);
    }
    line(&row.id.to_string());
    if !given {
        eprintln!("its secret, which is not shown again: {secret}");
    }
    Ok(Exit::Ok)
}

fn find(app: &App, id: &str) -> Result<HookRow, Failure> {
    let hooks = app.hooks()?;
    let found = hooks.into_iter().find(|hook| hook.id.to_string() == id);
    found.ok_or_else(|| Failure::usage(format!("there is no hook {id:?}")).next("list them: sprag hook ls"))
}

fn said(context: &Context, hook: &HookRow, what: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!({ "hook": hook.id.to_string(), "outcome": what }).to_string());
    } else {
        line(&format!("{} {what}", plain(&hook.url)));
    }
    Ok(Exit::Ok)
}

fn ls(context: &Context, app: &App) -> Result<Exit, Failure> {
    let hooks = app.hooks()?;
    if context.json {
        line(&json!(hooks.iter().map(HookView::of).collect::<Vec<_>>()).to_string());
        return Ok(Exit::Ok);
    }
    if hooks.is_empty() {
        line("no hooks yet; add one: sprag hook add URL");
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<String>> = hooks
        .iter()
        .map(|hook| {
            let status = match (&hook.parked, hook.failures) {
                (Some(_), _) => "parked",
                (None, 0) => "ok",
                (None, _) => "failing",
            };
            vec![
                hook.id.to_string(),
                status.to_owned(),
                hook.cursor.to_string(),
                plain(&hook.url),
                hook.error.as_deref().map(plain).unwrap_or_default(),
            ]
        })
        .collect();
    table(context.style, &["HOOK", "STATUS", "SEQ", "URL", "ERROR"], &rows);
    Ok(Exit::Ok)
}
