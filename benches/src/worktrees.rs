//! W4: worktrees made at once, cold and from a warm pool, against as many `git worktree add` one after the other.
//!
//! Every round has a new file system, and nothing is deleted in it before its figures are taken: see [`Disk`]. The sides
//! take turns at starting, and neither starts before all earlier writes are on the disk. Each figure is printed
//! when it is taken.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sprag_worktree::{
    BranchPolicy, Cancel, CreateOptions, DurationStats, Metrics, Parked, Repository, Settings, Worktree,
    Worktrees, snapshot,
};
use tempfile::TempDir;

use crate::board::{Board, key, percentile};
use crate::clock::Stopwatch;
use crate::disk::Disk;
use crate::{Effort, Result, files};

/// A repository's size: what it is called, how many files it has, how long they are on average, and how many
/// worktrees of it are made at once.
struct Size {
    name: &'static str,
    files: usize,
    bytes: usize,
    at_once: &'static [usize],
}

impl Size {
    /// Returns the most that a round writes: all worktrees of both systems, in blocks, and as much again for the rest.
    fn disk_bytes(&self) -> u64 {
        let worktree = self.files * (self.bytes * 2).next_multiple_of(4096);
        let worktrees = 2 * self.at_once.iter().sum::<usize>();
        (2 * worktree * (worktrees + 3)) as u64 + (1 << 30)
    }
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
    let mut is_own = true;
    for size in sizes(effort) {
        let source = source(&size)?;
        for round in 0..effort.rounds {
            let mut place = Place::make(source.path(), &size)?;
            is_own &= place.disk.is_own();
            for &at_once in size.at_once {
                place.measure(&size, at_once, round % 2 == 0, &mut board)?;
            }
            board.add(key(size.name, COLD, 1, "us/lock p99"), place.lock_p99_us()?);
            board.add(key(size.name, "sprag, remove", 1, "us/lock hold"), place.remove_all()?);
        }
        for &at_once in size.at_once {
            for system in [COLD, POOL] {
                board.compare(&key(size.name, system, at_once, UNIT), key(size.name, GIT, at_once, UNIT));
            }
        }
    }
    if !is_own {
        board
            .note("no file system of its own could be mounted: what others delete may slow either side down");
    }
    let Metrics { lock_wait, lock_hold, pool_hits, .. } = snapshot();
    board.note(format!(
        "lock held {} times: half of them at most {} us, the longest {:.1} ms; waited {:.1} ms at most; {pool_hits} from the pool",
        lock_hold.count,
        lock_hold.median_at_most_us,
        lock_hold.longest_us as f64 / 1000.0,
        lock_wait.longest_us as f64 / 1000.0
    ));
    Ok(board)
}

/// Two equal repositories, so that what one system registers does not slow the other down.
struct Place {
    /// All that were made, and how many names were given.
    made: Vec<Worktree>,
    names: usize,
    worktrees: Worktrees,
    theirs: PathBuf,
    disk: Disk,
}

/// Returns a repository to be cloned.
fn source(size: &Size) -> Result<TempDir> {
    let folder = files::scratch()?;
    let path = folder.path();
    git(path, &["init", "--quiet", "--initial-branch=main"])?;
    // It would go on in the background while others are measured.
    git(path, &["config", "gc.auto", "0"])?;
    git(path, &["config", "maintenance.auto", "false"])?;
    write_files(path, size)?;
    git(path, &["add", "--all"])?;
    let name = ["-c", "user.name=Bench", "-c", "user.email=bench@example.com"];
    git(path, &[&name[..], &["commit", "--quiet", "-mx"]].concat())?;
    git(path, &["gc", "--quiet"])?;
    Ok(folder)
}

impl Place {
    fn make(source: &Path, size: &Size) -> Result<Place> {
        let disk = Disk::make(size.disk_bytes())?;
        let source = source.to_str().ok_or("the folder's name is not UTF-8")?;
        for name in ["theirs", "ours"] {
            let quietly = ["--config", "gc.auto=0", "--config", "maintenance.auto=false"];
            git(
                disk.path(),
                &[&["clone", "--quiet", "--no-hardlinks"], &quietly[..], &[source, name]].concat(),
            )?;
        }
        let settings = Settings { pool_size: 50, ..Settings::default() };
        let repository = Repository::discover(&disk.path().join("ours"))?;
        let worktrees = Worktrees::open(repository, &disk.path().join("data"), settings)?;
        Ok(Place { made: Vec::new(), names: 0, worktrees, theirs: disk.path().join("theirs"), disk })
    }

    fn measure(&mut self, size: &Size, at_once: usize, git_first: bool, board: &mut Board) -> Result<()> {
        let mut add = |system, time: Duration| {
            eprintln!("{}, {at_once} at once, {system}: {:.0} ms", size.name, time.as_secs_f64() * 1000.0);
            board.add(key(size.name, system, at_once, UNIT), time.as_secs_f64() * 1000.0);
        };
        if git_first {
            add(GIT, self.git_adds(at_once)?);
        }
        let held_before = snapshot().lock_hold;
        let (time, made) = self.create(at_once, false)?;
        add(COLD, time);
        let held_us = held_since(held_before);
        if !git_first {
            add(GIT, self.git_adds(at_once)?);
        }
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
        self.made.extend(made);
        board.add(key(size.name, "sprag, create", at_once, "us/lock hold"), held_us);
        Ok(())
    }

    /// Takes all away; returns how long the lock was held for each.
    fn remove_all(&mut self) -> Result<f64> {
        let held_before = snapshot().lock_hold;
        for worktree in self.made.drain(..) {
            let removed = self.worktrees.remove(worktree, BranchPolicy::Delete, &Cancel::default())?;
            if !removed.leftovers.is_empty() || removed.salvaged.is_some() {
                return Err(format!("a worktree that nobody used left something: {removed:?}").into());
            }
        }
        Ok(held_since(held_before))
    }

    /// Creates the worktrees in sequence, because git itself fails when they are created at once.
    fn git_adds(&mut self, count: usize) -> Result<Duration> {
        let names: Vec<String> = (0..count).map(|_| self.next_name()).collect();
        self.disk.settle()?;
        let watch = Stopwatch::start();
        for name in &names {
            let path = self.disk.path().join(name);
            let path = path.to_str().ok_or("the folder's name is not UTF-8")?;
            git(&self.theirs, &["worktree", "add", "--quiet", "-b", name, path])?;
        }
        let time = watch.elapsed();
        // Git's own cost grows with what is registered: each round begins with nothing.
        for name in &names {
            std::fs::remove_dir_all(self.theirs.join(".git/worktrees").join(name))?;
            git(&self.theirs, &["branch", "--quiet", "-D", name])?;
        }
        Ok(time)
    }

    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("run{}", self.names)
    }

    fn create(&mut self, count: usize, use_pool: bool) -> Result<(Duration, Vec<Worktree>)> {
        let names: Vec<String> = (0..count).map(|_| self.next_name()).collect();
        self.disk.settle()?;
        let watch = Stopwatch::start();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = names
                .iter()
                .map(|name| {
                    let mut options = CreateOptions::new(name, name, name, "main");
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

/// Returns the average time that the repository's lock was held since then, in microseconds.
fn held_since(then: DurationStats) -> f64 {
    let now = snapshot().lock_hold;
    (now.total_us - then.total_us) as f64 / (now.count - then.count).max(1) as f64
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
