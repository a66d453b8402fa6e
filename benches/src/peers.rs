//! The peers that are measured in the same rounds as Sprag, and the amount of work of each.

use std::time::Duration;

use sprag_testkit::Postgres;

use crate::board::{Board, key, percentile};
use crate::claims::WORKERS;
use crate::load::STEPS;
use crate::peer::{Peer, Request, Workload};
use crate::{Result, files};

/// A peer gets this fraction of Sprag's runs, because it takes longer for each.
const SHARE_OF_RUNS: usize = 4;
/// The number of cold starts of a DBOS process in a round.
const COLD_STARTS: usize = 10;

/// A peer that may or may not be installed.
pub(crate) struct PeerSpec {
    name: &'static str,
    folder: &'static str,
    home: Home,
    claims: &'static [Claims],
    /// Whether single pipelines are timed, and the cold start of the process.
    latency: Option<Cold>,
}

#[derive(Clone, Copy, PartialEq)]
enum Home {
    Folder,
    Database,
}

#[derive(Clone, Copy)]
enum Cold {
    /// The cold start is timed too, under this name.
    As(&'static str),
    /// The peer is a server, which is not started for a single run.
    Not,
}

/// A variant of draining a queue.
struct Claims {
    system: &'static str,
    batched: bool,
    /// The fraction of Sprag's tasks that it gets, and the minimum number.
    share: usize,
    least: usize,
}

const fn claims(system: &'static str, batched: bool, share: usize, least: usize) -> Claims {
    Claims { system, batched, share, least }
}

#[rustfmt::skip]
pub(crate) const APALIS: PeerSpec = PeerSpec {
    name: "apalis FULL", folder: "apalis", home: Home::Folder, latency: None,
    claims: &[claims("apalis FULL", false, 4, 1)],
};
/// Its queue workers poll once a second at first, and then more and more often: they need some hundred tasks to become
/// fast.
#[rustfmt::skip]
pub(crate) const DBOS: PeerSpec = PeerSpec {
    name: "DBOS", folder: "dbos", home: Home::Database, latency: Some(Cold::As("DBOS cold")),
    claims: &[claims("DBOS", false, 10, 1000)],
};
#[rustfmt::skip]
pub(crate) const GRAPHILE: PeerSpec = PeerSpec {
    name: "graphile", folder: "graphile", home: Home::Database, latency: Some(Cold::Not),
    claims: &[claims("graphile", false, 4, 1), claims("graphile batched", true, 1, 1)],
};
#[rustfmt::skip]
pub(crate) const RESTATE: PeerSpec = PeerSpec {
    name: "Restate", folder: "restate", home: Home::Folder, latency: Some(Cold::Not),
    claims: &[claims("Restate", false, 4, 1)],
};

/// The peers that could be started.
pub(crate) struct Peers<'a> {
    server: &'a Postgres,
    there: Vec<(&'static PeerSpec, Peer)>,
}

impl<'a> Peers<'a> {
    /// Starts the peers. The board notes those that cannot be started. `server` has a database for each request.
    pub(crate) fn start(board: &mut Board, server: &'a Postgres, specs: &[&'static PeerSpec]) -> Self {
        let mut there = Vec::new();
        for spec in specs {
            match Peer::start(spec.folder) {
                Ok(peer) => there.push((*spec, peer)),
                Err(error) => board.note(format!("{} is not measured: {error}", spec.name)),
            }
        }
        Peers { server, there }
    }

    /// Measures each peer. One that fails is left out from then on.
    fn each(
        &mut self,
        board: &mut Board,
        measure: impl Fn(&mut Board, &Postgres, &PeerSpec, &mut Peer) -> Result<()>,
    ) {
        let server = self.server;
        self.there.retain_mut(|(spec, peer)| match measure(board, server, spec, peer) {
            Ok(()) => true,
            Err(error) => {
                board.note(format!("{} is not measured any further: {error}", spec.name));
                false
            }
        });
    }

    /// Measures W1 with `in_flight` pipelines, of which Sprag has executed `runs`.
    pub(crate) fn w1(&mut self, board: &mut Board, in_flight: usize, runs: usize) {
        self.each(board, |board, server, spec, peer| {
            let tasks = (runs / SHARE_OF_RUNS).max(in_flight);
            let told = in_empty_home(server, spec, |place| {
                let request = Request {
                    workload: Workload::Pipelines,
                    place,
                    tasks,
                    steps: STEPS,
                    in_flight,
                    batched: false,
                };
                peer.ask(&request)
            })?;
            board.add(key("W1", spec.name, in_flight, "steps/s"), told.per_second());
            Ok(())
        });
    }

    /// Measures W2, of which Sprag has executed `tasks`.
    pub(crate) fn w2(&mut self, board: &mut Board, tasks: usize) {
        self.each(board, |board, server, spec, peer| {
            for Claims { system, batched, share, least } in spec.claims {
                let (tasks, in_flight, batched) = ((tasks / share).max(*least), WORKERS, *batched);
                let told = in_empty_home(server, spec, |place| {
                    peer.ask(&Request {
                        workload: Workload::Claims,
                        place,
                        tasks,
                        steps: 1,
                        in_flight,
                        batched,
                    })
                })?;
                board.add(key("W2", system, WORKERS, "tasks/s"), told.per_second());
                board.add(key("W2", system, WORKERS, "duplicates"), told.duplicates as f64);
            }
            Ok(())
        });
    }

    /// Measures W3: one pipeline at a time.
    pub(crate) fn w3(&mut self, board: &mut Board, runs: usize) {
        self.each(board, |board, server, spec, peer| {
            let Some(cold) = spec.latency else { return Ok(()) };
            in_empty_home(server, spec, |place| {
                let request = |tasks| Request {
                    workload: Workload::Latency,
                    place,
                    tasks,
                    steps: STEPS,
                    in_flight: 1,
                    batched: false,
                };
                let told = peer.ask(&request(runs))?;
                board.add(key("W3", spec.name, 1, "ms"), told.p50_ms);
                if let Cold::As(system) = cold {
                    let mut took = Vec::new();
                    for _ in 0..COLD_STARTS {
                        took.push(peer.cold(&request(1))?);
                    }
                    board.add(key("W3", system, 1, "ms"), ms(percentile(&mut took, 50)));
                }
                Ok(())
            })
        });
    }
}

/// Runs `work` with an empty folder or database, and removes it afterwards.
fn in_empty_home<T>(server: &Postgres, spec: &PeerSpec, work: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    match spec.home {
        Home::Folder => {
            let folder = files::scratch()?;
            work(folder.path().to_str().ok_or("the folder's name is not UTF-8")?)
        }
        Home::Database => {
            let (name, url) = server.whole_database();
            let done = work(&url);
            server.drop_database(&name);
            done
        }
    }
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
