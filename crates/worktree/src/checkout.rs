//! Filling a worktree with its files: some at once, each in a process group of its own.

use std::path::PathBuf;
use std::sync::{Condvar, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::{
    clock,
    error::Kind,
    git::{Cancel, Git},
    mark::{Stamp, write_whole},
    metrics::{COUNTERS, count},
    original::Original,
    wish::Wishes,
    worktrees::Worktree,
};

/// How long those who have a place may stand still before others go on without one: a filter that waits for a
/// network must not stop every run of this process.
const PATIENCE_MS: u64 = 5_000;

/// How many checkouts go on at once for each core: while one waits for the disk, another has the core.
const PLACES_PER_CORE: usize = 2;
/// How many write files for a checkout that is alone. Several checkouts have cores enough to do between them, and one
/// writer each.
const WRITERS_ALONE: &str = "4";

/// How many checkouts go on at once in this process.
struct Places {
    line: Mutex<Line>,
    freed: Condvar,
}

struct Line {
    busy: usize,
    last_freed_ms: u64,
}

static PLACES: Places =
    Places { line: Mutex::new(Line { busy: 0, last_freed_ms: 0 }), freed: Condvar::new() };

/// A repository, a commit of it, its settings and its attributes.
type Likeness = (PathBuf, String, Stamp, Stamp);

/// Checkouts of one commit that are wanted at once.
static CHECKOUTS: LazyLock<Wishes<Likeness, Original>> = LazyLock::new(Wishes::default);

/// A place among the checkouts that go on at once.
struct Place {
    /// Nobody else had one when it was taken.
    alone: bool,
}

impl Place {
    /// Writing files waits for the disk more than for a core, so that more writers than cores pay; not for a few
    /// files, where starting them takes longer than the writing.
    fn in_parallel<'a>(&self, git: Git<'a>) -> Git<'a> {
        let writers = if self.alone { WRITERS_ALONE } else { "1" };
        git.setting("checkout.workers", writers).setting("checkout.thresholdForParallelism", "500")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = PLACES.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.busy -= 1;
        line.last_freed_ms = clock::now_ms();
        PLACES.freed.notify_one();
    }
}

