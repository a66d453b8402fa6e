//! `sprag logs --server`: the output of steps of a server's run.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;
use sprag_process::{LineJoiner, LogEntry};
use tokio::signal::unix::{SignalKind, signal};

use super::stream::{AttemptOf, Following, News};
use super::{AtRemote, LOOK, escaped, outcome, problem, word};
use crate::args::LogOptions;
use crate::commands::logs::{MOST_TOLD, start_of, step_is_meant};
use crate::exit::{Exit, Failure};
use crate::show::{Style, plain};
use crate::tails::{LineOptions, LinePrinter};

/// The number of bytes of a log in one request.
const PIECE: usize = 4 << 20;

impl AtRemote<'_> {
    pub(super) async fn logs(
        &self,
        run: Option<&str>,
        step: Option<&str>,
        options: &LogOptions,
    ) -> Result<Exit, Failure> {
        let since = options.since.as_deref().map(|text| start_of(text, now_ms())).transpose()?;
        let run = match self.run(run).await {
            Ok(found) => found,
            Err(failure) => return Err(self.unknown_run(failure, run).await),
        };
        let lines = LineOptions {
            json: self.context.json,
            named: step.is_none(),
            timestamps: options.timestamps,
            raw: options.raw,
            since,
            tail: options.tail,
        };
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut following = Following::new(&self.client);
        if options.follow {
            following.journal(Some(&run), None);
        }
        let mut tails: Option<RemoteTails> = None;
        loop {
            let detail = self.detail(&run).await?;
            let is_over = outcome(&word(&detail, "status")).is_some();
            let executions = self.executions(&run).await?;
            let tails = tails.get_or_insert_with(|| RemoteTails::new(&run, &detail, lines.clone()));
            let chosen = choose(&detail, &executions, step, options)?;
            for one in &chosen {
                let id = (word(one, "step"), attempt_of(one));
                tails.print(self, id.clone(), !options.follow || is_over).await?;
                // The rest of an ended attempt's log may still be on its worker's host: it is read with the next look.
                if options.follow && one["ended_at"].is_null() && !one["started_at"].is_null() {
                    following.log(&run, &id, tails.position(&id));
                }
            }
            if !options.follow || is_over {
                if !options.failed && !tails.has_printed {
                    let not_begun = not_begun(&detail, &executions, step);
                    tails.find_reasons(self, not_begun).await?;
                }
                return tails.say_what_is_missing(&run, options.failed, chosen.is_empty());
            }
            loop {
                let news = tokio::select! {
                    news = following.next(LOOK) => news?,
                    _ = interrupt.recv() => return Ok(Exit::Ok),
                };
                let look = news.is_empty() || !news.iter().all(|one| matches!(one, News::Line { .. }));
                for one in news {
                    if let News::Line { attempt, offset, line } = one {
                        tails.take(attempt, offset, line);
                    }
                }
                if look {
                    break;
                }
            }
        }
    }

    /// Returns the failure about a run that does not exist. It names the step of the newest run that the user probably
    /// means.
    async fn unknown_run(&self, failure: Failure, wanted: Option<&str>) -> Failure {
        let (Exit::Usage, Some(step), Ok(newest)) = (failure.exit, wanted, self.run(None).await) else {
            return failure;
        };
        let Ok(detail) = self.detail(&newest).await else { return failure };
        let mut steps = detail["steps"].as_array().into_iter().flatten();
        if steps.any(|one| one["id"] == step) {
            step_is_meant(failure, step, &newest, &self.at())
        } else {
            failure
        }
    }

    /// Returns all attempts at the steps of a run.
    pub(super) async fn executions(&self, run: &str) -> Result<Vec<Value>, Failure> {
        let told = self.get(&format!("/v1/runs/{}/executions", escaped(run))).await?;
        Ok(told["executions"].as_array().cloned().unwrap_or_default())
    }
}

