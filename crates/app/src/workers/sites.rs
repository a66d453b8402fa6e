//! Checking what a worker says about an environment on its own host, before it is recorded.
//!
//! The server never uses any of it on its own disk: the host comes from the worker's row, and is bound to the worker's
//! token. What the worker says is checked all the same, because other workers of that host, and people, read it.

use std::path::{Component, Path};
use std::sync::Arc;

use serde_json::{Map, Value};
use sprag_store::{EnvironmentDetails, EnvironmentRequest, EnvironmentRow, Id, WorkerRow};

use crate::error::Error;

/// The longest path that a worker may name.
const MAX_PATH_BYTES: usize = 4_096;
/// The longest description of an environment.
const MAX_DETAILS_BYTES: usize = 64 << 10;
/// The most paths that stay in a worktree which is used again.
const MAX_CACHES: usize = 100;

/// The details that a worker may give of its environment beside its path: the same as a row keeps, and nothing else.
const DETAILS: [&str; 8] =
    ["base_commit", "repository", "branch", "base", "keep", "remote", "lost_host", "caches"];

/// Checks the environment that this worker asks for: on its own host, at a path that fits the run, under a number
/// that the server drew.
pub(super) fn checked_wanted(
    wanted: EnvironmentRequest,
    id: Id,
    worker: &WorkerRow,
    found: Option<&EnvironmentRow>,
) -> Result<EnvironmentRequest, Error> {
    let suffix = wanted.scope.map(|step| format!("-s{step}")).unwrap_or_default();
    check_path(&wanted.path, &format!("{}{suffix}", wanted.run))?;
    let lost_host = found.map_or(Ok(None), lost_host)?;
    Ok(EnvironmentRequest {
        id,
        host: worker.host().into(),
        worker: worker.id,
        managed: true,
        details: checked_details(&wanted.details, lost_host)?,
        ..wanted
    })
}

/// Returns the host on which the files of an environment were lost, as its row tells.
pub(super) fn lost_host(row: &EnvironmentRow) -> Result<Option<String>, Error> {
    Ok(EnvironmentDetails::of(row)?.lost_host)
}

/// Checks the details that a worker gives of its environment, and sets the lost host as the server knows it.
pub(super) fn checked_details(told: &str, lost_host: Option<String>) -> Result<Arc<str>, Error> {
    if told.len() > MAX_DETAILS_BYTES {
        return Err(Error::field("details", format!("at most {MAX_DETAILS_BYTES} bytes")));
    }
    let wrong = |error: serde_json::Error| Error::field("details", error.to_string());
    // Fields need names: a list of values in the order of the fields is refused.
    let named: Map<String, Value> = serde_json::from_str(told).map_err(wrong)?;
    if let Some(unknown) = named.keys().find(|name| !DETAILS.contains(&name.as_str())) {
        return Err(Error::field("details", format!("there is no {unknown:?}")));
    }
    let mut details: EnvironmentDetails = serde_json::from_value(Value::Object(named)).map_err(wrong)?;
    let texts = [&details.base_commit, &details.repository, &details.branch, &details.base, &details.remote];
    let odd = |text: &String| text.len() > MAX_PATH_BYTES || text.chars().any(char::is_control);
    if texts.into_iter().flatten().chain(&details.caches).any(odd) || details.caches.len() > MAX_CACHES {
        return Err(Error::field("details", "a text is too long or holds control characters"));
    }
    if let Some(repository) = &details.repository {
        check_absolute("details.repository", repository)?;
    }
    details.lost_host = lost_host;
    Ok(details.text())
}

/// Refuses a path that is not as workers make them: `…/worktrees/NAME`.
fn check_path(path: &str, name: &str) -> Result<(), Error> {
    check_absolute("path", path)?;
    let path = Path::new(path);
    let folder = path.parent().and_then(Path::file_name);
    if path.file_name() != Some(name.as_ref()) || folder != Some("worktrees".as_ref()) {
        return Err(Error::field("path", format!("it must end with worktrees/{name}")));
    }
    Ok(())
}

fn check_absolute(field: &'static str, path: &str) -> Result<(), Error> {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::RootDir);
    let whole = path.len() <= MAX_PATH_BYTES && !path.contains('\0') && path.starts_with('/');
    if whole && Path::new(path).components().all(plain) {
        return Ok(());
    }
    Err(Error::field(field, "an absolute path without `..`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_its_run() {
        assert!(check_path("/data/worktrees/abc", "abc").is_ok());
        for path in [
            "",
            "abc",
            "/abc",
            "/data/worktrees/abd",
            "/data/worktrees/abc/x",
            "/data/worktrees/../worktrees/abc",
            "worktrees/abc",
            "/data/other/abc",
            "/data/worktrees/abc\0",
        ] {
            assert!(check_path(path, "abc").is_err(), "{path:?}");
        }
    }

    #[test]
    fn details_keep_known_fields_and_the_servers_mark_of_a_lost_host() {
        let told = r#"{"repository": "/r/.git", "branch": "b", "keep": "always", "lost_host": "liar", "caches": ["target"]}"#;
        let kept: Value =
            serde_json::from_str(&checked_details(told, Some("east".into())).expect("fine")).expect("JSON");
        assert_eq!(
            (&kept["lost_host"], &kept["keep"], &kept["branch"]),
            (&"east".into(), &"always".into(), &"b".into())
        );
        for wrong in [
            "",
            "[]",
            r#"{"more": 1}"#,
            r#"{"keep": "ever"}"#,
            r#"{"repository": "relative"}"#,
            r#"{"repository": "/a/../b"}"#,
            r#"{"branch": "\u001b[2J"}"#,
        ] {
            assert!(checked_details(wrong, None).is_err(), "{wrong}");
        }
    }
}
