//! `sprag lifecycle` and `sprag doctor`: the rules of the lifecycles, and the state of this machine.

use std::time::Duration;

use serde_json::json;
use sprag_app::bus::{Address, Unusable, examine};
use sprag_app::hooks::HookTarget;
use sprag_app::retention::Leftovers;
use sprag_app::{App, Environments, HookRow, Row};

use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::show::{counted, line, plain};

pub(crate) fn lifecycle(context: &Context, entity: Option<&str>) -> Result<Exit, Failure> {
    let page = sprag_lifecycle::reference();
    let show = |name: &str, text: &str| {
        if context.json {
            line(&json!({ "entity": name, "markdown": text }).to_string());
        } else {
            line(text);
        }
    };
    let Some(entity) = entity else {
        show("all", page.trim_end());
        return Ok(Exit::Ok);
    };
    let section = page
        .split("\n## ")
        .find(|section| section.lines().next().is_some_and(|title| title.eq_ignore_ascii_case(entity)));
    match section {
        Some(section) => {
            show(&entity.to_lowercase(), &format!("## {}", section.trim_end()));
            Ok(Exit::Ok)
        }
        None => Err(Failure::usage(format!("{entity:?} has no lifecycle"))
            .next("one of: run, step, execution, environment, thread, gate, worker, rule, enforcement")),
    }
}

struct Check {
    name: &'static str,
    ok: bool,
    told: String,
}

pub(crate) async fn doctor(context: &Context, bus: Option<&Address>) -> Result<Exit, Failure> {
    let mut checks = Vec::new();
    let app = match context.app() {
        Ok(app) => {
            checks.push(Check { name: "store", ok: true, told: format!("{} opens", context.place(&app)) });
            Some(app)
        }
        Err(failure) => {
            checks.push(Check { name: "store", ok: false, told: failure.message });
            None
        }
    };
    if let Some(app) = &app {
        let health = app.health();
        let told = health.as_ref().map_or_else(ToString::to_string, Clone::clone);
        // A server that could lose acknowledged data is not healthy.
        let ok = health.is_ok_and(|told| !told.contains("LOOK:"));
        checks.push(Check { name: "database", ok, told });
        checks.extend(stuck_lock(app).await);
        let (live, workers) = (app.live_runs(10_000)?.len(), app.workers()?);
        checks.push(Check { name: "runs", ok: true, told: format!("{live} live") });
        checks.extend(leftovers(app)?);
        checks.extend(unencrypted_hooks(app)?);
        checks.extend(hooks(app)?);
        for worker in &workers {
            let gone = worker
                .process
                .parse()
                .is_ok_and(|id| sprag_process::is_alive(&id) == sprag_process::Liveness::Dead);
            let slots = if worker.slots > 0 { format!("{} slots", worker.slots) } else { "a claimer".into() };
            let (name, queues) = (plain(&worker.name), plain(&worker.queues));
            let told = format!("{name} ({queues}, {slots}, {})", worker.status());
            let told = if gone {
                format!("{told}: its process is gone; any worker or resume clears it")
            } else {
                told
            };
            checks.push(Check { name: "worker", ok: !gone, told });
        }
    }
    if let Some(app) = &app {
        checks.extend(checkouts(app));
    }
    checks.push(privacy(context));
    checks.push(space(context));
    checks.push(supervisor(context).await);
    checks.push(containment());
    checks.push(sandboxes());
    checks.extend(agents().await);
    if let Some(bus) = bus {
        checks.extend(broker(bus).await);
    }
    let healthy = checks.iter().all(|check| check.ok);
    if context.json {
        let list: Vec<_> = checks
            .iter()
            .map(|check| json!({ "check": check.name, "ok": check.ok, "message": check.told }))
            .collect();
        line(&json!({ "healthy": healthy, "checks": list }).to_string());
    } else {
        for check in &checks {
            let sign = if check.ok { context.style.green("✓") } else { context.style.red("✗") };
            line(&format!("{sign} {:<11} {}", check.name, check.told));
        }
    }
    Ok(if healthy { Exit::Ok } else { Exit::Error })
}

/// Warns about webhooks that leave this machine over plain HTTP.
fn unencrypted_hooks(app: &App) -> Result<Vec<Check>, Failure> {
    let is_open = |url: &str| {
        HookTarget::parse(url).is_ok_and(|target| !target.is_encrypted && !target.is_on_this_machine())
    };
    let hooks = app.hooks()?.into_iter().filter(|hook| is_open(&hook.url));
    let warn = |url: &str| {
        let told = format!("LOOK: {} is not encrypted: its messages cross the network in clear", plain(url));
        Check { name: "webhook", ok: true, told }
    };
    Ok(hooks.map(|hook| warn(&hook.url)).collect())
}

