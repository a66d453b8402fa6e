//! `sprag run --dry`: the steps that would run, their order, and which of them run in parallel. Starts and writes
//! nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_lifecycle::{OnFail, Plan};
use sprag_pipeline::{Pipeline, RepeatCondition, fan_out_text, preview};

use crate::context::Context;
use crate::draw::stages;
use crate::exit::{Exit, Failure};
use crate::show::{Style, counted, hanging, line, plain, width};

pub(crate) fn dry(
    context: &Context,
    pipeline: &Pipeline,
    plan: &Plan,
    inputs: &BTreeMap<String, Value>,
) -> Result<Exit, Failure> {
    let names = json!({ "inputs": inputs });
    let needs: Vec<Vec<usize>> =
        plan.steps.iter().map(|step| step.needs.iter().map(|need| *need as usize).collect()).collect();
    let stages = stages(&needs);
    if context.json {
        line(&as_json(pipeline, &stages, &names).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    let told = format!("{}, {}", counted(plan.steps.len(), "step"), counted(stages.len(), "stage"));
    line(&format!("{} {}", style.bold(&plan.name), style.dim(&format!("· {told} · nothing is run"))));
    if let Some(about) = &pipeline.description {
        line(&hanging(about.trim_end(), 0));
    }
    if !inputs.is_empty() {
        let given: Vec<String> = inputs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        line(&format!("inputs  {}", plain(&given.join("  "))));
    }
    if let Some(group) = &plan.concurrency {
        line(&format!("group   {} (at most {} at once)", plain(&group.group), group.limit));
    }
    for (at, stage) in stages.iter().enumerate() {
        let beside =
            if stage.len() > 1 { format!(" ({} beside each other)", stage.len()) } else { String::new() };
        line(&style.dim(&format!("stage {}{beside}", at + 1)));
        for no in stage {
            step(style, pipeline, *no, &names);
        }
    }
    Ok(Exit::Ok)
}

fn step(style: Style, pipeline: &Pipeline, no: usize, names: &Value) {
    let step = &pipeline.steps[no];
    let mut facts: Vec<String> = Vec::new();
    facts.extend(fan_out_text(&step.spec, names));
    facts.extend(step.spec.when.as_ref().map(|when| format!("when {when}")));
    if step.policy.attempts > 1 {
        facts.push(format!("up to {} tries", step.policy.attempts));
    }
    if let (Some(repeat), Some(condition)) = (step.repeat, &step.spec.repeat) {
        let word = match condition {
            RepeatCondition::Until(_) => "until",
            RepeatCondition::While(_) => "while",
        };
        facts.push(format!("up to {} rounds {word} {}", repeat.max, condition.expression()));
    }
    match step.policy.on_fail {
        OnFail::Fail => {}
        OnFail::Continue => facts.push("may fail".into()),
        OnFail::Rework { step, max } => {
            facts.push(format!("a failure goes back to {}, {max}×", pipeline.steps[step as usize].id));
        }
    }
    if step.policy.then_continue {
        facts.push("then may fail".into());
    }
    if let Some(wanted) = step.quorum {
        facts.push(format!("needs {wanted} of {}", step.needs.len()));
    }
    if step.skip_rest {
        facts.push("skips the steps that need it".into());
    }
    if step.spec.service.is_some() {
        facts.push("service".into());
    } else if step.policy.always {
        facts.push("always".into());
    }
    let facts = if facts.is_empty() { String::new() } else { format!("  {}", facts.join(" · ")) };
    line(&format!("  {}{}", style.bold(&step.id), style.dim(&plain(&facts))));
    if let Some(about) = &step.description {
        line(&style.dim(&format!("    {}", hanging(about.trim_end(), 4))));
    }
    for text in preview(&step.spec, names).lines() {
        let room = width().saturating_sub(4).max(20);
        let text = plain(text);
        let cut: String = text.chars().take(room).collect();
        line(&format!("    {cut}{}", if cut.len() < text.len() { "…" } else { "" }));
    }
}

fn as_json(pipeline: &Pipeline, stages: &[Vec<usize>], names: &Value) -> Value {
    let id = |no: usize| pipeline.steps[no].id.as_str();
    let steps: Vec<Value> = pipeline
        .steps
        .iter()
        .enumerate()
        .map(|(no, step)| {
            json!({
                "id": step.id,
                "description": step.description,
                "stage": stages.iter().position(|stage| stage.contains(&no)).map(|at| at + 1),
                "needs": step.needs.iter().map(|need| id(*need as usize)).collect::<Vec<_>>(),
                "does": preview(&step.spec, names),
                "when": step.spec.when,
                "over": fan_out_text(&step.spec, names),
                "queue": step.queue,
            })
        })
        .collect();
    let stages: Vec<Vec<&str>> =
        stages.iter().map(|stage| stage.iter().map(|no| id(*no)).collect()).collect();
    json!({
        "pipeline": pipeline.name,
        "description": pipeline.description,
        "inputs": names["inputs"],
        "stages": stages,
        "steps": steps,
    })
}
