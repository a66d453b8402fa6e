//! A run as it goes: what its steps print, what becomes of them, and a line that moves on a terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};
use sprag::{Events, Names, gate_text};
use sprag_lifecycle::{ExecutionId, RunId, RunStatus, StepNo, StepStatus, Word, WorkKind};
use sprag_store::{ExecutionRow, GateKind, GateRow, Id, JournalEntry, Row, RunRow, StepRow, Store, Table};
use sprag_worker::Files;
use tokio::signal::unix::{SignalKind, signal};

use crate::context::Known;
use crate::exit::Failure;
use crate::show::{Style, line, plain, span};
use crate::tails::Tails;

/// How often a terminal is drawn anew and logs are looked at.
const TICK: Duration = Duration::from_millis(100);
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Why a step failed, in a few words, from its result.
pub(crate) fn why_failed(result: &str) -> Option<String> {
    let facts: Value = serde_json::from_str(result).ok()?;
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

/// Whether lines of several steps may stand beside each other.
fn is_crowded(known: &Known) -> bool {
    known.plan.steps.len() > 1 || known.plan.steps.iter().any(|step| step.spread.is_some())
}

/// What the user asked for in the meantime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The run has ended so.
    Ended(RunStatus),
    /// It goes on when somebody has answered, and not before.
    Waits,
    /// The user insists on leaving.
    Left,
}

/// Watches a run until it has ended, or the user has had enough.
pub(crate) async fn watch(
    store: &Store,
    files: Files,
    known: &Known,
    json: bool,
    since: Option<u64>,
) -> Result<Watched, Failure> {
    // Listened to all the time: one that comes while something is shown must not be lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut screen = Screen::new(store, files, known, json, since)?;
    let mut interrupts = 0;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let status = screen.update().await?;
        if status.is_terminal() {
            screen.clear();
            return Ok(Watched::Ended(status));
        }
        if screen.running_nothing_but_gates() && !questions_alone(store, known.id())?.is_empty() {
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
        let _ = store.person().cancel_run(known.id()).await?;
    }
}

/// The open questions of a run, if nothing else of it goes on: no step, no wait, no other run.
pub(crate) fn questions_alone(store: &Store, run: RunId) -> Result<Vec<GateRow>, Failure> {
    let (row, steps, gates) = store.read(|db| {
        let row = Table::<RunRow>::load(db, run)?;
        let mut steps = Vec::new();
        for no in db.unsettled(run)? {
            steps.extend(Table::<StepRow>::load(db, (run, no))?);
        }
        Ok((row, steps, db.open_gates(run)?))
    })?;
    let Some(plan) = row.map(|row| store.read(|db| db.plan(row.plan))).transpose()?.flatten() else {
        return Ok(Vec::new());
    };
    let mut questions: Vec<GateRow> = Vec::new();
    for step in steps {
        let busy = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
        if !busy && !step.rework_pending || step.items.is_some() {
            continue;
        }
        let asked = gates.iter().find(|gate| Some(gate.id) == step.work && gate.kind == GateKind::Question);
        match (asked, plan.step(step.node()).work, step.work) {
            (Some(gate), _, _) => questions.push(gate.clone()),
            (None, WorkKind::Child, Some(child)) => {
                let of_child = questions_alone(store, RunId::from_i64(child))?;
                if of_child.is_empty() {
                    return Ok(Vec::new());
                }
                questions.extend(of_child);
            }
            _ => return Ok(Vec::new()),
        }
    }
    Ok(questions)
}

struct Screen<'k> {
    store: &'k Store,
    known: &'k Known,
    events: Events,
    tails: Tails,
    names: Names,
    json: bool,
    style: Style,
    /// Steps that are being worked on, with the moment they began (wall clock).
    running: BTreeMap<StepNo, (ExecutionId, i64)>,
    settled: usize,
    footer: bool,
    drawn: bool,
    tick: usize,
    /// How many times in a row nothing ran.
    idle_ticks: u32,
}