/// Reports the coding agents of this machine. A missing one or a missing login is no fault of Sprag's.
async fn agents() -> Vec<Check> {
    let states = match sprag_app::agent_states().await {
        Ok(states) => states,
        Err(error) => return vec![Check { name: "agents", ok: false, told: error.to_string() }],
    };
    let (installed, others): (Vec<_>, Vec<_>) = states.into_iter().partition(|state| state.is_installed);
    let mut checks: Vec<Check> = installed
        .into_iter()
        .map(|state| Check {
            name: "agent",
            ok: true,
            told: format!("{} {}", state.name, plain(&state.text)),
        })
        .collect();
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|state| state.name.as_str()).collect();
        checks.push(Check { name: "agents", ok: true, told: format!("not installed: {}", names.join(", ")) });
    }
    checks
}

/// Reports the mechanism that keeps a step's processes together when its supervisor is killed.
fn containment() -> Check {
    let told = match sprag_process::cgroup_support() {
        Ok(folder) => format!("each step has a cgroup of its own below {}", folder.display()),
        Err(why) => format!(
            "steps have no cgroup ({why}): a process that clears its environment outlives a step that kills its \
             supervisor and its worker; `Delegate=yes` in a systemd unit gives them one"
        ),
    };
    Check { name: "processes", ok: true, told }
}

/// Reports whether the bounds that pipelines give their steps can be enforced here.
fn sandboxes() -> Check {
    let told = match (sprag_process::sandbox_support(), sprag_process::missing_limits().as_slice()) {
        (Err(why), _) => format!("steps with `sandbox` do not start here: {why}"),
        (Ok(()), []) => "files, network, memory, processors and processes of steps can be bounded".to_owned(),
        (Ok(()), missing) => format!(
            "files and network of steps can be bounded, but not {}; `Delegate=yes` in a systemd unit helps",
            missing.join("; not ")
        ),
    };
    Check { name: "sandbox", ok: true, told }
}

/// Checks whether a process holds the write lock of the database for longer than any transaction of Sprag needs.
async fn stuck_lock(app: &App) -> Option<Check> {
    /// The time for which the lock is watched.
    const WATCHED: Duration = Duration::from_secs(1);
    /// The number of looks in that time. A process that writes a lot frees the lock between two looks.
    const LOOKS: u32 = 20;
    let holder = app.lock_holder()?;
    for _ in 0..LOOKS {
        app.pause(WATCHED / LOOKS).await;
        if app.lock_holder().as_ref() != Some(&holder) {
            return None;
        }
    }
    let told = format!(
        "{holder} holds the write lock of the database: nothing can be written until it ends its transaction"
    );
    Some(Check { name: "lock", ok: false, told })
}

/// Checks for remaining rows of forgotten runs; none if there are none.
fn leftovers(app: &App) -> Result<Option<Check>, Failure> {
    let Leftovers { half_forgotten, strays } = app.leftovers()?;
    let told = match (half_forgotten, strays.runs.len(), strays.shared) {
        (0, 0, _) => return Ok(None),
        (0, folders, true) => format!(
            "{} of runs that this store does not have; another store may have them, so they stay",
            counted(folders, "folder")
        ),
        (runs, folders, _) => format!(
            "{} half forgotten, {} of runs that the store does not have: `sprag gc` removes what is left",
            counted(runs, "run"),
            counted(folders, "folder")
        ),
    };
    Ok(Some(Check { name: "leftovers", ok: true, told }))
}

/// Checks the webhooks: parked ones are no longer sent, and those of no server wait for one.
fn hooks(app: &App) -> Result<Vec<Check>, Failure> {
    let now_ms = app.now().steady_ms;
    let check = |hook: &HookRow| {
        let url = plain(&hook.url);
        let error = hook.error.as_deref().map(plain).unwrap_or_default();
        let told = match (&hook.parked, hook.failures) {
            (Some(why), _) => {
                format!("{url} is parked: {}; try it again: sprag hook retry {}", plain(why), hook.id)
            }
            (None, failures @ 1..) => {
                format!("{url} has failed {}: {error}", counted(failures as usize, "time"))
            }
            (None, 0) if hook.lease_until_ms < now_ms => format!("{url} waits for a `sprag serve`"),
            (None, 0) => return None,
        };
        Some(Check { name: "webhook", ok: hook.parked.is_none(), told })
    };
    Ok(app.hooks()?.iter().filter(|hook| !hook.is_relay()).filter_map(check).collect())
}

