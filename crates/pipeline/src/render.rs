//! Filling in a step's templates at the moment it is started, when all that it may name is known.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::shell::{self, Spot};
use crate::spec::{Kind, Shell, StepSpec};
use crate::template::{self, Piece};

/// Linux passes no single argument or variable of 128 KiB; a little is left for the variable's name.
pub(crate) const MAX_TEXT_BYTES: usize = 120 * 1024;

/// Why a step cannot be started: one of its templates has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// The part of the step, such as "the command" or "`env` X".
    pub place: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be filled in: {}", self.place, self.why)
    }
}

impl std::error::Error for RenderError {}

/// The step with its templates filled in from `context`: `{"inputs": {…}, "run": {"id": …, "name": …}}`.
///
/// A value never becomes part of a shell command: the command gets the expansion of a variable
/// `SPRAG_VALUE_n`, and the value is put into the step's environment.
pub fn render_step(spec: &StepSpec, context: &Value) -> Result<StepSpec, RenderError> {
    let mut env = BTreeMap::new();
    for (name, template) in &spec.env {
        env.insert(name.clone(), text(template, context, || format!("`env` {name}"))?);
    }
    // The other parts may name the step's own variables, which are known now.
    let mut context = context.clone();
    if let Value::Object(names) = &mut context {
        names.insert("env".into(), serde_json::json!(env));
    }
    let dir = spec.dir.as_ref().map(|dir| text(dir, &context, || "`dir`".into())).transpose()?;
    let kind = match &spec.kind {
        Kind::Run { command, shell } => {
            let command = command_text(command, shell, &context, &mut env)?;
            Kind::Run { command, shell: shell.clone() }
        }
        Kind::Exec { argv } => {
            let argv = argv
                .iter()
                .enumerate()
                .map(|(n, arg)| text(arg, &context, || format!("argument {n} of `run`")));
            Kind::Exec { argv: argv.collect::<Result<_, _>>()? }
        }
        Kind::Call { handler, with } => Kind::Call { handler: handler.clone(), with: fill(with, &context)? },
    };
    Ok(StepSpec { kind, env, dir, ..spec.clone() })
}

/// The template as text that an operating system can pass on.
fn text(template: &str, context: &Value, place: impl Fn() -> String) -> Result<String, RenderError> {
    let filled = template::text(template, context).and_then(passable);
    filled.map_err(|why| RenderError { place: place(), why })
}

fn passable(text: String) -> Result<String, String> {
    if text.contains('\0') {
        return Err("the value holds a zero byte".into());
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!(
            "the value has {} bytes, more than {MAX_TEXT_BYTES}: pass it in a file",
            text.len()
        ));
    }
    Ok(text)
}

fn command_text(
    command: &str,
    shell: &Shell,
    context: &Value,
    env: &mut BTreeMap<String, String>,
) -> Result<String, RenderError> {
    let error = |why: String| RenderError { place: "the command".into(), why };
    let pieces = template::split(command).map_err(|malformed| error(malformed.message))?;
    let spots = check_command(&pieces, shell).map_err(|(_, refusal)| error(refusal.message.into()))?;
    let mut spots = spots.into_iter();
    let mut filled = String::with_capacity(command.len());
    let mut count = 0;
    for piece in &pieces {
        match piece {
            Piece::Literal(literal) => filled.push_str(literal),
            Piece::Value(expression) => {
                let value =
                    template::evaluate(expression, context).and_then(template::as_text).and_then(passable);
                let value = value.map_err(|why| error(format!("`{{{{ {expression} }}}}`: {why}")))?;
                count += 1;
                let variable = format!("SPRAG_VALUE_{count}");
                match spots.next() {
                    Some(Spot::Quoted) => filled.push_str(&format!("${{{variable}}}")),
                    _ => filled.push_str(&format!("\"${{{variable}}}\"")),
                }
                env.insert(variable, value);
            }
        }
    }
    Ok(filled)
}

/// The spots of the values in a command for this shell; only a shell whose quoting is known can have any.
pub(crate) fn check_command(
    pieces: &[Piece<'_>],
    shell: &Shell,
) -> Result<Vec<Spot>, (usize, shell::Refusal)> {
    let has_values = pieces.iter().any(|piece| matches!(piece, Piece::Value(_)));
    match has_values {
        true if !shell.is_posix() => Err((0, shell::NOT_A_POSIX_SHELL)),
        true => shell::spots(pieces),
        false => Ok(Vec::new()),
    }
}

/// The first argument with a value that the program before it would evaluate.
pub(crate) fn find_evaluated_argument(argv: &[&str]) -> Option<usize> {
    (0..argv.len()).find(|n| {
        let has_value =
            template::split(argv[*n]).is_ok_and(|p| p.iter().any(|p| matches!(p, Piece::Value(_))));
        has_value && shell::is_evaluated_again(argv[..=*n].iter().copied())
    })
}

/// A handler's JSON with the templates in its texts filled in, each lone one keeping its type.
fn fill(json: &Value, context: &Value) -> Result<Value, RenderError> {
    Ok(match json {
        Value::String(template) => {
            template::value(template, context).map_err(|why| RenderError { place: "`with`".into(), why })?
        }
        Value::Array(items) => items.iter().map(|item| fill(item, context)).collect::<Result<_, _>>()?,
        Value::Object(entries) => {
            let filled = entries.iter().map(|(key, value)| Ok((key.clone(), fill(value, context)?)));
            Value::Object(filled.collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}
