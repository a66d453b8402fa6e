//! One file per command.

mod account;
mod agent;
mod ask;
mod audit;
mod board;
mod board_source;
mod config;
mod diff;
mod do_it;
mod dry;
mod elsewhere;
mod env;
mod events;
mod explain;
mod fork;
mod gates;
mod gc;
mod given_event;
mod graph;
mod hook;
mod init;
mod inputs;
mod logs;
mod ls;
mod machine;
mod manual;
mod mcp;
mod open_page;
mod pipelines;
mod questions;
mod queue;
mod rule;
mod run;
mod serve;
mod server;
mod source;
mod status;
mod steps;
mod task;
mod thread;
mod token;
mod trust;
mod validate;
mod wait;
mod watch;
mod worker;

pub(crate) use agent::run_if_fake;
use clap::CommandFactory;
use sprag_app::bus::{Address, AddressError};
use sprag_app::{RunLabels, parse_labels};
use sprag_pipeline::Diagnostics;

use crate::args::{Answer, Args, Command, WorkerCommand};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::show::{Style, contents, line};

/// Executes the command of the command line.
pub(crate) async fn run(args: Args) -> Result<Exit, Failure> {
    let context = Context::new(&args)?;
    if let Some(exit) = server::at_server(&context, &args.command).await? {
        return Ok(exit);
    }
    match args.command {
        Command::Run { file: None, .. } => pipelines::list(&context, ""),
        Command::Run {
            file: Some(file),
            pairs,
            inputs,
            dry,
            detach,
            idempotency_key,
            name,
            labels,
            priority,
            steps,
            slots,
            lease,
            bus,
            agents,
            ..
        } => {
            let (lease, bus) = (worker::lease(&lease)?, broker(bus)?);
            let labels = parse_labels(labels.iter().map(String::as_str))?;
            let labels = RunLabels { name, labels };
            let selection = steps.selection();
            let fake_agents = agents.is_some();
            let options = run::Options {
                dry,
                detach,
                idempotency_key,
                labels,
                priority,
                selection,
                slots,
                lease,
                bus,
                fake_agents,
                dir: pipelines::project_of(&file),
            };
            let given = inputs::RawInputs { pairs: &pairs, all: inputs.as_deref() };
            run::start(&context, &pipelines::find(&file)?, given, options).await
        }
        Command::Retry { run, step: Some(step), now: true, detach, .. } => {
            steps::retry_now(&context, run.as_deref(), &step, detach).await
        }
        Command::Skip { run, step, detach, .. } => steps::skip(&context, &run, &step, detach).await,
        Command::Retry { run, step, detach, .. } => {
            run::retry(&context, run.as_deref(), step.as_deref(), detach).await
        }
        Command::Resume { run, detach, .. } => run::resume(&context, run.as_deref(), detach).await,
        Command::Cancel { run, .. } => run::cancel(&context, &run).await,
        Command::Approve { run, step, answer, .. } => {
            gates::answer(&context, gate_answer(&run, step.as_deref(), &answer, true)).await
        }
        Command::Reject { run, step, answer, .. } => {
            gates::answer(&context, gate_answer(&run, step.as_deref(), &answer, false)).await
        }
        Command::Signal { run, name, payload, detach, .. } => {
            gates::signal(&context, &run, &name, payload.as_deref(), detach).await
        }
        Command::Rewind { run, to, detach, .. } => {
            run::retry(&context, run.as_deref(), Some(&to), detach).await
        }
        Command::Fork { run, from, detach, idempotency_key, .. } => {
            fork::fork(&context, run.as_deref(), &from, idempotency_key.as_deref(), detach).await
        }
        Command::Board(board) => board::board(&context, &board).await,
        Command::Mcp { step: true, .. } => mcp::step().await,
        Command::Mcp { server, token, .. } => mcp::mcp(&context, server.as_deref(), token).await,
        Command::Task(task) => task::task(&context, &task).await,
        Command::Env { command } => env::env(&context, &command).await,
        Command::Gc { keep, dry_run } => gc::gc(&context, &keep, dry_run).await,
        Command::Diff { run, steps, stat, no_pager, .. } => {
            let options = diff::Options { stat, pager: !no_pager };
            diff::diff(&context, run.as_deref(), steps.as_deref(), options)
        }
        Command::Ls { options, .. } => ls::ls(&context, &options),
        Command::Status { run, .. } => status::status(&context, run.as_deref()),
        Command::Logs { run, step, options, .. } => {
            logs::logs(&context, run.as_deref(), step.as_deref(), &options).await
        }
        Command::Watch { run: Some(run), .. } => watch::one(&context, &run).await,
        Command::Watch { run: None, .. } => watch::all(&context).await,
        Command::Questions { .. } => questions::questions(&context),
        Command::Wait { run, timeout, .. } => wait::wait(&context, run.as_deref(), timeout.as_deref()).await,
        Command::Worker { command: Some(WorkerCommand::Ls { at }), .. } => worker::ls(&context, &at).await,
        Command::Worker {
            command: None,
            queues,
            labels,
            slots,
            name,
            until_idle,
            lease,
            dispatch_deadline,
            bus,
            inherit: _,
            server,
            token,
            unsent_logs,
        } => {
            let (lease, bus) = (worker::lease(&lease)?, broker(bus)?);
            let deadline = worker::dispatch_deadline(&dispatch_deadline)?;
            let options = worker::Options { queues, labels, slots, name, until_idle, lease, deadline, bus };
            match server {
                Some(server) => {
                    let most_unsent = elsewhere::unsent_logs(&unsent_logs)?;
                    elsewhere::worker(&context, options, &server, token, most_unsent).await
                }
                None => worker::worker(&context, options).await,
            }
        }
        Command::Serve(options) => serve::serve(&context, options).await,
        Command::Audit(args) => audit::audit(&context, &args).await,
        Command::Token { command } => token::token(&context, &command).await,
        Command::Hook { command } => hook::hook(&context, command).await,
        Command::Account(account) => account::account(&context, &account).await,
        Command::Thread(thread) => thread::thread(&context, &thread).await,
        Command::Rule(rule) => rule::rule(&context, rule).await,
        Command::Delivery(delivery) => rule::delivery(&context, delivery).await,
        Command::Queue(queue) => queue::queue(&context, &queue).await,
        Command::Events { run, since, follow, tail, .. } => {
            events::events(&context, run.as_deref(), since, follow, tail).await
        }
        Command::Explain { run, .. } => explain::explain(&context, run.as_deref()).await,
        Command::Validate { files, strict } => {
            let files = files.iter().map(|file| pipelines::find(file)).collect::<Result<Vec<_>, _>>()?;
            validate::validate(&context, &files, strict)
        }
        Command::Init { name, force, stdout, agents } => {
            init::init(&context, name.as_deref(), &init::Options { force, stdout, agents })
        }
        Command::Do { task, agent, check, yes, agents } => {
            let task = do_it::Task { text: task, agent, check, yes };
            let options = run::Options {
                dry: false,
                detach: false,
                idempotency_key: None,
                labels: RunLabels::default(),
                priority: 0,
                selection: sprag_pipeline::Selection::default(),
                slots: None,
                lease: worker::lease("30s")?,
                bus: None,
                fake_agents: agents.is_some(),
                dir: None,
            };
            do_it::do_it(&context, task, options).await
        }
        Command::Graph { what, format, .. } => graph::graph(&context, what.as_deref(), format),
        Command::Schema => {
            line(&format!("{:#}", sprag_pipeline::schema()));
            Ok(Exit::Ok)
        }
        Command::Lifecycle { entity } => machine::lifecycle(&context, entity.as_deref()),
        Command::Trust { remove } => trust::trust(&context, remove),
        Command::Doctor { bus } => machine::doctor(&context, broker(bus)?.as_ref()).await,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "sprag", &mut script);
            contents(&String::from_utf8_lossy(&script));
            Ok(Exit::Ok)
        }
        Command::Manual { folder } => manual::manual(&context, &folder),
        Command::Config => {
            let (data, store) = (args.data, args.store);
            let given = config::Given { data, store, color: args.color, no_input: args.no_input };
            config::config(&context, &given)
        }
        Command::Agent { command } => agent::agent(&context, command),
    }
}

fn gate_answer<'a>(
    run: &'a str,
    step: Option<&'a str>,
    answer: &'a Answer,
    approved: bool,
) -> gates::Answer<'a> {
    let Answer { choice, comment, fields, detach } = answer;
    gates::Answer {
        run,
        step,
        choice: choice.as_deref(),
        comment: comment.as_deref(),
        fields,
        approved,
        detach: *detach,
    }
}

/// Returns a file's problems as a rendered report.
pub(crate) fn drawn(problems: &Diagnostics) -> Failure {
    let message = problems.render(Style::stderr().coloured());
    let diagnostics = Some(Box::new(problems.clone()));
    Failure { exit: Exit::Usage, message, next: None, drawn: true, diagnostics }
}

/// Parses a broker's address. It is not parsed with the other arguments, because their error message would show its
/// password.
fn broker(bus: Option<String>) -> Result<Option<Address>, Failure> {
    let read =
        |url: String| url.parse().map_err(|error: AddressError| Failure::usage(format!("--bus: {error}")));
    bus.filter(|url| !url.is_empty()).map(read).transpose()
}
