//! Comments on lines of a run's changes. A comment belongs to the two commits that its author compared, so that it never
//! stands beside other lines.
//!
//! They are notes of the run and are only added to: a note can also say that earlier comments were replaced, removed or
//! sent. The comments that apply are derived from all notes in order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::RunId;
use sprag_store::{NoteRow, REVIEW_TAG};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::text::rfc3339;

/// The longest comment, in bytes.
const LONGEST: usize = 16 << 10;
/// The longest path, in bytes.
const LONGEST_PATH: usize = 4_096;
/// The highest number of a line.
const LAST_LINE: u32 = 100_000_000;
/// The most notes about the changes of one run.
const MOST_NOTES: usize = 2_000;

/// The side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ReviewSide {
    /// The lines before the changes.
    Old,
    /// The lines after the changes.
    New,
}

/// A comment on a range of lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReviewComment {
    /// The commit before the changes.
    pub from: String,
    /// The commit after the changes.
    pub to: String,
    /// The file's path.
    pub path: String,
    /// The side whose lines are meant.
    pub side: ReviewSide,
    /// The first line, from 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub first: u32,
    /// The last line.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub last: u32,
    /// The text.
    pub text: String,
    /// The number of the comment that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<i64>,
}

/// A stored comment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CommentView {
    /// The number; later comments have higher numbers.
    pub id: i64,
    /// The commit before the changes.
    pub from: String,
    /// The commit after the changes.
    pub to: String,
    /// The file's path.
    pub path: String,
    /// The side whose lines are meant.
    pub side: ReviewSide,
    /// The first line, from 1.
    pub first: u32,
    /// The last line.
    pub last: u32,
    /// The text.
    pub text: String,
    /// The name of the token that wrote it.
    pub author: String,
    /// The time when it was written.
    pub at: String,
    /// Whether it was sent as an answer or as feedback.
    pub sent: bool,
}

/// The content of a note.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Entry {
    Comment(ReviewComment),
    Removed(i64),
    Sent(Vec<i64>),
}

impl App {
    /// Returns the comments on a run's changes, oldest first.
    pub fn review_comments(&self, run: RunId) -> Result<Vec<CommentView>, Error> {
        self.require_run(run)?;
        Ok(comments_of(&self.review_notes(run)?))
    }

    /// Adds a comment on a run's changes, or replaces one.
    pub async fn comment_changes(
        &self,
        run: RunId,
        author: &str,
        comment: ReviewComment,
    ) -> Result<CommentView, Error> {
        check(&comment)?;
        let known = self.review_comments(run)?;
        if let Some(replaced) = comment.replaces {
            require(run, &known, replaced)?;
        }
        let id = self.add_entry(run, author, &Entry::Comment(comment)).await?;
        let added = self.review_comments(run)?.into_iter().find(|comment| comment.id == id);
        added.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("run {run} was removed meanwhile")))
    }

    /// Removes a comment.
    pub async fn remove_comment(&self, run: RunId, author: &str, id: i64) -> Result<(), Error> {
        require(run, &self.review_comments(run)?, id)?;
        self.add_entry(run, author, &Entry::Removed(id)).await.map(drop)
    }

    /// Marks comments as sent: they stay where they are, and are not sent again.
    pub async fn mark_comments_sent(
        &self,
        run: RunId,
        author: &str,
        ids: Vec<i64>,
    ) -> Result<Vec<CommentView>, Error> {
        let known = self.review_comments(run)?;
        ids.iter().try_for_each(|id| require(run, &known, *id))?;
        self.add_entry(run, author, &Entry::Sent(ids)).await?;
        self.review_comments(run)
    }

    fn review_notes(&self, run: RunId) -> Result<Vec<NoteRow>, Error> {
        Ok(self.store.queries().notes(run, Some(REVIEW_TAG), 0, MOST_NOTES)?)
    }

    async fn add_entry(&self, run: RunId, author: &str, entry: &Entry) -> Result<i64, Error> {
        if self.review_notes(run)?.len() >= MOST_NOTES {
            let why = format!("run {run} has {MOST_NOTES} comments, and takes no more");
            return Err(Error::new(ErrorKind::Refused, why));
        }
        let text = serde_json::to_string(entry).map_err(|error| Error::bug(error.to_string()))?;
        Ok(self.store.person().add_review_comment(run, author.into(), text.into()).await?)
    }
}

