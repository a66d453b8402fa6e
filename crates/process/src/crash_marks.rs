//! CrashMarks on disk the step whose templates this process renders. If rendering kills the process, its successors
//! count the death. After several deaths in a row they refuse to render this step.
//!
//! ```text
//!   DATA/reading/PID-START   one record for each rendering thread; locked while the process lives
//!   DATA/reading/deaths      the number of deaths, by step
//! ```
//!
//! A mark is a write to a file that stays in the page cache. It survives the process, and costs a microsecond.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::files::{make_private_folder, open_regular, private_options, read_regular, regular};
use crate::table::Stat;

/// The number of deaths in a row after which a step is no longer rendered.
const MAX_DEATHS: u32 = 3;
/// The most threads of one process that leave marks at the same time; further ones leave none.
const MAX_RECORDS: u32 = 64;
/// The length of a record, including its line end.
const RECORD_BYTES: usize = 128;
/// The longest file of marks or deaths that is read.
const MOST_BYTES: u64 = 1 << 20;
/// The most entries in the file of deaths.
const MAX_ENTRIES: usize = 1_000;

/// The crash marks of this process in one data directory.
#[derive(Debug)]
pub struct CrashMarks {
    folder: PathBuf,
    /// The number of deaths in a row, by step.
    deaths: Mutex<BTreeMap<String, u32>>,
    /// The file with this process's records, created with the first mark; `None` if that failed.
    own: OnceLock<Option<File>>,
    /// The records in use, one bit each.
    in_use: AtomicU64,
}

impl CrashMarks {
    /// Returns the crash marks of a data directory, after counting the deaths of processes that left a mark.
    pub fn of(data: &Path) -> Arc<CrashMarks> {
        static KNOWN: Mutex<Option<HashMap<PathBuf, Weak<CrashMarks>>>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(marks) = known.get(data).and_then(Weak::upgrade) {
            return marks;
        }
        let marks = Arc::new(CrashMarks {
            folder: data.join("reading"),
            deaths: Mutex::default(),
            own: OnceLock::new(),
            in_use: AtomicU64::new(0),
        });
        marks.count_deaths();
        known.insert(data.to_owned(), Arc::downgrade(&marks));
        marks
    }

    /// Runs `work` with a mark that names `what`. Returns an error if `what` has killed too many processes in a
    /// row.
    pub fn guarded<T>(&self, what: &str, work: impl FnOnce() -> T) -> Result<T, String> {
        let what: String = what.chars().filter(|c| !c.is_control()).take(RECORD_BYTES - 8).collect();
        let deaths = self.deaths().get(&what).copied().unwrap_or(0);
        if deaths >= MAX_DEATHS {
            return Err(format!(
                "rendering its templates has killed a process of Sprag {deaths} times in a row: not tried again"
            ));
        }
        let record = self.mark(&what);
        let done = work();
        if let Some(record) = record {
            self.clear(record);
        }
        if deaths > 0 {
            self.deaths().remove(&what);
            self.store_deaths();
        }
        Ok(done)
    }

    fn deaths(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.deaths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a mark; `None` if all records are in use or the write failed.
    fn mark(&self, what: &str) -> Option<u32> {
        let file = self.own.get_or_init(|| self.create_own().ok()).as_ref()?;
        let taken = self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
            let free = in_use.trailing_ones();
            (free < MAX_RECORDS).then(|| in_use | 1 << free)
        });
        let record = taken.ok()?.trailing_ones();
        let mut bytes = [b' '; RECORD_BYTES];
        let length = what.len().min(RECORD_BYTES - 1);
        bytes[..length].copy_from_slice(&what.as_bytes()[..length]);
        bytes[RECORD_BYTES - 1] = b'\n';
        let _ = file.write_at(&bytes, u64::from(record) * RECORD_BYTES as u64);
        Some(record)
    }

    fn clear(&self, record: u32) {
        if let Some(Some(file)) = self.own.get() {
            let mut bytes = [b' '; RECORD_BYTES];
            bytes[RECORD_BYTES - 1] = b'\n';
            let _ = file.write_at(&bytes, u64::from(record) * RECORD_BYTES as u64);
        }
        self.in_use.fetch_and(!(1 << record), Ordering::Relaxed);
    }

    fn create_own(&self) -> io::Result<File> {
        make_private_folder(&self.folder)?;
        let pid = std::process::id() as i32;
        let start = Stat::of(pid)?.map_or(0, |stat| stat.start_time);
        let path = self.folder.join(format!("{pid}-{start}"));
        let file = regular(private_options().create(true).truncate(true).write(true).open(path)?)?;
        file.lock()?;
        Ok(file)
    }

    /// Counts the marks of dead processes and removes them.
    fn count_deaths(&self) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        // The lock serialises the counting, so that each mark counts once.
        let lock = private_options().create(true).append(true).open(self.folder.join("deaths"));
        let Ok(lock) = lock.and_then(regular) else { return };
        if lock.lock().is_err() {
            return;
        }
        *self.deaths() = self.read_deaths();
        let mut found = false;
        for path in files.flatten().map(|entry| entry.path()) {
            let is_marks =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains('-'));
            let Ok(file) = open_regular(&path) else { continue };
            // A living process holds the lock of its file.
            if !is_marks || file.try_lock().is_err() {
                continue;
            }
            for what in text_of(&path).lines().map(str::trim) {
                if !what.is_empty() {
                    *self.deaths().entry(what.to_owned()).or_insert(0) += 1;
                    tracing::warn!(what, "a process died while it rendered the templates of this step");
                    found = true;
                }
            }
            let _ = fs::remove_file(&path);
        }
        if found {
            self.write_deaths();
        }
    }

    /// Writes the deaths after one entry was removed.
    fn store_deaths(&self) {
        if let Ok(lock) = private_options().append(true).open(self.folder.join("deaths"))
            && lock.lock().is_ok()
        {
            self.write_deaths();
        }
    }

    fn read_deaths(&self) -> BTreeMap<String, u32> {
        let text = text_of(&self.folder.join("deaths"));
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.filter_map(|(count, what)| Some((what.to_owned(), count.parse().ok()?))).collect()
    }

    /// Writes in place, because processes that wait for the lock have this very file open.
    fn write_deaths(&self) {
        let deaths = self.deaths();
        let lines: Vec<String> =
            deaths.iter().rev().take(MAX_ENTRIES).map(|(what, count)| format!("{count} {what}\n")).collect();
        if let Err(error) = fs::write(self.folder.join("deaths"), lines.concat()) {
            tracing::warn!(folder = %self.folder.display(), %error, "could not write the deaths of processes");
        }
    }
}