/// Waits for a place.
fn take_place(cancel: &Cancel) -> Result<Place, Kind> {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    // Asking reads a dozen files.
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let places = PLACES_PER_CORE * cores;
    let began_ms = clock::now_ms();
    let mut line = PLACES.line.lock().unwrap_or_else(PoisonError::into_inner);
    while line.busy >= places && clock::now_ms() < began_ms.max(line.last_freed_ms) + PATIENCE_MS {
        if cancel.is_cancelled() {
            return Err(Kind::Cancelled);
        }
        line = PLACES.freed.wait_timeout(line, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
    }
    line.busy += 1;
    Ok(Place { alone: line.busy == 1 })
}

impl Worktree {
    /// All files of its HEAD, into a folder that has none. Others may want the same at the same time: one of them has git do
    /// it, and the others are copies.
    pub(crate) fn check_out(&mut self, cancel: &Cancel) -> Result<(), Kind> {
        self.limit_to_sparse()?;
        let mut wish = self.may_be_like_another().then(|| CHECKOUTS.wish(self.like()));
        let place = take_place(cancel)?;
        let index = self.entry().join("index");
        let go_on = self.go_on(cancel);
        let original = match &mut wish {
            Some(wish) => wish.begin(go_on)?.filter(|_| self.is_at_base()),
            None => None,
        };
        if let Some(original) = original {
            original.write(self.path(), &index, go_on)?;
            self.is_copy = true;
            count(&COUNTERS.copies);
            return Ok(());
        }
        let fill = self.git("read-tree").args(["-m", "-u", "HEAD"]);
        self.fill(place.in_parallel(fill), cancel)?;
        if let Some(wish) = wish {
            let fit = || self.is_at_base() && self.git_would_do_the_same_elsewhere().unwrap_or(false);
            wish.offer(|| fit().then(|| Original::read(self.path(), &index, go_on)).flatten());
        }
        Ok(())
    }

    /// Who is limited to folders has an index of its own kind; a hook on indexes is for git to run.
    fn may_be_like_another(&self) -> bool {
        self.mark.sparse.is_empty() && self.repository.hook("post-index-change").is_none()
    }

    /// What must be equal for two worktrees to have the same files: the repository, its commit, and what it says about files.
    fn like(&self) -> Likeness {
        let common = self.repository.common_dir();
        let attributes = Stamp::of(&common.join("info/attributes"));
        (common.to_owned(), self.mark.base.clone(), Stamp::of(&common.join("config")), attributes)
    }

    /// Whether its HEAD is the commit that it began with; not if that is not plain to see.
    fn is_at_base(&self) -> bool {
        let tip = match &self.mark.branch {
            Some(branch) => self.repository.common_dir().join("refs/heads").join(branch),
            None => self.entry().join("HEAD"),
        };
        std::fs::read_to_string(tip).is_ok_and(|tip| tip.trim_end() == self.mark.base)
    }

    /// Settings may hold for one worktree and not for another, and a filter may do as it likes each time.
    fn git_would_do_the_same_elsewhere(&self) -> Result<bool, Kind> {
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
        // Path, attribute, value; and again.
        Ok(filters.fields().chunks(3).all(|three| matches!(three, [_, _, value] if value == "unspecified")))
    }

    /// Until it is cancelled, or as late as git would be ended.
    fn go_on<'a>(&self, cancel: &'a Cancel) -> impl Fn() -> Result<(), Kind> + Copy + use<'a> {
        let timeout = self.timeout;
        let give_up_at_ms = clock::now_ms().saturating_add(timeout.as_millis() as u64);
        move || match cancel.is_cancelled() {
            true => Err(Kind::Cancelled),
            false if clock::now_ms() >= give_up_at_ms => {
                Err(Kind::TimedOut { command: "checkout".to_owned(), after: timeout })
            }
            false => Ok(()),
        }
    }

    /// From whatever state it is in to that of its HEAD. Files that git does not know stay.
    pub(crate) fn switch_to_head(&self, cancel: &Cancel) -> Result<(), Kind> {
        self.limit_to_sparse()?;
        let place = take_place(cancel)?;
        let switch = self.git("read-tree").args(["--reset", "-u", "HEAD"]);
        self.fill(place.in_parallel(switch), cancel)
    }

    /// Git does not always say that the disk is full when it is.
    fn fill<'a>(&'a self, git: Git<'a>, cancel: &'a Cancel) -> Result<(), Kind> {
        const NEXT_TO_NOTHING: u64 = 256 * 1024;
        let filled = self.long(git, cancel).run();
        let disk = rustix::fs::statvfs(self.path());
        match (filled, disk) {
            (Ok(_), _) => Ok(()),
            (Err(Kind::Git { .. }), Ok(disk)) if disk.f_bavail * disk.f_frsize < NEXT_TO_NOTHING => {
                let source = rustix::io::Errno::NOSPC.into();
                Err(Kind::Io { doing: "write the files of", path: self.path().to_owned(), source })
            }
            (Err(kind), _) => Err(kind),
        }
    }

    /// What `git worktree add` runs when it is done, if the repository has it.
    pub(crate) fn run_post_checkout_hook(&self, cancel: &Cancel) -> Result<(), Kind> {
        const HOOK: &str = "post-checkout";
        if self.repository.hook(HOOK).is_none() {
            return Ok(());
        }
        let head = self.head()?.unwrap_or_else(|| self.repository.null_oid().to_owned());
        // As git does it: in the worktree, found by its `.git` file.
        let hook =
            Git::new(self.path(), "hook").args(["run", HOOK, "--", self.repository.null_oid(), &head, "1"]);
        let output = self.long(hook, cancel).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Kind::Hook { hook: HOOK, output: format!("{} ({})", output.stderr, output.status) }),
        }
    }

    /// Submodules live in the entry, so that each worktree has its own; only their names are shared.
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
            // Writes the shared config; not again when it has all names.
            let _held = self.repository.hold(run, deadline)?;
            Git::new(self.path(), "submodule").arg("init").run()?;
        }
        let update = Git::new(self.path(), "submodule").args(["update", "--recursive", "--init", "--force"]);
        self.long(update, cancel).run().map(|_| ())
    }

    /// A long command that works in it: it holds the owner lock, and ends when we do.
    pub(crate) fn long<'a>(&'a self, git: Git<'a>, cancel: &'a Cancel) -> Git<'a> {
        git.long(self.timeout, cancel).owned_by(Some(self.owner_fd()))
    }

    fn limit_to_sparse(&self) -> Result<(), Kind> {
        if self.mark.sparse.is_empty() {
            return Ok(());
        }
        let info = self.entry().join("info");
        std::fs::create_dir_all(&info).map_err(Kind::io("make", &info))?;
        write_whole(&info.join("sparse-checkout"), cone(&self.mark.sparse).as_bytes())
    }
}

