//! Processes as the kernel shows them: their environment, their children, and whether they run.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Running processes that were started with `NAME=value` in their environment.
pub fn carrying(name: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{name}={value}").into_bytes();
    let carries = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted)
    };
    all().into_iter().filter(|pid| is_running(*pid) && carries(pid)).collect()
}

/// Returns the running children of a process.
pub fn children(parent: i32) -> Vec<i32> {
    let is_child =
        |pid: &i32| stat(*pid).and_then(|stat| stat.split(' ').nth(1)?.parse().ok()) == Some(parent);
    all().into_iter().filter(|pid| is_running(*pid) && is_child(pid)).collect()
}

/// Returns the command line of a process.
pub fn command_line(pid: i32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns the most memory that a process has had so far, in MiB.
pub fn peak_mib(pid: i32) -> u64 {
    let told = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let peak = told.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its largest size");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// Returns whether a process exists and has not ended.
pub fn is_running(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// Sends a signal to one process. Returns whether it existed.
pub fn signal(pid: i32, signal: Signal) -> bool {
    assert!(pid > 1, "{pid} is no process of a test");
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// `/proc/PID/stat` after the name, which may hold anything: state, parent, …
fn stat(pid: i32) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
