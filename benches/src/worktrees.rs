//! W4: worktrees made at once, cold and from a warm pool, against as many `git worktree add` one after the other.
//!
//! Every round makes, checks and removes its worktrees anew; who begins changes from round to round:
//! whoever comes after a large deletion finds a busy disk.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sprag_worktree::{
    BranchPolicy, Cancel, CreateOptions, Metrics, Parked, Repository, Settings, Worktree, Worktrees, metrics,
};
use tempfile::TempDir;

use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::{Effort, Result, files};

/// A repository's size: what it is called, how many files it has, how long they are on average, and how many
/// worktrees of it are made at once.
struct Size {
    name: &'static str,
    files: usize,
    bytes: usize,
    at_once: &'static [usize],
}

const GIT: &str = "git, serial";
const COLD: &str = "sprag";
const POOL: &str = "sprag, pool";
const UNIT: &str = "ms";

/// Uncontended locks per round.
const LOCKS: usize = 2_000;

fn sizes(effort: Effort) -> Vec<Size> {
    // Fifty worktrees of 50,000 files are 2.5 million files for each system: too much for every day.
    let is_nightly = std::env::var_os("SPRAG_NIGHTLY").is_some();
    let large: &[usize] = if is_nightly { &[1, 10, 50] } else { &[1, 10] };
    let mut sizes = vec![
        Size { name: "100 files", files: 100, bytes: 5_000, at_once: effort.pick(&[1, 10, 50], &[1, 10]) },
        Size { name: "5 k files", files: 5_000, bytes: 5_000, at_once: effort.pick(&[1, 10, 50], &[1, 10]) },
    ];
    if !effort.quick {
        sizes.push(Size { name: "50 k files", files: 50_000, bytes: 1_000, at_once: large });
    }
    sizes
}

/// Makes the repositories and measures on each.
pub(crate) fn measure(effort: Effort) -> Result<Board> {
    let mut board = Board::default();
    for size in sizes(effort) {
        let place = Place::make(&size)?;
        for round in 0..effort.rounds {
            for &at_once in size.at_once {
                eprintln!("{}, {at_once} at once, round {}", size.name, round + 1);
                place.measure(&size, at_once, round % 2 == 0, &mut board)?;
            }
            board.add(key(size.name, COLD, 1, "us/lock p99"), place.lock_p99_us()?);
        }
        for &at_once in size.at_once {
            for system in [COLD, POOL] {
                board.compare(&key(size.name, system, at_once, UNIT), key(size.name, GIT, at_once, UNIT));
            }
        }
    }
    let Metrics { lock_wait, lock_hold, pool_hits, .. } = metrics();
    board.note(format!(
        "lock held {} times: half of them at most {} us, the longest {:.1} ms; waited {:.1} ms at most; {pool_hits} from the pool",
        lock_hold.count,
        lock_hold.median_at_most_us,
        lock_hold.longest_us as f64 / 1000.0,
        lock_wait.longest_us as f64 / 1000.0
    ));
    Ok(board)
}

struct Place {
    folder: TempDir,
    worktrees: Worktrees,
}

impl Place {
    fn make(size: &Size) -> Result<Place> {
        let folder = files::scratch()?;
        let repo = folder.path().join("repo");
        std::fs::create_dir(&repo)?;
        git(&repo, &["init", "--quiet", "--initial-branch=main"])?;
        write_files(&repo, size)?;
        git(&repo, &["add", "--all"])?;
        git(
            &repo,
            &["-c", "user.name=Bench", "-c", "user.email=bench@example.com", "commit", "--quiet", "-mx"],
        )?;
        git(&repo, &["gc", "--quiet"])?;
        let settings = Settings { pool_size: 50, ..Settings::default() };
        let worktrees = Worktrees::open(Repository::discover(&repo)?, &folder.path().join("data"), settings)?;
        Ok(Place { folder, worktrees })
    }

