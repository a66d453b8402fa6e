//! Questions to the person at the terminal: missing inputs, and the answers that a run waits for.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use sprag_app::{App, ErrorKind, Row, gates, questions_alone};
use sprag_lifecycle::{RunId, Word};
use sprag_pipeline::{Input, Pipeline};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::gates::step_of;
use crate::exit::Failure;
use crate::show::{Style, hanging, plain};

/// The pause between two looks whether a question was answered elsewhere.
const LOOK: Duration = Duration::from_millis(300);

/// The lines that the person types. One thread reads them, because a read of the terminal cannot be taken back.
pub(crate) struct TypedLines {
    lines: mpsc::UnboundedReceiver<String>,
}

/// The end of a question.
pub(crate) enum Reply {
    /// The answer.
    Answer { choice: String, comment: Option<String>, fields: BTreeMap<String, String> },
    /// The person leaves the question open: end of input, or Ctrl-C.
    Left,
    /// The question is no longer open.
    Closed,
}

impl TypedLines {
    /// Starts to read the terminal.
    pub(crate) fn open() -> TypedLines {
        let (send, lines) = mpsc::unbounded_channel();
        // Without the thread the channel is closed, which counts as the end of the input.
        let _ = std::thread::Builder::new().name("terminal".into()).spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        TypedLines { lines }
    }

    /// Asks for a choice and a comment. `is_open` waits for a moment, and returns whether the question is still open.
    pub(crate) async fn answer(
        &mut self,
        step: &str,
        choices: &[String],
        fields: &[Input],
        mut is_open: impl AsyncFnMut() -> Result<bool, Failure>,
    ) -> Result<Reply, Failure> {
        let offered =
            if choices.is_empty() { vec!["yes".to_owned(), "no".to_owned()] } else { choices.to_vec() };
        // A slash between choices that contain one would hide where they end.
        let between = if offered.iter().any(|choice| choice.contains('/')) { ", " } else { "/" };
        let text = format!("{} [{}] (Ctrl-C leaves it open): ", plain(step), plain(&offered.join(between)));
        let choice = loop {
            let line = match self.line(&text, &mut is_open).await? {
                Ok(line) => line,
                Err(reply) => return Ok(reply),
            };
            match chosen(&line, choices) {
                Some(choice) => break choice,
                None => eprintln!("answer with one of: {}", plain(&offered.join(", "))),
            }
        };
        let mut texts = BTreeMap::new();
        for field in fields {
            match self.field(field, &mut is_open).await? {
                Ok(Some(text)) => drop(texts.insert(field.name.clone(), text)),
                Ok(None) => {}
                Err(reply) => return Ok(reply),
            }
        }
        Ok(match self.line("comment (optional): ", &mut is_open).await? {
            Ok(line) => {
                let comment = Some(line.trim().to_owned()).filter(|line| !line.is_empty());
                Reply::Answer { choice, comment, fields: texts }
            }
            Err(reply) => reply,
        })
    }

    /// Asks for the value of a field until it fits. An empty line leaves the field out.
    async fn field(
        &mut self,
        field: &Input,
        is_open: &mut impl AsyncFnMut() -> Result<bool, Failure>,
    ) -> Result<Result<Option<String>, Reply>, Failure> {
        let about = field.description.as_deref().map(|about| format!(" ({})", plain(about)));
        let need = match &field.default {
            Some(default) => format!(" [{}]", plain(&bare(default))),
            None if field.required => String::new(),
            None => " (optional)".to_owned(),
        };
        let text = format!("{}{}{need}: ", plain(&field.name), about.unwrap_or_default());
        loop {
            let line = match self.line(&text, is_open).await? {
                Ok(line) => line,
                Err(reply) => return Ok(Err(reply)),
            };
            if line.trim().is_empty() {
                return Ok(Ok(None));
            }
            match expected_instead(field, &line) {
                None => return Ok(Ok(Some(line))),
                Some(expected) => eprintln!("expected {}", plain(&expected)),
            }
        }
    }

    /// Asks, and waits for a line, for Ctrl-C, or until the question is closed from elsewhere.
    async fn line(
        &mut self,
        text: &str,
        is_open: &mut impl AsyncFnMut() -> Result<bool, Failure>,
    ) -> Result<Result<String, Reply>, Failure> {
        prompt(text);
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            let left = tokio::select! {
                line = self.lines.recv() => match line {
                    Some(line) => return Ok(Ok(line)),
                    None => true,
                },
                _ = interrupt.recv() => true,
                open = is_open() => {
                    if !open? {
                        eprintln!("\nanswered elsewhere");
                        return Ok(Err(Reply::Closed));
                    }
                    false
                }
            };
            if left {
                eprintln!("");
                return Ok(Err(Reply::Left));
            }
        }
    }
}

