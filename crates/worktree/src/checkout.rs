//! Checkouts: filling a worktree with its files, a limited number at a time.

use std::path::PathBuf;
use std::sync::{Condvar, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::{
    checkout_snapshot::CheckoutSnapshot,
    clock,
    error::Kind,
    git::{Cancel, Git},
    mark::{Stamp, write_atomic},
    metrics::{COUNTERS, count},
    single_flight::SingleFlight,
    worktrees::Worktree,
};

/// The time without a finished checkout after which more than the limit may run. A filter that waits for a
/// network must not block every run of this process.
const STALL_LIMIT_MS: u64 = 5_000;

/// The most concurrent checkouts per core: while one waits for the disk, another uses the core.
const SLOTS_PER_CORE: usize = 2;
/// The number of git's writers for a checkout that runs alone. Concurrent checkouts use one writer each.
const WRITERS_ALONE: &str = "4";

/// The limit of concurrent checkouts in this process.
struct CheckoutSlots {
    state: Mutex<SlotState>,
    freed: Condvar,
}

struct SlotState {
    busy: usize,
    last_freed_ms: u64,
}

static SLOTS: CheckoutSlots =
    CheckoutSlots { state: Mutex::new(SlotState { busy: 0, last_freed_ms: 0 }), freed: Condvar::new() };

/// The key of checkouts with the same files: repository, commit, config file and attributes file.
type CheckoutKey = (PathBuf, String, Stamp, Stamp);

/// Concurrent checkouts of the same commit.
static CHECKOUTS: LazyLock<SingleFlight<CheckoutKey, CheckoutSnapshot>> =
    LazyLock::new(SingleFlight::default);

/// A slot for one checkout.
struct CheckoutSlot {
    /// Whether no other checkout was running when the slot was taken.
    alone: bool,
}

impl CheckoutSlot {
    /// Sets the number of git's writers. More writers than cores pay off, because writing mostly waits for the
    /// disk; not for a few files, where starting the writers takes longer than writing.
    fn in_parallel<'a>(&self, git: Git<'a>) -> Git<'a> {
        let writers = if self.alone { WRITERS_ALONE } else { "1" };
        git.setting("checkout.workers", writers).setting("checkout.thresholdForParallelism", "500")
    }
}

impl Drop for CheckoutSlot {
    fn drop(&mut self) {
        let mut state = SLOTS.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.busy -= 1;
        state.last_freed_ms = clock::now_ms();
        SLOTS.freed.notify_one();
    }
}

/// Waits for a slot.
fn take_slot(cancel: &Cancel) -> Result<CheckoutSlot, Kind> {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    // Cached, because the call reads a dozen files.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let slots = SLOTS_PER_CORE * cores;
    let started_ms = clock::now_ms();
    let mut state = SLOTS.state.lock().unwrap_or_else(PoisonError::into_inner);
    while state.busy >= slots && clock::now_ms() < started_ms.max(state.last_freed_ms) + STALL_LIMIT_MS {
        if cancel.is_cancelled() {
            return Err(Kind::Cancelled);
        }
        state = SLOTS.freed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
    }
    state.busy += 1;
    Ok(CheckoutSlot { alone: state.busy == 1 })
}

impl Worktree {
    /// Checks out all files of HEAD into an empty folder. If several worktrees need the same files at once, git
    /// fills one and the others are copies of it.
    pub(crate) fn check_out(&mut self, cancel: &Cancel) -> Result<(), Kind> {
        self.limit_to_sparse()?;
        let mut request = self.may_share_checkout().then(|| CHECKOUTS.request(self.checkout_key()));
        let slot = take_slot(cancel)?;
        let index = self.entry().join("index");
        let check = self.deadline_check(cancel);
        let snapshot = match &mut request {
            Some(request) => request.start(check)?.filter(|_| self.is_at_base()),
            None => None,
        };
        if let Some(snapshot) = snapshot {
            snapshot.write(self.path(), &index, check)?;
            self.is_copy = true;
            count(&COUNTERS.copies);
            return Ok(());
        }
        let fill = self.git("read-tree").args(["-m", "-u", "HEAD"]);
        self.fill(slot.in_parallel(fill), cancel)?;
        if let Some(request) = request {
            let shareable = || self.is_at_base() && self.is_checkout_reproducible().unwrap_or(false);
            request.publish(|| {
                shareable().then(|| CheckoutSnapshot::read(self.path(), &index, check)).flatten()
            });
        }
        Ok(())
    }

