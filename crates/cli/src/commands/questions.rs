//! `sprag questions`: the open questions of all runs, oldest first.

use serde_json::json;
use sprag_app::view::GateView;
use sprag_app::{App, GateKind, GateRow};

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{hanging, line, plain, span};

/// The number of gates that are read at once.
const PAGE: usize = 500;

pub(crate) fn questions(context: &Context) -> Result<Exit, Failure> {
    let app = context.app()?;
    let now = app.now();
    let mut views = Vec::new();
    for gate in open(&app)? {
        let known = find_run(&app, Some(&gate.run.to_string()))?;
        let view = GateView::of(&gate, &known.name_of(&app, gate.step), now);
        views.push((view, known.run.pipeline.to_string(), gate.opened_ms));
    }
    if context.json {
        let told: Vec<&GateView> = views.iter().map(|(view, ..)| view).collect();
        line(&json!(told).to_string());
        return Ok(Exit::Ok);
    }
    if views.is_empty() {
        line("no open questions");
        return Ok(Exit::Ok);
    }
    let style = context.style;
    for (view, pipeline, opened_ms) in &views {
        let about = format!("{}  {} ago", plain(pipeline), span(now.wall_ms - opened_ms));
        line(&format!(
            "{}  {}  {}",
            style.bold(&view.run),
            style.bold(&plain(&view.step)),
            style.dim(&about)
        ));
        line(&format!("    {}", hanging(view.ask.as_deref().unwrap_or_default(), 4)));
        line(&format!("    choices: {}", plain(&view.choices.join(", "))));
        for field in &view.fields {
            let required = if field.required { ", required" } else { "" };
            let about = field.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            let told = format!("{} ({}{required}){about}", field.name, field.kind);
            line(&format!("    field {}", hanging(&told, 4)));
        }
        line(&style.dim(&format!("    sprag approve {0} {1} · sprag reject {0} {1}", view.run, view.step)));
    }
    Ok(Exit::Ok)
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
