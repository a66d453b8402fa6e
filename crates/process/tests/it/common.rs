//! A folder, an order for a shell script, and bounded waits for other processes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use sprag_process::{Ended, LogEntry, LogReader, Order, Running, Stream, kill_orphans, spawn};
use tempfile::TempDir;

/// The bound of conditions that take milliseconds on an idle machine. Tests share the machine with compilers.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    folder: TempDir,
    run_id: String,
}

impl Bench {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let run_id = format!("test-{}-{count}", std::process::id());
        Bench { folder: tempfile::tempdir().expect("a folder"), run_id }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns an order for `sh -c script` in the bench's folder, with the markers of a step.
    pub(crate) fn order(&self, script: &str) -> Order {
        let mut order = Order::new(["sh", "-c", script], self.path("log"));
        order.dir = Some(self.folder.path().to_owned());
        order.grace_ms = 300;
        order.env.insert("SPRAG_RUN_ID".into(), self.run_id.clone());
        order.env.insert("SPRAG_STEP_ID".into(), "step".into());
        order
    }

    pub(crate) fn markers(&self) -> [(&str, &str); 2] {
        [("SPRAG_RUN_ID", &self.run_id), ("SPRAG_STEP_ID", "step")]
    }

    /// Runs a script to its end.
    pub(crate) async fn run(&self, script: &str) -> Ended {
        run(self.order(script)).await
    }

    /// Returns the process id that a script wrote to a file.
    pub(crate) async fn pid(&self, name: &str) -> i32 {
        let path = self.path(name);
        let read = || fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        eventually(&format!("{name} is written"), || read().is_some()).await;
        read().expect("it was there")
    }

    pub(crate) fn log(&self) -> Vec<LogEntry> {
        LogReader::new(self.path("log")).read_all().expect("a log")
    }

    /// Returns the output of one stream, with its pieces joined.
    pub(crate) fn text(&self, stream: Stream) -> String {
        let entries = self.log();
        let ends = |partial: bool| if partial { "" } else { "\n" };
        entries
            .iter()
            .filter(|e| e.stream == stream)
            .fold(String::new(), |text, entry| text + &entry.text + ends(entry.partial))
    }

    pub(crate) fn assert_no_process_is_left(&self) {
        let left = self.marked_processes();
        assert!(left.is_empty(), "{left:?}");
    }

    /// Returns the living processes that carry this bench's markers.
    pub(crate) fn marked_processes(&self) -> Vec<i32> {
        let marker = format!("SPRAG_RUN_ID={}", self.run_id);
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|&byte| byte == 0).any(|entry| entry == marker.as_bytes())
            })
            .filter(|&pid| is_running(pid))
            .collect()
    }
}

/// Kills the processes that a failed test leaves behind.
impl Drop for Bench {
    fn drop(&mut self) {
        let _ = kill_orphans(&self.markers(), None, Duration::ZERO, Duration::from_secs(5));
    }
}

pub(crate) fn supervisor() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sprag-process-supervisor"))
}

pub(crate) async fn start(order: Order) -> Running {
    spawn(order, supervisor()).await.expect("a supervisor")
}

pub(crate) async fn run(order: Order) -> Ended {
    wait(&mut start(order).await).await
}

pub(crate) async fn wait(running: &mut Running) -> Ended {
    tokio::time::timeout(SOON, running.wait()).await.expect("an end in time").expect("an end")
}

/// Returns whether a process exists and has not ended.
pub(crate) fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn signal(pid: i32, signal: i32) {
    assert!(pid > 1, "not a process of ours");
    // SAFETY: sends a signal to one process, which the test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "process {pid} is there");
}

/// Waits for a condition, with a bound.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let wait = async {
        while !condition() {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Returns whether this process runs one test alone. If not, runs that test in its own process.
///
/// A program that adopts processes kills all that it adopted, including those of other tests.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "SPRAG_TEST_ALONE";
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let this_program = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(this_program).args(["--exact", test]).env(ALONE, test).output();
    let output = output.expect("this program");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}
