//! The end of a command: its check, its outputs, and the result that is reported for its step.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sprag_pipeline::{Check, Kind, StepSpec};
use sprag_process::{Ended as ProcessEnded, Order, Reason};
use sprag_store::{Assignment, Ending};

use super::{Commands, LEFT_OUTPUTS_MS, guard_until_ms};
use crate::control::{Control, Signal, left};
use crate::environment::Stop;
use crate::evidence::{self, Missing, Outputs, Patience, Places};
use crate::secrets::masker;
use crate::slots::Ended;

/// The time that a step has left after its command has exited.
struct TimeLeft {
    stop: Stop,
    control: Control,
    /// The end of the step's time, by this machine's boot clock; none if the step has no limit.
    until_ms: Option<u64>,
}

impl TimeLeft {
    fn new(spec: &StepSpec, began_ms: u64, control: &Control) -> Self {
        let until_ms = spec.timeout_ms.map(|limit_ms| began_ms.saturating_add(limit_ms));
        TimeLeft { stop: Stop::listen(control), control: control.clone(), until_ms }
    }

    /// Waits for work on a blocking thread, but no longer than the step lasts: a slow file system must not hold up
    /// the step. Returns the step's ending as the error if the time is over or the step is stopped.
    async fn wait<T>(
        &self,
        work: &Work<'_>,
        ended: &ProcessEnded,
        not_done: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, Ended> {
        let limit = self.until_ms.map_or(Duration::MAX, left);
        match tokio::time::timeout(limit, self.stop.or(doing)).await {
            Ok(Ok(done)) if self.until_ms.is_none_or(|until_ms| sprag_process::boot_ms() < until_ms) => {
                Ok(done)
            }
            Ok(Err(_)) if self.control.now() == Signal::Lost => Err(Ended::Lost),
            Ok(Err(_)) => Err(Ended::Report(Ending::Cancelled)),
            Ok(Ok(_)) | Err(_) => {
                let mut facts = work.facts(ended, None);
                facts["reason"] = "timeout".into();
                facts["message"] = format!("{not_done} before its time was over").into();
                Err(Ended::Report(Ending::TimedOut { result: Some(facts.to_string().into()) }))
            }
        }
    }
}

/// A command that runs for a step.
pub(crate) struct Work<'w> {
    pub(crate) commands: &'w Commands,
    pub(crate) assignment: &'w Assignment,
    pub(crate) order: &'w Order,
    pub(crate) places: &'w Places,
}