    fn measure(&self, size: &Size, at_once: usize, git_first: bool, board: &mut Board) -> Result<()> {
        let mut add = |system, time: Duration| {
            board.add(key(size.name, system, at_once, UNIT), time.as_secs_f64() * 1000.0);
        };
        if git_first {
            add(GIT, self.git_adds(at_once)?);
        }
        let held_before = metrics().lock_hold;
        let (time, made) = self.create(at_once, false)?;
        add(COLD, time);
        let held = metrics().lock_hold;
        let created_us =
            (held.total_us - held_before.total_us) as f64 / (held.count - held_before.count) as f64;
        for worktree in made {
            let parked = self.worktrees.park(worktree, BranchPolicy::Delete, &[], &Cancel::default())?;
            if !matches!(parked, Parked::Ready { .. }) {
                return Err("a clean worktree was not kept".into());
            }
        }
        let (time, made) = self.create(at_once, true)?;
        add(POOL, time);
        if let Some(worktree) = made.iter().find(|worktree| !worktree.from_pool) {
            return Err(format!("{} did not come from the pool", worktree.path().display()).into());
        }
        let held_before = metrics().lock_hold;
        for worktree in made {
            let removed = self.worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default())?;
            if !removed.leftovers.is_empty() || removed.salvaged.is_some() {
                return Err(format!("a worktree that nobody used left something: {removed:?}").into());
            }
        }
        if !git_first {
            board.add(key(size.name, GIT, at_once, UNIT), self.git_adds(at_once)?.as_secs_f64() * 1000.0);
        }
        let held = metrics().lock_hold;
        let held_us = (held.total_us - held_before.total_us) as f64 / (held.count - held_before.count) as f64;
        board.add(key(size.name, "sprag, create", at_once, "us/lock hold"), created_us);
        board.add(key(size.name, "sprag, remove", at_once, "us/lock hold"), held_us);
        Ok(())
    }

    /// One after the other: git itself fails when they are made at once.
    fn git_adds(&self, count: usize) -> Result<Duration> {
        let repo = self.folder.path().join("repo");
        let paths: Vec<PathBuf> = (0..count).map(|n| self.folder.path().join(format!("git{n}"))).collect();
        let watch = Stopwatch::start();
        for (number, path) in paths.iter().enumerate() {
            let path = path.to_str().ok_or("the folder's name is not UTF-8")?;
            git(&repo, &["worktree", "add", "--quiet", "-b", &format!("git{number}"), path])?;
        }
        let time = watch.elapsed();
        for (number, path) in paths.iter().enumerate() {
            std::fs::remove_dir_all(path)?;
            git(&repo, &["worktree", "prune", "--expire=now"])?;
            git(&repo, &["branch", "--quiet", "-D", &format!("git{number}")])?;
        }
        Ok(time)
    }

    fn create(&self, count: usize, use_pool: bool) -> Result<(Duration, Vec<Worktree>)> {
        let watch = Stopwatch::start();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let name = format!("run{number}");
                    let mut options = CreateOptions::new(&name, &name, &name, "main");
                    options.use_pool = use_pool;
                    let worktrees = &self.worktrees;
                    scope.spawn(move || worktrees.create(&options, &Cancel::default()))
                })
                .collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let time = watch.elapsed();
        let mut worktrees = Vec::new();
        for worktree in made {
            worktrees.push(worktree.map_err(|_| "a thread panicked")??);
        }
        Ok((time, worktrees))
    }

    fn lock_p99_us(&self) -> Result<f64> {
        let mut times = Vec::with_capacity(LOCKS);
        for _ in 0..LOCKS {
            let watch = Stopwatch::start();
            drop(self.worktrees.repository().lock("bench", Duration::from_secs(1))?);
            times.push(watch.elapsed());
        }
        Ok(percentile(&mut times, 99).as_secs_f64() * 1e6)
    }
}

/// Text of words, a hundred files a folder, lengths between a tenth and nearly twice the average.
fn write_files(repo: &Path, size: &Size) -> Result<()> {
    let mut state = 1_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for number in 0..size.files {
        let folder = repo.join(format!("dir{}", number / 100));
        if number % 100 == 0 {
            std::fs::create_dir(&folder)?;
        }
        let length = size.bytes / 10 + next() % (size.bytes * 18 / 10);
        let mut text = String::with_capacity(length + 8);
        while text.len() < length {
            text.push_str(&format!("{:x}{}", next() % 4096, if next() % 9 == 0 { '\n' } else { ' ' }));
        }
        std::fs::write(folder.join(format!("file{number}.txt")), text)?;
    }
    Ok(())
}

fn git(directory: &Path, args: &[&str]) -> Result<()> {
    let output = Command::new("git").args(args).current_dir(directory).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