/// Asks the questions that a run waits for, and answers them. Returns whether the run continues.
pub(crate) async fn answer_open(app: &App, run: RunId, typed: &mut TypedLines) -> Result<bool, Failure> {
    let style = Style::stderr();
    loop {
        let questions = questions_alone(app, run)?;
        let Some(gate) = questions.first() else { return Ok(true) };
        let step = step_of(app, gate);
        let question = gates::Question { gate: gate.clone(), step: step.clone() };
        // The run's own questions were shown when they opened; those of child runs were not.
        if gate.run != run {
            eprintln!("{} {step} of run {}: {}", style.bold("?"), gate.run, hanging(&question.ask(), 2));
        }
        let is_open = async || {
            app.pause(LOOK).await;
            Ok(app.gate(gate.id)?.is_some_and(|gate| gate.status().as_str() == "open"))
        };
        let (choices, fields) = (question.choices(), question.fields());
        let (choice, comment, texts) = match typed.answer(&step, &choices, &fields, is_open).await? {
            Reply::Left => return Ok(false),
            Reply::Closed => continue,
            Reply::Answer { choice, comment, fields } => (choice, comment, fields),
        };
        let given = gates::Answer {
            choice: Some(&choice),
            comment: comment.as_deref(),
            texts: Some(&texts),
            ..gates::Answer::default()
        };
        let answered = match gates::answer(app, gate, given).await {
            Ok(answered) => answered,
            Err(error) if error.kind == ErrorKind::Invalid => {
                // A required field was left out: the question is asked again.
                eprintln!("{} {error}", style.red("✗"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let sign = if answered.approved { style.green("✓") } else { style.red("✗") };
        eprintln!("{sign} {step} {}", style.dim(&format!("answered {choice:?}")));
    }
}

/// Returns the choice that a line means: by its name, the start of its name, or its number from 1.
fn chosen(line: &str, choices: &[String]) -> Option<String> {
    let word = line.trim().to_lowercase();
    if word.is_empty() {
        return None;
    }
    if choices.is_empty() {
        return ["yes", "no"].into_iter().find(|choice| choice.starts_with(&word)).map(str::to_owned);
    }
    if let Some(same) = choices.iter().find(|choice| choice.to_lowercase() == word) {
        return Some(same.clone());
    }
    let mut alike = choices.iter().filter(|choice| choice.to_lowercase().starts_with(&word));
    if let (Some(one), None) = (alike.next(), alike.next()) {
        return Some(one.clone());
    }
    let number: usize = word.parse().ok()?;
    choices.get(number.checked_sub(1)?).cloned()
}

/// Asks for the required inputs that were not given. An empty line, or the end of the input, leaves one out.
pub(crate) fn missing_inputs(
    pipeline: &Pipeline,
    is_given: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut texts = BTreeMap::new();
    let is_missing = |input: &&Input| input.required && input.default.is_none() && !is_given(&input.name);
    for input in pipeline.inputs.iter().filter(is_missing) {
        let about = input.description.as_deref().map(|about| format!(" ({})", plain(about)));
        let allowed = if input.allowed.is_empty() {
            String::new()
        } else {
            format!(" [{}]", plain(&choices_of(input)))
        };
        loop {
            prompt(&format!("{}{}{allowed}: ", plain(&input.name), about.as_deref().unwrap_or_default()));
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line)? == 0 {
                eprintln!("");
                return Ok(texts);
            }
            let text = line.trim_end_matches(['\r', '\n']).to_owned();
            if text.is_empty() {
                break;
            }
            match expected_instead(input, &text) {
                None => {
                    texts.insert(input.name.clone(), text);
                    break;
                }
                Some(expected) => eprintln!("expected {}", plain(&expected)),
            }
        }
    }
    Ok(texts)
}

/// Returns what an input or a field expects instead of a text; none if the text fits.
fn expected_instead(input: &Input, text: &str) -> Option<String> {
    let Some(value) = input.kind.convert(text) else { return Some(input.kind.expected().to_owned()) };
    let is_choice = input.allowed.is_empty() || input.allowed.contains(&value);
    if is_choice { input.mismatch(&value) } else { Some(format!("one of: {}", choices_of(input))) }
}

/// Returns the allowed values of an input as a person types them.
fn choices_of(input: &Input) -> String {
    let choices: Vec<String> = input.allowed.iter().map(bare).collect();
    choices.join(", ")
}

/// Returns a value as a person types it: a text without quotes.
fn bare(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn prompt(text: &str) {
    eprint!("{text}");
    let _ = std::io::stderr().flush();
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn a_choice_is_named_by_its_start_or_its_number() {
        let choices = ["canary".to_owned(), "all".to_owned(), "abort".to_owned()];
        let of = |line: &str| chosen(line, &choices);
        assert_eq!(of(" Canary "), Some("canary".into()));
        assert_eq!(of("c"), Some("canary".into()));
        assert_eq!(of("al"), Some("all".into()));
        assert_eq!(of("3"), Some("abort".into()));
        for wrong in ["", "a", "0", "4", "yes"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(chosen("y", &[]), Some("yes".into()));
    }
}
