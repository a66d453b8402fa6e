//! The `sprag` command: parses arguments, calls the library, and prints the answer. It decides nothing itself.

// First: its macros replace those of the standard library in all other modules.
#[macro_use]
mod stderr;

mod agent_args;
mod args;
mod board_args;
mod commands;
mod context;
mod draw;
mod exit;
mod help;
mod help_examples;
mod help_texts;
mod live;
mod own_server;
mod pager;
mod patience;
mod progress_line;
mod rule_args;
mod run_args;
mod settings;
mod show;
mod starter;
mod sub_args;
mod tails;

use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A step's supervisor is this program too; it must not start a runtime.
    if let Some(code) = sprag_process::run_if_supervisor() {
        return code;
    }
    if let Some(code) = commands::run_if_fake() {
        return code;
    }
    let args = match help::parse() {
        Ok(args) => args,
        Err(failure) => {
            let code = exit::report(&failure, std::env::args_os().any(|word| word == "--json"));
            stderr::flush();
            return code;
        }
    };
    // SAFETY: no thread was started before this.
    unsafe { sprag_process::take_environment() };
    // A run in the foreground belongs to its user, so its steps inherit the user's environment.
    match &args.command {
        args::Command::Serve(serve) => sprag_process::restrict_inheritance(serve.inherit.clone()),
        args::Command::Worker { inherit, .. } => sprag_process::restrict_inheritance(inherit.clone()),
        _ => {}
    }
    log_to_stderr(&args);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let code = exit::report(&exit::Failure::error(format!("cannot start: {error}")), args.json);
            stderr::flush();
            return code;
        }
    };
    let json = args.json;
    let code = match runtime.block_on(commands::run(args)) {
        Ok(code) => code.into(),
        Err(failure) => exit::report(&failure, json),
    };
    stderr::flush();
    code
}

fn log_to_stderr(args: &args::Args) {
    // A server logs its requests. All other commands log only errors.
    let (least, json) = match &args.command {
        args::Command::Serve(serve) => (1, serve.log_json),
        _ => (0, false),
    };
    if matches!(
        args.command,
        args::Command::Serve(_) | args::Command::Worker { .. } | args::Command::Mcp { .. }
    ) {
        stderr::write_in_background();
    }
    let level = ["error", "info", "debug"][usize::from(args.verbose.max(least).min(2))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPRAG_LOG")
        // The relay logs the state of its broker once, not at every attempt to connect.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("{level},async_nats=off")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr::LogWriter)
        // The writer never fails; if it did, the subscriber would panic while it reports that.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    if json {
        builder.json().init();
    } else {
        builder.init();
    }
}
