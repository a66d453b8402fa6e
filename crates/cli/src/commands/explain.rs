//! `sprag explain`: for each unsettled step what it waits for, since when, until when, and who has it.

use serde_json::{Value, json};
use sprag_lifecycle::{ExecutionStatus, RunId, RunStatus, StepNo, StepStatus, WorkKind};
use sprag_store::{ExecutionRow, GateKind, GateRow, Id, Now, Refusal, Row, StepRow, WorkerRow, step_name};

use crate::context::{Context, Known, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{line, local, rfc3339, span};

/// What is known of one step that is not settled.
struct Waiting {
    step: String,
    status: String,
    waits_for: String,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
    owner: String,
}

pub(crate) fn explain(context: &Context, run: Option<&str>) -> Result<Exit, Failure> {
    let store = context.store()?;
    let known = find_run(&store, run)?;
    let id = known.id();
    let (steps, executions, workers, refusals, crowd) = store.read(|db| {
        let group = known.run.group.clone();
        let crowd = group.map(|group| db.places(&group)).transpose()?.unwrap_or_default();
        Ok((db.steps(id)?, db.executions(id)?, db.workers()?, db.refusals(id)?, crowd))
    })?;
    let now = store.now();
    let gates = store.read(|db| db.open_gates(id))?;
    let place_made = super::env::being_made(&store, id)?;
    let view = View {
        known: &known,
        steps: &steps,
        executions: &executions,
        workers: &workers,
        gates: &gates,
        place: place_made.as_deref(),
        now,
    };
    let waiting: Vec<Waiting> = steps
        .iter()
        .filter(|step| !step.status().is_settled() || step.rework_pending)
        .map(|step| view.waiting(step))
        .collect();
    let place = (known.run.status() == RunStatus::Queued).then(|| {
        let holders: Vec<String> = crowd.iter().map(ToString::to_string).collect();
        format!(
            "a place in group {:?}, held by {}",
            known.run.group.as_deref().unwrap_or_default(),
            if holders.is_empty() { "nobody".to_owned() } else { holders.join(", ") }
        )
    });
    if context.json {
        line(&as_json(&known, place.as_deref(), &waiting, &refusals).to_string());
        return Ok(Exit::Ok);
    }
    let style = context.style;
    line(&format!(
        "{}  {}  {}",
        style.bold(&id.to_string()),
        known.run.pipeline,
        style.status(known.run.status().to_string().as_str(), 0)
    ));
    if let Some(place) = place {
        line(&format!("  the run waits for {place}"));
    }
    if waiting.is_empty() {
        line("  nothing waits: every step is settled");
    }
    for step in &waiting {
        line(&format!("  {} {} ({})", style.sign(&step.status), style.bold(&step.step), step.status));
        line(&format!("      waits for  {}", step.waits_for));
        if let Some(since) = step.since_ms {
            line(&format!("      since      {} ({} ago)", local(since), span(now.wall_ms - since)));
        }
        if let Some(until) = step.until_ms {
            line(&format!("      until      {} (in {})", local(until), span(until - now.wall_ms)));
        }
        line(&format!("      owner      {}", step.owner));
    }
    if !refusals.is_empty() {
        line("  refused events, newest last:");
        for refusal in &refusals {
            line(&format!(
                "      {}  {} by {}: {}, {}",
                local(refusal.at_ms),
                refusal.event,
                refusal.actor,
                refusal.reason,
                refusal.detail
            ));
        }
    }
    Ok(Exit::Ok)
}

struct View<'v> {
    known: &'v Known,
    steps: &'v [StepRow],
    executions: &'v [ExecutionRow],
    workers: &'v [WorkerRow],
    gates: &'v [GateRow],
    /// What the run's environment waits for, while it is being made.
    place: Option<&'v str>,
    now: Now,
}