impl Work<'_> {
    /// Starts a command and waits for its exit, and forwards the worker's signals to it. Returns the step's ending as
    /// the error if the command did not exit by itself.
    pub(crate) async fn see_to_end(
        &self,
        order: Order,
        control: &mut Control,
    ) -> Result<ProcessEnded, Ended> {
        let mut running = match self.commands.start(order, self.assignment).await {
            Ok(running) => running,
            Err(message) => {
                return Err(failed(&json!({ "reason": "could_not_start", "message": message }), true));
            }
        };
        let execution = self.assignment.lease.execution;
        let mut killed = false;
        let ended = loop {
            tokio::select! {
                ended = running.wait() => break ended,
                signal = control.next(), if !killed => {
                    let told = match signal {
                        Signal::Renewed { until_ms } => running.renew(guard_until_ms(until_ms)),
                        Signal::Cancel => running.cancel(),
                        Signal::Lost => {
                            killed = true;
                            running.kill()
                        }
                    };
                    if let Err(error) = told {
                        tracing::warn!(%execution, %error, "sending a message to the supervisor failed");
                    }
                }
            }
        };
        let ended = ended.map_err(|error| {
            tracing::error!(%execution, %error, "could not see the end of the process tree");
            Ended::Lost
        })?;
        match ended.reason {
            _ if control.now() == Signal::Lost => Err(Ended::Lost),
            Reason::Exited => Ok(ended),
            Reason::Timeout => {
                let result = self.facts(&ended, None).to_string();
                Err(Ended::Report(Ending::TimedOut { result: Some(result.into()) }))
            }
            Reason::Cancelled => Err(Ended::Report(Ending::Cancelled)),
            Reason::MemoryLimit => Err(failed(&self.facts(&ended, None), true)),
            Reason::LeaseLost | Reason::ParentGone => Err(Ended::Lost),
            // Killed from outside: the process tree is gone, but not by its own doing.
            Reason::Signalled | Reason::SupervisorLost => Err(Ended::Vanished),
            Reason::CouldNotStart { .. } => Err(failed(&self.facts(&ended, None), false)),
        }
    }

    /// Runs the checks after the command has exited, and returns the step's ending.
    pub(super) async fn judge(
        &self,
        ended: ProcessEnded,
        spec: &StepSpec,
        began_ms: u64,
        control: &mut Control,
    ) -> Ended {
        if !ended.success() {
            let wanted = &self.assignment.step().policy.retry_exit_codes;
            let retriable = wanted.is_empty() || ended.exit_code.is_some_and(|code| wanted.contains(&code));
            let dropped = ended.capture_dropped_bytes;
            let outputs = self.outputs_so_far(spec, dropped, control).await;
            return failed(&with_outputs(self.facts(&ended, None), outputs), retriable);
        }
        self.settle(ended, spec, Map::new(), began_ms, control).await
    }

    /// Reads the outputs and runs the checks of a step whose work has succeeded, and returns its ending. `given` are
    /// the outputs that the work itself has.
    pub(crate) async fn settle(
        &self,
        ended: ProcessEnded,
        spec: &StepSpec,
        given: Map<String, Value>,
        began_ms: u64,
        control: &mut Control,
    ) -> Ended {
        let time = TimeLeft::new(spec, began_ms, control);
        let Outputs { values: mut outputs, mut warnings } = match self.outputs(&ended, spec, &time).await {
            Ok(Ok(outputs)) => outputs,
            Err(ended) => return ended,
            Ok(Err(why)) => {
                let outputs = self.outputs_so_far(spec, ended.capture_dropped_bytes, control).await;
                let mut facts = with_outputs(self.facts(&ended, None), outputs);
                facts["reason"] = "output".into();
                facts["message"] = why.into();
                return failed(&facts, true);
            }
        };
        if let Value::Object(outputs) = &mut outputs {
            outputs.extend(given);
        }
        for (at, check) in spec.checks.iter().enumerate() {
            let held = match check {
                Check::Command(kind) => match self.check_command(at, kind, spec, began_ms, control).await {
                    Ok(held) => held,
                    Err(ended) => return ended,
                },
                Check::File { path, not_empty } => {
                    let (path, not_empty) = (self.places.path(path), *not_empty);
                    let looking =
                        tokio::task::spawn_blocking(move || evidence::file_is_there(&path, not_empty));
                    match time.wait(self, &ended, "a file was not looked for", looking).await {
                        Ok(held) => held.unwrap_or_else(|error| Err(error.to_string())),
                        Err(ended) => return ended,
                    }
                }
                Check::Schema { output, schema } => {
                    let (value, schema) = (outputs[output].clone(), schema.clone());
                    let checking =
                        tokio::task::spawn_blocking(move || evidence::fits_schema(&value, &schema));
                    match time.wait(self, &ended, "a schema was not checked", checking).await {
                        Ok(held) => held
                            .unwrap_or_else(|error| Err(error.to_string()))
                            .map_err(|why| format!("output `{output}` does not fit its schema: {why}")),
                        Err(ended) => return ended,
                    }
                }
            };
            if let (Err(why), true) = (&held, spec.warns.contains(&at)) {
                warnings.push(format!("check {} of {} does not hold: {why}", at + 1, spec.checks.len()));
            } else if let Err(why) = held {
                let mut facts = self.facts(&ended, Some(&outputs));
                facts["reason"] = "check".into();
                facts["message"] =
                    format!("check {} of {} does not hold: {why}", at + 1, spec.checks.len()).into();
                facts["tail"] = evidence::tail(&self.order.log).into();
                return failed(&facts, true);
            }
        }
        let result = self.facts(&ended, Some(&outputs)).to_string();
        let completed = Ended::Report(Ending::Completed { result: Some(result.into()) });
        if !warnings.is_empty() {
            self.commands.remark(self.assignment, spec, &warnings);
        }
        warnings.into_iter().fold(completed, with_warning)
    }

    /// Reads the step's outputs in the time that the step has left. Returns the step's ending as the error if that
    /// time is over.
    async fn outputs(
        &self,
        ended: &ProcessEnded,
        spec: &StepSpec,
        time: &TimeLeft,
    ) -> Result<Result<Outputs, String>, Ended> {
        if spec.outputs.is_empty() && !self.places.has_written() {
            return Ok(Ok(Outputs { values: json!({}), warnings: Vec::new() }));
        }
        let patience = Patience { cancel: time.stop.cancel.clone(), until_ms: time.until_ms };
        let (wanted, places, dropped) =
            (spec.outputs.clone(), self.places.clone(), ended.capture_dropped_bytes);
        let secrets = masker(spec);
        let reading = tokio::task::spawn_blocking(move || {
            evidence::outputs(&wanted, &places, dropped, &secrets, &patience, Missing::Fails)
        });
        let read = time.wait(self, ended, "its outputs were not read", reading).await?;
        Ok(read.unwrap_or_else(|error| Err(format!("the outputs were not read: {error}"))))
    }

    /// Reads the outputs of a step that has failed, as far as they exist.
    async fn outputs_so_far(&self, spec: &StepSpec, dropped: u64, control: &Control) -> Value {
        if spec.outputs.is_empty() && !self.places.has_written() {
            return json!({});
        }
        let until_ms = sprag_process::boot_ms().saturating_add(LEFT_OUTPUTS_MS);
        let stop = Stop::listen(control);
        let patience = Patience { cancel: stop.cancel.clone(), until_ms: Some(until_ms) };
        let (wanted, places, secrets) = (spec.outputs.clone(), self.places.clone(), masker(spec));
        let reading = tokio::task::spawn_blocking(move || {
            evidence::outputs(&wanted, &places, dropped, &secrets, &patience, Missing::LeftOut)
        });
        match tokio::time::timeout(left(until_ms), stop.or(reading)).await {
            Ok(Ok(Ok(Ok(outputs)))) => outputs.values,
            _ => json!({}),
        }
    }

    /// Adds the outputs, as far as they exist, to the report of a step that has exceeded its timeout.
    pub(super) async fn with_outputs_so_far(
        &self,
        ended: Ended,
        spec: &StepSpec,
        control: &Control,
    ) -> Ended {
        let Ended::Report(Ending::TimedOut { result: Some(result) }) = &ended else { return ended };
        let outputs = self.outputs_so_far(spec, 0, control).await;
        let facts = with_outputs(serde_json::from_str(result).unwrap_or_default(), outputs);
        Ended::Report(Ending::TimedOut { result: Some(facts.to_string().into()) })
    }

    /// Runs a command that must succeed, in the time that the step has left.
    async fn check_command(
        &self,
        at: usize,
        kind: &Kind,
        spec: &StepSpec,
        began_ms: u64,
        control: &mut Control,
    ) -> Result<Result<(), String>, Ended> {
        let argv = kind.argv().unwrap_or_default();
        let mut order = self.order.clone();
        let shown = self.written_check(at).or_else(|| argv.last().cloned()).unwrap_or_default();
        order.argv = argv;
        order.capture_stdout = None;
        // The outputs have been read already.
        order.env.remove("SPRAG_OUTPUT");
        let took_ms = sprag_process::boot_ms().saturating_sub(began_ms);
        order.timeout_ms = spec.timeout_ms.map(|limit_ms| limit_ms.saturating_sub(took_ms).max(1));
        order.lease_until_ms = match control.now() {
            Signal::Renewed { until_ms } => Some(guard_until_ms(until_ms)),
            Signal::Cancel => return Err(Ended::Report(Ending::Cancelled)),
            Signal::Lost => return Err(Ended::Lost),
        };
        let ended = self.see_to_end(order, control).await?;
        Ok(if ended.success() {
            Ok(())
        } else {
            let code =
                ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            Err(format!("{} ended with {code}", first_line(&shown)))
        })
    }

    /// Returns the command of a check as it is written in the file: with templates in the place of their values.
    fn written_check(&self, at: usize) -> Option<String> {
        let written: StepSpec = serde_json::from_str(&self.assignment.step().spec).ok()?;
        match written.checks.get(at)? {
            Check::Command(kind) => kind.argv()?.pop(),
            _ => None,
        }
    }

    /// Returns the facts about a command's exit as JSON: outputs if there are any, else the end of the log.
    pub(crate) fn facts(&self, ended: &ProcessEnded, outputs: Option<&Value>) -> Value {
        let mut facts = json!({
            "reason": ended.reason,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "leftovers": ended.leftovers,
            "usage": ended.usage,
            "log_dropped_bytes": ended.log_dropped_bytes,
            "log_error": ended.log_error,
        });
        if ended.reason == Reason::MemoryLimit {
            facts["message"] = ended.warnings.join("; ").into();
        } else if !ended.warnings.is_empty() {
            facts["warnings"] = json!(ended.warnings);
        }
        match outputs {
            Some(outputs) if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) => {
                facts["outputs"] = outputs.clone();
            }
            Some(_) => {}
            None => facts["tail"] = evidence::tail(&self.order.log).into(),
        }
        facts
    }
}

