//! The live view of a run: the output of its steps, their results, and a progress line on a terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use sprag_app::view::{GateView, is_not_run, round_of, wall_ms};
use sprag_app::{
    App, Events, Files, GateKind, Id, JournalEntry, Names, Row, Waiting, agent_waits, gate_text, keep_time,
    questions_alone, why_attempt_failed, why_step_failed,
};
use sprag_lifecycle::{ExecutionId, PlanStep, RunId, RunStatus, StepNo, WorkKind};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::RunWithPlan;
use crate::exit::Failure;
use crate::patience::{Patience, say};
use crate::progress_line::ProgressLine;
use crate::show::{Style, hanging, line, local, plain, span};
use crate::tails::{LineOptions, Tails};

/// The time between two redraws of the terminal, and between two reads of the logs.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The most running steps that the progress line names; further steps are counted.
pub(crate) const NAMED: usize = 3;

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
    /// The user leaves the run: interrupted again, or watches a run of others.
    Left,
}

/// The effect of the first interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    /// It cancels the run, which this process executes. A second one leaves it.
    Cancel,
    /// It ends the view. Other processes execute the run.
    Leave,
}

/// Watches a run until it has ended, or the user leaves.
pub(crate) async fn watch(
    app: &App,
    files: Files,
    known: &RunWithPlan,
    json: bool,
    since: Option<u64>,
    on_interrupt: OnInterrupt,
    interactive: bool,
) -> Result<Watched, Failure> {
    // The handler stays installed all the time, so that a signal during output is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut screen = Screen::new(app, files, known, json, since)?;
    let mut interrupts = 0;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        if on_interrupt == OnInterrupt::Leave {
            // Where no server and no worker runs, no other process does this.
            keep_time(app, known.id()).await?;
        }
        let status = screen.update().await?;
        if status.is_terminal() {
            screen.clear();
            return Ok(Watched::Ended(status));
        }
        // Without a terminal the answer comes from elsewhere. An agent that asked waits for it a while, and is then
        // stopped until there is one.
        let questions = questions_alone(app, known.id())?;
        let mut agents = questions.iter().map(|gate| agent_waits(app, gate));
        let is_held = on_interrupt == OnInterrupt::Cancel
            && !interactive
            && agents.any(|waits| waits.unwrap_or_default());
        if !questions.is_empty() && !is_held {
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
        if interrupts > 1 || on_interrupt == OnInterrupt::Leave {
            return Ok(Watched::Left);
        }
        if !json {
            eprintln!("Cancelling. Press Ctrl-C again to quit.");
        }
        app.request_cancel(known.id()).await?;
    }
}

