//! Runs a service: starts its command, tells the steps when it is ready, and stops it on request.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_pipeline::{LogPattern, Ready, ServiceSpec, StepSpec};
use sprag_process::{Ended as ProcessEnded, LineJoiner, LogReader, Order, Reason, Running, Stream};
use sprag_store::{Assignment, Ending};
use tokio::net::TcpStream;

use super::{Commands, Work, failed, guard_until_ms};
use crate::control::{Control, Signal, pause};
use crate::environment::RunEnvironment;
use crate::services::Enlisted;
use crate::slots::Ended;

/// The pause between two tests of a service.
const TEST_EVERY: Duration = Duration::from_millis(100);
/// The pause between two commands that test a service.
const COMMAND_EVERY: Duration = Duration::from_millis(500);
/// The longest time that one connection or one command of a test may take.
const TEST_WITHIN: Duration = Duration::from_secs(10);
/// The most entries of a log that are read at once.
const ENTRIES: usize = 1_000;

/// The reason why a service is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// Its run does not need it any more, or a person skips it.
    Asked,
    /// It did not become ready in time.
    NotReady,
    /// Its worker is draining and no step here uses it.
    Draining,
}

impl Commands {
    /// Runs a service until it is asked to stop or ends by itself. The texts of `spec` must be filled in already.
    pub(crate) async fn serve(
        &self,
        assignment: &Assignment,
        spec: &StepSpec,
        service: &ServiceSpec,
        mut control: Control,
    ) -> Ended {
        match control.now() {
            Signal::Renewed { .. } => {}
            Signal::Cancel => return stopped(),
            Signal::Lost => return Ended::Lost,
        }
        // Before the environment is entered, which may take long: the steps wait for a service that is known.
        let enlisted = self.services.enlist(assignment.lease);
        let entered = match self.enter(assignment, spec, &control).await {
            Ok(entered) => entered,
            Err(ended) => return ended,
        };
        let place = match entered {
            Some(entered) => {
                let due = self.prepare(assignment, spec, &entered.place, &mut control).await;
                let place = std::sync::Arc::clone(&entered.place);
                // A service does not count as a user of the worktree: steps could then never restore its files.
                entered.leave().await;
                if let Err(ended) = due {
                    return ended;
                }
                Some(place)
            }
            None => None,
        };
        let ended = self.serve_in(assignment, enlisted, spec, service, place.as_deref(), &mut control).await;
        self.open_up(assignment, spec, place.as_deref(), &control, ended).await
    }

    async fn serve_in(
        &self,
        assignment: &Assignment,
        enlisted: Enlisted,
        spec: &StepSpec,
        service: &ServiceSpec,
        place: Option<&RunEnvironment>,
        control: &mut Control,
    ) -> Ended {
        let could_not_start =
            |message: String| failed(&json!({ "reason": "could_not_start", "message": message }), true);
        let id = assignment.lease.execution;
        let ports = match enlisted.reserve(all_ports(assignment), self.files.data()).await {
            Ok(ports) => ports,
            Err(message) => return could_not_start(message),
        };
        let (mut order, places) = match self.order(assignment, spec, place, control) {
            Ok(order) => order,
            Err(message) => return could_not_start(message),
        };
        order.env.extend(ports);
        order.timeout_ms = None;
        let running = match self.start(order.clone(), assignment).await {
            Ok(running) => running,
            Err(message) => return could_not_start(message),
        };
        let work = Work { commands: self, assignment, order: &order, places: &places };
        let (ended, stop) = self.watch(running, &work, service, &enlisted, control).await;
        drop(enlisted);
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                tracing::error!(execution = %id, %error, "could not see the end of the process tree");
                return Ended::Lost;
            }
        };
        judge(&work, &ended, stop, service, control.now())
    }

    /// Waits for the end of a service, and meanwhile for its readiness and for requests to stop.
    async fn watch(
        &self,
        mut running: Running,
        work: &Work<'_>,
        service: &ServiceSpec,
        enlisted: &Enlisted,
        control: &mut Control,
    ) -> (Result<ProcessEnded, sprag_process::Error>, Option<Stopped>) {
        let run = work.assignment.lease.execution.run;
        let mut draining = control.clone();
        let mut unneeded = std::pin::pin!(async {
            draining.draining().await;
            self.services.unused(run).await;
        });
        let mut test = std::pin::pin!(self.wait_until_ready(work, service, control.clone()));
        let mut too_late = std::pin::pin!(pause(Duration::from_millis(service.ready_within_ms)));
        let mut is_ready = false;
        let mut stop = None;
        let mut killed = false;
        loop {
            let told = tokio::select! {
                ended = running.wait() => return (ended, stop),
                () = &mut test, if !is_ready && stop.is_none() => {
                    is_ready = true;
                    enlisted.is_ready();
                    self.note(work.assignment, "the service is ready");
                    Ok(())
                }
                () = &mut too_late, if !is_ready && stop.is_none() => {
                    stop = Some(Stopped::NotReady);
                    running.cancel()
                }
                () = &mut unneeded, if stop.is_none() => {
                    stop = Some(Stopped::Draining);
                    running.cancel()
                }
                signal = control.next(), if !killed => match signal {
                    Signal::Renewed { until_ms } => running.renew(guard_until_ms(until_ms)),
                    Signal::Cancel => {
                        stop = Some(Stopped::Asked);
                        running.cancel()
                    }
                    Signal::Lost => {
                        killed = true;
                        running.kill()
                    }
                },
            };
            if let Err(error) = told {
                let execution = work.assignment.lease.execution;
                tracing::warn!(%execution, %error, "sending a message to the supervisor failed");
            }
        }
    }

    /// Appends a remark to the log of a service.
    fn note(&self, assignment: &Assignment, remark: &str) {
        let log = self.files.log(assignment.lease.execution, &assignment.name);
        if let Err(error) = sprag_process::append_notes(&log, &[remark.to_owned()]) {
            tracing::warn!(log = %log.display(), %error, "writing to a step's log failed");
        }
    }

    /// Repeats the test of a service until it passes.
    async fn wait_until_ready(&self, work: &Work<'_>, service: &ServiceSpec, control: Control) {
        match &service.ready {
            None => {}
            Some(Ready::Port(port)) => {
                let variable = format!("SPRAG_PORT_{}", port.to_uppercase());
                let number = work.order.env.get(&variable).unwrap_or(port).parse().unwrap_or(0);
                while !accepts(number).await {
                    pause(TEST_EVERY).await;
                }
            }
            Some(Ready::Log(pattern)) => match LogPattern::new(pattern) {
                Ok(pattern) => wait_for_line(&work.order.log, &pattern).await,
                // The loader has checked it.
                Err(_) => std::future::pending().await,
            },
            Some(Ready::Run(kind)) => {
                let name = format!("_ready-{}", work.assignment.name);
                let mut order = work.order.clone();
                order.argv = kind.argv().unwrap_or_default();
                order.log = self.files.log(work.assignment.lease.execution, &name);
                // The lock belongs to the processes of the service itself.
                order.owner_lock = None;
                order.timeout_ms = Some(TEST_WITHIN.as_millis() as u64);
                while !self.succeeds(order.clone(), &control).await {
                    pause(COMMAND_EVERY).await;
                }
            }
        }
    }

    /// Runs a command that tests a service. Dropping this ends the command: its supervisor sees that its parent is gone.
    async fn succeeds(&self, mut order: Order, control: &Control) -> bool {
        let Signal::Renewed { until_ms } = control.now() else { return false };
        order.lease_until_ms = Some(guard_until_ms(until_ms));
        let Ok(mut running) = sprag_process::spawn(order, &self.supervisor).await else { return false };
        running.wait().await.is_ok_and(|ended| ended.success())
    }
}

