//! A stand-alone supervisor, and a worker that can be killed, for this crate's tests.

use std::{io::Write, path::Path, process::ExitCode};

use sprag_process::{OnParentExit, Order, guard, run_if_supervisor, spawn};

fn main() -> ExitCode {
    if let Some(code) = run_if_supervisor() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", order] => hold(Path::new(order)),
        ["guard", script] => guarded(script),
        _ => {
            eprintln!("usage: sprag-process-supervisor hold ORDER.json | guard SCRIPT");
            ExitCode::from(2)
        }
    }
}

/// Runs the order in a file, prints the process it started, and waits.
fn hold(order: &Path) -> ExitCode {
    let program = std::env::current_exe().expect("this program");
    let order: Order = serde_json::from_slice(&std::fs::read(order).expect("an order")).expect("an order");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut running = spawn(order, &program).await.expect("a supervisor");
        let started = running.started().expect("a command");
        let mut out = std::io::stdout();
        writeln!(out, "{} {}", started.pid, running.supervisor_pid().unwrap_or(0)).expect("a reader");
        out.flush().expect("a reader");
        let ended = running.wait().await.expect("an end");
        ExitCode::from(ended.exit_code.unwrap_or(1) as u8)
    })
}

/// Runs a script with a guard, and waits.
fn guarded(script: &str) -> ExitCode {
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script]);
    guard(&mut command, OnParentExit::Stop);
    let status = command.status().expect("a shell");
    ExitCode::from(status.code().unwrap_or(1) as u8)
}