fn check(comment: &ReviewComment) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
    let is_commit =
        |text: &str| (7..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit());
    if !is_commit(&comment.from) || !is_commit(&comment.to) {
        return wrong("from, to: must be commits, as the changes name them");
    }
    if comment.path.is_empty() || comment.path.len() > LONGEST_PATH || comment.path.contains('\0') {
        return wrong("path: must be 1 to 4096 bytes");
    }
    if comment.first == 0 || comment.first > comment.last || comment.last > LAST_LINE {
        return wrong("first, last: must be a range of lines, from 1");
    }
    if comment.text.trim().is_empty() || comment.text.len() > LONGEST {
        return wrong("text: must be 1 to 16384 bytes");
    }
    Ok(())
}

fn require(run: RunId, known: &[CommentView], id: i64) -> Result<(), Error> {
    let missing = || Error::new(ErrorKind::NotFound, format!("run {run} has no comment {id}"));
    known.iter().any(|comment| comment.id == id).then_some(()).ok_or_else(missing)
}

/// Derives the comments that apply from all notes, in order.
fn comments_of(notes: &[NoteRow]) -> Vec<CommentView> {
    let mut found: BTreeMap<i64, CommentView> = BTreeMap::new();
    for note in notes {
        match serde_json::from_str(&note.text) {
            Ok(Entry::Comment(comment)) => {
                if let Some(replaced) = comment.replaces {
                    found.remove(&replaced);
                }
                let ReviewComment { from, to, path, side, first, last, text, replaces: _ } = comment;
                let (author, at) = (note.author.to_string(), rfc3339(note.at_ms));
                let view = CommentView {
                    id: note.id,
                    from,
                    to,
                    path,
                    side,
                    first,
                    last,
                    text,
                    author,
                    at,
                    sent: false,
                };
                found.insert(note.id, view);
            }
            Ok(Entry::Removed(id)) => {
                found.remove(&id);
            }
            Ok(Entry::Sent(ids)) => ids
                .iter()
                .filter_map(|id| found.get_mut(id).map(|comment| comment.sent = true))
                .for_each(drop),
            // A note of a later version of this program.
            Err(_) => {}
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(id: i64, entry: &Entry) -> NoteRow {
        let text = serde_json::to_string(entry).expect("plain data").into();
        NoteRow { id, run: RunId::new(1, 1), author: "ann".into(), tag: REVIEW_TAG.into(), text, at_ms: 0 }
    }

    fn comment(text: &str, replaces: Option<i64>) -> ReviewComment {
        let commit = |c: char| c.to_string().repeat(40);
        ReviewComment {
            from: commit('a'),
            to: commit('b'),
            path: "notes.txt".into(),
            side: ReviewSide::New,
            first: 2,
            last: 3,
            text: text.into(),
            replaces,
        }
    }

    #[test]
    fn comments_are_replaced_removed_and_sent() {
        let notes = [
            note(1, &Entry::Comment(comment("why", None))),
            note(2, &Entry::Comment(comment("why so", Some(1)))),
            note(3, &Entry::Comment(comment("gone", None))),
            note(4, &Entry::Removed(3)),
            note(5, &Entry::Sent(vec![2, 3, 99])),
            NoteRow { text: "{\"later\":1}".into(), ..note(6, &Entry::Removed(0)) },
        ];
        let left = comments_of(&notes);
        let told: Vec<(i64, &str, bool)> = left.iter().map(|c| (c.id, c.text.as_str(), c.sent)).collect();
        assert_eq!(told, [(2, "why so", true)]);
    }

    #[test]
    fn a_comment_names_commits_a_path_and_lines() {
        assert!(check(&comment("fine", None)).is_ok());
        let wrong = [
            ReviewComment { from: "main".into(), ..comment("x", None) },
            ReviewComment { path: String::new(), ..comment("x", None) },
            ReviewComment { path: "x".repeat(5_000), ..comment("x", None) },
            ReviewComment { first: 0, ..comment("x", None) },
            ReviewComment { first: 4, ..comment("x", None) },
            comment(" \n", None),
            comment(&"x".repeat(20_000), None),
        ];
        wrong.iter().for_each(|comment| assert!(check(comment).is_err(), "{comment:?}"));
    }
}
