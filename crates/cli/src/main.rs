//! The `sprag` command: reads arguments, asks the library, shows the answer. It decides nothing itself.

mod args;
mod board_args;
mod commands;
mod context;
mod draw;
mod exit;
mod live;
mod show;
mod starter;
mod sub_args;
mod tails;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A step's supervisor is this program too; it must not start a runtime.
    if let Some(code) = sprag_process::run_if_supervisor() {
        return code;
    }
    let args = args::Args::parse();
    log_to_stderr(&args);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return exit::report(&exit::Failure::error(format!("cannot start: {error}")), args.json);
        }
    };
    let json = args.json;
    match runtime.block_on(commands::run(args)) {
        Ok(code) => code.into(),
        Err(failure) => exit::report(&failure, json),
    }
}

fn log_to_stderr(args: &args::Args) {
    // A server tells of its requests; everything else speaks up when something is wrong.
    let (least, json) = match &args.command {
        args::Command::Serve(serve) => (1, serve.log_json),
        _ => (0, false),
    };
    let level = ["error", "info", "debug"][usize::from(args.verbose.max(least).min(2))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPRAG_LOG")
        // What its broker does is told by the relay, once, and not at every attempt to reach it.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("{level},async_nats=off")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match json {
        true => builder.json().init(),
        false => builder.init(),
    }
}
