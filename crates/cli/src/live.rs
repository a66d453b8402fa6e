//! The live view of a run: the output of its steps, their results, and a progress line on a terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_app::{App, Events, Files, Id, JournalEntry, Names, Row, Waiting, gate_text, questions_alone};
use sprag_lifecycle::{ExecutionId, RunId, RunStatus, StepNo, Word, WorkKind};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::RunWithPlan;
use crate::exit::Failure;
use crate::patience::{Patience, say};
use crate::show::{Style, line, plain, span};
use crate::tails::Tails;

/// The time between two redraws of the terminal, and between two reads of the logs.
const TICK: Duration = Duration::from_millis(100);
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Returns a few words on why a step of this run failed, from its result, and the next action where only a person can
/// act.
pub(crate) fn why_failed(run: RunId, result: &str) -> Option<String> {
    let facts: Value = serde_json::from_str(result).ok()?;
    if let (Some("blocked"), Some(message), Some(remedy)) =
        (facts["reason"].as_str(), facts["message"].as_str(), facts["remedy"].as_str())
    {
        return Some(plain(&format!("blocked: {message}; {remedy}, then: sprag resume {run}")));
    }
    if let Some(could_not) = facts["reason"].get("could_not_start") {
        return could_not["message"].as_str().map(plain);
    }
    if let Some(message) = facts["message"].as_str() {
        return Some(plain(message));
    }
    if let Some(code) = facts["exit_code"].as_i64() {
        return Some(format!("exit code {code}"));
    }
    facts["signal"].as_i64().map(|signal| format!("ended by signal {signal}"))
}

/// Returns whether lines of several steps may be interleaved.
fn is_crowded(known: &RunWithPlan) -> bool {
    known.plan.steps.len() > 1 || known.plan.steps.iter().any(|step| step.spread.is_some())
}

/// The reason why watching a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The run has ended with this status.
    Ended(RunStatus),
    /// It continues only after a person has answered.
    Waits,
    /// The user interrupted again, and leaves the run.
    Left,
}

/// Watches a run until it has ended, or the user leaves.
pub(crate) async fn watch(
    app: &App,
    files: Files,
    known: &RunWithPlan,
    json: bool,
    since: Option<u64>,
) -> Result<Watched, Failure> {
    // The handler stays installed all the time, so that a signal during output is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut screen = Screen::new(app, files, known, json, since)?;
    let mut interrupts = 0;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let status = screen.update().await?;
        if status.is_terminal() {
            screen.clear();
            return Ok(Watched::Ended(status));
        }
        if !questions_alone(app, known.id())?.is_empty() {
            // Shows the steps that have ended since the last look before it returns.
            screen.update().await?;
            screen.clear();
            return Ok(Watched::Waits);
        }
        let wait = async {
            screen.events.wait(TICK).await;
        };
        tokio::select! {
            () = wait => continue,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        interrupts += 1;
        screen.clear();
        if interrupts > 1 {
            return Ok(Watched::Left);
        }
        if !json {
            eprintln!("cancelling; once more leaves at once");
        }
        app.request_cancel(known.id()).await?;
    }
}

struct Screen<'k> {
    app: &'k App,
    known: &'k RunWithPlan,
    events: Events,
    tails: Tails,
    names: Names,
    json: bool,
    style: Style,
    /// Running steps, with their start times (wall clock).
    running: BTreeMap<StepNo, (ExecutionId, i64)>,
    settled: usize,
    footer: bool,
    drawn: bool,
    tick: usize,
    /// The last message about what the run waits for.
    waits: Patience,
}

impl<'k> Screen<'k> {
    fn new(
        app: &'k App,
        files: Files,
        known: &'k RunWithPlan,
        json: bool,
        since: Option<u64>,
    ) -> Result<Self, Failure> {
        let steps = app.steps(known.id())?;
        let settled = steps.iter().filter(|step| step.status().is_settled()).count();
        Ok(Screen {
            app,
            known,
            events: Events::new(
                app,
                Some(known.id()),
                since.unwrap_or(known.run.first_seq.saturating_sub(1)),
            ),
            tails: Tails::new(app, files, known, false, is_crowded(known)),
            names: Names::new(app),
            json,
            style: Style::stderr(),
            running: BTreeMap::new(),
            settled: if since.is_some() { settled } else { 0 },
            waits: Patience::default(),
            footer: !json && std::io::stderr().is_terminal(),
            drawn: false,
            tick: 0,
        })
    }

    /// Shows the new entries and returns the run's status.
    async fn update(&mut self) -> Result<RunStatus, Failure> {
        // Reads the status first, so that all entries up to it can be read.
        let row = self.app.run(self.known.id())?;
        let status = row.map_or(RunStatus::Cancelled, |row| row.status());
        let mut any = false;
        loop {
            let entries = self.events.ready()?;
            if entries.is_empty() {
                break;
            }
            any = true;
            for entry in &entries {
                self.show(entry)?;
            }
        }
        if !self.json {
            for (id, _) in self.running.clone().into_values() {
                self.clear();
                self.tails.print_some(id)?;
            }
            self.draw();
        }
        if any {
            self.waits.reset();
        }
        self.say_waits(status)?;
        Ok(status)
    }

    fn print(&mut self, id: ExecutionId) -> Result<(), Failure> {
        self.clear();
        self.tails.print(id)
    }

