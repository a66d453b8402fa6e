//! Who is measured beside Sprag, in the same rounds, and how much each is given to do.

use std::time::Duration;

use sprag_testkit::Postgres;

use crate::board::{Board, key, percentile};
use crate::claims::WORKERS;
use crate::load::STEPS;
use crate::peer::{Peer, Request, Workload};
use crate::{Result, files};

/// A peer gets this part of the runs that Sprag gets, for it takes longer over each.
const SHARE_OF_RUNS: usize = 4;
/// How often a process of DBOS is started cold in a round.
const COLD_STARTS: usize = 10;

/// A peer, before it is known whether it can be had.
pub(crate) struct Who {
    name: &'static str,
    folder: &'static str,
    home: Home,
    claims: &'static [Claims],
    /// Whether single pipelines are timed: what the process itself takes, cold.
    latency: Option<Cold>,
}

#[derive(Clone, Copy, PartialEq)]
enum Home {
    Folder,
    Database,
}

#[derive(Clone, Copy)]
enum Cold {
    /// Timed from the process's start as well, under this name.
    As(&'static str),
    /// It is a server, which is not started for one run.
    Not,
}

/// A way in which it works off a queue.
struct Claims {
    system: &'static str,
    batched: bool,
    /// The part of Sprag's tasks that it gets, and how many at least.
    share: usize,
    least: usize,
}

const fn claims(system: &'static str, batched: bool, share: usize, least: usize) -> Claims {
    Claims { system, batched, share, least }
}

#[rustfmt::skip]
pub(crate) const APALIS: Who = Who {
    name: "apalis FULL", folder: "apalis", home: Home::Folder, latency: None,
    claims: &[claims("apalis FULL", false, 4, 1)],
};
/// Its queue's workers look once a second at first, and more and more often: it takes some hundred tasks until they are fast.
#[rustfmt::skip]
pub(crate) const DBOS: Who = Who {
    name: "DBOS", folder: "dbos", home: Home::Database, latency: Some(Cold::As("DBOS cold")),
    claims: &[claims("DBOS", false, 10, 1000)],
};
#[rustfmt::skip]
pub(crate) const GRAPHILE: Who = Who {
    name: "graphile", folder: "graphile", home: Home::Database, latency: Some(Cold::Not),
    claims: &[claims("graphile", false, 4, 1), claims("graphile batched", true, 1, 1)],
};
#[rustfmt::skip]
pub(crate) const RESTATE: Who = Who {
    name: "Restate", folder: "restate", home: Home::Folder, latency: Some(Cold::Not),
    claims: &[claims("Restate", false, 4, 1)],
};

/// Those who could be had.
pub(crate) struct Rivals<'a> {
    server: &'a Postgres,
    there: Vec<(&'static Who, Peer)>,
}

impl<'a> Rivals<'a> {
    /// Starts them; who cannot be had is named below the table, and left out. `server` has a database for each request.
    pub(crate) fn start(board: &mut Board, server: &'a Postgres, whom: &[&'static Who]) -> Self {
        let mut there = Vec::new();
        for who in whom {
            match Peer::start(who.folder) {
                Ok(peer) => there.push((*who, peer)),
                Err(error) => board.note(format!("{} is not measured: {error}", who.name)),
            }
        }
        Rivals { server, there }
    }

    /// Measures each of them; one that fails is left out from then on.
    fn each(
        &mut self,
        board: &mut Board,
        measure: impl Fn(&mut Board, &Postgres, &Who, &mut Peer) -> Result<()>,
    ) {
        let server = self.server;
        self.there.retain_mut(|(who, peer)| match measure(board, server, who, peer) {
            Ok(()) => true,
            Err(error) => {
                board.note(format!("{} is not measured any further: {error}", who.name));
                false
            }
        });
    }

    /// W1 with so many pipelines in flight, of which Sprag has worked off `runs`.
    pub(crate) fn w1(&mut self, board: &mut Board, in_flight: usize, runs: usize) {
        self.each(board, |board, server, who, peer| {
            let tasks = (runs / SHARE_OF_RUNS).max(in_flight);
            let told = at_home(server, who, |place| {
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
            board.add(key("W1", who.name, in_flight, "steps/s"), told.per_second());
            Ok(())
        });
    }

    /// W2, where Sprag has worked off `tasks`.
    pub(crate) fn w2(&mut self, board: &mut Board, tasks: usize) {
        self.each(board, |board, server, who, peer| {
            for Claims { system, batched, share, least } in who.claims {
                let (tasks, in_flight, batched) = ((tasks / share).max(*least), WORKERS, *batched);
                let told = at_home(server, who, |place| {
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

    /// W3: one pipeline at a time.
    pub(crate) fn w3(&mut self, board: &mut Board, runs: usize) {
        self.each(board, |board, server, who, peer| {
            let Some(cold) = who.latency else { return Ok(()) };
            at_home(server, who, |place| {
                let request = |tasks| Request {
                    workload: Workload::Latency,
                    place,
                    tasks,
                    steps: STEPS,
                    in_flight: 1,
                    batched: false,
                };
                let told = peer.ask(&request(runs))?;
                board.add(key("W3", who.name, 1, "ms"), told.p50_ms);
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

/// Where it finds nothing of anybody, and leaves nothing behind.
fn at_home<T>(server: &Postgres, who: &Who, work: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    match who.home {
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
