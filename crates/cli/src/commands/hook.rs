//! `sprag hook`: the webhooks that a server notifies of events.

use serde_json::json;
use sprag_app::hooks::{HookFilter, HookFormat, HookView, NewHook};
use sprag_app::{App, HookRow, parse_labels};
use sprag_server::{HookMeans, test_hook};

use crate::args::{HookCommand, HookFormatArg, NewHookArgs};
use crate::context::{Context, find_run, this_program};
use crate::exit::{Exit, Failure};
use crate::show::{line, plain, table};

pub(crate) async fn hook(context: &Context, command: HookCommand) -> Result<Exit, Failure> {
    let app = context.app()?;
    match command {
        HookCommand::Add(new) => {
            let new = new_hook(&app, *new)?;
            add(context, &app, new).await
        }
        HookCommand::Ls => ls(context, &app),
        HookCommand::Rm { id } => {
            let hook = find(&app, &id)?;
            app.remove_hook(hook.id).await?;
            said(context, &hook, "removed")
        }
        HookCommand::Retry { id } => {
            let hooks = match id {
                Some(id) => vec![find(&app, &id)?],
                None => app.hooks()?.into_iter().filter(|hook| hook.parked.is_some()).collect(),
            };
            if hooks.is_empty() {
                return Err(Failure { exit: Exit::Nothing, ..Failure::error("no webhook is parked") });
            }
            for hook in &hooks {
                app.retry_hook(hook.id).await?;
                said(context, hook, "is tried again by a running `sprag serve`")?;
            }
            Ok(Exit::Ok)
        }
        HookCommand::Test { id } => {
            let hook = find(&app, &id)?;
            // The person at this terminal decides where it goes, also into private networks.
            let program = Some(this_program()?);
            let (outgoing, data) = (context.connector(), context.data.clone());
            let means = HookMeans { allow_private: true, outgoing, program, data };
            let answer = test_hook(&app, &hook, &means).await.map_err(|error| {
                Failure::error(format!("{} did not accept it: {}", plain(&hook.url), error.message))
            })?;
            said(context, &hook, &format!("accepted a test message ({answer})"))
        }
    }
}

fn new_hook(app: &App, given: NewHookArgs) -> Result<NewHook, Failure> {
    let run = given.of_run.map(|run| find_run(app, Some(&run))).transpose()?;
    let format = match (given.format, &given.template) {
        (None, Some(_)) | (Some(HookFormatArg::Template), _) => HookFormat::Template,
        (None, None) | (Some(HookFormatArg::Json), _) => HookFormat::Json,
        (Some(HookFormatArg::Slack), _) => HookFormat::Slack,
        (Some(HookFormatArg::Standard), _) => HookFormat::Standard,
    };
    let filter = HookFilter {
        run: run.map(|run| run.id().to_string()),
        entities: given.entities,
        events: given.events,
        pipelines: given.pipelines,
        statuses: given.statuses,
        labels: parse_labels(given.labels.iter().map(String::as_str))?,
    };
    Ok(NewHook {
        url: given.url.unwrap_or_default(),
        format,
        template: given.template,
        command: given.run,
        secret: given.secret,
        filter,
        since: given.since,
    })
}

async fn add(context: &Context, app: &App, new: NewHook) -> Result<Exit, Failure> {
    // A command needs no signature: no other process can call it in the server's name.
    let given = new.secret.is_some() || new.command.is_some();
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
    if app.has_delivery() {
        eprintln!("messages are sent while `sprag serve` runs; try it: sprag hook test {}", row.id);
    } else {
        eprintln!(
            "No server is running here, so nothing is sent yet: start `sprag serve`; try it: sprag hook test {}",
            row.id
        );
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
    if hooks.iter().any(|hook| hook.parked.is_some()) {
        eprintln!("{} sprag hook retry", crate::show::Style::stderr().dim("next:"));
    }
    Ok(Exit::Ok)
}