    /// Returns whether the checkout may be shared. A sparse checkout has a special index, and a hook on indexes
    /// must be run by git.
    fn may_share_checkout(&self) -> bool {
        self.mark.sparse.is_empty() && self.repository.hook("post-index-change").is_none()
    }

    /// Returns what must be equal for two worktrees to have the same files.
    fn checkout_key(&self) -> CheckoutKey {
        let common = self.repository.common_dir();
        let attributes = Stamp::of(&common.join("info/attributes"));
        (common.to_owned(), self.mark.base.clone(), Stamp::of(&common.join("config")), attributes)
    }

    /// Returns whether HEAD is certainly the commit that the worktree started with.
    fn is_at_base(&self) -> bool {
        let tip = match &self.mark.branch {
            Some(branch) => self.repository.common_dir().join("refs/heads").join(branch),
            None => self.entry().join("HEAD"),
        };
        crate::read::text(tip).is_ok_and(|tip| tip.trim_end() == self.mark.base)
    }

    /// Returns whether git would write the same files into another worktree: no settings that depend on the
    /// path, and no filters.
    fn is_checkout_reproducible(&self) -> Result<bool, Kind> {
        let listed = self.git("config").args(["--list", "--name-only", "-z"]).run()?;
        let settings = listed.fields();
        if settings.iter().any(|key| key.starts_with("includeif.")) {
            return Ok(false);
        }
        let is_driver = |key: &String| {
            key.starts_with("filter.") && (key.ends_with(".smudge") || key.ends_with(".process"))
        };
        if !settings.iter().any(is_driver) {
            return Ok(true);
        }
        let paths = self.git("ls-files").arg("-z").run()?.stdout;
        let filters =
            self.git("check-attr").args(["--cached", "--stdin", "-z", "filter"]).input(paths).run()?;
        // Triples of path, attribute and value.
        Ok(filters.fields().chunks(3).all(|three| matches!(three, [_, _, value] if value == "unspecified")))
    }

    /// Returns a check that fails when the operation is cancelled or git's timeout has passed.
    fn deadline_check<'a>(&self, cancel: &'a Cancel) -> impl Fn() -> Result<(), Kind> + Copy + use<'a> {
        let timeout = self.timeout;
        let deadline_ms = clock::now_ms().saturating_add(timeout.as_millis() as u64);
        move || {
            if cancel.is_cancelled() {
                Err(Kind::Cancelled)
            } else if clock::now_ms() >= deadline_ms {
                Err(Kind::TimedOut { command: "checkout".to_owned(), after: timeout })
            } else {
                Ok(())
            }
        }
    }

    /// Brings all files to the state of HEAD. Untracked files stay.
    pub(crate) fn switch_to_head(&self, cancel: &Cancel) -> Result<(), Kind> {
        self.limit_to_sparse()?;
        let slot = take_slot(cancel)?;
        let switch = self.git("read-tree").args(["--reset", "-u", "HEAD"]);
        self.fill(slot.in_parallel(switch), cancel)
    }

    /// Runs git and reports a full disk, which git's own error does not always mention.
    fn fill<'a>(&'a self, git: Git<'a>, cancel: &'a Cancel) -> Result<(), Kind> {
        const MIN_FREE_BYTES: u64 = 256 * 1024;
        let filled = self.long(git, cancel).run();
        let disk = rustix::fs::statvfs(self.path());
        match (filled, disk) {
            (Ok(_), _) => Ok(()),
            (Err(Kind::Git { .. }), Ok(disk)) if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES => {
                let source = rustix::io::Errno::NOSPC.into();
                Err(Kind::Io { doing: "write the files of", path: self.path().to_owned(), source })
            }
            (Err(kind), _) => Err(kind),
        }
    }

    /// Runs the repository's `post-checkout` hook, as `git worktree add` does.
    pub(crate) fn run_post_checkout_hook(&self, cancel: &Cancel) -> Result<(), Kind> {
        const HOOK: &str = "post-checkout";
        if self.repository.hook(HOOK).is_none() {
            return Ok(());
        }
        let head = self.head()?.unwrap_or_else(|| self.repository.null_oid().to_owned());
        // As git does: in the worktree, found by its `.git` file.
        let hook =
            Git::new(self.path(), "hook").args(["run", HOOK, "--", self.repository.null_oid(), &head, "1"]);
        let output = self.long(hook, cancel).output()?;
        if output.status.success() {
            Ok(())
        } else {
            Err(Kind::Hook { hook: HOOK, output: format!("{} ({})", output.stderr, output.status) })
        }
    }

    /// Checks out the submodules into the worktree's entry, so that each worktree has its own. Only their
    /// configuration is shared.
    pub(crate) fn check_out_submodules(
        &self,
        run: &str,
        deadline: Duration,
        cancel: &Cancel,
    ) -> Result<(), Kind> {
        if !self.path().join(".gitmodules").exists() {
            return Ok(());
        }
        {
            // Writes the shared config, except when it already has all names.
            let _held = self.repository.acquire(run, deadline)?;
            self.repository.git_at(self.path(), "submodule").arg("init").run()?;
        }
        let update = self.repository.git_at(self.path(), "submodule");
        let update = update.args(["update", "--recursive", "--init", "--force"]);
        self.long(update, cancel).run().map(|_| ())
    }

    /// Prepares a long command in the worktree: it holds the owner lock, and stops when this process dies.
    pub(crate) fn long<'a>(&'a self, git: Git<'a>, cancel: &'a Cancel) -> Git<'a> {
        git.long(self.timeout, cancel).owned_by(Some(self.owner_fd()))
    }

    fn limit_to_sparse(&self) -> Result<(), Kind> {
        if self.mark.sparse.is_empty() {
            return Ok(());
        }
        let info = self.entry().join("info");
        std::fs::create_dir_all(&info).map_err(Kind::io("create", &info))?;
        write_atomic(&info.join("sparse-checkout"), cone(&self.mark.sparse).as_bytes())
    }
}

