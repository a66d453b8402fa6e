//! `sprag serve`: the HTTP API, the executor and a worker in one process.

use std::path::Path;

use sprag_app::rules::RuleOutcome;
use sprag_app::{App, Engine};
use sprag_server::{Auth, Options, Server, StartError, local_token_file};
use sprag_tls::Certificate;
use tokio::signal::unix::{SignalKind, signal};

use super::open_page::open_page;
use super::wait::parse_time;
use super::worker::{dispatch_deadline, drain, lease};
use crate::args::{Serve, Shown};
use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::show::{Style, line, plain};

pub(crate) async fn serve(context: &Context, wanted: Serve) -> Result<Exit, Failure> {
    if wanted.slots == Some(0) {
        return Err(Failure::usage("--slots must be at least 1"));
    }
    super::worker::check_labels(&wanted.labels)?;
    let options = options(context, &wanted)?;
    let auth = options.auth;
    raise_open_files();
    let _ = sprag_process::become_subreaper();
    let app = context.app()?;
    if let Some(project) = options.project.as_deref().filter(|_| wanted.apply_rules) {
        apply_rules(&app, project).await?;
    }
    let mut builder = Engine::builder(&context.data)
        .app(app.clone())
        .commands(this_program()?)
        .fake_agent(this_program()?)
        .step_tools(sprag_mcp::LocalStepTools::new(&app))
        .name(format!("serve-{}", std::process::id()))
        .lease(lease(&wanted.lease)?)
        .dispatch_deadline(dispatch_deadline(&wanted.dispatch_deadline)?)
        .queues(wanted.queues.iter().map(String::as_str))
        .labels(wanted.labels.iter().map(String::as_str));
    if let Some(slots) = wanted.slots {
        builder = builder.slots(slots);
    }
    if let Some(bus) = super::broker(wanted.bus.clone())? {
        builder = builder.bus(bus);
    }
    if wanted.no_worker {
        builder = builder.without_worker();
    }
    // The handlers are installed first, so that an early signal is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let engine = builder.start().await?;
    let pulse = engine.pulse();
    let server = match Server::start(app, options, move || pulse.is_felt()).await {
        Ok(server) => server,
        Err(error) => {
            drain(engine, std::future::pending()).await?;
            return Err(not_started(&error));
        }
    };
    tell(context, &server, auth);
    if wanted.open
        && let Err(why) = open_page(&context.data, &server, auth)
    {
        eprintln!("{why}");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    eprintln!("Finishing requests and running steps. Press Ctrl-C again to stop them.");
    let hurry = server.hurrier();
    let again = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = hurry.send(true);
    };
    let mut again = std::pin::pin!(again);
    let mut shutdown = std::pin::pin!(server.shutdown());
    let mut impatient = false;
    tokio::select! {
        () = &mut shutdown => {}
        () = &mut again => {
            impatient = true;
            shutdown.await;
        }
    }
    if impatient {
        drain(engine, std::future::ready(())).await?
    } else {
        drain(engine, again).await?
    }
    Ok(Exit::Ok)
}

/// Applies the rules of all pipelines of a project. A file with an error is told of, and keeps no other from being
/// applied.
async fn apply_rules(app: &App, project: &Path) -> Result<(), Failure> {
    for file in sprag_server::pipeline_files(project) {
        let loaded = match sprag_pipeline::load_within(&file, project) {
            Ok(loaded) => loaded,
            Err(problems) => {
                eprintln!("{}", problems.render(Style::stderr().coloured()));
                eprintln!("The rules of {} stay as they were.", file.display());
                continue;
            }
        };
        let shown = file.display().to_string();
        for rule in app.apply_rules_by_itself(&loaded.pipeline, &shown, project).await? {
            match rule.outcome {
                RuleOutcome::Unchanged => {}
                RuleOutcome::StaysRetired => eprintln!(
                    "rule {} stays retired; bring it back: sprag rule apply {}",
                    plain(&rule.name),
                    plain(&shown)
                ),
                outcome => eprintln!("rule {}: {}", plain(&rule.name), outcome.as_str()),
            }
        }
    }
    for (rule, file) in app.rules_without_file()? {
        eprintln!(
            "rule {}: {} is gone; remove it: sprag rule rm {}",
            plain(&rule),
            plain(&file),
            plain(&rule)
        );
    }
    Ok(())
}

/// Raises the limit of open files. Every connection is a file, and the usual limit suits programs that wait with
/// `select`.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn options(context: &Context, wanted: &Serve) -> Result<Options, Failure> {
    let mut options = Options::new(wanted.listen);
    options.auth = match wanted.auth {
        Shown::Token => Auth::Token,
        Shown::None => Auth::None,
    };
    if let (Some(certificate), Some(key)) = (&wanted.tls_cert, &wanted.tls_key) {
        let loaded = Certificate::load(certificate, key);
        options.certificate = Some(loaded.map_err(|error| Failure::usage(error.to_string()))?);
    }
    options.outgoing = context.connector();
    options.in_listen = wanted.in_listen;
    options.allow_hosts = wanted.allow_host.clone();
    options.rate_limit = wanted.rate_limit;
    options.body_limit = wanted.body_limit;
    options.private_hooks = wanted.allow_private_hooks;
    options.program = Some(this_program()?);
    options.hook_tries = wanted.hook_tries.max(1);
    options.has_worker = !wanted.no_worker;
    options.connections = wanted.connections.max(1);
    options.idle_timeout = parse_time("--idle-timeout", &wanted.idle_timeout)?;
    if let Some(project) = &wanted.project {
        let found = std::fs::canonicalize(project)
            .map_err(|error| Failure::usage(format!("--project {}: {error}", project.display())))?;
        options.project = Some(found);
    }
    Ok(options)
}

fn not_started(error: &StartError) -> Failure {
    let failure = Failure::error(error.to_string());
    match error {
        StartError::Listen { .. } => failure.next("choose another address with --listen or --in-listen"),
        StartError::Open(_) => failure.next("leave out --auth none, and have callers show a token"),
        StartError::LocalToken(_) | StartError::Store(_) => failure,
    }
}

fn tell(context: &Context, server: &Server, auth: Auth) {
    if context.json {
        let mut told = serde_json::json!({ "type": "listening", "url": server.url() });
        if let Some(url) = server.in_url() {
            told["in_url"] = url.into();
        }
        line(&told.to_string());
    } else {
        line(&format!("listening on {}", server.url()));
        if let Some(url) = server.in_url() {
            line(&format!("webhooks at {url}"));
        }
    }
    if server.is_open_to_listeners() {
        eprintln!(
            "LOOK: tokens cross the network unencrypted: use --tls-cert and --tls-key, or a proxy that adds https"
        );
    }
    match auth {
        Auth::Token => {
            eprintln!("requests need a token; yours is in {}", local_token_file(&context.data).display())
        }
        Auth::None => {
            eprintln!("LOOK: --auth none: every user of this machine may do everything with this server")
        }
    }
}
