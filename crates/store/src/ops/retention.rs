//! Forgetting runs that ended long ago.

use sprag_lifecycle::{EnvironmentStatus, RunId};

use crate::error::Result;
use crate::rows::{Row, RunRow};
use crate::session::Session;

/// What came of looking at some runs that ended long ago.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgotten {
    /// Those that went, with the runs that were their steps' work.
    pub runs: Vec<RunId>,
    /// Those that have to stay for now, and why.
    pub kept: Vec<(RunId, &'static str)>,
    /// From where to go on; none if all were looked at.
    pub next: Option<RunId>,
}

/// Forgets up to `limit` runs that ended before this moment, after `after`.
pub fn forget_runs(
    session: &mut Session<'_>,
    before_ms: i64,
    after: Option<RunId>,
    limit: usize,
) -> Result<Forgotten> {
    let forgotten = forgettable_runs(session, before_ms, after, limit)?;
    for run in &forgotten.runs {
        session.db().forget_run(*run)?;
    }
    Ok(forgotten)
}

/// What [`forget_runs`] would forget.
pub fn forgettable_runs(
    session: &mut Session<'_>,
    before_ms: i64,
    after: Option<RunId>,
    limit: usize,
) -> Result<Forgotten> {
    let found = session.db().ended_before(before_ms, after, limit)?;
    let told_up_to = told_up_to(session)?;
    let mut forgotten = Forgotten {
        next: if found.len() < limit { None } else { found.last().copied() },
        ..Forgotten::default()
    };
    for run in found {
        let family = family(session, run)?;
        match why_not(session, &family, before_ms, told_up_to)? {
            Some(why) => forgotten.kept.push((run, why)),
            None => forgotten.runs.extend(family),
        }
    }
    Ok(forgotten)
}

/// A run, and all that is the work of its steps.
fn family(session: &mut Session<'_>, run: RunId) -> Result<Vec<RunId>> {
    let mut family = vec![run];
    let mut next = 0;
    while let Some(member) = family.get(next).copied() {
        family.extend(session.db().all_children(member)?);
        next += 1;
    }
    Ok(family)
}

/// The last entry of the journal that every hook has been told of; those that nobody tries any more do not count.
fn told_up_to(session: &mut Session<'_>) -> Result<u64> {
    let hooks = session.db().hooks()?;
    Ok(hooks.iter().filter(|hook| hook.parked.is_none()).map(|hook| hook.cursor).min().unwrap_or(u64::MAX))
}

fn why_not(
    session: &mut Session<'_>,
    family: &[RunId],
    before_ms: i64,
    told_up_to: u64,
) -> Result<Option<&'static str>> {
    for member in family {
        let Some(row) = session.get::<RunRow>(*member)? else { continue };
        if !row.status().is_terminal() || row.ended_ms.is_none_or(|ended_ms| ended_ms >= before_ms) {
            return Ok(Some("it goes on"));
        }
        if row.last_seq > told_up_to {
            return Ok(Some("a hook has not been told of it"));
        }
        let environments = session.db().environments_of(*member)?;
        if environments.iter().any(|row| row.status() != EnvironmentStatus::Destroyed) {
            return Ok(Some("its environment is still there"));
        }
        if session.db().has_effects(*member)? {
            return Ok(Some("something is still to be done after its end"));
        }
    }
    Ok(None)
}
