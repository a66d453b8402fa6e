//! `sprag lifecycle` and `sprag doctor`: how things are meant to be, and how they are.

use serde_json::json;
use sprag::bus::{Address, Lack, examine};
use sprag_store::Row;

use crate::context::{Context, this_program};
use crate::exit::{Exit, Failure};
use crate::show::line;

pub(crate) fn lifecycle(entity: Option<&str>) -> Result<Exit, Failure> {
    let page = sprag_lifecycle::reference();
    let Some(entity) = entity else {
        line(page.trim_end());
        return Ok(Exit::Ok);
    };
    let section = page
        .split("\n## ")
        .find(|section| section.lines().next().is_some_and(|title| title.eq_ignore_ascii_case(entity)));
    match section {
        Some(section) => {
            line(&format!("## {}", section.trim_end()));
            Ok(Exit::Ok)
        }
        None => Err(Failure::usage(format!("{entity:?} has no lifecycle"))
            .next("one of: run, step, execution, environment, thread, gate, worker, enforcement")),
    }
}

struct Check {
    name: &'static str,
    ok: bool,
    told: String,
}

pub(crate) async fn doctor(context: &Context, bus: Option<&Address>) -> Result<Exit, Failure> {
    let mut checks = Vec::new();
    let store = match context.store() {
        Ok(store) => {
            checks.push(Check { name: "store", ok: true, told: format!("{} opens", context.place(&store)) });
            Some(store)
        }
        Err(failure) => {
            checks.push(Check { name: "store", ok: false, told: failure.message });
            None
        }
    };
    if let Some(store) = &store {
        let health = store.health();
        let told = health.as_ref().map_or_else(ToString::to_string, Clone::clone);
        // A server that could lose what it acknowledged is not well.
        let ok = health.is_ok_and(|told| !told.contains("LOOK:"));
        checks.push(Check { name: "database", ok, told });
        let (live, workers) = store.read(|db| Ok((db.live_runs(None, 10_000)?.len(), db.workers()?)))?;
        checks.push(Check { name: "runs", ok: true, told: format!("{live} live") });
        for worker in &workers {
            let gone = worker
                .process
                .parse()
                .is_ok_and(|id| sprag_process::is_alive(&id) == sprag_process::Liveness::Dead);
            let told =
                format!("{} ({}, {} slots, {})", worker.name, worker.queues, worker.slots, worker.status());
            let told = if gone {
                format!("{told}: its process is gone; any worker or resume clears it")
            } else {
                told
            };
            checks.push(Check { name: "worker", ok: !gone, told });
        }
    }
    checks.push(space(context));
    checks.push(supervisor(context).await);
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

/// The broker: which one, whether it keeps messages, and what it has of ours.
async fn broker(address: &Address) -> Vec<Check> {
    let examined = match examine(address).await {
        Ok(examined) => examined,
        Err(trouble) => {
            return vec![Check { name: "bus", ok: false, told: format!("{address}: {trouble}") }];
        }
    };
    let too_old = matches!(examined.streams, Err(Lack::TooOld));
    let old = if too_old { ": 2.9 or newer is needed" } else { "" };
    let told = format!("{address} is nats-server {}{old}", examined.version);
    let mut checks = vec![Check { name: "bus", ok: !too_old, told }];
    let lacking = match &examined.streams {
        Ok(_) | Err(Lack::TooOld) => None,
        Err(Lack::Off(why)) => Some(format!(
            "JetStream is not there: {why}; start the server with -js, or enable it for the account"
        )),
        Err(Lack::Refused(why)) => {
            Some(format!("this user may not do what is needed: {why}; docs/bus.md lists what it needs"))
        }
        Err(Lack::Mute(why)) => Some(format!("it does not answer as it should: {why}")),
    };
    checks.extend(lacking.map(|told| Check { name: "bus", ok: false, told }));
    let Ok(streams) = examined.streams else { return checks };
    checks.push(Check { name: "bus", ok: true, told: "JetStream is there".to_owned() });
    for stream in streams {
        let told = match stream.there {
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

fn space(context: &Context) -> Check {
    /// Less than this is worth a word.
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

/// Runs a command for real.
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
