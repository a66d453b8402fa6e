//! `sprag logs`: the output of steps, or the reason why there is none.

use std::collections::BTreeMap;
use std::time::Duration;

use sprag_app::view::is_current;
use sprag_app::{
    App, ExecutionRow, Files, LogPlace, Row, StepRow, Topic, find_attempt, log_place, why_no_log,
};
use sprag_lifecycle::{ExecutionId, StepNo, Word, WorkKind};
use tokio::signal::unix::{SignalKind, signal};

use super::run::tell_failures;
use crate::args::LogOptions;
use crate::context::{Context, RunWithPlan, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{Style, counted, plain, rfc3339};
use crate::tails::{LineOptions, Tails};

/// The pause between two reads of a growing log file.
const LOOK: Duration = Duration::from_millis(100);
/// The most steps for which the command prints why they have no log; further steps are counted.
pub(super) const MOST_TOLD: usize = 20;

pub(crate) async fn logs(
    context: &Context,
    run: Option<&str>,
    step: Option<&str>,
    options: &LogOptions,
) -> Result<Exit, Failure> {
    let app = context.app()?;
    let since = options.since.as_deref().map(|text| start_of(text, app.now().wall_ms)).transpose()?;
    let mut known = find_run(&app, run).map_err(|failure| {
        let newest = find_run(&app, None).ok().filter(|_| failure.exit == Exit::Usage);
        match (run, newest) {
            (Some(step), Some(newest)) if newest.find_step(step, Some(&app)).is_ok() => {
                step_is_meant(failure, step, &newest.id().to_string(), "")
            }
            _ => failure,
        }
    })?;
    let mut step = step.map(str::to_owned);
    if let Some(named) = step.take() {
        let (entered, inner) = known.enter(&app, &named)?;
        (known, step) = (entered, Some(inner));
    }
    let only = step.map(|step| known.find_step(&step, Some(&app))).transpose()?;
    let LogOptions { follow, attempt, failed, .. } = *options;
    let wanted = LogSelection { app: &app, known: &known, only, attempt, failed };
    let lines = LineOptions {
        json: context.json,
        named: only.is_none(),
        timestamps: options.timestamps,
        raw: options.raw,
        since,
        tail: options.tail,
    };
    let id = known.id();
    let wake = app.subscribe(vec![Topic::Run(id)]);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut tails = Tails::new(&app, context.files(), &known, lines);
    loop {
        let full = app.run_in_full(id)?;
        let over = full.as_ref().is_none_or(|full| full.run.status().is_terminal());
        let (steps, executions) = full.map(|full| (full.steps, full.executions)).unwrap_or_default();
        let chosen = wanted.choose(&steps, &executions, follow);
        for execution in &chosen {
            if follow && !over {
                tails.print_some(execution.id)?;
            } else {
                tails.print(execution.id)?;
            }
        }
        if !follow || over {
            wanted.check_attempt(&executions, &chosen)?;
            if failed && chosen.is_empty() {
                // Steps without a log of their own: children, conditions, gates.
                if tell_failures(&app, &known)?.is_empty() {
                    eprintln!("no step of run {id} has failed");
                }
                return Ok(Exit::Ok);
            }
            return wanted.say_what_is_missing(&context.files(), &steps, &executions, &chosen);
        }
        tokio::select! {
            () = wake.wait(LOOK) => {}
            _ = interrupt.recv() => {
                crate::show::end_line();
                return Ok(Exit::Ok);
            }
        }
    }
}

/// Returns the failure about a run that does not exist, with the command for the step of the newest run that the user
/// probably means. `at` is added to the command.
pub(super) fn step_is_meant(failure: Failure, step: &str, newest: &str, at: &str) -> Failure {
    let step = plain(step);
    failure.next(format!("{step} is a step of the newest run: sprag logs {newest} {step}{at}"))
}

/// The part of the logs that the user asked for.
struct LogSelection<'a> {
    app: &'a App,
    known: &'a RunWithPlan,
    /// One step, or one fan-out with its items.
    only: Option<StepNo>,
    attempt: Option<u32>,
    /// Only steps whose last attempt failed.
    failed: bool,
}

/// Parses the time of the first line: a duration before now, or a time.
pub(super) fn start_of(text: &str, now_ms: i64) -> Result<String, Failure> {
    if let Ok(before) = sprag_pipeline::parse_duration(text) {
        let ms = i64::try_from(before.as_millis()).unwrap_or(i64::MAX);
        return Ok(rfc3339(now_ms.saturating_sub(ms)));
    }
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.map(|time| rfc3339(time.as_millisecond())).map_err(|_| {
        Failure::usage(format!("--since {text:?} is neither a duration nor a time"))
            .next("write it like 10m, or 2026-01-31T10:00:00Z")
    })
}