/// Checks the broker: its identity, whether it keeps messages, and Sprag's streams on it.
async fn broker(address: &Address) -> Vec<Check> {
    let examined = match examine(address).await {
        Ok(examined) => examined,
        Err(trouble) => {
            return vec![Check { name: "bus", ok: false, told: format!("{address}: {trouble}") }];
        }
    };
    let too_old = matches!(examined.streams, Err(Unusable::TooOld));
    let old = if too_old { ": 2.9 or newer is needed" } else { "" };
    let told = format!("{address} is nats-server {}{old}", examined.version);
    let mut checks = vec![Check { name: "bus", ok: !too_old, told }];
    let lacking = match &examined.streams {
        Ok(_) | Err(Unusable::TooOld) => None,
        Err(Unusable::JetStreamOff(why)) => Some(format!(
            "JetStream is not there: {why}; start the server with -js, or enable it for the account"
        )),
        Err(Unusable::Denied(why)) => {
            Some(format!("this user may not do what is needed: {why}; docs/bus.md lists what it needs"))
        }
        Err(Unusable::NoAnswer(why)) => Some(format!("it does not answer as it should: {why}")),
    };
    checks.extend(lacking.map(|told| Check { name: "bus", ok: false, told }));
    let Ok(streams) = examined.streams else { return checks };
    checks.push(Check { name: "bus", ok: true, told: "JetStream is there".to_owned() });
    for stream in streams {
        let told = match stream.state {
            None => format!("stream {} is not made yet", stream.name),
            Some(there) => format!(
                "stream {}: replicas {}, {} messages in {} KiB, {} consumers",
                stream.name,
                there.replicas,
                there.messages,
                there.bytes / 1024,
                there.consumers
            ),
        };
        checks.push(Check { name: "bus", ok: true, told });
    }
    checks
}

/// Checks for checkouts of people's repositories that a landing left unfinished, or that are behind their branch.
fn checkouts(app: &App) -> Vec<Check> {
    let keeper = Environments::new(app, app.new_id());
    match keeper.checkouts_out_of_order() {
        Ok(found) => found
            .into_iter()
            .map(|one| {
                let told = format!("{}: {}; to repair it: {}", one.checkout.display(), one.why, one.repair);
                Check { name: "checkout", ok: false, told }
            })
            .collect(),
        Err(error) => vec![Check { name: "checkout", ok: false, told: error.message }],
    }
}

/// Checks whether other users of the machine are kept out of the data directory.
fn privacy(context: &Context) -> Check {
    let mut wrong = sprag_app::openings(&context.data);
    if let Err(error) = sprag_server::read_local_token(&context.data) {
        wrong.push(error.to_string());
    }
    let told = if wrong.is_empty() {
        format!("only this user can look into {}", context.data.display())
    } else {
        format!("{}; remedy: chmod -R go= {}", wrong.join("; "), context.data.display())
    };
    Check { name: "privacy", ok: wrong.is_empty(), told }
}

fn space(context: &Context) -> Check {
    /// The free space below which the check warns, in MiB.
    const LITTLE_MIB: u64 = 256;
    let folder = context.data.ancestors().find(|folder| folder.exists()).unwrap_or(&context.data);
    match rustix::fs::statvfs(folder) {
        Ok(stat) => {
            let free_mib = stat.f_bavail * stat.f_frsize / (1 << 20);
            Check { name: "disk", ok: free_mib >= LITTLE_MIB, told: format!("{free_mib} MiB free") }
        }
        Err(error) => Check { name: "disk", ok: false, told: format!("{}: {error}", folder.display()) },
    }
}

/// Checks the supervisor by running a command with it.
async fn supervisor(context: &Context) -> Check {
    let tried = async {
        let log = context.data.join("doctor.log");
        let order = sprag_process::Order::new(["true"], &log);
        let mut running = sprag_process::spawn(order, &this_program().map_err(|f| f.message)?)
            .await
            .map_err(|error| error.to_string())?;
        let ended = running.wait().await.map_err(|error| error.to_string())?;
        let _ = std::fs::remove_file(&log);
        if ended.success() {
            Ok(ended.usage.wall_ms)
        } else {
            Err(format!("`true` ended with {:?}", ended.reason))
        }
    };
    match tried.await {
        Ok(ms) => Check { name: "commands", ok: true, told: format!("run under a supervisor ({ms} ms)") },
        Err(told) => Check { name: "commands", ok: false, told },
    }
}