/// Returns the text of the progress line: how many of the steps have settled, the names of running steps, and the first
/// wait. None if nothing is running and nothing waits.
pub(crate) fn live_text(
    (settled, all): (usize, usize),
    names: &[String],
    running: usize,
    waits: &[Waiting],
    now_ms: i64,
) -> Option<String> {
    let waits = waits.split_first().map(|(first, more)| {
        let more = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
        format!("{}{more}", plain(&first.live_line(now_ms)))
    });
    if running == 0 {
        return waits;
    }
    let more =
        if running > names.len() { format!(" and {} more", running - names.len()) } else { String::new() };
    let waits = waits.map(|waits| format!(" · {waits}")).unwrap_or_default();
    Some(format!("{settled}/{all}  {}{more}{waits}", names.join(", ")))
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
    /// The number of planned steps that have settled.
    settled: usize,
    progress: ProgressLine,
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
        Ok(Screen {
            app,
            known,
            events: Events::new(
                app,
                Some(known.id()),
                since.unwrap_or(known.run.first_seq.saturating_sub(1)),
            ),
            tails: Tails::new(
                app,
                files,
                known,
                LineOptions { named: is_crowded(known), ..LineOptions::default() },
            ),
            names: Names::new(app),
            json,
            style: Style::stderr(),
            running: BTreeMap::new(),
            settled: 0,
            waits: Patience::default(),
            progress: ProgressLine::new(!json),
        })
    }

    /// Shows the new entries and returns the run's status.
    async fn update(&mut self) -> Result<RunStatus, Failure> {
        // Reads the status first, so that all entries up to it can be read.
        let row = self.app.run(self.known.id())?;
        let status = row.as_ref().map_or(RunStatus::Cancelled, |row| row.status());
        let unsettled = row.map_or(0, |row| row.tally.unsettled as usize);
        self.settled = self.known.plan.steps.len().saturating_sub(unsettled);
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
        }
        if any {
            self.waits.reset();
        }
        self.say_waits(status)?;
        if !self.json && !status.is_terminal() {
            self.draw()?;
        }
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
                "step.succeeded" | "step.failed" | "step.cancelled" | "step.skipped" | "step.retried"
                | "step.repeated",
            ) => {
                let began = self.running.remove(&step);
                if let Some((id, _)) = began {
                    self.print(id)?;
                }
                let took = began.map(|(_, at)| span(entry.at_ms - at)).unwrap_or_default();
                self.clear();
                let item = self.item(step)?;
                let name = sprag_app::named_item(name, item.as_deref());
                self.tell(entry, began.map_or(id, |(id, _)| id), &name, &took)
            }
            _ => Ok(()),
        }
    }

    fn tell(&self, entry: &JournalEntry, id: ExecutionId, name: &str, took: &str) -> Result<(), Failure> {
        let style = self.style;
        let sign = style.sign(entry.to);
        match entry.event {
            "step.succeeded" if took.is_empty() => eprintln!("{sign} {name}"),
            "step.succeeded" => eprintln!("{sign} {name} {}", style.dim(took)),
            "step.failed" => {
                let failed = style.red(&format!("failed: {}", self.why(id)?));
                let took = if took.is_empty() { String::new() } else { format!(" {}", style.dim(took)) };
                eprintln!("{sign} {name} {failed}{took}");
            }
            "step.retried" => {
                let (why, next) = (self.why(id)?, self.next_attempt(id)?);
                let took = style.dim(&format!("({took})"));
                eprintln!("{} {name} failed: {why} {took}; {next}", style.bold("↻"));
            }
            "step.repeated" => {
                let took = style.dim(&format!("({took})"));
                eprintln!("{} {name} {} {took}", style.bold("↻"), self.ended_round(id)?);
            }
            "step.cancelled" if self.was_not_run(id)? => {
                eprintln!("{} {name} {}", style.sign("not run"), style.dim("not run"));
            }
            _ => eprintln!("{sign} {name} {}", style.dim(entry.to)),
        }
        Ok(())
    }

    fn was_not_run(&self, id: ExecutionId) -> Result<bool, Failure> {
        let row = self.app.step(self.known.id(), id.step)?;
        Ok(row.is_some_and(|row| is_not_run(&row)))
    }

    /// Describes the round that has ended with this attempt, and the delay before the next one.
    fn ended_round(&self, id: ExecutionId) -> Result<String, Failure> {
        let next = self.app.execution(ExecutionId { attempt: id.attempt + 1, ..id })?;
        let delay_ms = next.map_or(0, |row| row.not_before_ms - self.app.now().steady_ms);
        let wait = if delay_ms > 0 { format!("; the next one in {}", span(delay_ms)) } else { String::new() };
        let row = self.app.step(self.known.id(), id.step)?;
        // The count belongs to this round only while the next one is the present attempt.
        let row = row.filter(|row| row.attempt == id.attempt + 1);
        let rounds = row.and_then(|row| Some((row.repeats, round_of(&self.known.plan, &row)?.1)));
        let told = rounds.map_or("a round".to_owned(), |(round, most)| format!("round {round} of {most}"));
        Ok(format!("{told} done{wait}"))
    }

    /// Describes the attempt after this one: its number, and the delay before it.
    fn next_attempt(&self, id: ExecutionId) -> Result<String, Failure> {
        let next = ExecutionId { attempt: id.attempt + 1, ..id };
        let node = self.app.step(self.known.id(), id.step)?.map(|row| row.node());
        let most = node.map_or(0, |node| self.known.plan.step(node).policy.attempts);
        let of = if next.attempt <= most { format!(" of {most}") } else { String::new() };
        let row = self.app.execution(next)?;
        let delay_ms = row.map_or(0, |row| row.not_before_ms - self.app.now().steady_ms);
        let wait = if delay_ms > 0 { format!(" in {}", span(delay_ms)) } else { String::new() };
        Ok(format!("retry {}{of}{wait}", next.attempt))
    }

    /// Returns the value of a step that is an item of a fan-out.
    fn item(&self, step: StepNo) -> Result<Option<String>, Failure> {
        if self.is_planned(step) {
            return Ok(None);
        }
        let row = self.app.step(self.known.id(), step)?;
        Ok(sprag_app::item_names(self.app, &self.known.plan, &row)?.remove(&step))
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
        if gate.kind == GateKind::Signal && gate.question.is_empty() {
            // The end of a run, which waits for nothing.
            let answer: serde_json::Value =
                gate.answer.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let message = answer["message"].as_str().map(|text| format!(": {text}")).unwrap_or_default();
            eprintln!("{} {name} ends the run{}", self.style.bold("■"), hanging(&plain(&message), 2));
            return Ok(());
        }
        let sign = self.style.bold("?");
        let now = self.app.now();
        let told = match (gate.kind, GateView::of(&gate, &self.known.run.pipeline, name, now).until) {
            (GateKind::Time, Some(_)) => {
                let until = if gate.until_ms > 0 { gate.until_ms } else { wall_ms(now, gate.timeout_at_ms) };
                format!("waits until {}", local(until))
            }
            _ => format!("waits for {}", gate_text(&gate)),
        };
        eprintln!("{sign} {name} {}", hanging(&told, 2));
        Ok(())
    }

    fn why(&self, id: ExecutionId) -> Result<String, Failure> {
        let (row, step) = (self.app.execution(id)?, self.app.step(self.known.id(), id.step)?);
        Ok(match (row, step) {
            (Some(row), _) => why_attempt_failed(&row),
            (None, Some(step)) => {
                why_step_failed(self.app, self.known.plan.step(step.node()).work, &step, None)
            }
            (None, None) => "no reason was reported".to_owned(),
        })
    }

    /// Prints what the run waits for, or what some of its steps wait for while others are executed.
    fn say_waits(&mut self, status: RunStatus) -> Result<(), Failure> {
        let asks = |waiting: &Waiting| waiting.run == self.known.id() && waiting.is_gate;
        if status.is_terminal() {
            self.waits.reset();
            return Ok(());
        }
        let mut waits = self.waits.look(self.app, self.known.id())?;
        // On a terminal the progress line says it.
        if self.progress.is_drawn() {
            return Ok(());
        }
        // The run's own gates were shown when they opened.
        waits.retain(|waiting| !asks(waiting));
        if !waits.is_empty() {
            self.clear();
            say(self.style, &waits, self.app.now().wall_ms);
        }
        Ok(())
    }

    /// Returns whether a worker executes a step, according to the entries that were shown.
    fn executes_something(&self) -> Result<bool, Failure> {
        for no in self.running.keys() {
            let node = if self.is_planned(*no) {
                Some(*no)
            } else {
                self.app.step(self.known.id(), *no)?.map(|row| row.node())
            };
            let step = node.map(|node| self.known.plan.step(node));
            let is_executed = |step: &PlanStep| {
                step.is_for_workers() && !step.service && (step.spread.is_none() || !self.is_planned(*no))
            };
            if step.is_some_and(is_executed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Draws the progress line: the running steps, and what the others wait for.
    fn draw(&mut self) -> Result<(), Failure> {
        if !self.progress.is_drawn() {
            return Ok(());
        }
        let now = self.app.now().wall_ms;
        let (mut names, mut running) = (Vec::new(), 0);
        if self.executes_something()? {
            let is_service = |no: &StepNo| self.known.plan.services().contains(no);
            for (no, (_, at)) in self.running.iter().filter(|(no, _)| !is_service(no)).take(NAMED) {
                let (name, items) = (self.known.name_of(self.app, *no), self.items_of(*no)?);
                names.push(format!("{name}{items} {}", span(now - at)));
            }
            running = self.running.keys().filter(|no| !is_service(no)).count();
        }
        let counts = (self.settled, self.known.plan.steps.len());
        if let Some(text) = live_text(counts, &names, running, self.waits.waits(), now) {
            self.progress.draw(&text);
        }
        Ok(())
    }

    /// Returns how many items of a fan-out have ended; empty for other steps.
    fn items_of(&self, no: StepNo) -> Result<String, Failure> {
        if !self.is_planned(no) || self.known.plan.step(no).spread.is_none() {
            return Ok(String::new());
        }
        let items = self.app.step(self.known.id(), no)?.and_then(|row| row.items).map(|list| list.items);
        Ok(items.map(|items| format!(" {}/{}", items.settled, items.total)).unwrap_or_default())
    }

    /// Removes the progress line, so that other text can be written in its place.
    fn clear(&mut self) {
        self.progress.clear();
    }
}