    fn show(&mut self, entry: &JournalEntry) -> Result<(), Failure> {
        if self.json {
            line(&json!(self.names.view(entry)?).to_string());
            return Ok(());
        }
        let (Some(run), Some(step)) = (entry.place.run, entry.place.step) else { return Ok(()) };
        let id = ExecutionId { run, step, attempt: entry.place.attempt.unwrap_or(1) };
        let name = &self.known.name_of(self.app, step);
        match (entry.entity, entry.event) {
            ("step", "step.started") => {
                self.running.insert(step, (id, entry.at_ms));
                self.tell_of_child(step, name)
            }
            ("gate", "gate.opened") => {
                self.clear();
                self.tell_of_gate(entry.place.id, name)
            }
            (
                "step",
                "step.succeeded" | "step.failed" | "step.cancelled" | "step.skipped" | "step.retried",
            ) => {
                let began = self.running.remove(&step);
                if let Some((id, _)) = began {
                    self.print(id)?;
                }
                self.settled += usize::from(entry.event != "step.retried" && self.is_planned(step));
                let took = began.map(|(_, at)| span(entry.at_ms - at)).unwrap_or_default();
                self.clear();
                self.tell(entry, began.map_or(id, |(id, _)| id), name, &took)
            }
            ("step", "step.reset" | "step.reworked") => {
                self.settled = self.settled.saturating_sub(usize::from(self.is_planned(step)));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn tell(&self, entry: &JournalEntry, id: ExecutionId, name: &str, took: &str) -> Result<(), Failure> {
        let style = self.style;
        let sign = style.sign(entry.to);
        match entry.event {
            "step.succeeded" => eprintln!("{sign} {name} {}", style.dim(took)),
            "step.failed" | "step.retried" => {
                let why = self.why(id)?.unwrap_or_else(|| "failed".into());
                if entry.event == "step.failed" {
                    eprintln!("{sign} {name} {} {}", style.red(&why), style.dim(took));
                } else {
                    eprintln!("{} {name} {why}; trying again {}", style.bold("↻"), style.dim(took));
                }
            }
            _ => eprintln!("{sign} {name} {}", style.dim(entry.to)),
        }
        Ok(())
    }

    fn is_planned(&self, step: StepNo) -> bool {
        (step as usize) < self.known.plan.steps.len()
    }

    /// Prints the child run of a step, which has logs of its own.
    fn tell_of_child(&mut self, step: StepNo, name: &str) -> Result<(), Failure> {
        let row = self.app.step(self.known.id(), step)?;
        let Some(row) = row else { return Ok(()) };
        if self.known.plan.step(row.node()).work == WorkKind::Child
            && row.items.is_none()
            && let Some(child) = row.work
        {
            self.clear();
            let child = RunId::from_i64(child);
            eprintln!("{} {name} {}", self.style.sign("running"), self.style.dim(&format!("is run {child}")));
        }
        Ok(())
    }

    fn tell_of_gate(&self, gate: Option<Id>, name: &str) -> Result<(), Failure> {
        let Some(gate) = gate else { return Ok(()) };
        let Some(gate) = self.app.gate(gate)? else { return Ok(()) };
        let sign = self.style.bold("?");
        eprintln!("{sign} {name} {}", self.style.dim(&format!("waits for {}", gate_text(&gate))));
        Ok(())
    }

    fn why(&self, id: ExecutionId) -> Result<Option<String>, Failure> {
        let row = self.app.execution(id)?;
        Ok(row.and_then(|row| match row.status().as_str() {
            "timed_out" => Some("took too long".to_owned()),
            "abandoned" => Some("its worker was lost".to_owned()),
            _ => row.result.as_deref().and_then(|result| why_failed(id.run, result)),
        }))
    }

    /// Prints what the run waits for, if none of its steps is being executed.
    fn say_waits(&mut self, status: RunStatus) -> Result<(), Failure> {
        let asks = |waiting: &Waiting| waiting.run == self.known.id() && waiting.is_gate;
        if status.is_terminal() || self.executes_something()? {
            self.waits.reset();
            return Ok(());
        }
        let Some(mut waits) = self.waits.look(self.app, self.known.id())? else { return Ok(()) };
        // The run's own gates were shown when they opened.
        waits.retain(|waiting| !asks(waiting));
        self.clear();
        say(self.style, &waits, self.app.now().wall_ms);
        Ok(())
    }

    /// Returns whether a worker executes a step, according to the entries that were shown.
    fn executes_something(&self) -> Result<bool, Failure> {
        for no in self.running.keys() {
            let node = match self.is_planned(*no) {
                true => Some(*no),
                false => {
                    let row = self.app.step(self.known.id(), *no)?;
                    row.map(|row| row.node())
                }
            };
            let step = node.map(|node| self.known.plan.step(node));
            if step
                .is_some_and(|step| step.is_for_workers() && (step.spread.is_none() || !self.is_planned(*no)))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Draws the progress line.
    fn draw(&mut self) {
        if !self.footer || self.running.is_empty() {
            return;
        }
        self.tick += 1;
        let now = self.app.now().wall_ms;
        let names: Vec<String> = self
            .running
            .iter()
            .take(3)
            .map(|(no, (_, at))| format!("{} {}", self.known.name_of(self.app, *no), span(now - at)))
            .collect();
        let more = if self.running.len() > 3 {
            format!(" and {} more", self.running.len() - 3)
        } else {
            String::new()
        };
        let text = format!(
            "{} {}/{}  {}{more}",
            SPINNER[self.tick % SPINNER.len()],
            self.settled,
            self.known.plan.steps.len(),
            names.join(", ")
        );
        let width = usize::from(
            rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col.max(20)),
        );
        let cut: String = text.chars().take(width - 1).collect();
        eprint!("\r\x1b[2K{}", self.style.dim(&cut));
        let _ = std::io::stderr().flush();
        self.drawn = true;
    }

    /// Removes the progress line, so that other text can be written in its place.
    fn clear(&mut self) {
        if self.drawn {
            eprint!("\r\x1b[2K");
            let _ = std::io::stderr().flush();
            self.drawn = false;
        }
    }
}
