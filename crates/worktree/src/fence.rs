//! The fence of a run in its repository, `refs/sprag/fence/RUN`: an attempt with an older number cannot land.
//!
//! The ref points at a small text with the number and the commits landed under it. A landing updates the fence
//! in the same transaction as the target branch. So git refuses the landing of an attempt that was taken over,
//! and a second landing of the same work.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Attempt, Error, Kind},
    git::Output,
    name::ref_component,
    prune::misses_object,
    repository::Repository,
    snapshot::retry_during_gc,
    stale_lock,
};

/// The attempts to move a fence's ref while prunes delete its object.
const MAX_MOVES: u32 = 20;

/// The content of the fence ref.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fence {
    /// The number of the fence. It grows with each new attempt.
    pub number: u64,
    /// Pairs of branch and landed commit, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub landed: Vec<(String, String)>,
}

impl Fence {
    /// Returns the commit that was last landed on a branch.
    pub(crate) fn last_landed_on(&self, branch: &str) -> Option<&str> {
        self.landed.iter().rev().find(|(into, _)| into == branch).map(|(_, commit)| commit.as_str())
    }
}

/// The fence and its object.
pub(crate) struct Read {
    pub(crate) fence: Option<Fence>,
    /// The object that the ref points at, or the null id.
    pub(crate) object: String,
}

pub(crate) fn name(run: &str) -> String {
    format!("refs/sprag/fence/{}", ref_component(run))
}

impl Repository {
    /// Moves a run's fence from one number to a higher one; `old` is `None` for the first fence.
    ///
    /// After that, an attempt with the old number cannot land. Fails with `Fenced` if another process moved the
    /// fence first.
    pub fn move_fence(&self, run: &str, old: Option<u64>, new: u64) -> Result<(), Error> {
        let change = || {
            let read = self.read_fence_ref(run)?;
            let found = read.fence.as_ref().map(|fence| fence.number);
            if found != old || old.is_some_and(|old| new <= old) {
                return Err(fenced(old.unwrap_or(new), found));
            }
            let landed = read.fence.map(|fence| fence.landed).unwrap_or_default();
            let fence = Fence { number: new, landed };
            let moved = self.point_fence(run, &fence, &read.object)?;
            if moved.status.success() {
                return self.confirm_fence(&fence);
            }
            match self.read_fence_ref(run)?.fence.map(|fence| fence.number) {
                now if now == old => Err(moved.failure()),
                now => Err(fenced(old.unwrap_or(new), now)),
            }
        };
        change().attempt(|| format!("move the fence of run {run} to {new}"))
    }

    /// Returns a run's fence; `None` if it has none.
    pub fn fence(&self, run: &str) -> Result<Option<Fence>, Error> {
        self.read_fence_ref(run).map(|read| read.fence).attempt(|| format!("read the fence of run {run}"))
    }

    /// Deletes a run's fence.
    pub fn delete_fence(&self, run: &str) -> Result<(), Error> {
        let deleted = stale_lock::retry(|| self.git("update-ref").args(["-d", &name(run)]).run().map(|_| ()));
        deleted.attempt(|| format!("delete the fence of run {run}"))
    }

    pub(crate) fn read_fence_ref(&self, run: &str) -> Result<Read, Kind> {
        let Some(object) = self.read_ref(&name(run))? else {
            return Ok(Read { fence: None, object: self.null_oid().to_owned() });
        };
        let text = self.git("cat-file").args(["blob", &object]).run()?.stdout;
        let fence = serde_json::from_slice(&text).map_err(|error| Kind::Io {
            doing: "parse",
            path: name(run).into(),
            source: error.into(),
        })?;
        Ok(Read { fence: Some(fence), object })
    }

    /// Writes a fence and moves its ref, again if a `git prune` deletes the object in between.
    fn point_fence(&self, run: &str, fence: &Fence, before: &str) -> Result<Output, Kind> {
        let mut moved = None;
        for _ in 0..MAX_MOVES {
            let object = self.write_fence(fence)?;
            let output = self.git("update-ref").args([&name(run), &object, before]).output()?;
            if output.status.success() || !misses_object(&output.failure()) {
                return Ok(output);
            }
            moved = Some(output);
        }
        moved.ok_or_else(|| Kind::Pruned { path: self.common_dir().to_owned() })
    }

    /// Writes the object of a fence again, in case a `git prune` deleted it before the ref existed.
    pub(crate) fn confirm_fence(&self, fence: &Fence) -> Result<(), Kind> {
        self.wait_for_prunes();
        self.write_fence(fence).map(drop)
    }

    pub(crate) fn write_fence(&self, fence: &Fence) -> Result<String, Kind> {
        let text = serde_json::to_vec(fence).map_err(|error| Kind::Io {
            doing: "write",
            path: "a fence".into(),
            source: error.into(),
        })?;
        retry_during_gc(|| self.git("hash-object").args(["-w", "--stdin"]).input(text.clone()).line())
    }
}

pub(crate) fn fenced(expected: u64, found: Option<u64>) -> Kind {
    Kind::Fenced { expected, found: found.map_or_else(|| "none".to_owned(), |number| number.to_string()) }
}