impl LogSelection<'_> {
    fn is_of(&self, steps: &BTreeMap<StepNo, &StepRow>, id: ExecutionId) -> bool {
        // The output of a fan-out is the output of its items.
        let item_of = steps.get(&id.step).and_then(|step| step.item_of);
        self.only.is_none_or(|only| only == id.step || item_of == Some(only))
    }

    /// Returns the attempts to show: those with the given number, all attempts while the logs are followed, otherwise
    /// the last attempt of each step that has started.
    fn choose(&self, steps: &[StepRow], executions: &[ExecutionRow], follow: bool) -> Vec<ExecutionRow> {
        let by_no: BTreeMap<StepNo, &StepRow> = steps.iter().map(|step| (step.no, step)).collect();
        let is_last = |row: &ExecutionRow| {
            let begun = executions.iter().rfind(|one| one.id.step == row.id.step && one.started_ms.is_some());
            begun.is_some_and(|last| last.id == row.id)
        };
        let is_wanted = |row: &&ExecutionRow| match self.attempt {
            Some(attempt) => row.id.attempt == attempt,
            None => {
                let counts = by_no.get(&row.id.step).is_none_or(|step| is_current(steps, step));
                follow || counts && is_last(row)
            }
        };
        let has_failed = |row: &&ExecutionRow| {
            !self.failed || ["failed", "timed_out", "abandoned"].contains(&row.status().as_str())
        };
        let chosen = executions.iter().filter(is_wanted).filter(has_failed);
        chosen.filter(|row| self.is_of(&by_no, row.id)).cloned().collect()
    }

    /// Returns an error that names the existing attempts, if the given attempt does not exist.
    fn check_attempt(&self, executions: &[ExecutionRow], chosen: &[ExecutionRow]) -> Result<(), Failure> {
        let Some(attempt) = self.attempt.filter(|_| chosen.is_empty()) else { return Ok(()) };
        let run = self.known.id();
        Err(match self.only {
            Some(no) => {
                let found = find_attempt(self.app, self.known, no, Some(attempt));
                // The attempt exists now if it was created meanwhile.
                let Err(error) = found else { return Ok(()) };
                Failure { exit: Exit::Usage, ..error.into() }
            }
            None => {
                let most = executions.iter().map(|row| row.id.attempt).max().unwrap_or(0);
                Failure::usage(format!("no step of run {run} has an attempt {attempt}"))
                    .next(format!("the highest is {most}"))
            }
        })
    }

    /// Prints which logs are missing or incomplete on this machine, and why a step has none.
    fn say_what_is_missing(
        &self,
        files: &Files,
        steps: &[StepRow],
        executions: &[ExecutionRow],
        chosen: &[ExecutionRow],
    ) -> Result<Exit, Failure> {
        let mut told = Vec::new();
        let mut shown = false;
        let is_task = |row: &ExecutionRow| self.is_task(steps, row.id.step);
        for row in chosen.iter().filter(|row| row.started_ms.is_some() && !is_task(row)) {
            let name = self.known.name_of(self.app, row.id.step);
            let place = log_place(self.app, files, row, &name)?;
            shown |= std::fs::metadata(files.log(row.id, &name)).is_ok_and(|found| found.len() > 0);
            if place == LogPlace::Missing && self.is_landing(steps, row.id.step) {
                told.push(format!(
                    "{name} printed nothing: no command runs in it; see sprag explain {}",
                    row.id.run
                ));
            } else if let Some(what) = place.told() {
                told.push(format!("the log of {name}, attempt {}: {what}", row.id.attempt));
            }
            // The shown attempt is not the present one.
            let next =
                executions.iter().find(|one| one.id.step == row.id.step && one.id.attempt > row.id.attempt);
            if let (Some(next), None) = (next, self.attempt) {
                told.push(format!(
                    "{name}: attempt {} has not begun; this is attempt {}",
                    next.id.attempt, row.id.attempt
                ));
            }
        }
        if !shown && told.is_empty() {
            told = self.why_nothing(steps, chosen)?;
        }
        let style = Style::stderr();
        for line in told.iter().take(MOST_TOLD) {
            eprintln!("{}", style.dim(&plain(line)));
        }
        if told.len() > MOST_TOLD {
            eprintln!("{}", style.dim(&format!("and {}", counted(told.len() - MOST_TOLD, "more line"))));
        }
        Ok(Exit::Ok)
    }

    /// Returns whether agents and people do a step: it has no log.
    fn is_task(&self, steps: &[StepRow], no: StepNo) -> bool {
        let step = steps.iter().find(|step| step.no == no);
        step.is_some_and(|step| self.known.plan.step(step.node()).work == WorkKind::Task)
    }

    /// Returns whether a step lands the work of the run, which only prints if it runs a command to verify.
    fn is_landing(&self, steps: &[StepRow], no: StepNo) -> bool {
        let step = steps.iter().find(|step| step.no == no);
        step.is_some_and(|step| sprag_app::is_landing(&self.known.plan.step(step.node()).spec))
    }

    /// Returns the reasons why nothing at all was printed.
    fn why_nothing(&self, steps: &[StepRow], chosen: &[ExecutionRow]) -> Result<Vec<String>, Failure> {
        let mut why = Vec::new();
        for step in steps.iter().filter(|step| match self.only {
            Some(only) => only == step.no || step.item_of == Some(only),
            None => step.item_of.is_none(),
        }) {
            let name = self.known.name_of(self.app, step.no);
            let has_begun = chosen.iter().any(|row| row.id.step == step.no && row.started_ms.is_some());
            why.push(if has_begun && !self.is_task(steps, step.no) {
                format!("{name} has printed nothing")
            } else {
                why_no_log(self.app, self.known, step)?
            });
        }
        Ok(why)
    }
}
