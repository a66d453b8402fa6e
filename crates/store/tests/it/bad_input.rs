//! Defective files, disks and clocks: typed errors name the file and the
//! remedy, and nothing is lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::check::check;
use crate::common::child::{self, Part};
use crate::common::*;
use rusqlite::Connection;
use sprag_lifecycle::RunId;
use sprag_store::testing::RawStore;
use sprag_store::{Clock, Entropy, Error, FILE_NAME, Manual, SCHEMA_VERSION, SqliteOptions, Store, System};
use tokio::task::JoinSet;

#[test]
fn child_role() {
    let Some(Part { role, folder, .. }) = child::part() else { return };
    match role.as_str() {
        "open" => {
            child::ready();
            let store = Store::open(&folder).unwrap();
            runtime().block_on(create(&store, &sequence(1)));
        }
        other => panic!("no role {other}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn open_error(folder: &Path) -> Error {
    Store::open(folder).err().expect("it cannot be opened")
}

/// Asserts that the error's text contains all of these.
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Returns a folder whose store was used and closed, so that all is in the one file.
fn used_store() -> (tempfile::TempDir, PathBuf, RunId) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let run = runtime().block_on(async {
        let run = create(&store, &sequence(2)).await;
        for _ in 0..200 {
            create(&store, &sequence(3)).await;
        }
        run
    });
    drop(store);
    let file = folder.path().join(FILE_NAME);
    (folder, file, run)
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for below in [file.join("data"), file.clone(), PathBuf::from("/proc/self/data")] {
        let error = open_error(&below);
        assert!(matches!(error, Error::Open { .. }), "{error:?}");
        says(&error, &["cannot open", path(&below)]);
    }
}

/// A small file system of its own; gone when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    /// Mounts it. Returns none, and prints the reason, if mounting is not allowed.
    fn mount(size: &str) -> Option<Disk> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "sprag-test"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Disk(folder)),
            other => {
                println!("skipped: no file system can be mounted here: {other:?}");
                None
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn make_read_only(&self) {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap();
        assert!(done.success());
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Leaves this much room.
    fn fill_up_to(&self, free_kib: usize) {
        let stat = rustix::fs::statvfs(self.0.path()).unwrap();
        let free = (stat.f_bavail * stat.f_frsize) as usize;
        std::fs::write(self.ballast(), vec![0u8; free.saturating_sub(free_kib * 1024)]).unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    /// Deletes everything, and waits until the last store has closed its files: until then they take up space.
    fn clear(&self) {
        let _ = std::fs::remove_dir_all(self.data());
        let is_in_use = || {
            let stat = rustix::fs::statvfs(self.0.path()).unwrap();
            stat.f_bavail + 8 < stat.f_blocks
        };
        for _ in 0..6_000 {
            if !is_in_use() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        panic!("the last store keeps its files open");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_read_only_folder_is_named() {
    let Some(disk) = Disk::mount("2m") else { return };
    disk.make_read_only();
    let error = open_error(&disk.data());
    assert!(matches!(error, Error::Open { .. }), "{error:?}");
    says(&error, &["cannot open", path(&disk.data()), "Read-only file system"]);
}

#[test]
fn a_file_that_became_read_only_is_named() {
    let Some(disk) = Disk::mount("2m") else { return };
    drop(Store::open(&disk.data()).unwrap());
    disk.make_read_only();
    let error = open_error(&disk.data());
    assert!(matches!(error, Error::Open { .. }), "{error:?}");
    says(&error, &["cannot open", path(&disk.data().join(FILE_NAME))]);
}

/// Creates, claims and finishes runs until the disk is full. Returns the acknowledged runs and the error.
async fn work_until_full(store: &Store) -> (Vec<RunId>, Error) {
    const MOST: usize = 2_000;
    let mut answered = Vec::new();
    for _ in 0..MOST {
        let made = store.person().create_run(store.person().new_run(sequence(2))).await;
        match made {
            Ok(sprag_store::Created::New(run)) => answered.push(run),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return (answered, error),
        }
        let got = match store.claims().claim(claimer(1), 1).await {
            Ok(got) => got,
            Err(error) => return (answered, error),
        };
        for held in got {
            if let Err(error) = store.worker(held.lease).finish(well(), None).await {
                return (answered, error);
            }
        }
    }
    panic!("the disk was never full");
}

fn expect_full(error: &Error, data: &Path) {
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    says(error, &["no space left", path(data), "free some space"]);
}

#[test]
fn a_full_disk_stops_writes_at_any_moment_and_loses_nothing() {
    let Some(disk) = Disk::mount("4m") else { return };
    let data = disk.data();
    let file = data.join(FILE_NAME);
    for free_kib in (0..400).step_by(4) {
        disk.clear();
        let store = Store::open(&data).unwrap();
        runtime().block_on(async {
            disk.fill_up_to(free_kib);
            let (answered, error) = work_until_full(&store).await;
            expect_full(&error, &file);
            let again = store.person().cancel_run(RunId::from_i64(1)).await;
            assert!(again.is_ok(), "what writes nothing needs no space");
            check(&store, 0);
            disk.free();
            let run = create(&store, &sequence(1)).await;
            for run in answered.into_iter().chain([run]) {
                assert_ne!(status(&store, run), "queued");
            }
            let held = store.claims().claim(claimer(1), 1).await.unwrap();
            assert!(finish(&store, &held[0], well()).await.outcome.is_applied(), "everything goes on");
            check(&store, 0);
        });
    }
}

#[test]
fn a_disk_that_is_full_while_opening_leaves_a_file_that_opens_later() {
    let Some(disk) = Disk::mount("2m") else { return };
    let (data, mut failed) = (disk.data(), 0);
    for free_kib in (0..240).step_by(4) {
        disk.clear();
        disk.fill_up_to(free_kib);
        if let Err(error) = Store::open(&data) {
            expect_full(&error, &data);
            failed += 1;
        }
        disk.free();
        let store = Store::open(&data).unwrap();
        runtime().block_on(create(&store, &sequence(1)));
    }
    assert!(failed > 10, "{failed} openings failed");
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_stays_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE_NAME);
    let garbage = vec![b'g'; 10_000];
    std::fs::write(&file, &garbage).unwrap();
    let error = open_error(folder.path());
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    says(&error, &[path(&file), "damaged or not a Sprag database", "move it aside or restore a backup"]);
    assert_eq!(std::fs::read(&file).unwrap(), garbage);
}

#[test]
fn another_programs_database_is_refused_and_left_alone() {
    for version in [-1, 0, SCHEMA_VERSION, SCHEMA_VERSION + 1] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        let conn = Connection::open(&file).unwrap();
        conn.execute_batch(&format!("CREATE TABLE theirs (x); PRAGMA user_version = {version}")).unwrap();
        drop(conn);
        let before = std::fs::read(&file).unwrap();
        let error = open_error(folder.path());
        assert!(matches!(error, Error::Corrupt { .. }), "version {version}: {error:?}");
        says(&error, &[path(&file), "another program", "nothing was changed"]);
        assert_eq!(std::fs::read(&file).unwrap(), before, "version {version}: not a byte was changed");
    }
}

#[test]
fn a_newer_file_is_refused_and_left_alone() {
    let (folder, file, _) = used_store();
    let newer = SCHEMA_VERSION + 1;
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch(&format!("PRAGMA user_version = {newer}")).unwrap();
    drop(conn);
    let before = std::fs::read(&file).unwrap();
    let error = open_error(folder.path());
    assert!(matches!(error, Error::Newer { found, .. } if found == newer), "{error:?}");
    says(&error, &[path(&file), &format!("schema version {newer}"), "use the sprag that wrote it", "--data"]);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn an_older_empty_file_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE_NAME);
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch("PRAGMA user_version = 1; PRAGMA user_version = 0; VACUUM").unwrap();
    drop(conn);
    let store = Store::open(folder.path()).unwrap();
    runtime().block_on(create(&store, &sequence(1)));
    let version: i64 = Connection::open(&file)
        .unwrap()
        .query_row("PRAGMA user_version", [], |columns| columns.get(0))
        .unwrap();
    assert_eq!(version, SCHEMA_VERSION);
}

#[test]
fn processes_that_open_a_new_file_at_once_all_succeed() {
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        child::start_together(6, "bad_input::open", folder.path())
            .into_iter()
            .for_each(|child| drop(child.end()));
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(look(&store, |db| db.live_runs(None, 100)).len(), 6);
        check(&store, 0);
    }
}

#[test]
fn a_damaged_page_is_reported_and_not_overwritten() {
    const PAGE: usize = 4096;
    let (folder, file, _) = used_store();
    let whole = std::fs::read(&file).unwrap();
    let mut told = 0;
    for page in 1..whole.len() / PAGE {
        let mut damaged = whole.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(0xff);
        std::fs::write(&file, &damaged).unwrap();
        let looked = Store::open(folder.path()).and_then(|store| {
            store.read(|db| {
                db.journal(0, None, 1_000_000)?;
                for run in db.runs(None, &[], 1_000)? {
                    db.journal(0, Some(run.id), 1_000_000)?;
                    db.steps(run.id)?;
                    db.executions(run.id)?;
                    db.with_effects(&[run.id])?;
                }
                db.forgotten(None, 1_000)?;
                db.half_forgotten(1_000)?;
                db.store_id()?;
                db.hooks()?;
                db.tokens()?;
                db.queues()?;
                db.boards(true, 10)?;
                db.outbox_due(i64::MAX, 1_000)?;
                db.environments(true)?;
                db.workers()?;
                db.timers_due(i64::MAX, 1_000)?;
                db.crowded_groups()?;
                db.accounts()?;
                db.rules()?;
                db.rule_called("none")?;
                db.next_tick()?;
                db.deliveries(None, 1_000)?;
                db.delivery_called(1, "none")?;
                db.next_enforcement()?;
                db.enforcements_by(1, 1_000)?;
                db.live_runs(None, 1_000)?;
                db.claimable("default", 0, 1_000)
            })
        });
        if let Err(error) = looked {
            assert!(matches!(error, Error::Corrupt { .. }), "page {page}: {error:?}");
            says(&error, &[path(&file), "damaged", "restore a backup"]);
            told += 1;
        }
    }
    let pages = whole.len() / PAGE - 1;
    println!("{told} of {pages} damaged pages were met");
    assert!(told * 2 > pages, "{told} of {pages}");
}

fn impatient(folder: &Path, busy_ms: u64) -> sprag_store::Result<Store> {
    let options = SqliteOptions { busy_timeout: Duration::from_millis(busy_ms), ..SqliteOptions::default() };
    Store::open_with(folder, options, Arc::new(System), Arc::new(System))
}

fn expect_locked(error: &Error, file: &Path, busy_ms: u64, took_ms: i64) {
    let Error::Locked { waited_ms, .. } = error else { panic!("{error:?}") };
    assert!(*waited_ms >= busy_ms && *waited_ms as i64 <= took_ms, "{waited_ms} of {took_ms} ms");
    let us = format!("was locked by process {} (", std::process::id());
    says(error, &[path(file), &us, &format!("for {waited_ms} ms"), "nothing was written", "sprag doctor"]);
    assert!(took_ms < busy_ms as i64 * 2 + 500, "given up after {took_ms} ms");
}

#[test]
fn a_locked_file_is_waited_for_until_the_deadline_by_all_at_once() {
    const BUSY_MS: u64 = 300;
    let (folder, file, _) = used_store();
    let store = impatient(folder.path(), BUSY_MS).unwrap();
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    runtime().block_on(async {
        let since_ms = System.boot_ms();
        let mut callers = JoinSet::new();
        for _ in 0..32 {
            let store = store.clone();
            callers.spawn(async move {
                (store.claims().claim(claimer(1), 1).await.map(drop), System.boot_ms() - since_ms)
            });
        }
        for (answer, took_ms) in callers.join_all().await {
            expect_locked(&answer.unwrap_err(), &file, BUSY_MS, took_ms);
        }
        assert!(!look(&store, |db| db.live_runs(None, 10)).is_empty(), "readers are not in the way");
        other.execute_batch("ROLLBACK").unwrap();
        assert_eq!(store.claims().claim(claimer(1), 1).await.unwrap().len(), 1);
    });
}

#[test]
fn opening_a_new_file_waits_for_a_lock_until_the_deadline() {
    const BUSY_MS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE_NAME);
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let since_ms = System.boot_ms();
    let error = impatient(folder.path(), BUSY_MS).err().unwrap();
    expect_locked(&error, &file, BUSY_MS, System.boot_ms() - since_ms);
    other.execute_batch("ROLLBACK").unwrap();
    drop(impatient(folder.path(), BUSY_MS).unwrap());
}

