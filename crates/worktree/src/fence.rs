//! The fence of a run in its repository, `refs/sprag/fence/RUN`: whoever holds an older number cannot land.
//!
//! The ref points at a small text: the number, and what was landed under it. A land moves it in the same
//! transaction as the target branch, so that a lander that was taken over, or that lands twice, is refused there.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Attempt, Error, Kind},
    name::ref_component,
    repository::Repository,
};

/// What the fence ref points at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fence {
    /// Grows at each change of hands.
    pub number: u64,
    /// Branches that were landed on, and the commits that were landed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub landed: Vec<(String, String)>,
}

/// A fence as it was read.
pub(crate) struct Read {
    pub(crate) fence: Option<Fence>,
    /// The object the ref points at, or the null id.
    pub(crate) object: String,
}

pub(crate) fn name(run: &str) -> String {
    format!("refs/sprag/fence/{}", ref_component(run))
}

impl Repository {
    /// Moves a run's fence from one number to a higher one; None as the old one means that there is none yet.
    ///
    /// From then on whoever believes in the old number cannot land. A move that somebody else made first is `Fenced`.
    pub fn move_fence(&self, run: &str, old: Option<u64>, new: u64) -> Result<(), Error> {
        let change = || {
            let read = self.read_fence_ref(run)?;
            let found = read.fence.as_ref().map(|fence| fence.number);
            if found != old || old.is_some_and(|old| new <= old) {
                return Err(fenced(old.unwrap_or(new), found));
            }
            let landed = read.fence.map(|fence| fence.landed).unwrap_or_default();
            let object = self.write_fence(&Fence { number: new, landed })?;
            let moved = self.git("update-ref").args([&name(run), &object, &read.object]).output()?;
            match moved.status.success() {
                true => Ok(()),
                false => match self.read_fence_ref(run)?.fence.map(|fence| fence.number) {
                    now if now == old => Err(moved.failure()),
                    now => Err(fenced(old.unwrap_or(new), now)),
                },
            }
        };
        change().attempt(|| format!("move the fence of run {run} to {new}"))
    }

    /// A run's fence, if it has one.
    pub fn fence(&self, run: &str) -> Result<Option<Fence>, Error> {
        self.read_fence_ref(run).map(|read| read.fence).attempt(|| format!("read the fence of run {run}"))
    }

    /// Forgets a run's fence.
    pub fn delete_fence(&self, run: &str) -> Result<(), Error> {
        let deleted = self.git("update-ref").args(["-d", &name(run)]).run().map(|_| ());
        deleted.attempt(|| format!("delete the fence of run {run}"))
    }

    pub(crate) fn read_fence_ref(&self, run: &str) -> Result<Read, Kind> {
        let Some(object) = self.read_ref(&name(run))? else {
            return Ok(Read { fence: None, object: self.null_oid().to_owned() });
        };
        let text = self.git("cat-file").args(["blob", &object]).run()?.stdout;
        let fence = serde_json::from_slice(&text).map_err(|error| Kind::Io {
            doing: "understand",
            path: name(run).into(),
            source: error.into(),
        })?;
        Ok(Read { fence: Some(fence), object })
    }

    pub(crate) fn write_fence(&self, fence: &Fence) -> Result<String, Kind> {
        let text = serde_json::to_vec(fence).map_err(|error| Kind::Io {
            doing: "write",
            path: "a fence".into(),
            source: error.into(),
        })?;
        self.git("hash-object").args(["-w", "--stdin"]).input(text).line()
    }
}

pub(crate) fn fenced(expected: u64, found: Option<u64>) -> Kind {
    Kind::Fenced { expected, found: found.map_or_else(|| "none".to_owned(), |number| number.to_string()) }
}
