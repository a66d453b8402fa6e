//! A worker that is cut off from the database and the broker at once: it stops its step, and another worker continues.

use std::net::SocketAddr;

use super::broker::serves;
use sprag_testkit::Postgres;
use sprag_tests::{Cable, Nats, Proxy, Sandbox, Server, Started, until};

/// The connections of a worker to everything else.
struct Between {
    database: Proxy,
    broker: Proxy,
    /// The cable, if the worker is in its own network.
    cable: Option<Cable>,
}

impl Between {
    fn cut(&self, off: bool) {
        match &self.cable {
            Some(cable) => cable.pull(off),
            None => [&self.database, &self.broker].iter().for_each(|proxy| proxy.silence(off)),
        }
    }

    fn worker(&self, machine: &Sandbox) -> Started {
        let bus = format!("nats://{}", self.broker.addr);
        let command =
            machine.command(["worker", "--bus", &bus, "--lease", "5s", "--queue", "a", "--queue", "far"]);
        let command = match &self.cable {
            Some(cable) => cable.beyond(&command),
            None => command,
        };
        let worker = machine.start_command(command);
        until("the worker serves", || worker.stderr().contains("serves"));
        worker
    }
}

/// Writes a pipeline whose first attempt reports that it is alive and never ends, and whose second ends at once.
fn endless(client: &Sandbox) -> std::path::PathBuf {
    let ledger = client.path("ledger");
    let run = format!(
        "run: |\n  while echo $SPRAG_ATTEMPT >> '{}'; do\n    if [ $SPRAG_ATTEMPT != 1 ]; then exit 0; fi\n    \
         sleep 0.02\n  done\nqueue: a",
        ledger.display()
    );
    client.pipeline("endless", &[("s", &run)])
}

fn goes_on_elsewhere(lay: impl FnOnce(SocketAddr, SocketAddr) -> Between) {
    let (postgres, nats) = (Postgres::shared(), Nats::start());
    let database = postgres.database();
    let between = lay(postgres.address(), nats.addr);
    let through =
        database.tcp_url.replace(&postgres.address().to_string(), &between.database.addr.to_string());
    let (far, near, client) = (Sandbox::on(&through), Sandbox::on(&database.url), Sandbox::on(&database.url));
    let _server = Server::start(&near, &["--no-worker", "--bus", &nats.url()]);
    let cut_off = between.worker(&far);
    let run = client.detach(&endless(&client));
    until("it goes on", || !client.lines("ledger").is_empty());
    between.cut(true);
    let _next = serves(&near, &nats.url(), &["--queue", "a"]);
    client.ends_as(&run, "completed");
    let journal = client.check(&run);
    assert_eq!((journal.events("lease.expired"), journal.events("execution.completed")), (1, 1));
    // No process could tell the first attempt to stop: its supervisor killed it before there was a second one.
    let ledger = client.lines("ledger");
    let second = ledger.iter().position(|line| line == "2").expect("a second attempt");
    assert_eq!(second, ledger.len() - 1, "{:?}", &ledger[second..]);
    between.cut(false);
    // It is of use again, and whatever it still had to say changed nothing.
    let back = client.detach(&client.pipeline("far", &[("s", "run: 'true'\nqueue: far")]));
    client.ends_as(&back, "completed");
    assert_eq!(client.check(&run).entries.len(), journal.entries.len());
    assert_eq!(client.lines("ledger").len(), ledger.len());
    drop(cut_off);
}

#[test]
fn o13_a_worker_behind_silent_proxies_stops_its_step_and_another_continues() {
    goes_on_elsewhere(|database, broker| Between {
        database: Proxy::to(database),
        broker: Proxy::to(broker),
        cable: None,
    });
}

#[test]
fn o13_a_worker_whose_network_is_cut_stops_its_step_and_another_continues() {
    let cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(why) => return println!("PASSED OVER: this machine allows no network namespaces: {why}"),
    };
    goes_on_elsewhere(|database, broker| Between {
        database: Proxy::at(cable.here, database),
        broker: Proxy::at(cable.here, broker),
        cable: Some(cable),
    });
}
