//! The outcome of a board: its results in one report, and the notes that its agents left.

use serde::{Deserialize, Serialize};
use sprag_store::{BoardRow, NoteRow, REVIEW_TAG};

use super::refusals::{invalid, refused};
use super::{BoardView, Result, TaskView, check_name, check_text, rfc3339, tasks, view};

use crate::App;

/// The most tasks, and the most notes, in one report.
const MOST: usize = 10_000;

/// A request to add a note.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NoteSpec {
    /// The author's name.
    pub author: String,
    /// The subject, in one word.
    #[serde(default)]
    pub tag: Option<String>,
    /// The text of the note.
    pub text: String,
}

/// A note.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct NoteView {
    /// The note's number; later notes have higher numbers.
    pub id: i64,
    /// The author's name.
    pub author: String,
    /// The subject, in one word.
    pub tag: String,
    /// The text of the note.
    pub text: String,
    /// The time when it was written.
    pub at: String,
}

/// The report of a board.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub struct Report {
    /// The board.
    pub board: BoardView,
    /// Its tasks, with their results.
    pub tasks: Vec<TaskView>,
    /// Its notes.
    pub notes: Vec<NoteView>,
}

/// Gathers a board's results.
pub fn report(app: &App, board: &BoardRow) -> Result<Report> {
    Ok(Report {
        board: view(app, board)?,
        tasks: tasks(app, board, &[], 0, MOST)?,
        notes: notes(app, board, None, 0, MOST)?,
    })
}

/// Adds a note for the other agents.
pub async fn add_note(app: &App, board: &BoardRow, note: &NoteSpec) -> Result<NoteView> {
    if note.text.trim().is_empty() {
        return Err(invalid("the note is empty"));
    }
    if note.author.trim().is_empty() || note.author.len() > 128 {
        return Err(invalid("a note's author must be 1 to 128 characters"));
    }
    check_text("a note", &note.text)?;
    if let Some(tag) = &note.tag {
        check_name("a note's tag", tag)?;
    }
    let (author, tag) = (note.author.as_str(), note.tag.as_deref().unwrap_or_default());
    let id =
        app.store.person().add_note(board.run, author.into(), tag.into(), note.text.as_str().into()).await?;
    let left = app.store.queries().notes(board.run, None, id - 1, 1)?;
    left.first().map(told).ok_or_else(|| refused("the note is gone"))
}

/// Returns the notes after number `after`, of one tag or all, in order.
pub fn notes(
    app: &App,
    board: &BoardRow,
    tag: Option<&str>,
    after: i64,
    limit: usize,
) -> Result<Vec<NoteView>> {
    let found = app.store.queries().notes(board.run, tag, after, limit)?;
    // Comments on changes are stored among the notes.
    Ok(found.iter().filter(|note| *note.tag != *REVIEW_TAG).map(told).collect())
}

/// Returns the view of a note.
pub(crate) fn told(note: &NoteRow) -> NoteView {
    NoteView {
        id: note.id,
        author: note.author.to_string(),
        tag: note.tag.to_string(),
        text: note.text.to_string(),
        at: rfc3339(note.at_ms),
    }
}
