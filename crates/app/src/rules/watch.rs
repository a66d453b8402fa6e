//! Rules about git refs: they look at a repository at intervals, and each move that a look finds is an event.
//!
//! A look is claimed before git runs, so that one process looks at a time. Each move is one commit with the state that
//! the rule has then seen; it counts only if the rule still is what the look began with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sprag_lifecycle::RuleStatus;
use sprag_pipeline::{GitSource, TriggerSource};
use sprag_store::{FireEvent, Fired, NextTick, Result, Row, RuleRow, RuleSeen, TriggerDecision};
use sprag_worktree::{Cancel, RefChange, WatchedRepository, watch_failure};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{LoadedRule, RuleKeeper};
use crate::App;
use crate::error::Error;

/// The most looks at repositories at once in one process.
const LOOKS: usize = 4;
/// The most due rules that are read at once.
const BATCH: usize = 64;
/// The most refs of a repository that one rule watches.
const MOST_REFS: usize = 2_000;
/// The most changed paths in an event.
const MOST_PATHS: usize = 1_000;
/// The folder of the data directory with the commits whose paths are compared.
const CACHE: &str = "watched";
/// The key of the next look, in place of a tick's.
const LOOK: &str = "look";

/// The looks of one process. They end with it.
#[derive(Debug)]
pub(super) struct Looks {
    permits: Arc<Semaphore>,
    cancel: Cancel,
}

impl Default for Looks {
    fn default() -> Self {
        Looks { permits: Arc::new(Semaphore::new(LOOKS)), cancel: Cancel::default() }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The state that a rule has seen of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sight {
    /// The repository, as the rule names it. Another one is seen for the first time.
    repository: String,
    /// The commits of the watched refs, by name.
    refs: BTreeMap<String, String>,
}

/// A move of a ref. A commit is empty where the ref did not exist.
struct Move {
    name: String,
    old: String,
    new: String,
}

impl Move {
    fn change(&self) -> RefChange<'_> {
        RefChange { name: &self.name, old: &self.old, new: &self.new }
    }
}

/// Returns the first look of a rule, at once.
pub(super) fn first_look(now_ms: i64) -> NextTick {
    NextTick { due_ms: now_ms, key: LOOK.into() }
}

impl RuleKeeper {
    /// Starts the looks that are due, as many as one process makes at once. They continue by themselves.
    pub(super) async fn start_looks(&self) -> Result<()> {
        let wall_ms = self.app.now().wall_ms;
        for row in self.app.store.queries().looks_due(wall_ms, BATCH)? {
            let Ok(permit) = Arc::clone(&self.looks.permits).try_acquire_owned() else { return Ok(()) };
            let Some(look) = self.claim(row, wall_ms).await? else { continue };
            tokio::spawn(async move {
                look.make().await;
                drop(permit);
            });
        }
        Ok(())
    }

    /// Makes all looks that are due, and waits for them. Returns the number of runs that started.
    pub(super) async fn look_at_all(&self) -> Result<usize> {
        let wall_ms = self.app.now().wall_ms;
        let mut started = 0;
        loop {
            let mut looks = JoinSet::new();
            for row in self.app.store.queries().looks_due(wall_ms, LOOKS)? {
                if let Some(look) = self.claim(row, wall_ms).await? {
                    looks.spawn(async move { look.make().await });
                }
            }
            // Each round claims looks, which are then no longer due.
            if looks.is_empty() {
                return Ok(started);
            }
            while let Some(made) = looks.join_next().await {
                started += made.unwrap_or(0);
            }
        }
    }

    /// Claims a look that is due; none if another process has claimed it, or if the rule is no longer about refs.
    async fn claim(&self, row: RuleRow, wall_ms: i64) -> Result<Option<Look>> {
        let Some(rule) = self.load(row).await? else { return Ok(None) };
        let TriggerSource::Git(source) = &rule.trigger.source else { return Ok(None) };
        let source = source.clone();
        let next_ms = wall_ms.saturating_add(source.every_ms);
        if !self.app.store.executor().claim_look(RuleSeen::of(&rule.row), next_ms).await? {
            return Ok(None);
        }
        let cache = self.app.data().join(CACHE).join(rule.row.id.to_string());
        let cancel = self.looks.cancel.clone();
        Ok(Some(Look { app: self.app.clone(), rule, source, cache, cancel }))
    }

