//! Renders a step's templates when the step starts, when all names are defined.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::expression::Budget;
use crate::services::{Ready, ServiceSpec};
use crate::shell::{self, Dialect, Quoting};
use crate::spec::{Cache, Check, Kind, Output, RepeatCondition, Shell, StepSpec, Wait};
use crate::template::{self, Piece};

/// Linux limits a single argument or variable to 128 KiB; the difference leaves room for the variable's name.
pub(crate) const MAX_TEXT_BYTES: usize = 120 * 1024;

/// The error of a template that has no value. The step cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// The part of the step, such as "the command" or "`env` X".
    pub place: String,
    /// The mistake, as a clause.
    pub why: String,
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be filled in: {}", self.place, self.why)
    }
}

impl std::error::Error for RenderError {}

/// Renders the step's templates from `context`: `{"inputs": {…}, "run": {"id": …, "name": …}}`.
///
/// A value never becomes part of a shell command. The command contains the expansion of a variable `SPRAG_VALUE_n`, and
/// the step's environment contains the value.
pub fn render_step(spec: &StepSpec, context: &Value) -> Result<StepSpec, RenderError> {
    render_step_within(spec, context, &Budget::default())
}

/// Renders the step as [`render_step`] does, within the given budget.
pub fn render_step_within(
    spec: &StepSpec,
    context: &Value,
    budget: &Budget,
) -> Result<StepSpec, RenderError> {
    let mut renderer = Renderer { context: context.clone(), env: BTreeMap::new(), values: 0, budget };
    for (name, template) in &spec.env {
        let value = renderer.text(template, || format!("`env` {name}"))?;
        renderer.env.insert(name.clone(), value);
    }
    // The other parts may use the step's own variables, which are defined now.
    if let Value::Object(names) = &mut renderer.context {
        names.insert("env".into(), serde_json::json!(renderer.env));
    }
    let dir = spec.dir.as_ref().map(|dir| renderer.text(dir, || "`dir`".into())).transpose()?;
    let kind = renderer.kind(&spec.kind)?;
    let checks = spec.checks.iter().map(|check| renderer.check(check)).collect::<Result<_, _>>()?;
    let outputs =
        spec.outputs.iter().map(|(name, output)| Ok((name.clone(), renderer.output(name, output)?)));
    let outputs = outputs.collect::<Result<_, _>>()?;
    let cache = spec.cache.as_ref().map(|cache| renderer.cache(cache)).transpose()?;
    let service = spec.service.as_ref().map(|service| renderer.service(service)).transpose()?;
    Ok(StepSpec { kind, env: renderer.env, dir, checks, outputs, cache, service, ..spec.clone() })
}

/// Returns whether the step's `when` holds. `context` is that of [`render_step`].
pub fn when_holds(spec: &StepSpec, context: &Value) -> Result<bool, RenderError> {
    when_holds_within(spec, context, &Budget::default())
}

/// Evaluates `when` as [`when_holds`] does, within the given budget.
pub fn when_holds_within(spec: &StepSpec, context: &Value, budget: &Budget) -> Result<bool, RenderError> {
    let Some(when) = &spec.when else { return Ok(true) };
    template::holds(when, context, budget)
        .map_err(|why| RenderError { place: format!("`when: {when}`"), why })
}

/// Returns whether the step's `repeat` asks for another round. `context` is that of [`render_step`], with the round that
/// has ended.
pub fn repeats_within(spec: &StepSpec, context: &Value, budget: &Budget) -> Result<bool, RenderError> {
    let Some(repeat) = &spec.repeat else { return Ok(false) };
    let (word, ends_if) = match repeat {
        RepeatCondition::Until(_) => ("until", true),
        RepeatCondition::While(_) => ("while", false),
    };
    let expression = repeat.expression();
    template::holds(expression, context, budget)
        .map(|holds| holds != ends_if)
        .map_err(|why| RenderError { place: format!("`{word}: {expression}`"), why })
}

/// Renders the declared outputs of a run, as its plan has them. An output is `null` where a template has no value, such
/// as that of a step that was skipped.
pub fn render_outputs(spec: &str, context: &Value, budget: &Budget) -> Value {
    let declared: BTreeMap<String, Value> = serde_json::from_str(spec).unwrap_or_default();
    let renderer = Renderer { context: context.clone(), env: BTreeMap::new(), values: 0, budget };
    let render = |value: &Value| renderer.json(value, "an output").unwrap_or(Value::Null);
    declared.iter().map(|(name, value)| (name.clone(), render(value))).collect()
}