/// Removes the marks of a process that ends normally.
impl Drop for CrashMarks {
    fn drop(&mut self) {
        if let Some(Some(_)) = self.own.get()
            && let Ok(Some(stat)) = Stat::of(std::process::id() as i32)
        {
            let _ = fs::remove_file(self.folder.join(format!("{}-{}", stat.pid, stat.start_time)));
        }
    }
}

/// The text of a file that a process of ours has left; nothing if it cannot be read.
fn text_of(path: &Path) -> String {
    String::from_utf8_lossy(&read_regular(path, MOST_BYTES).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e03_three_deaths_in_a_row_stop_a_step_and_a_success_resets_the_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let reading = folder.path().join("reading");
        fs::create_dir_all(&reading).expect("a folder");
        // Three processes died while they rendered one step; in two of them another thread rendered a second
        // step.
        for pid in 0..3 {
            let second = if pid < 2 { "run2 b" } else { "" };
            fs::write(reading.join(format!("{pid}-1")), format!("run1 a   \n{second}  \n")).expect("a file");
        }
        let marks = CrashMarks::of(folder.path());
        let why = marks.guarded("run1 a", || ()).expect_err("it has killed three");
        assert!(why.contains("3 times in a row"), "{why}");
        assert_eq!(marks.guarded("run2 b", || 7), Ok(7));
        assert_eq!(marks.guarded("run3 c", || 8), Ok(8));
        drop(marks);
        assert!(!reading.join("0-1").exists());
        let marks = CrashMarks::of(folder.path());
        assert!(marks.guarded("run1 a", || ()).is_err(), "the next process knows it too");
        assert_eq!(fs::read_to_string(reading.join("deaths")).expect("a file"), "3 run1 a\n");
    }

    #[test]
    fn each_thread_has_its_own_mark() {
        let folder = tempfile::tempdir().expect("a folder");
        let marks = CrashMarks::of(folder.path());
        let inside = marks.guarded("outer", || {
            marks.guarded("inner", || {
                let own = fs::read_dir(folder.path().join("reading")).expect("a folder").flatten();
                let own =
                    own.map(|entry| fs::read_to_string(entry.path()).expect("a file")).collect::<String>();
                own.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
            })
        });
        assert_eq!(inside, Ok(Ok(vec!["outer".to_owned(), "inner".to_owned()])));
    }

    /// A process that aborts while it renders counts for its successors; the fourth one refuses to render.
    #[test]
    fn e03_a_process_that_dies_while_rendering_is_counted() {
        const FOLDER: &str = "SPRAG_TEST_MARKS";
        const NAME: &str = "crash_marks::tests::e03_a_process_that_dies_while_rendering_is_counted";
        if let Some(folder) = std::env::var_os(FOLDER) {
            let marks = CrashMarks::of(Path::new(&folder));
            assert_eq!(marks.guarded("run1 harmless", || 7), Ok(7));
            match marks.guarded("run1 a", || std::process::abort()) {
                Ok(()) => unreachable!("the process has aborted"),
                Err(why) => return println!("refused: {why}"),
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let run = || {
            let program = std::env::current_exe().expect("this program");
            let mut command = std::process::Command::new(program);
            command.args(["--exact", NAME, "--nocapture"]).env(FOLDER, folder.path());
            command.output().expect("it starts")
        };
        for _ in 0..MAX_DEATHS {
            let died = run();
            assert!(!died.status.success(), "{died:?}");
        }
        let refused = run();
        let output = String::from_utf8_lossy(&refused.stdout);
        assert!(refused.status.success() && output.contains("3 times in a row"), "{refused:?}");
        let deaths = fs::read_to_string(folder.path().join("reading/deaths")).expect("the deaths");
        assert_eq!(deaths, "3 run1 a\n", "what was read before is not counted");
    }
}
