//! Runs the tests of the workspace. A few tests that fail are run once more, alone, and named as flaky if they pass then.
//!
//! Some tests race real processes against each other on a machine that may be busy. One of hundreds that fails once is a
//! finding to look into, and no reason to stop everything else. A test that fails twice is.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

/// The most failed tests that are run once more. More failures have a common cause.
const MOST_RETRIED: usize = 3;

/// The number of tests that run in parallel in each test program. Most tests wait for processes, disks and databases, so
/// two cores are idle half of the time with two of them.
const TEST_THREADS: &str = "4";

/// The results of a test run, as far as its output shows them.
#[derive(Debug, Default, PartialEq)]
struct Report {
    /// The names of the tests that failed.
    failed: Vec<String>,
    /// The number of failed tests, by the closing lines of the test programs.
    counted: usize,
    /// The number of test programs whose closing line reports failures.
    programs: usize,
    /// The number of test programs that failed, by cargo's count. It includes those that were killed.
    targets: usize,
    lists_failures: bool,
}

impl Report {
    fn read(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.lists_failures && name.contains("::") && !name.contains(' ') => {
                self.failed.push(name.to_owned());
            }
            _ => self.lists_failures = line == "failures:",
        }
        if let Some(rest) = line.strip_prefix("test result: FAILED.") {
            self.programs += 1;
            let failed = rest.split(';').find_map(|part| part.trim().strip_suffix(" failed"));
            self.counted += failed.and_then(|count| count.parse::<usize>().ok()).unwrap_or(usize::MAX / 2);
        }
        self.targets += usize::from(line.starts_with("error: test failed, to rerun pass"));
    }

    /// Whether every failure is a named test of a program that ran to its end, and there are few of them.
    fn is_retriable(&self) -> bool {
        (1..=MOST_RETRIED).contains(&self.failed.len())
            && self.failed.len() == self.counted
            && self.programs == self.targets
    }
}

/// Runs all tests, and those that failed once more.
pub fn run(root: &Path, env: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--quiet", "--workspace", "--no-fail-fast"]);
    command.current_dir(root).envs(env.iter().copied());
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", TEST_THREADS);
    }
    eprintln!("── {command:?}");
    let failed = |error: std::io::Error| format!("cargo test: {error}");
    let (output, writer) = std::io::pipe().map_err(failed)?;
    let mut child =
        command.stdout(writer.try_clone().map_err(failed)?).stderr(writer).spawn().map_err(failed)?;
    // The command holds the pipe's other end, which would stay open.
    drop(command);
    let mut report = Report::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        report.read(&line);
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    if !report.is_retriable() {
        return Err(format!("the tests failed: {status}; {}", report.failed.join(", ")));
    }
    println!("\nrunning what failed once more: {}", report.failed.join(", "));
    let again = ["test", "--quiet", "--workspace", "--no-fail-fast", "--", "--exact", "--test-threads=1"];
    crate::cargo(again.into_iter().chain(report.failed.iter().map(String::as_str)), env)?;
    println!("\nFLAKY, failed once and passed alone: {}", report.failed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut report = Report::default();
        text.lines().for_each(|line| report.read(line));
        report
    }

    const ONE: &str = "failures:\n\n---- a::b stdout ----\n    at x::y\n\nfailures:\n    a::b\n\n\
                       test result: FAILED. 5 passed; 1 failed; 0 ignored\n\
                       error: test failed, to rerun pass `-p x --test it`\n";

    #[test]
    fn one_failed_test_is_run_again() {
        let report = read(ONE);
        assert_eq!(report.failed, ["a::b"]);
        assert!(report.is_retriable());
    }

    #[test]
    fn a_killed_program_an_unnamed_failure_or_many_failures_are_final() {
        let killed = format!("{ONE}error: test failed, to rerun pass `-p y --lib`\n");
        let unnamed = ONE.replace("    a::b\n\n", "    a page (line 3)\n\n");
        let many = ONE
            .replace("    a::b\n", "    a::b\n    a::c\n    a::d\n    a::e\n")
            .replace("1 failed", "4 failed");
        for text in [killed, unnamed, many, "error: could not compile".to_owned()] {
            assert!(!read(&text).is_retriable(), "{text}");
        }
    }
}