/// Returns the attempts to show, as `sprag logs` chooses them without a server.
fn choose(
    detail: &Value,
    executions: &[Value],
    step: Option<&str>,
    options: &LogOptions,
) -> Result<Vec<Value>, Failure> {
    let steps: Vec<&Value> = detail["steps"].as_array().into_iter().flatten().collect();
    let is_of = |one: &&Value| step.is_none_or(|step| one["id"] == step || one["item_of"] == step);
    let meant: Vec<String> = steps.iter().copied().filter(is_of).map(|one| word(one, "id")).collect();
    let run = word(detail, "id");
    if let Some(step) = step.filter(|_| meant.is_empty()) {
        let ids: Vec<String> = steps.iter().map(|one| word(one, "id")).collect();
        return Err(Failure::usage(format!("run {run} has no step {step:?}"))
            .next(format!("it has: {}", ids.join(", "))));
    }
    let is_last = |row: &Value| {
        let begun = executions.iter().rfind(|one| one["step"] == row["step"] && !one["started_at"].is_null());
        begun.is_some_and(|last| last["attempt"] == row["attempt"])
    };
    let is_wanted = |row: &&Value| match options.attempt {
        Some(attempt) => attempt_of(row) == attempt,
        None => options.follow || is_last(row),
    };
    let has_failed = |row: &&Value| {
        !options.failed || ["failed", "timed_out", "abandoned"].iter().any(|status| row["status"] == *status)
    };
    let of_steps = executions.iter().filter(|row| meant.contains(&word(row, "step")));
    let chosen: Vec<Value> = of_steps.clone().filter(is_wanted).filter(has_failed).cloned().collect();
    if let Some(attempt) = options.attempt
        && of_steps.clone().all(|row| attempt_of(row) != attempt)
    {
        let most = of_steps.map(attempt_of).max().unwrap_or(0);
        return Err(Failure::usage(format!("no step of run {run} has an attempt {attempt}"))
            .next(format!("the highest is {most}")));
    }
    Ok(chosen)
}

/// Returns the ids of the steps that no attempt has begun, among those that the user asked for. The items of a fan-out
/// count if it was named.
fn not_begun(detail: &Value, executions: &[Value], step: Option<&str>) -> Vec<String> {
    let has_begun = |id: &str| executions.iter().any(|row| row["step"] == id && !row["started_at"].is_null());
    let steps = detail["steps"].as_array().into_iter().flatten();
    let is_of = |one: &&Value| match step {
        Some(step) => one["id"] == step || one["item_of"] == step,
        None => one["item_of"].is_null(),
    };
    steps.filter(is_of).map(|one| word(one, "id")).filter(|id| !has_begun(id)).collect()
}

