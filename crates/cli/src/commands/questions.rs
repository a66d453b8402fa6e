//! `sprag questions`: the open questions of all runs, oldest first.

use serde_json::{Value, json};
use sprag_app::view::GateView;
use sprag_app::{App, GateKind, GateRow};
use sprag_lifecycle::Answerers;

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{hanging, line, plain, span, time_in};

/// The number of gates that are read at once.
const PAGE: usize = 500;

pub(crate) fn questions(context: &Context) -> Result<Exit, Failure> {
    let app = context.app()?;
    let now = app.now();
    let mut views = Vec::new();
    for gate in open(&app)? {
        let known = find_run(&app, Some(&gate.run.to_string()))?;
        views.push(json!(GateView::of(&gate, &known.run.pipeline, &known.name_of(&app, gate.step), now)));
    }
    print(context, &views, now.wall_ms, "")
}

/// Prints open questions, from the values that programs see. `at` is added to the commands that answer them.
pub(super) fn print(context: &Context, questions: &[Value], now_ms: i64, at: &str) -> Result<Exit, Failure> {
    if context.json {
        line(&json!(questions).to_string());
        return Ok(Exit::Ok);
    }
    if questions.is_empty() {
        line("no open questions");
        return Ok(Exit::Ok);
    }
    let style = context.style;
    for view in questions {
        let word = |key: &str| plain(view[key].as_str().unwrap_or_default());
        let (run, step) = (word("run"), word("step"));
        let opened = time_in(view, "opened_at").map(|opened| format!("{} ago", span(now_ms - opened)));
        let about = [Some(word("pipeline")), opened].into_iter().flatten().collect::<Vec<_>>().join("  ");
        line(&format!("{}  {}  {}", style.bold(&run), style.bold(&step), style.dim(&about)));
        line(&format!("    {}", hanging(view["ask"].as_str().unwrap_or_default(), 4)));
        let choices = view["choices"].as_array().into_iter().flatten().filter_map(Value::as_str);
        line(&format!("    choices: {}", plain(&choices.collect::<Vec<_>>().join(", "))));
        if let Some(who) = answerers(view) {
            line(&format!("    for {who}"));
        }
        for field in view["fields"].as_array().into_iter().flatten() {
            let word = |key: &str| field[key].as_str().unwrap_or_default();
            let required = if field["required"] == true { ", required" } else { "" };
            let about = field["description"].as_str().map(|about| format!(": {about}")).unwrap_or_default();
            let told = format!("{} ({}{required}){about}", word("name"), word("type"));
            line(&format!("    field {}", hanging(&told, 4)));
        }
        line(&style.dim(&format!("    sprag approve {run} {step}{at} · sprag reject {run} {step}{at}")));
    }
    Ok(Exit::Ok)
}

/// Returns who may answer a question, in words; none if everyone may.
fn answerers(view: &Value) -> Option<String> {
    let rule: Answerers = serde_json::from_value(view.clone()).unwrap_or_default();
    (!rule.is_everyone()).then(|| plain(&rule.to_string()))
}

/// Returns the open questions of all runs.
fn open(app: &App) -> Result<Vec<GateRow>, Failure> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let page = app.gates_open(after, PAGE)?;
        let is_last = page.len() < PAGE;
        after = page.last().map_or(after, |gate| gate.id);
        found.extend(page.into_iter().filter(|gate| gate.kind == GateKind::Question));
        if is_last {
            found.sort_by_key(|gate| gate.opened_ms);
            return Ok(found);
        }
    }
}
