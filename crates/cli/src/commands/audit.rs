//! `sprag audit`: who did what.

use serde_json::json;
use sprag_app::text::parse_rfc3339;
use sprag_app::{AuditFilter, AuditView};

use super::logs::start_of;
use crate::args::AuditArgs;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table};

pub(crate) fn audit(context: &Context, args: &AuditArgs) -> Result<Exit, Failure> {
    let app = context.app()?;
    let run = args.run.as_deref().map(|run| find_run(&app, Some(run))).transpose()?.map(|known| known.id());
    let since = args.since.as_deref().map(|text| start_of(text, app.now().wall_ms)).transpose()?;
    let filter = AuditFilter {
        by: args.by.clone(),
        act: args.act.clone(),
        run,
        since_ms: since.as_deref().and_then(parse_rfc3339),
        limit: args.limit,
    };
    let found = app.audit(&filter)?;
    if context.json {
        line(&json!(found.acts).to_string());
    } else if found.acts.is_empty() {
        line("no such acts");
    } else {
        let rows: Vec<Vec<String>> = found.acts.iter().map(row).collect();
        table(context.style, &["TIME", "BY", "ACT", "ON"], &rows);
    }
    if let Some(seq) = found.looked_back_to {
        eprintln!(
            "note: the search stopped at entry {seq} of the journal; give --since or --run for a smaller one"
        );
    }
    Ok(Exit::Ok)
}

fn row(act: &AuditView) -> Vec<String> {
    let on = [&act.subject, &act.run, &act.step, &act.detail];
    let on: Vec<String> = on.into_iter().flatten().map(|text| plain(text)).collect();
    vec![
        parse_rfc3339(&act.at).map_or_else(|| act.at.clone(), local),
        act.by.as_deref().map_or_else(|| "not recorded".to_owned(), plain),
        act.act.clone(),
        on.join(" "),
    ]
}