fn attempt_of(execution: &Value) -> u32 {
    execution["attempt"].as_u64().and_then(|attempt| attempt.try_into().ok()).unwrap_or(1)
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The logs of attempts on a server, printed line by line, each line once and whole.
pub(super) struct RemoteTails {
    run: String,
    printer: LinePrinter,
    tails: BTreeMap<(String, u32), RemoteTail>,
    /// The reasons why steps have no log, by step.
    missing: BTreeMap<String, String>,
    has_printed: bool,
}

/// One attempt's log, read as far as it was printed.
#[derive(Default)]
struct RemoteTail {
    offset: u64,
    /// The bytes of a line whose end has not been read.
    unfinished: Vec<u8>,
    lines: LineJoiner,
    /// The last lines of the first read, until it is complete.
    held: Option<VecDeque<LogEntry>>,
}

impl RemoteTails {
    pub(super) fn new(run: &str, detail: &Value, options: LineOptions) -> Self {
        let steps = detail["steps"].as_array().into_iter().flatten();
        let planned = steps.filter(|step| step["item_of"].is_null());
        let printer = LinePrinter::new(planned.filter_map(|step| step["id"].as_str()), options);
        let run = run.to_owned();
        RemoteTails { run, printer, tails: BTreeMap::new(), missing: BTreeMap::new(), has_printed: false }
    }

    /// Prints the new part of an attempt's log; `is_whole` if nothing follows it.
    pub(super) async fn print(
        &mut self,
        remote: &AtRemote<'_>,
        id: (String, u32),
        is_whole: bool,
    ) -> Result<(), Failure> {
        let (step, attempt) = id.clone();
        let mut tail = self.tails.remove(&id).unwrap_or_else(|| RemoteTail {
            held: self.printer.options.tail.map(|_| VecDeque::new()),
            ..RemoteTail::default()
        });
        loop {
            let path = format!(
                "/v1/runs/{}/steps/{}/log?attempt={attempt}&offset={}&limit={PIECE}",
                escaped(&self.run),
                escaped(&step),
                tail.offset
            );
            let (status, bytes) = remote.exchange("GET", &path, None, None).await?;
            match status {
                200 | 206 => {}
                // A step that has printed nothing has no log.
                404 => {
                    let why = problem(status, &bytes).message;
                    self.missing.insert(step.clone(), format!("{step}: {why}"));
                    break;
                }
                _ => return Err(problem(status, &bytes)),
            }
            self.missing.remove(&step);
            tail.offset += bytes.len() as u64;
            let entries = tail.add(&bytes);
            self.keep_or_show(&mut tail, &step, attempt, entries);
            if bytes.len() < PIECE {
                break;
            }
        }
        for entry in tail.held.take().into_iter().flatten() {
            self.show(&step, attempt, &entry);
        }
        if is_whole {
            let rest = tail.finish();
            rest.iter().for_each(|entry| self.show(&step, attempt, entry));
        }
        self.tails.insert(id, tail);
        Ok(())
    }

    /// Returns the offset from which the rest of an attempt's log is to be followed.
    pub(super) fn position(&mut self, id: &AttemptOf) -> u64 {
        self.tails.get_mut(id).map_or(0, RemoteTail::whole_lines)
    }

    /// Prints a line of a log that is followed, unless it was printed already.
    pub(super) fn take(&mut self, id: AttemptOf, offset: u64, line: LogEntry) {
        let mut tail = self.tails.remove(&id).unwrap_or_default();
        if offset > tail.whole_lines() {
            tail.offset = offset;
            let whole = tail.lines.add(line);
            whole.iter().for_each(|entry| self.show(&id.0, id.1, entry));
        }
        self.tails.insert(id, tail);
    }

    fn keep_or_show(&mut self, tail: &mut RemoteTail, step: &str, attempt: u32, entries: Vec<LogEntry>) {
        match (&mut tail.held, self.printer.options.tail) {
            (Some(held), Some(most)) => {
                held.extend(entries);
                held.drain(..held.len().saturating_sub(most));
            }
            _ => entries.iter().for_each(|entry| self.show(step, attempt, entry)),
        }
    }

    fn show(&mut self, step: &str, attempt: u32, entry: &LogEntry) {
        self.has_printed = true;
        self.printer.print(&self.run, step, attempt, entry);
    }

    /// Asks the server why steps have no log.
    async fn find_reasons(&mut self, remote: &AtRemote<'_>, steps: Vec<String>) -> Result<(), Failure> {
        for step in steps.into_iter().take(MOST_TOLD) {
            let path = format!("/v1/runs/{}/steps/{}/log", escaped(&self.run), escaped(&step));
            let (status, bytes) = remote.exchange("GET", &path, None, None).await?;
            if status == 404 {
                self.missing.insert(step, problem(status, &bytes).message);
            }
        }
        Ok(())
    }

    /// Prints why steps have no log, if nothing at all was printed.
    fn say_what_is_missing(&self, run: &str, failed: bool, nothing_chosen: bool) -> Result<Exit, Failure> {
        let style = Style::stderr();
        if failed && nothing_chosen {
            eprintln!("no step of run {run} has failed");
        } else if !self.has_printed {
            self.missing.values().for_each(|why| eprintln!("{}", style.dim(&plain(why))));
        }
        Ok(Exit::Ok)
    }
}

impl RemoteTail {
    /// Adds bytes of the log. Returns the lines that are complete.
    fn add(&mut self, bytes: &[u8]) -> Vec<LogEntry> {
        self.unfinished.extend_from_slice(bytes);
        let Some(end) = self.unfinished.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.unfinished.split_off(end + 1);
        let whole = std::mem::replace(&mut self.unfinished, rest);
        self.parse(&whole)
    }

    /// Returns the offset after the last complete line. The bytes after it are read again.
    fn whole_lines(&mut self) -> u64 {
        self.offset -= self.unfinished.len() as u64;
        self.unfinished.clear();
        self.offset
    }

    /// Returns the last lines, which have no end.
    fn finish(&mut self) -> Vec<LogEntry> {
        let rest = std::mem::take(&mut self.unfinished);
        let mut entries = self.parse(&rest);
        entries.extend(self.lines.rest());
        entries
    }

    fn parse(&mut self, bytes: &[u8]) -> Vec<LogEntry> {
        let text = String::from_utf8_lossy(bytes);
        text.lines().filter_map(LogEntry::parse).filter_map(|entry| self.lines.add(entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_arrive_in_pieces_are_printed_once_and_whole() {
        let log = "2026-01-31T10:00:00.000Z out one\n2026-01-31T10:00:01.000Z out two é\n";
        for cut in 0..log.len() {
            let mut tail = RemoteTail::default();
            let mut entries = tail.add(&log.as_bytes()[..cut]);
            entries.extend(tail.add(&log.as_bytes()[cut..]));
            entries.extend(tail.finish());
            let texts: Vec<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
            assert_eq!(texts, ["one", "two é"], "cut at {cut}");
        }
    }
}