#[test]
fn p07_an_unknown_status_is_reported_with_its_row_and_blocks_no_other_run() {
    let (folder, file, run) = used_store();
    let store = Store::open(folder.path()).unwrap();
    for (table, entity) in
        [("runs WHERE id", "run"), ("steps WHERE run", "step"), ("executions WHERE run", "execution")]
    {
        let (table, condition) = table.split_once(' ').unwrap();
        let set = |status: &str| {
            Connection::open(&file)
                .unwrap()
                .execute(&format!("UPDATE {table} SET status = ?2 {condition} = ?1"), (run.to_i64(), status))
                .unwrap()
        };
        let was: String = Connection::open(&file)
            .unwrap()
            .query_row(&format!("SELECT status FROM {table} {condition} = ?1"), [run.to_i64()], |r| r.get(0))
            .unwrap();
        set("paused");
        runtime().block_on(async {
            let before = look(&store, |db| db.last_seq());
            let error = store.executor().heal_run(run).await.unwrap_err();
            assert!(matches!(&error, Error::UnknownWord { entity: e, .. } if *e == entity), "{error:?}");
            says(&error, &[entity, &run.to_i64().to_string(), "unknown status \"paused\"", "newer sprag"]);
            assert_eq!(look(&store, |db| db.last_seq()), before, "nothing was changed");
            let got = store.claims().claim(claimer(1), 5).await.unwrap();
            let others: Vec<_> = got.iter().filter(|one| one.lease.execution.run != run).collect();
            assert!(!others.is_empty(), "other runs go on");
            for held in others {
                assert!(finish(&store, held, well()).await.outcome.is_applied());
            }
            let listed = store.read(|db| db.live_runs(None, 1_000)).unwrap();
            assert!(listed.len() >= 200, "the others are listed");
        });
        set(&was);
    }
    runtime().block_on(store.executor().heal_run(run)).unwrap();
}