/// The patterns by which git limits a checkout to folders, and to the files beside them.
fn cone(folders: &[String]) -> String {
    let mut lines = vec!["/*".to_owned(), "!/*/".to_owned()];
    let mut add = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
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
    fn a_cone_holds_the_files_beside_its_folders() {
        let folders = ["a/b".to_owned(), "c/".to_owned()];
        assert_eq!(cone(&folders), "/*\n!/*/\n/a/\n!/a/*/\n/a/b/\n/c/\n");
    }

    #[test]
    fn what_one_has_is_read_only_for_those_who_wait_and_held_only_for_those_who_want_it() {
        let wishes = Wishes::<u8, u8>::default();
        let mut alone = wishes.wish(1);
        let go_on = || Ok::<_, ()>(());
        assert_eq!(alone.begin(go_on), Ok(None));
        alone.offer(|| unreachable!("nobody waits for it"));
        let mut second = wishes.wish(1);
        alone.offer(|| Some(7));
        let mut third = wishes.wish(1);
        for wish in [&mut second, &mut third] {
            assert_eq!(wish.begin(go_on).unwrap().as_deref(), Some(&7));
        }
        drop((alone, second, third));
        assert_eq!(wishes.len(), 0);
        assert_eq!(wishes.wish(1).begin(go_on), Ok(None));
    }

    #[test]
    fn what_is_taken_very_often_is_made_anew() {
        let wishes = Wishes::<u8, u8>::default();
        let go_on = || Ok::<_, ()>(());
        let held = wishes.wish(1);
        held.offer(|| Some(7));
        let taken = (0..1_000).take_while(|_| wishes.wish(1).begin(go_on).unwrap().is_some()).count();
        assert_eq!(taken, 200);
        held.offer(|| Some(8));
        assert_eq!(wishes.wish(1).begin(go_on).unwrap().as_deref(), Some(&8));
    }

    #[test]
    fn who_waits_for_an_offer_can_give_up_and_is_told_if_it_fails() {
        let wishes = Wishes::<u8, u8>::default();
        let (first, mut second, mut third) = (wishes.wish(1), wishes.wish(1), wishes.wish(1));
        let (began, go) = (&std::sync::Barrier::new(2), &std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let offers = scope.spawn(move || {
                first.offer(|| {
                    began.wait();
                    go.wait();
                    panic!("a disk that is gone")
                });
            });
            began.wait();
            assert_eq!(second.begin(|| Err("enough")), Err("enough"));
            go.wait();
            assert!(offers.join().is_err());
            assert_eq!(third.begin(|| Ok::<_, ()>(())), Ok(None));
        });
    }
}