impl<'k> Screen<'k> {
    fn new(
        store: &'k Store,
        files: Files,
        known: &'k Known,
        json: bool,
        since: Option<u64>,
    ) -> Result<Self, Failure> {
        let steps = store.read(|db| db.steps(known.id()))?;
        let settled = steps.iter().filter(|step| step.status().is_settled()).count();
        Ok(Screen {
            store,
            known,
            events: Events::new(
                store,
                Some(known.id()),
                since.unwrap_or(known.run.first_seq.saturating_sub(1)),
            ),
            tails: Tails::new(store, files, known, false, is_crowded(known)),
            names: Names::new(store),
            json,
            style: Style::stderr(),
            running: BTreeMap::new(),
            settled: if since.is_some() { settled } else { 0 },
            idle_ticks: 0,
            footer: !json && std::io::stderr().is_terminal(),
            drawn: false,
            tick: 0,
        })
    }

    /// Shows what is new; the run's status.
    async fn update(&mut self) -> Result<RunStatus, Failure> {
        // The status first: whatever it says, the entries up to it are there to be read.
        let row = self.store.read(|db| Table::<RunRow>::load(db, self.known.id()))?;
        let status = row.map_or(RunStatus::Cancelled, |row| row.status());
        loop {
            let entries = self.events.ready()?;
            if entries.is_empty() {
                break;
            }
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
            self.wonder(status);
        }
        Ok(status)
    }

    /// Whether no step prints anything, as far as was shown.
    fn running_nothing_but_gates(&self) -> bool {
        let works = |no: &StepNo| {
            let step = self.known.plan.steps.get(*no as usize);
            step.is_none_or(|step| {
                matches!(step.work, WorkKind::Execution | WorkKind::Task) && step.spread.is_none()
            })
        };
        !self.running.keys().any(works)
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
        let name = &self.known.name_of(self.store, step);
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

    /// A step whose work is another run: that one has logs of its own.
    fn tell_of_child(&mut self, step: StepNo, name: &str) -> Result<(), Failure> {
        let row = self.store.read(|db| Table::<StepRow>::load(db, (self.known.id(), step)))?;
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
        let Some(gate) = self.store.read(|db| Table::<GateRow>::load(db, gate))? else { return Ok(()) };
        let sign = self.style.bold("?");
        eprintln!("{sign} {name} {}", self.style.dim(&format!("waits for {}", gate_text(&gate))));
        Ok(())
    }

    fn why(&self, id: ExecutionId) -> Result<Option<String>, Failure> {
        let row = self.store.read(|db| Table::<ExecutionRow>::load(db, id))?;
        Ok(row.and_then(|row| match row.status().as_str() {
            "timed_out" => Some("took too long".to_owned()),
            "abandoned" => Some("its worker was lost".to_owned()),
            _ => row.result.as_deref().and_then(why_failed),
        }))
    }

    /// A run that does not begin is worth a word, once.
    fn wonder(&mut self, status: RunStatus) {
        /// Some three seconds.
        const PATIENCE: u32 = 30;
        let idle = self.running.is_empty() && !status.is_terminal();
        self.idle_ticks = if idle { self.idle_ticks.saturating_add(1) } else { 0 };
        if self.idle_ticks == PATIENCE {
            eprintln!("nothing runs yet; why: sprag explain {}", self.known.id());
        }
    }

    /// Draws the line that moves.
    fn draw(&mut self) {
        if !self.footer || self.running.is_empty() {
            return;
        }
        self.tick += 1;
        let now = self.store.now().wall_ms;
        let names: Vec<String> = self
            .running
            .iter()
            .take(3)
            .map(|(no, (_, at))| format!("{} {}", self.known.name_of(self.store, *no), span(now - at)))
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

    /// Takes the moving line away, so that something can be written in its place.
    fn clear(&mut self) {
        if self.drawn {
            eprint!("\r\x1b[2K");
            let _ = std::io::stderr().flush();
            self.drawn = false;
        }
    }
}