impl View<'_> {
    fn name(&self, no: StepNo) -> String {
        let row = self.steps.iter().find(|step| step.no == no);
        row.map_or_else(|| no.to_string(), |row| step_name(&self.known.plan, row))
    }

    /// What a step waits for that no worker does.
    fn outside(&self, step: &StepRow, waiting: &mut Waiting) -> bool {
        if let Some(list) = step.items {
            let items = list.items;
            waiting.waits_for = format!(
                "its items: {} of {} are settled, {} are live",
                items.settled,
                items.total,
                items.created - items.settled
            );
            return true;
        }
        if let Some(gate) = self.gates.iter().find(|gate| Some(gate.id) == step.work) {
            waiting.waits_for = crate::live::gate_text(gate);
            waiting.since_ms = Some(gate.opened_ms);
            waiting.until_ms = (gate.timeout_at_ms > 0).then(|| self.wall(gate.timeout_at_ms));
            waiting.owner = match gate.kind {
                GateKind::Question => format!("a person: sprag approve {} {}", gate.run, self.name(step.no)),
                GateKind::Signal => format!("anybody: sprag signal {} {}", gate.run, gate.question),
                GateKind::Time => "the clock".into(),
            };
            return true;
        }
        match (self.known.plan.step(step.node()).work, step.work) {
            (WorkKind::Child, Some(child)) => {
                let child = RunId::from_i64(child);
                waiting.waits_for = format!("run {child} to end");
                waiting.owner = format!("that run: sprag explain {child}");
                waiting.since_ms = step.started_ms;
                true
            }
            _ => false,
        }
    }

    /// A steady moment as people read the clock.
    fn wall(&self, steady_ms: i64) -> i64 {
        steady_ms - self.now.steady_ms + self.now.wall_ms
    }

    fn worker(&self, id: Option<Id>) -> Option<String> {
        let worker = self.workers.iter().find(|worker| Some(worker.id) == id)?;
        let process: Option<sprag_process::ProcessId> = worker.process.parse().ok();
        Some(match process {
            Some(process) if sprag_process::is_alive(&process) == sprag_process::Liveness::Dead => format!(
                "worker {} (pid {} on {}), which is gone: `sprag resume` or any worker takes over",
                worker.name, process.pid, process.host
            ),
            Some(process) => format!("worker {} (pid {} on {})", worker.name, process.pid, process.host),
            None => format!("worker {}", worker.name),
        })
    }

    fn waiting(&self, step: &StepRow) -> Waiting {
        let execution = self
            .executions
            .iter()
            .find(|row| row.id.step == step.no && row.id.attempt == step.attempt)
            .filter(|_| matches!(step.status(), StepStatus::Pending | StepStatus::Running));
        let mut waiting = Waiting {
            step: self.name(step.no),
            status: step.status().to_string(),
            waits_for: String::new(),
            since_ms: execution.map(|row| row.created_ms).or(self.known.run.started_ms),
            until_ms: None,
            owner: "the executor".to_owned(),
        };
        let busy = matches!(step.status(), StepStatus::Pending | StepStatus::Running);
        match execution {
            None if busy && self.outside(step, &mut waiting) => {}
            None if step.rework_pending => {
                waiting.waits_for = "the live work of the steps it sends back to end".into();
            }
            None => {
                let needs = &self.known.plan.step(step.node()).needs;
                let open: Vec<String> = needs
                    .iter()
                    .filter_map(|need| self.steps.iter().find(|other| other.no == *need))
                    .filter(|other| !other.status().is_settled())
                    .map(|other| format!("{} ({})", self.name(other.no), other.status()))
                    .collect();
                waiting.waits_for = if open.is_empty() { "its run to go on".into() } else { open.join(", ") };
                waiting.owner = "nobody yet".into();
            }
            Some(row) => {
                self.work(row, &mut waiting);
                if let Some(place) = self.place.filter(|_| row.status() == ExecutionStatus::Running) {
                    waiting.waits_for = place.to_owned();
                }
            }
        }
        waiting
    }

    fn work(&self, row: &ExecutionRow, waiting: &mut Waiting) {
        match row.status() {
            ExecutionStatus::Requested | ExecutionStatus::Scheduling => {
                if row.not_before_ms > self.now.steady_ms {
                    waiting.waits_for = format!("its backoff, before attempt {}", row.id.attempt);
                    waiting.until_ms = Some(self.wall(row.not_before_ms));
                } else {
                    waiting.waits_for = format!("a place in queue {:?}, which is full or held", row.queue);
                }
            }
            ExecutionStatus::Scheduled => {
                waiting.since_ms = Some(self.wall(row.published_ms));
                waiting.owner = format!("queue {:?}", row.queue);
                let serves = |worker: &&WorkerRow| worker.queues.split(',').any(|queue| *queue == *row.queue);
                waiting.waits_for = match row.pin {
                    Some(pin) => match self.worker(Some(pin)) {
                        Some(worker) => format!("a free slot of {worker}, which started the run"),
                        None => {
                            let run = row.id.run;
                            format!(
                                "the process that started the run, which is gone: sprag resume {run}, or any worker"
                            )
                        }
                    },
                    None => match self.workers.iter().filter(serves).count() {
                        0 => {
                            format!("a worker: none serves queue {0:?} (sprag worker --queue {0})", row.queue)
                        }
                        n => format!(
                            "a free slot; {n} worker{} serve{} it",
                            plural(n),
                            if n == 1 { "s" } else { "" }
                        ),
                    },
                };
            }
            _ => {
                waiting.since_ms = row.started_ms;
                waiting.owner = self.worker(row.owner).unwrap_or_else(|| "a worker that is gone".into());
                waiting.until_ms = Some(self.wall(row.lease_until_ms));
                waiting.waits_for = if row.cancel_requested {
                    "its processes to end: it was cancelled".into()
                } else {
                    format!("attempt {} to end (the lease lasts as long as it is renewed)", row.id.attempt)
                };
            }
        }
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn as_json(known: &Known, place: Option<&str>, waiting: &[Waiting], refusals: &[Refusal]) -> Value {
    let steps: Vec<Value> = waiting
        .iter()
        .map(|step| {
            json!({
                "id": step.step,
                "status": step.status,
                "waits_for": step.waits_for,
                "since": step.since_ms.map(rfc3339),
                "until": step.until_ms.map(rfc3339),
                "owner": step.owner,
            })
        })
        .collect();
    let refused: Vec<Value> = refusals
        .iter()
        .map(|refusal| {
            json!({
                "at": rfc3339(refusal.at_ms),
                "entity": refusal.entity,
                "step": refusal.place.step.and_then(|no| known.plan.steps.get(no as usize)).map(|step| &step.id),
                "event": refusal.event,
                "actor": refusal.actor,
                "reason": refusal.reason,
                "detail": refusal.detail,
            })
        })
        .collect();
    json!({
        "id": known.run.id,
        "pipeline": &*known.run.pipeline,
        "status": known.run.status(),
        "waits_for": place,
        "steps": steps,
        "refused": refused,
    })
}