/// Returns the patterns that limit a checkout to folders and the files beside them.
fn cone(folders: &[String]) -> String {
    let mut lines = vec!["/*".to_owned(), "!/*/".to_owned()];
    let mut add = |state: String| {
        if !lines.contains(&state) {
            lines.push(state);
        }
    };
    let parts: Vec<Vec<&str>> =
        folders.iter().map(|folder| folder.split('/').filter(|part| !part.is_empty()).collect()).collect();
    for parts in &parts {
        for end in 1..parts.len() {
            add(format!("/{}/", parts[..end].join("/")));
            add(format!("!/{}/*/", parts[..end].join("/")));
        }
    }
    for parts in parts.iter().filter(|parts| !parts.is_empty()) {
        add(format!("/{}/", parts.join("/")));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cone_contains_the_files_beside_its_folders() {
        let folders = ["a/b".to_owned(), "c/".to_owned()];
        assert_eq!(cone(&folders), "/*\n!/*/\n/a/\n!/a/*/\n/a/b/\n/c/\n");
    }

    #[test]
    fn a_result_is_produced_only_for_waiting_requests_and_held_only_while_requested() {
        let group = SingleFlight::<u8, u8>::default();
        let mut alone = group.request(1);
        let check = || Ok::<_, ()>(());
        assert_eq!(alone.start(check), Ok(None));
        alone.publish(|| unreachable!("no request waits"));
        let mut second = group.request(1);
        alone.publish(|| Some(7));
        let mut third = group.request(1);
        for request in [&mut second, &mut third] {
            assert_eq!(request.start(check).unwrap().as_deref(), Some(&7));
        }
        drop((alone, second, third));
        assert_eq!(group.len(), 0);
        assert_eq!(group.request(1).start(check), Ok(None));
    }

    #[test]
    fn a_result_is_produced_again_after_many_uses() {
        let group = SingleFlight::<u8, u8>::default();
        let check = || Ok::<_, ()>(());
        let first = group.request(1);
        first.publish(|| Some(7));
        let taken = (0..1_000).take_while(|_| group.request(1).start(check).unwrap().is_some()).count();
        assert_eq!(taken, 200);
        first.publish(|| Some(8));
        assert_eq!(group.request(1).start(check).unwrap().as_deref(), Some(&8));
    }

    #[test]
    fn a_waiting_request_can_give_up_and_continues_if_publishing_fails() {
        let group = SingleFlight::<u8, u8>::default();
        let (first, mut second, mut third) = (group.request(1), group.request(1), group.request(1));
        let (started, go) = (&std::sync::Barrier::new(2), &std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let publisher = scope.spawn(move || {
                first.publish(|| {
                    started.wait();
                    go.wait();
                    panic!("a disk that is gone")
                });
            });
            started.wait();
            assert_eq!(second.start(|| Err("enough")), Err("enough"));
            go.wait();
            assert!(publisher.join().is_err());
            assert_eq!(third.start(|| Ok::<_, ()>(())), Ok(None));
        });
    }
}
