//! The transcript of a thread: every event of its agent, in the step's own attempts and in people's messages, in order.
//!
//! ```text
//!   runs/RUN/STEP.1.events ── runs/RUN/STEP.2.events ── runs/TALK/STEP.1.events ── …
//!   0 ────────────────────────────── position ─────────────────────────────────▶
//! ```
//!
//! A thread has one holder, so that only the last file grows. A position is therefore a number of bytes over all files,
//! and a reader that continues from it misses nothing and gets nothing twice.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use sprag_lifecycle::{ExecutionId, RunId};
use sprag_store::{Row, thread_id};

use crate::App;
use crate::error::{Error, ErrorKind};

/// The most events of one page.
pub const MOST_EVENTS: usize = 1_000;
/// The most bytes of the events of one page. One event may have more.
const MOST_BYTES: u64 = 1 << 20;
/// The most bytes of one event; a longer one is told by its length.
const MOST_EVENT_BYTES: u64 = 16 << 20;

/// One event of a thread's agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TranscriptEvent {
    /// The position after the event: a reader continues from it.
    pub position: u64,
    /// The run in which it happened: that of the step, or that of a person's message.
    pub run: String,
    /// The attempt in that run.
    pub attempt: u32,
    /// The event: `event` is its kind, such as `prompt`, `text`, `tool_call`, `tool_result` or `turn_ended`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub event: Value,
}

/// A part of a transcript.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TranscriptPage {
    /// The events, the oldest first.
    pub events: Vec<TranscriptEvent>,
    /// The position from which the next page continues.
    pub next: u64,
    /// Whether more may follow: an agent works in the thread, or the run of its step has not ended.
    pub is_live: bool,
}

/// The events of one attempt.
#[derive(Debug, Clone)]
struct Part {
    execution: ExecutionId,
    path: PathBuf,
}

/// A transcript that is being read.
#[derive(Debug)]
pub struct TranscriptReader {
    name: String,
    parts: Vec<Part>,
    /// The state of the thread and of its run when the parts were listed.
    seen: Option<(u32, bool, bool)>,
}

impl App {
    /// Opens the transcript of a thread, `RUN/STEP`.
    pub fn transcript(&self, name: &str) -> Result<TranscriptReader, Error> {
        let mut reader = TranscriptReader { name: name.to_owned(), parts: Vec::new(), seen: None };
        reader.refresh(self)?;
        Ok(reader)
    }
}

impl TranscriptReader {
    /// Returns the events after a position, at most `most`, and fewer if they are large.
    pub fn read(&mut self, app: &App, from: u64, most: usize) -> Result<TranscriptPage, Error> {
        // The state is read before the files: if nothing is live by then, all that there will be is in the files.
        let is_live = self.refresh(app)?;
        let mut page = TranscriptPage { events: Vec::new(), next: from, is_live };
        let (mut start, mut bytes) = (0, 0);
        for part in &self.parts {
            let Some(file) = open(&part.path) else { continue };
            let length = file.metadata().map_or(0, |found| found.len());
            if page.next < start + length {
                let mut reader = BufReader::new(file);
                let told = |error: std::io::Error| Error::failed(format!("{}: {error}", part.path.display()));
                reader.seek(SeekFrom::Start(page.next.saturating_sub(start))).map_err(told)?;
                while page.events.len() < most && bytes < MOST_BYTES {
                    let Some((line, read)) = next_line(&mut reader).map_err(told)? else { break };
                    page.next = page.next.max(start) + read;
                    bytes += read;
                    page.events.push(TranscriptEvent {
                        position: page.next,
                        run: part.execution.run.to_string(),
                        attempt: part.execution.attempt,
                        event: line,
                    });
                }
            }
            start += length;
            if page.events.len() >= most || bytes >= MOST_BYTES {
                page.is_live |= page.next < start;
                break;
            }
        }
        Ok(page)
    }

    /// Lists the attempts again, if the thread has changed. Returns whether more events may follow.
    fn refresh(&mut self, app: &App) -> Result<bool, Error> {
        let (run, step) = app.step_of_thread(&self.name)?;
        let thread = app.store.queries().thread(thread_id(run, step))?;
        let thread = thread.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the agent of this step has not been started yet")
        })?;
        let row = app.store.queries().run(run)?;
        let has_ended = row.is_none_or(|row| row.status().is_terminal());
        let state = (thread.turn, thread.holder.is_some(), has_ended);
        if self.seen != Some(state) {
            self.parts = self.list(app, run, step)?;
            self.seen = Some(state);
        }
        Ok(thread.holder.is_some() || !has_ended)
    }

    fn list(&self, app: &App, run: RunId, step: u32) -> Result<Vec<Part>, Error> {
        let name = self.name.split_once('/').map_or("", |(_, step)| step);
        let mut parts = Vec::new();
        for row in app.store.queries().executions(run)?.into_iter().filter(|row| row.id.step == step) {
            parts.push((row.created_ms, row.id));
        }
        for talk in app.talks(&self.name)? {
            parts.push((talk.created_ms, ExecutionId { run: talk.id, step: 0, attempt: 1 }));
        }
        parts.sort_by_key(|(created_ms, id)| (*created_ms, id.run, id.attempt));
        let part = |(_, execution): (i64, ExecutionId)| Part {
            execution,
            path: app.files().events(execution, name),
        };
        Ok(parts.into_iter().map(part).collect())
    }
}

/// Opens a file in the folder of its run, where a step could have put anything else under its name.
fn open(path: &Path) -> Option<File> {
    let (folder, name) = (path.parent()?, path.file_name()?);
    sprag_process::open_below(folder, Path::new(name)).ok()
}

/// Reads a whole line: an event that is being written is read by the next call. Returns the event and its bytes.
fn next_line(reader: &mut BufReader<File>) -> std::io::Result<Option<(Value, u64)>> {
    let mut line = Vec::new();
    let read = std::io::Read::take(&mut *reader, MOST_EVENT_BYTES).read_until(b'\n', &mut line)? as u64;
    if line.last() != Some(&b'\n') {
        if read < MOST_EVENT_BYTES {
            return Ok(None);
        }
        let mut rest = Vec::new();
        let more = skip_line(reader, &mut rest)?;
        return Ok(
            more.map(|more| (serde_json::json!({ "event": "too_long", "bytes": read + more }), read + more))
        );
    }
    let event =
        serde_json::from_slice(&line).unwrap_or_else(|_| serde_json::json!({ "event": "unreadable" }));
    Ok(Some((event, read)))
}

/// Skips the rest of a line. Returns its bytes; `None` if the line has not ended yet.
fn skip_line(reader: &mut BufReader<File>, buffer: &mut Vec<u8>) -> std::io::Result<Option<u64>> {
    let mut skipped = 0;
    loop {
        buffer.clear();
        let read = std::io::Read::take(&mut *reader, 1 << 20).read_until(b'\n', buffer)? as u64;
        skipped += read;
        match buffer.last() {
            Some(b'\n') => return Ok(Some(skipped)),
            _ if read == 0 => return Ok(None),
            _ => {}
        }
    }
}
