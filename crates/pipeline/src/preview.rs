//! A preview of a step for people: templates with known values are rendered, the others stay as written.

use serde_json::Value;

use crate::expression::Budget;
use crate::inline::INSIDE;
use crate::spec::{FanOutItems, Kind, StepSpec, Wait};
use crate::template::{self, Piece};

/// Describes the work of a step.
pub fn preview(spec: &StepSpec, context: &Value) -> String {
    match &spec.kind {
        Kind::Run { command, .. } => fill(command, context, quoted),
        Kind::Exec { argv, .. } => {
            let words: Vec<String> = argv.iter().map(|arg| quoted(fill(arg, context, |text| text))).collect();
            words.join(" ")
        }
        Kind::Call { handler, .. } => format!("call {handler}"),
        Kind::Agent(agent) => format!("{}: {}", agent.agent, fill(&agent.prompt, context, |text| text)),
        Kind::Task { prompt, .. } => format!("task: {}", fill(prompt, context, |text| text)),
        Kind::Gate { ask, choices, .. } => {
            format!("ask: {} [{}]", fill(ask, context, |text| text), choices.join(", "))
        }
        Kind::Wait(Wait::For { ms }) => format!("wait {}", crate::duration::text(*ms)),
        Kind::Wait(Wait::Until { time }) => format!("wait until {}", fill(time, context, |text| text)),
        Kind::Wait(Wait::Signal { name }) => format!("wait for the signal {name}"),
        Kind::Pipeline { file, definition, .. } if file == INSIDE => match definition.parse() {
            Ok(inner) => {
                let ids: Vec<&str> = inner.pipeline.steps.iter().map(|step| step.id.as_str()).collect();
                format!("steps {}", ids.join(", "))
            }
            Err(_) => "steps".to_owned(),
        },
        Kind::Pipeline { file, .. } => match file.strip_prefix('#') {
            Some(name) => format!("run the pipeline {name}"),
            None => format!("run {file}"),
        },
        Kind::End { completed, message } => {
            let how = if *completed { "completed" } else { "failed" };
            let message = message.as_ref().map(|text| format!(": {}", fill(text, context, |text| text)));
            format!("end the run as {how}{}", message.unwrap_or_default())
        }
        Kind::Land { into, .. } => format!("land on {}", fill(into, context, |text| text)),
    }
}

/// Describes the items of a fan-out, and their number if it is known before the run.
pub fn fan_out_text(spec: &StepSpec, context: &Value) -> Option<String> {
    let fan_out = spec.fan_out.as_ref()?;
    let word = match fan_out.over {
        FanOutItems::Matrix(_) => "matrix",
        FanOutItems::Each(_) => "foreach",
    };
    Some(match fan_out.items(context) {
        Ok(items) => format!("{word} ×{}", items.len()),
        Err(_) => format!("{word} ×?"),
    })
}

/// Returns the text with its known values in place of their templates.
fn fill(text: &str, context: &Value, show: impl Fn(String) -> String) -> String {
    let Ok(pieces) = template::split(text) else { return text.to_owned() };
    let budget = Budget::default();
    let filled = pieces.iter().map(|piece| match piece {
        Piece::Literal(literal) => literal.to_string(),
        Piece::Value(expression) => {
            match template::evaluate(expression, context, &budget).and_then(template::as_text) {
                Ok(value) => show(value),
                Err(_) => format!("{{{{ {} }}}}", expression.trim()),
            }
        }
    });
    filled.collect()
}

/// Quotes a value for a shell, if necessary.
fn quoted(text: String) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,{}".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_preview_renders_known_values() {
        let source = "inputs: {a: string}\nsteps:\n- {id: x, run: 'echo {{ inputs.a }}', outputs: {o: {stdout: text}}}\n- {id: y, run: 'echo {{ steps.x.outputs.o }} {{ run.id }}'}\n- {id: z, run: [printf, '{{ inputs.a }}']}\n- {id: w, wait: 90s}\n- {id: m, run: 'echo {{ matrix.v }}', matrix: {v: [1, 2, 3]}}\n";
        let pipeline = crate::parse("p.yaml", source).unwrap().pipeline;
        let context = json!({ "inputs": { "a": "it's; rm" } });
        let previews: Vec<String> = pipeline.steps.iter().map(|step| preview(&step.spec, &context)).collect();
        assert_eq!(
            previews,
            [
                r"echo 'it'\''s; rm'",
                "echo {{ steps.x.outputs.o }} {{ run.id }}",
                r"printf 'it'\''s; rm'",
                "wait 1m30s",
                "echo {{ matrix.v }}"
            ]
        );
        let spread: Vec<Option<String>> =
            pipeline.steps.iter().map(|step| fan_out_text(&step.spec, &context)).collect();
        assert_eq!(spread[4].as_deref(), Some("matrix ×3"));
    }
}