    /// Makes a look due that lies too far ahead, because the wall clock was set back.
    pub(super) async fn realign_look(&self, rule: &LoadedRule, wall_ms: i64, jump_ms: i64) -> Result<()> {
        let TriggerSource::Git(source) = &rule.trigger.source else { return Ok(()) };
        let latest_ms = wall_ms.saturating_add(source.every_ms).saturating_add(jump_ms);
        if rule.row.next_ms.is_some_and(|next_ms| next_ms > latest_ms) {
            let (seen, cursor) = (RuleSeen::of(&rule.row), rule.row.cursor);
            self.app.store.executor().reschedule_rule(seen, first_look(wall_ms), cursor).await?;
        }
        Ok(())
    }
}

/// A look at the repository of a rule.
struct Look {
    app: App,
    rule: LoadedRule,
    source: GitSource,
    cache: PathBuf,
    cancel: Cancel,
}

impl Look {
    /// Makes the look and fires the moves that it finds. Returns the number of runs that started.
    async fn make(mut self) -> usize {
        let seen = RuleSeen::of(&self.rule.row);
        let rule = Arc::clone(&self.rule.row.name);
        let failed = match self.look().await {
            Ok(Ok(started)) => return started,
            Ok(Err(why)) if self.cancel.is_cancelled() => {
                tracing::debug!(%rule, why, "a look at a repository ended with its process");
                return 0;
            }
            Ok(Err(why)) => {
                tracing::warn!(%rule, why, "a repository cannot be watched");
                self.app.store.executor().note_sight(seen, Some(why)).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            tracing::warn!(%rule, %error, "a look at a repository failed: the next one follows");
        }
        0
    }

    /// Returns the number of runs that started, or the reason why the repository cannot be watched.
    async fn look(&mut self) -> Result<std::result::Result<usize, String>> {
        let refs: BTreeMap<String, String> =
            match self.with_git(|repository, _, cancel| repository.refs(cancel)).await {
                Ok(all) => all.into_iter().filter(|(name, _)| self.source.watches(name)).collect(),
                Err(why) => return Ok(Err(why)),
            };
        if refs.len() > MOST_REFS {
            let message =
                format!("{} refs fit its patterns, and a rule watches at most {MOST_REFS}", refs.len());
            return Ok(Err(message));
        }
        let watched = self.rule.row.watched.as_deref();
        let known: Option<Sight> = watched.and_then(|watched| serde_json::from_str(watched).ok());
        match known.filter(|known| known.repository == self.source.repository) {
            Some(known) => self.compare(known, refs).await,
            None => self.see_first(refs).await,
        }
    }

    /// Records what the first look finds.
    async fn see_first(&self, refs: BTreeMap<String, String>) -> Result<std::result::Result<usize, String>> {
        if self.source.needs_paths {
            let names: Vec<String> = refs.keys().cloned().collect();
            let kept = self.with_git(move |repository, cache, cancel| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                repository.keep_tips(cache, &names, cancel)
            });
            if let Err(why) = kept.await {
                return Ok(Err(why));
            }
        }
        let sight = Sight { repository: self.source.repository.clone(), refs };
        let fire = FireEvent {
            seen: RuleSeen::of(&self.rule.row),
            event: None,
            cursor: self.rule.row.cursor + 1,
            watched: Some(json!(sight).to_string().into()),
        };
        self.app.store.executor().fire_event(fire).await?;
        Ok(Ok(0))
    }

    /// Fires the moves between what was seen and what is there now.
    async fn compare(
        &mut self,
        mut sight: Sight,
        refs: BTreeMap<String, String>,
    ) -> Result<std::result::Result<usize, String>> {
        let moves = moves(&self.source, &sight, &refs);
        if moves.is_empty() && self.rule.row.reason.is_some() {
            self.app.store.executor().note_sight(RuleSeen::of(&self.rule.row), None).await?;
        }
        let mut started = 0;
        for one in moves {
            let paths = match self.paths(&one).await {
                Ok(paths) => paths,
                Err(why) => return Ok(Err(why)),
            };
            let names = self.names(&one, paths.as_deref());
            let decision = if one.old.is_empty() && !self.source.created {
                TriggerDecision::Skip(format!("the first sight of {} only records it", one.name).into())
            } else if !self.source.counts(paths.as_deref()) {
                TriggerDecision::Skip("it changes none of the watched paths".into())
            } else {
                self.app.decide(&self.rule, &names, &[])
            };
            if one.new.is_empty() {
                sight.refs.remove(&one.name);
            } else {
                sight.refs.insert(one.name.clone(), one.new.clone());
            }
            let row = &mut self.rule.row;
            // The cursor makes the key of each move its own, however often a ref moves between two commits.
            let key = format!("{} {} {}", one.name, row.cursor, one.new);
            let event = super::fire::new_event(&self.app, &key, "move", &names, &[]);
            let watched = Some(json!(sight).to_string().into());
            let cursor = row.cursor + 1;
            let fire = FireEvent { seen: RuleSeen::of(row), event: Some((event, decision)), cursor, watched };
            match self.app.store.executor().fire_event(fire).await? {
                Fired::Decided { run, .. } => started += usize::from(run.is_some()),
                // A person has changed the rule, or another process was faster: the next look finds the rest.
                Fired::Superseded => break,
            }
            row.cursor = cursor;
        }
        Ok(Ok(started))
    }