struct Renderer<'b> {
    context: Value,
    env: BTreeMap<String, String>,
    /// The number of values that became variables.
    values: usize,
    /// The remaining budget of the step.
    budget: &'b Budget,
}

impl Renderer<'_> {
    fn cache(&self, cache: &Cache) -> Result<Cache, RenderError> {
        let path = |path: &String| self.text(path, || "a path of `cache`".into());
        Ok(Cache {
            key: self.text(&cache.key, || "the key of `cache`".into())?,
            paths: cache.paths.iter().map(path).collect::<Result<_, _>>()?,
        })
    }

    fn service(&mut self, service: &ServiceSpec) -> Result<ServiceSpec, RenderError> {
        let ready = match &service.ready {
            Some(Ready::Run(kind)) => Some(Ready::Run(self.kind(kind)?)),
            other => other.clone(),
        };
        Ok(ServiceSpec { ready, ..service.clone() })
    }

    fn kind(&mut self, kind: &Kind) -> Result<Kind, RenderError> {
        Ok(match kind {
            Kind::Run { command, shell } => {
                Kind::Run { command: self.command(command, shell)?, shell: shell.clone() }
            }
            Kind::Exec { argv, each } => {
                let mut rendered = Vec::with_capacity(argv.len());
                for (n, arg) in argv.iter().enumerate() {
                    if each.contains(&n) {
                        rendered.extend(self.several(arg, n)?);
                    } else {
                        rendered.push(self.text(arg, || format!("argument {n} of `run`"))?);
                    }
                }
                Kind::Exec { argv: rendered, each: Vec::new() }
            }
            Kind::Call { handler, with } => {
                Kind::Call { handler: handler.clone(), with: self.json(with, "`with`")? }
            }
            Kind::Agent(agent) => {
                let mut filled = agent.clone();
                filled.prompt = self.free_text(&agent.prompt, "the prompt")?;
                let text = |text: &String, place: &str| self.free_text(text, place);
                filled.system = agent.system.as_ref().map(|system| text(system, "`system`")).transpose()?;
                filled.model =
                    agent.model.as_ref().map(|model| self.text(model, || "`model`".into())).transpose()?;
                filled.board =
                    agent.board.as_ref().map(|board| self.text(board, || "`board`".into())).transpose()?;
                Kind::Agent(filled)
            }
            Kind::Task { prompt, with } => {
                Kind::Task { prompt: self.free_text(prompt, "the prompt")?, with: self.json(with, "`with`")? }
            }
            Kind::Gate { ask, choices, default, fields, routes, answerers } => Kind::Gate {
                answerers: answerers.clone(),
                fields: fields.clone(),
                routes: routes.clone(),
                ask: self.free_text(ask, "the question")?,
                choices: choices.clone(),
                default: default.clone(),
            },
            Kind::Land { into, strategy, verify, message, push, push_required } => Kind::Land {
                into: self.text(into, || "`into`".into())?,
                strategy: *strategy,
                verify: verify.as_ref().map(|verify| self.kind(verify).map(Box::new)).transpose()?,
                message: message.as_ref().map(|text| self.text(text, || "`message`".into())).transpose()?,
                push: push.clone(),
                push_required: *push_required,
            },
            Kind::End { completed, message } => {
                let message = message.as_ref().map(|text| self.free_text(text, "`message`")).transpose()?;
                Kind::End { completed: *completed, message }
            }
            Kind::Wait(Wait::Until { time }) => {
                Kind::Wait(Wait::Until { time: self.free_text(time, "`until`")? })
            }
            Kind::Wait(wait) => Kind::Wait(wait.clone()),
            Kind::Pipeline { file, inputs, definition, files } => {
                let given =
                    inputs.iter().map(|(name, value)| Ok((name.clone(), self.json(value, "`inputs`")?)));
                let inputs = given.collect::<Result<_, _>>()?;
                let (file, definition) = if files.is_empty() {
                    (file.clone(), definition.clone())
                } else {
                    let file = self.free_text(file, "`file`")?;
                    let chosen = files.get(&file).cloned().ok_or_else(|| RenderError {
                        place: "`file`".into(),
                        why: format!(
                            "{file:?} is not one of its `files`: {}",
                            files.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
                        ),
                    })?;
                    (file, Box::new(chosen))
                };
                Kind::Pipeline { file, inputs, definition, files: BTreeMap::new() }
            }
        })
    }

    fn check(&mut self, check: &Check) -> Result<Check, RenderError> {
        Ok(match check {
            Check::Command(kind) => Check::Command(self.kind(kind)?),
            Check::File { path, not_empty } => {
                Check::File { path: self.text(path, || "`check`".into())?, not_empty: *not_empty }
            }
            Check::Schema { .. } => check.clone(),
        })
    }

    fn output(&self, name: &str, output: &Output) -> Result<Output, RenderError> {
        Ok(match output {
            Output::File { path, format } => {
                Output::File { path: self.text(path, || format!("output `{name}`"))?, format: *format }
            }
            Output::Stdout { .. } => output.clone(),
        })
    }

    /// Renders a template as text that an operating system can pass to a process.
    fn text(&self, template: &str, place: impl Fn() -> String) -> Result<String, RenderError> {
        let filled = template::text(template, &self.context, self.budget).and_then(passable);
        filled.map_err(|why| RenderError { place: place(), why })
    }

    /// Renders a template whose list becomes several arguments.
    fn several(&self, template: &str, n: usize) -> Result<Vec<String>, RenderError> {
        /// The most bytes of such a list. Linux limits all arguments and variables together to about 2 MiB.
        const MAX_BYTES: usize = 1 << 20;
        let error = |why: String| RenderError { place: format!("argument {n} of `run`"), why };
        let list = template::value(template, &self.context, self.budget).map_err(error)?;
        let Value::Array(list) = list else { return Err(error("`each` needs a list".into())) };
        let texts: Vec<String> = list
            .into_iter()
            .map(|item| template::as_text(item).and_then(passable))
            .collect::<Result<_, _>>()
            .map_err(error)?;
        if texts.iter().map(|text| text.len() + 16).sum::<usize>() > MAX_BYTES {
            return Err(error(format!("the list has more than {MAX_BYTES} bytes: pass it in a file")));
        }
        Ok(texts)
    }

    /// Renders a template as text of any length, for people and agents.
    fn free_text(&self, template: &str, place: &str) -> Result<String, RenderError> {
        template::text(template, &self.context, self.budget)
            .map_err(|why| RenderError { place: place.into(), why })
    }

    fn command(&mut self, command: &str, shell: &Shell) -> Result<String, RenderError> {
        let error = |why: String| RenderError { place: "the command".into(), why };
        let pieces = template::split(command).map_err(|malformed| error(malformed.message))?;
        let reading = check_command(&pieces, shell).map_err(|(_, refusal)| error(refusal.message.into()))?;
        let mut quotings = reading.quotings.into_iter();
        let mut filled = String::with_capacity(command.len());
        for piece in &pieces {
            match piece {
                Piece::Literal(literal) => filled.push_str(literal),
                Piece::Value(expression) => {
                    let value = template::evaluate(expression, &self.context, self.budget)
                        .and_then(template::as_text);
                    let value = value
                        .and_then(passable)
                        .map_err(|why| error(template::value_error(expression, &why)))?;
                    self.values += 1;
                    let variable = format!("SPRAG_VALUE_{}", self.values);
                    match quotings.next() {
                        Some(Quoting::Quoted) => filled.push_str(&format!("${{{variable}}}")),
                        _ => filled.push_str(&format!("\"${{{variable}}}\"")),
                    }
                    self.env.insert(variable, value);
                }
            }
        }
        Ok(filled)
    }

    /// Renders the templates in the texts of JSON. A text that is a single template keeps the value's type.
    fn json(&self, json: &Value, place: &str) -> Result<Value, RenderError> {
        Ok(match json {
            Value::String(template) => template::value(template, &self.context, self.budget)
                .map_err(|why| RenderError { place: place.into(), why })?,
            Value::Array(items) => {
                items.iter().map(|item| self.json(item, place)).collect::<Result<_, _>>()?
            }
            Value::Object(entries) => {
                let filled = entries.iter().map(|(key, value)| Ok((key.clone(), self.json(value, place)?)));
                Value::Object(filled.collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }
}

fn passable(text: String) -> Result<String, String> {
    if text.contains('\0') {
        return Err("the value contains a zero byte".into());
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!(
            "the value has {} bytes, more than {MAX_TEXT_BYTES}: pass it in a file",
            text.len()
        ));
    }
    Ok(text)
}

/// Checks the values in a command for this shell. Values are only allowed if the shell's quoting is known.
pub(crate) fn check_command(
    pieces: &[Piece<'_>],
    shell: &Shell,
) -> Result<shell::Reading, (usize, shell::Refusal)> {
    let has_values = pieces.iter().any(|piece| matches!(piece, Piece::Value(_)));
    if !has_values {
        Ok(shell::Reading::default())
    } else if !shell.is_posix() {
        Err((0, shell::NOT_A_POSIX_SHELL))
    } else {
        shell::read(pieces, Dialect::of(shell))
    }
}