/// A wall clock that a test can set, beside a boot clock that continues.
struct Jumping {
    wall_ms: AtomicI64,
    boot_ms: AtomicI64,
}

impl Jumping {
    fn pass(&self, ms: i64, jump_ms: i64) {
        self.boot_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms.fetch_add(ms + jump_ms, Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn boot_ms(&self) -> i64 {
        self.boot_ms.load(Ordering::SeqCst)
    }
}

#[test]
fn a_wall_clock_that_jumps_expires_no_lease_and_disorders_nothing() {
    const HOUR_MS: i64 = 3_600_000;
    const LEASE_MS: i64 = 60_000;
    let clock = Arc::new(Jumping { wall_ms: 1_800_000_000_000.into(), boot_ms: 5_000.into() });
    let folder = tempfile::tempdir().unwrap();
    let chance: Arc<dyn Entropy> = Arc::new(Manual::new(0, 1));
    let open = || {
        Store::open_with(folder.path(), SqliteOptions::simulated(), clock.clone(), Arc::clone(&chance))
            .unwrap()
    };
    let store = open();
    runtime().block_on(async {
        create(&store, &graph(&[&[]], |_| tries(2))).await;
        let held = claim(&store, 1).await;
        for jump_ms in [HOUR_MS, -HOUR_MS, -HOUR_MS, HOUR_MS, 24 * HOUR_MS] {
            clock.pass(LEASE_MS / 6, jump_ms);
            // A process that opens the file after the jump agrees with one that had it open before.
            let late = open();
            assert_eq!(late.now().steady_ms, store.now().steady_ms);
            let now_ms = store.now().steady_ms;
            assert!(look(&late, |db| db.lapsed(now_ms, 10)).is_empty());
            assert!(!late.reaper().expire(held.lease).await.unwrap().is_applied(), "the lease is live");
            create(&store, &sequence(1)).await;
        }
        clock.pass(LEASE_MS / 6, -HOUR_MS);
        assert!(store.reaper().expire(held.lease).await.unwrap().is_applied(), "and lapses in time");
        check(&store, 0);
    });
}

/// The machine starts with a wrong clock, which is set right while it runs; then it starts again.
#[test]
fn i17_a_clock_that_was_wrong_at_the_start_makes_no_wait_longer() {
    const DAY_MS: i64 = 86_400_000;
    const WAIT_MS: i64 = 20_000;
    for wrong_ms in [DAY_MS, -DAY_MS] {
        let right_ms = 1_800_000_000_000;
        let clock = Arc::new(Jumping { wall_ms: (right_ms + wrong_ms).into(), boot_ms: 5_000.into() });
        let folder = tempfile::tempdir().unwrap();
        let chance: Arc<dyn Entropy> = Arc::new(Manual::new(0, 1));
        let open = || {
            let options = SqliteOptions::simulated();
            Store::open_with(folder.path(), options, clock.clone(), Arc::clone(&chance)).unwrap()
        };
        let store = open();
        let due_ms = runtime().block_on(async {
            create(&store, &sequence(1)).await;
            clock.pass(120_000, -wrong_ms);
            create(&store, &sequence(1)).await;
            store.now().steady_ms + WAIT_MS
        });
        drop(store);
        // As after another boot of the machine: the anchor belongs to a boot that no process remembers.
        let file = Connection::open(folder.path().join(sprag_store::FILE_NAME)).unwrap();
        file.execute("UPDATE meta SET value = '0 another-start' WHERE name = 'clock'", []).unwrap();
        drop(file);
        clock.boot_ms.store(1_000, Ordering::SeqCst);
        clock.wall_ms.fetch_add(5_000, Ordering::SeqCst);
        let left_ms = due_ms - open().now().steady_ms;
        assert!((0..=WAIT_MS).contains(&left_ms), "a wait of {WAIT_MS} ms has {left_ms} ms left");
    }
}

/// A newer program changes the schema while this one has the file open.
#[test]
fn a_schema_that_became_newer_is_seen_before_anything_is_written_or_read() {
    let (folder, file, _) = used_store();
    let store = Store::open(folder.path()).unwrap();
    let entries = || -> i64 {
        let conn = Connection::open(&file).unwrap();
        conn.query_row("SELECT max(last_seq) FROM journal_packs", [], |columns| columns.get(0)).unwrap()
    };
    runtime().block_on(async {
        create(&store, &sequence(1)).await;
        let newer = sprag_store::SCHEMA_VERSION + 1;
        let before = entries();
        Connection::open(&file).unwrap().pragma_update(None, "user_version", newer).unwrap();
        let refused = store.person().create_run(store.person().new_run(sequence(1))).await.unwrap_err();
        assert!(matches!(refused, Error::Newer { found, .. } if found == newer), "{refused:?}");
        let refused = store.read(|db| db.live_runs(None, 10)).unwrap_err();
        assert!(matches!(refused, Error::Newer { .. }), "{refused:?}");
        assert_eq!(entries(), before, "nothing was written");
        Connection::open(&file)
            .unwrap()
            .pragma_update(None, "user_version", sprag_store::SCHEMA_VERSION)
            .unwrap();
        create(&store, &sequence(1)).await;
    });
}