    /// Returns the paths that a move changes; none if they are unknown, or if the rule does not need them.
    async fn paths(&self, one: &Move) -> std::result::Result<Option<Vec<String>>, String> {
        if !self.source.needs_paths {
            return Ok(None);
        }
        let (name, old, new) = (one.name.clone(), one.old.clone(), one.new.clone());
        let change = Move { name, old, new };
        self.with_git(move |repository, cache, cancel| {
            repository.changed_paths(cache, change.change(), cancel)
        })
        .await
    }

    /// Returns the names that conditions and inputs can use for a move.
    fn names(&self, one: &Move, paths: Option<&[String]>) -> Value {
        let paths = paths.map(|paths| &paths[..paths.len().min(MOST_PATHS)]);
        json!({ "event": {
            "ref": one.name,
            "branch": one.name.strip_prefix("refs/heads/").unwrap_or_default(),
            "old": one.old,
            "new": one.new,
            "paths": paths,
            "repository": self.shown(),
        } })
    }

    /// Returns the repository, for people.
    fn shown(&self) -> String {
        if self.source.repository.is_empty() {
            self.rule.project.display().to_string()
        } else {
            self.source.repository.clone()
        }
    }

    /// Runs git on a thread that may wait. An error is the reason, for people.
    async fn with_git<T: Send + 'static>(
        &self,
        work: impl FnOnce(
            WatchedRepository<'_>,
            &std::path::Path,
            &Cancel,
        ) -> std::result::Result<T, sprag_worktree::Error>
        + Send
        + 'static,
    ) -> std::result::Result<T, String> {
        let (folder, address) = (self.rule.project.clone(), self.source.repository.clone());
        let (cache, cancel) = (self.cache.clone(), self.cancel.clone());
        let done = tokio::task::spawn_blocking(move || {
            work(WatchedRepository { folder: &folder, address: &address }, &cache, &cancel)
        });
        let why = match done.await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => watch_failure(&error),
            Err(error) => format!("looking at it failed: {error}"),
        };
        Err(format!("the repository {} cannot be read: {why}", self.shown()))
    }
}

/// Returns the commits of the refs that a rule has seen, by name; none before its first look.
pub(super) fn seen_refs(row: &RuleRow) -> Option<BTreeMap<String, String>> {
    let sight: Sight = serde_json::from_str(row.watched.as_deref()?).ok()?;
    Some(sight.refs)
}

/// Returns the moves of watched refs, by name.
fn moves(source: &GitSource, before: &Sight, now: &BTreeMap<String, String>) -> Vec<Move> {
    let watched = before.refs.keys().filter(|name| source.watches(name));
    let names: BTreeSet<&String> = watched.chain(now.keys()).collect();
    let at = |refs: &BTreeMap<String, String>, name: &String| refs.get(name).cloned().unwrap_or_default();
    let all = names.into_iter().map(|name| Move {
        name: name.clone(),
        old: at(&before.refs, name),
        new: at(now, name),
    });
    all.filter(|one| one.old != one.new).collect()
}

impl App {
    /// Removes the commits that were kept for rules that are gone.
    pub(super) fn forget_watched(&self, rules: &[RuleRow]) -> std::result::Result<(), Error> {
        let folder = self.data().join(CACHE);
        let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_used = |row: &RuleRow| {
                row.status() != RuleStatus::Retired && name.to_str() == Some(row.id.to_string().as_str())
            };
            if !rules.iter().any(is_used) {
                std::fs::remove_dir_all(entry.path()).map_err(|error| {
                    Error::failed(format!("{} cannot be removed: {error}", entry.path().display()))
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r19_moves_are_what_differs_between_two_looks() {
        let source = GitSource {
            refs: vec!["refs/heads/*".into()],
            repository: String::new(),
            every_ms: 1_000,
            paths: vec!["src/**".into()],
            created: false,
            needs_paths: true,
            told_by: None,
        };
        let refs = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect()
        };
        let before = [
            ("refs/heads/gone", "1"),
            ("refs/heads/main", "1"),
            ("refs/heads/same", "1"),
            ("refs/tags/t", "1"),
        ];
        let before = Sight { repository: String::new(), refs: refs(&before) };
        let now = refs(&[("refs/heads/main", "2"), ("refs/heads/new", "3"), ("refs/heads/same", "1")]);
        let found: Vec<String> = moves(&source, &before, &now)
            .iter()
            .map(|one| format!("{} {:?} {:?}", one.name, one.old, one.new))
            .collect();
        // A ref that a changed rule no longer watches is not gone.
        let expected =
            [r#"refs/heads/gone "1" """#, r#"refs/heads/main "1" "2""#, r#"refs/heads/new "" "3""#];
        assert_eq!(found, expected);
        assert!(source.counts(None), "unknown paths may be any");
        assert!(source.counts(Some(&["docs/a.md".into(), "src/deep/a.rs".into()])));
        assert!(!source.counts(Some(&["docs/a.md".into()])));
    }
}