/// Returns the names of the ports of all services of the run.
fn all_ports(assignment: &Assignment) -> Vec<String> {
    let mut names = BTreeSet::new();
    for no in assignment.plan.services() {
        let spec = serde_json::from_str::<StepSpec>(&assignment.plan.step(*no).spec).ok();
        names.extend(spec.and_then(|spec| spec.service).into_iter().flat_map(|service| service.ports));
    }
    names.into_iter().collect()
}

/// Returns whether a port of this machine accepts connections.
async fn accepts(port: u16) -> bool {
    let addresses =
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    for address in addresses {
        if let Ok(Ok(_)) = tokio::time::timeout(TEST_WITHIN, TcpStream::connect(address)).await {
            return true;
        }
    }
    false
}

/// Waits until a line of a log fits a pattern.
async fn wait_for_line(log: &std::path::Path, pattern: &LogPattern) {
    let mut reader = LogReader::new(log);
    let mut joiner = LineJoiner::default();
    loop {
        let entries = reader.read(ENTRIES).unwrap_or_default();
        let is_all = entries.len() < ENTRIES;
        let lines = entries.into_iter().filter(|entry| entry.stream != Stream::Note);
        if lines.filter_map(|entry| joiner.add(entry)).any(|line| pattern.fits(&line.text)) {
            return;
        }
        if is_all {
            pause(TEST_EVERY).await;
        } else {
            // A service that prints without end must not keep its watcher from its other duties.
            tokio::task::yield_now().await;
        }
    }
}

/// Returns the report about a service that has ended.
fn judge(
    work: &Work<'_>,
    ended: &ProcessEnded,
    stop: Option<Stopped>,
    service: &ServiceSpec,
    signal: Signal,
) -> Ended {
    let because = |reason: &str, message: String, retriable: bool| {
        let mut facts: Value = work.facts(ended, None);
        facts["reason"] = reason.into();
        facts["message"] = message.into();
        failed(&facts, retriable)
    };
    match (&ended.reason, stop) {
        _ if signal == Signal::Lost => Ended::Lost,
        (Reason::LeaseLost | Reason::ParentGone, _) => Ended::Lost,
        (_, Some(Stopped::Asked)) => stopped(),
        (_, Some(Stopped::Draining)) => Ended::Returned,
        (Reason::CouldNotStart { .. }, _) => failed(&work.facts(ended, None), false),
        (_, Some(Stopped::NotReady)) => {
            let seconds = service.ready_within_ms as f64 / 1_000.0;
            because("not_ready", format!("the service was not ready within {seconds} s"), true)
        }
        (Reason::Signalled | Reason::SupervisorLost, _) => Ended::Vanished,
        (Reason::MemoryLimit, _) => failed(&work.facts(ended, None), true),
        _ => {
            let code =
                ended.exit_code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            because("service_ended", format!("the service ended by itself with {code}"), true)
        }
    }
}

/// Returns the report about a service that was stopped on request: it has done its work.
fn stopped() -> Ended {
    Ended::Report(Ending::Completed { result: Some(json!({ "reason": "stopped" }).to_string().into()) })
}