/// Adds outputs to the facts about a command, if there are any.
fn with_outputs(mut facts: Value, outputs: Value) -> Value {
    if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) {
        facts["outputs"] = outputs;
    }
    facts
}

/// Returns the first line of a command, shortened for messages.
pub(crate) fn first_line(command: &str) -> String {
    const MOST: usize = 60;
    let line = command.lines().next().unwrap_or_default();
    if line.chars().count() > MOST || line.len() < command.trim_end().len() {
        format!("`{}…`", line.chars().take(MOST).collect::<String>())
    } else {
        format!("`{line}`")
    }
}

/// Adds a warning to the result that is reported for a step.
pub(crate) fn with_warning(ended: Ended, warning: String) -> Ended {
    let Ended::Report(mut ending) = ended else { return ended };
    if let Ending::Completed { result }
    | Ending::Failed { result, .. }
    | Ending::Blocked { result }
    | Ending::TimedOut { result } = &mut ending
    {
        let told = result.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let mut facts = told.filter(Value::is_object).unwrap_or_else(|| json!({}));
        match facts["warnings"].as_array_mut() {
            Some(warnings) => warnings.push(warning.into()),
            None => facts["warnings"] = json!([warning]),
        }
        *result = Some(facts.to_string().into());
    }
    Ended::Report(ending)
}

pub(crate) fn failed(facts: &Value, retriable: bool) -> Ended {
    Ended::Report(Ending::Failed { result: Some(facts.to_string().into()), retriable })
}
