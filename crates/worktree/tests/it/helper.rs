//! The other processes of a test: this program, started again with a job in its environment.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use sprag_worktree::{BranchFate, BranchPolicy, Cancel, LandOptions, Worktree, Worktrees};

use crate::common::*;

const JOB: &str = "SPRAG_TEST_JOB";

/// Returns a command that does a job in the same repository and data directory.
pub fn command(place: &Place, job: &str) -> Command {
    command_at(&place.repo(), &place.data(), job)
}

pub fn command_at(repo: &Path, data: &Path, job: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["helper::entry", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(JOB, job).env("SPRAG_TEST_REPO", repo).env("SPRAG_TEST_DATA", data);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A helper that is killed on drop.
pub struct Helper(pub Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(mut command: Command) -> Helper {
    Helper(command.spawn().expect("a helper"))
}

/// Runs a helper to its end; the error is its output.
pub fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().expect("a helper");
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

/// Runs a helper that is killed at a fault point.
pub fn killed_at(place: &Place, job: &str, point: &str) {
    let mut command = command(place, job);
    command.env("SPRAG_WORKTREE_FAULT", format!("kill:{point}"));
    let status = command.status().expect("a helper");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(9), "{job} at {point}: {status}");
}

fn worktrees() -> Worktrees {
    let path = |name: &str| PathBuf::from(env::var_os(name).expect("a path"));
    open(&path("SPRAG_TEST_REPO"), &path("SPRAG_TEST_DATA"), settings())
}

fn number(name: &str) -> usize {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The entry point of the other processes, not a test.
#[test]
fn entry() {
    let Ok(job) = env::var(JOB) else { return };
    let no = Cancel::default();
    match job.as_str() {
        "create" => drop(create(&worktrees(), "work", "work").expect("a worktree")),
        "create-pooled" => {
            let mut options = options("work", "work");
            options.use_pool = true;
            drop(worktrees().create(&options, &no).expect("a worktree"));
        }
        "create-submodules" => create_submodules(),
        "create-and-wait" => {
            let _worktree = create(&worktrees(), "work", "work").expect("a worktree");
            wait_for_the_end();
        }
        "create-cancelled" => create_cancelled(),
        "create-many" => create_many(),
        "create-and-remove" => create_and_remove(),
        "remove" => drop(worktrees().remove(mine(), BranchPolicy::Delete, &no).expect("removed")),
        "park" => drop(worktrees().park(mine(), BranchPolicy::Delete, &[], &no).expect("parked")),
        "land" => drop(mine().land(&LandOptions::new("work", "main"), &no).expect("landed")),
        "land-push" => drop(mine().land(&land_and_push(), &no).expect("landed")),
        "land-submodule" => land_submodule(),
        "leave-submodule" => leave_submodule(),
        "hold-lock" => {
            let worktrees = worktrees();
            let held = worktrees.repository().lock("holder", settings().lock_deadline).expect("the lock");
            std::fs::write(worktrees.root().join("locked"), "").expect("a file");
            wait_for_the_end();
            drop(held);
        }
        "lease-port" => {
            let data = PathBuf::from(env::var_os("SPRAG_TEST_DATA").expect("a path"));
            let ports = sprag_worktree::Ports::open(&data).expect("ports");
            ports.lease("elsewhere", &["web".to_owned()]).expect("a port");
        }
        "remove-readonly" => remove_readonly(),
        other => panic!("no such job: {other}"),
    }
}

/// Lands with a required push to the remote `origin`.
pub fn land_and_push() -> LandOptions<'static> {
    let mut options = LandOptions::new("work", "main");
    options.push = Some(sprag_worktree::Push { remote: "origin".to_owned(), required: true });
    options
}

/// Adopts the worktree of run `work`, which has no owner.
fn mine() -> Worktree {
    let worktrees = worktrees();
    let listed = worktrees.list().expect("a list");
    let id = listed.into_iter().find(|listed| listed.mark.run == "work").expect("a worktree").mark.id;
    worktrees.adopt(&id, "work").expect("it has no owner")
}

/// Waits until the test kills this process or deletes its folder; a minute at most.
fn wait_for_the_end() {
    let data = PathBuf::from(env::var_os("SPRAG_TEST_DATA").expect("a path"));
    for _ in 0..12_000 {
        if !data.exists() || data.join("end").exists() {
            return;
        }
        pause_ms(5);
    }
}

fn create_submodules() {
    let worktrees = worktrees();
    let mut options = options("work", "work");
    options.submodules = true;
    let worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
    assert!(worktree.path().join("sub/inner.txt").exists());
    let path = worktree.path().to_owned();
    let removed = remove(&worktrees, worktree);
    assert_eq!((removed.leftovers.as_slice(), path.exists()), ([].as_slice(), false));
}

static TOLD: AtomicBool = AtomicBool::new(false);

extern "C" fn on_term(_: libc::c_int) {
    TOLD.store(true, Ordering::Relaxed);
}

/// Cancels on SIGTERM, as the program does.
fn create_cancelled() {
    // SAFETY: the handler only writes to an atomic.
    unsafe { libc::signal(libc::SIGTERM, on_term as *const () as libc::sighandler_t) };
    let cancel = Cancel::default();
    let told = cancel.clone();
    std::thread::spawn(move || {
        wait_for("the signal", || TOLD.load(Ordering::Relaxed));
        told.cancel();
    });
    let result = worktrees().create(&options("work", "work"), &cancel);
    let kind = result.as_ref().map_err(|error| &error.kind);
    assert!(matches!(kind, Err(sprag_worktree::Kind::Cancelled)), "{result:?}");
}

/// Plays a run that leaves work of every kind in a submodule, then another that continues from its checkpoint.
fn leave_submodule() {
    let (worktrees, no) = (worktrees(), Cancel::default());
    let mut options = options("work", "work");
    options.submodules = true;
    let worktree = worktrees.create(&options, &no).expect("a worktree");
    let sub = worktree.path().join("sub");
    git(&sub, &["checkout", "--quiet", "-b", "aside"]);
    git(&sub, &["commit", "--quiet", "--allow-empty", "--message=on a branch"]);
    git(&sub, &["checkout", "--quiet", "--detach", "HEAD~1"]);
    std::fs::write(sub.join("inner.txt"), "committed\n").expect("a file");
    git(&sub, &["commit", "--quiet", "--all", "--message=committed"]);
    let recorded = worktree.checkpoint("work", "step", &no).expect("recorded");
    std::fs::write(sub.join("inner.txt"), "changed\n").expect("a file");
    std::fs::write(sub.join("new.txt"), "untracked\n").expect("a file");
    let removed = worktrees.remove(worktree, BranchPolicy::Delete, &no).expect("removed");
    assert_eq!(removed.modules.len(), 2, "{removed:?}");
    options.run = "again".to_owned();
    options.path = "again".into();
    options.branch = sprag_worktree::Branch::New("again".to_owned());
    let mut again = worktrees.create(&options, &no).expect("a worktree");
    again.start_from(&recorded, &no).expect("the submodule's commit is not lost");
    let inner = std::fs::read_to_string(again.path().join("sub/inner.txt")).expect("a file");
    assert_eq!(inner, "committed\n");
    let removed = worktrees.remove(again, BranchPolicy::Delete, &no).expect("removed");
    assert!(removed.modules.is_empty(), "all of it is saved already: {removed:?}");
}

/// Plays a run that commits in a submodule, and lands it.
fn land_submodule() {
    let worktrees = worktrees();
    let mut options = options("work", "work");
    options.submodules = true;
    let mut worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
    let sub = worktree.path().join("sub");
    std::fs::write(sub.join("inner.txt"), "changed in sub\n").expect("a file");
    git(&sub, &["commit", "--quiet", "--all", "--message=changed in sub"]);
    worktree.commit_all("a newer submodule", &Cancel::default()).expect("committed");
    worktree.land(&LandOptions::new("work", "main"), &Cancel::default()).expect("landed");
}

fn create_many() {
    let worktrees = worktrees();
    let name = env::var("SPRAG_TEST_NAME").expect("a name");
    std::thread::scope(|scope| {
        for thread in 0..number("SPRAG_TEST_THREADS") {
            let (worktrees, run) = (&worktrees, format!("{name}x{thread}"));
            scope.spawn(move || {
                let worktree = create(worktrees, &run, &format!("agent/{run}")).expect("a worktree");
                std::fs::write(worktree.path().join("mine.txt"), &run).expect("a file");
                assert_eq!(git(worktree.path(), &["status", "--porcelain"]), "?? mine.txt");
            });
        }
    });
}

fn create_and_remove() {
    let worktrees = worktrees();
    let name = env::var("SPRAG_TEST_NAME").expect("a name");
    for round in 0..number("SPRAG_TEST_ROUNDS") {
        let run = format!("{name}r{round}");
        let worktree = create(&worktrees, &run, &run).expect("a worktree");
        assert!(is_clean(worktree.path()));
        let removed = remove(&worktrees, worktree);
        assert!(removed.leftovers.is_empty(), "{removed:?}");
        assert_eq!(removed.branch, BranchFate::Deleted, "{removed:?}");
    }
}

fn remove_readonly() {
    let worktrees = worktrees();
    let worktree = create(&worktrees, "work", "work").expect("a worktree");
    let path = worktree.path().to_owned();
    let deep = path.join("ignored/deep");
    std::fs::create_dir_all(&deep).expect("a folder");
    std::fs::write(deep.join("file"), "x").expect("a file");
    for folder in [&deep, &path.join("ignored"), &path.join("dir0")] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o555)).expect("ours");
    }
    let removed = remove(&worktrees, worktree);
    assert!(removed.leftovers.is_empty() && !path.exists(), "{removed:?}");
    assert!(children(&worktrees.root().join(".trash")).is_empty());
}
