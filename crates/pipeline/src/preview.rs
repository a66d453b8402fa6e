//! A step's work as people read it before it runs: what is known is filled in, the rest stays as written.

use serde_json::Value;

use crate::spec::{Kind, Over, StepSpec, Wait};
use crate::template::{self, Piece};

/// What the step will do, in words that a person would type or say.
pub fn preview(spec: &StepSpec, context: &Value) -> String {
    match &spec.kind {
        Kind::Run { command, .. } => fill(command, context, quoted),
        Kind::Exec { argv } => {
            let words: Vec<String> = argv.iter().map(|arg| quoted(fill(arg, context, |text| text))).collect();
            words.join(" ")
        }
        Kind::Call { handler, .. } => format!("call {handler}"),
        Kind::Task { prompt, .. } => format!("task: {}", fill(prompt, context, |text| text)),
        Kind::Gate { ask, choices } => {
            format!("ask: {} [{}]", fill(ask, context, |text| text), choices.join(", "))
        }
        Kind::Wait(Wait::For { ms }) => format!("wait {}", crate::duration::text(*ms)),
        Kind::Wait(Wait::Until { time }) => format!("wait until {}", fill(time, context, |text| text)),
        Kind::Wait(Wait::Signal { name }) => format!("wait for the signal {name}"),
        Kind::Pipeline { file, .. } => format!("run {file}"),
        Kind::Land { into, .. } => format!("land on {}", fill(into, context, |text| text)),
    }
}

/// What a step is spread over: how many items, if that is known before it runs.
pub fn spread_text(spec: &StepSpec, context: &Value) -> Option<String> {
    let fan_out = spec.fan_out.as_ref()?;
    let word = match fan_out.over {
        Over::Matrix(_) => "matrix",
        Over::Each(_) => "foreach",
    };
    Some(match fan_out.items(context) {
        Ok(items) => format!("{word} ×{}", items.len()),
        Err(_) => format!("{word} ×?"),
    })
}

/// The text with its known values in the place of their templates.
fn fill(text: &str, context: &Value, show: impl Fn(String) -> String) -> String {
    let Ok(pieces) = template::split(text) else { return text.to_owned() };
    let filled = pieces.iter().map(|piece| match piece {
        Piece::Literal(literal) => literal.to_string(),
        Piece::Value(expression) => match template::evaluate(expression, context).and_then(template::as_text)
        {
            Ok(value) => show(value),
            Err(_) => format!("{{{{ {} }}}}", expression.trim()),
        },
    });
    filled.collect()
}

/// A value as it would be typed in a shell.
fn quoted(text: String) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,{}".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_is_filled_in() {
        let source = "inputs: {a: string}\nsteps:\n- {id: x, run: 'echo {{ inputs.a }}', outputs: {o: {stdout: text}}}\n- {id: y, run: 'echo {{ steps.x.outputs.o }} {{ run.id }}'}\n- {id: z, run: [printf, '{{ inputs.a }}']}\n- {id: w, wait: 90s}\n- {id: m, run: 'echo {{ matrix.v }}', matrix: {v: [1, 2, 3]}}\n";
        let pipeline = crate::parse("p.yaml", source).unwrap().pipeline;
        let context = json!({ "inputs": { "a": "it's; rm" } });
        let told: Vec<String> = pipeline.steps.iter().map(|step| preview(&step.spec, &context)).collect();
        assert_eq!(
            told,
            [
                r"echo 'it'\''s; rm'",
                "echo {{ steps.x.outputs.o }} {{ run.id }}",
                r"printf 'it'\''s; rm'",
                "wait 1m30s",
                "echo {{ matrix.v }}"
            ]
        );
        let spread: Vec<Option<String>> =
            pipeline.steps.iter().map(|step| spread_text(&step.spec, &context)).collect();
        assert_eq!(spread[4].as_deref(), Some("matrix ×3"));
    }
}
