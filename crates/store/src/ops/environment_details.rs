//! The facts about an environment that its row keeps as one text, and whether an environment is kept after its run has
//! ended.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sprag_lifecycle::RunStatus;

use crate::error::{Error, Result};
use crate::rows::EnvironmentRow;

/// The setting that decides whether an environment is kept after its run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It is removed.
    #[default]
    Never,
    /// It is kept unless the run completed.
    OnFailure,
    /// It is kept until a person removes it.
    Always,
}

impl Keep {
    /// Returns the word for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Keep::Never => "never",
            Keep::OnFailure => "on_failure",
            Keep::Always => "always",
        }
    }
}

/// The facts about an environment beside its path. A row keeps them as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvironmentDetails {
    /// The commit that the run began with. It stays the same, however often the worktree is created again.
    pub base_commit: Option<String>,
    /// The repository's git directory on the row's host.
    pub repository: Option<String>,
    /// The branch of the worktree; absent if it has none.
    pub branch: Option<String>,
    /// The base that the pipeline names.
    pub base: Option<String>,
    /// The setting that decides whether it is kept.
    pub keep: Keep,
    /// The remote that has the run's states, so that another host can continue; absent if none has them.
    pub remote: Option<String>,
    /// The host on which the files were lost; absent if they were not, or were created again since.
    pub lost_host: Option<String>,
    /// The paths that stay in a worktree that is used again.
    pub caches: Vec<String>,
}

impl EnvironmentDetails {
    /// Reads the details of a row. An error names the row.
    pub fn of(row: &EnvironmentRow) -> Result<EnvironmentDetails> {
        EnvironmentDetails::read(&row.details).map_err(|error| Error::BadValue {
            entity: "environment",
            id: row.id.to_string(),
            field: "details",
            reason: error.to_string(),
        })
    }

    /// Reads the details of a row among many, for work on the others to continue: details that cannot be read are
    /// logged, and none.
    pub fn of_readable(row: &EnvironmentRow) -> EnvironmentDetails {
        EnvironmentDetails::of(row).unwrap_or_else(|error| {
            tracing::warn!(%error, "reading an environment");
            EnvironmentDetails::default()
        })
    }

    /// Reads the text of a row's details. An empty text has none.
    pub fn read(text: &str) -> std::result::Result<EnvironmentDetails, serde_json::Error> {
        if text.is_empty() { Ok(EnvironmentDetails::default()) } else { serde_json::from_str(text) }
    }

    /// Returns the text that a row keeps.
    pub fn text(&self) -> Arc<str> {
        serde_json::to_string(self).expect("texts and lists of texts can be written as JSON").into()
    }
}

/// The reason why an environment is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBecause {
    /// Its run is not over; the status of the run.
    RunIsLive(RunStatus),
    /// The pipeline says `keep: always`.
    Always,
    /// The pipeline says `keep: on_failure`, and the run ended with this status.
    OnFailure(RunStatus),
}

/// Returns the reason why an environment is kept; `None` if nothing keeps it. `run` is the status of its run, absent if
/// it has none or the run is forgotten. A person's request to remove it counts more than the pipeline's setting.
pub fn kept_because(row: &EnvironmentRow, run: Option<RunStatus>) -> Result<Option<KeptBecause>> {
    let Some(status) = run else { return Ok(None) };
    if !status.is_terminal() {
        return Ok(Some(KeptBecause::RunIsLive(status)));
    }
    if row.cleanup_requested {
        return Ok(None);
    }
    Ok(match EnvironmentDetails::of(row)?.keep {
        Keep::Always => Some(KeptBecause::Always),
        Keep::OnFailure if status != RunStatus::Completed => Some(KeptBecause::OnFailure(status)),
        Keep::OnFailure | Keep::Never => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sprag_lifecycle::EnvironmentStatus;

    fn row(details: &str, cleanup_requested: bool) -> EnvironmentRow {
        EnvironmentRow {
            id: 7,
            status: EnvironmentStatus::Ready,
            version: 1,
            run: None,
            scope: None,
            host: "here".into(),
            path: "/w".into(),
            managed: true,
            cleanup_requested,
            provision_attempt: 1,
            destroy_attempt: 0,
            owner: None,
            reason: None,
            details: details.into(),
            created_ms: 0,
        }
    }

    #[test]
    fn an_environment_is_kept_by_its_run_then_by_its_setting_unless_a_person_asked() {
        let always = r#"{"keep":"always"}"#;
        let on_failure = r#"{"keep":"on_failure"}"#;
        let (done, failed, live) = (RunStatus::Completed, RunStatus::Failed, RunStatus::Running);
        for (details, asked, run, because) in [
            (always, false, Some(done), Some(KeptBecause::Always)),
            (always, true, Some(done), None),
            (always, true, Some(live), Some(KeptBecause::RunIsLive(live))),
            (always, false, None, None),
            (on_failure, false, Some(done), None),
            (on_failure, false, Some(failed), Some(KeptBecause::OnFailure(failed))),
            (on_failure, true, Some(failed), None),
            ("{}", false, Some(failed), None),
            ("", false, Some(live), Some(KeptBecause::RunIsLive(live))),
        ] {
            let kept = kept_because(&row(details, asked), run).expect("readable");
            assert_eq!(kept, because, "{details} {asked} {run:?}");
        }
    }

    #[test]
    fn malformed_details_are_an_error_that_names_the_row() {
        for details in ["{", r#"{"keep":"ever"}"#, r#"{"caches":"target"}"#, "[1]"] {
            let error = EnvironmentDetails::of(&row(details, false)).expect_err(details);
            assert!(error.to_string().starts_with("environment 7 has a bad value in its column details"));
        }
        let old = r#"{"base_commit":null,"repository":"/r/.git","branch":"b","base":"main","keep":"never","remote":null,"lost_host":null,"caches":[]}"#;
        let details = EnvironmentDetails::of(&row(old, false)).expect("as it was always written");
        assert_eq!(&*EnvironmentDetails::read(&details.text()).expect("the same").text(), old);
    }
}
