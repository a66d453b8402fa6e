//! `sprag audit`: who did what.

use serde_json::{Value, json};
use sprag_app::AuditFilter;
use sprag_app::text::parse_rfc3339;

use super::logs::start_of;
use super::server::escaped;
use super::source::{Source, elements};
use crate::args::AuditArgs;
use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, local, plain, table, time_in};

pub(crate) async fn audit(context: &Context, args: &AuditArgs) -> Result<Exit, Failure> {
    let source = Source::open(context, &args.at)?;
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let since = args.since.as_deref().map(|text| start_of(text, now_ms)).transpose()?;
    let found = match &source {
        Source::Store(app) => {
            let run = args.run.as_deref().map(|run| find_run(app, Some(run))).transpose()?;
            let filter = AuditFilter {
                by: args.by.clone(),
                act: args.act.clone(),
                run: run.map(|known| known.id()),
                since_ms: since.as_deref().and_then(parse_rfc3339),
                limit: args.limit,
            };
            json!(app.audit(&filter)?)
        }
        Source::Server(remote) => {
            let run = match &args.run {
                Some(run) => Some(remote.run(Some(run)).await?),
                None => None,
            };
            let mut path = format!("/v1/audit?limit={}", args.limit);
            for (key, value) in [("by", &args.by), ("act", &args.act), ("run", &run), ("since", &since)] {
                if let Some(value) = value {
                    path += &format!("&{key}={}", escaped(value));
                }
            }
            remote.get(&path).await?
        }
    };
    let acts = elements(&found["acts"]);
    if context.json {
        line(&found["acts"].to_string());
    } else if acts.is_empty() {
        line("no such acts");
    } else {
        let rows: Vec<Vec<String>> = acts.iter().map(row).collect();
        table(context.style, &["TIME", "BY", "ACT", "ON"], &rows);
    }
    if let Some(seq) = found["looked_back_to"].as_u64() {
        eprintln!(
            "note: the search stopped at entry {seq} of the journal; give --since or --run for a smaller one"
        );
    }
    Ok(Exit::Ok)
}

fn row(act: &Value) -> Vec<String> {
    let on = ["subject", "run", "step", "detail"].iter().filter_map(|key| act[key].as_str());
    let on: Vec<String> = on.map(plain).collect();
    vec![
        time_in(act, "at").map_or_else(|| plain(act["at"].as_str().unwrap_or_default()), local),
        act["by"].as_str().map_or_else(|| "not recorded".to_owned(), plain),
        plain(act["act"].as_str().unwrap_or_default()),
        on.join(" "),
    ]
}
