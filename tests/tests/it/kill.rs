//! kill -9 at any moment: no run is lost, none is stuck, no finished step runs again, nothing is left over.

use std::time::Duration;

use sprag_tests::{Random, Sandbox, Started, children, command_line, signal, until, within};

/// Rounds of one sandbox; there is one for each kind of victim, so these are 150 in all.
const ROUNDS: u64 = 25;
/// With `SPRAG_NIGHTLY` set.
const NIGHTLY_ROUNDS: u64 = 500;

/// Each attempt holds a lock that its descendants inherit: who cannot have it overlaps a former attempt.
const STEP: &str = "run: |
  exec 9>> lock.$SPRAG_RUN_ID.$SPRAG_STEP_ID
  flock -n 9 || echo overlap $SPRAG_RUN_ID $SPRAG_STEP_ID >> trouble
  echo begin $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> ledger
  setsid sleep 300 &
  sleep 0.04
  echo end $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT >> ledger";

/// The processes to kill.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Run,
    Worker,
    Supervisor,
    WorkerAndSupervisor,
    OneOfTwoWorkers,
    WorkerOfACancelledRun,
}

struct Round<'s> {
    sandbox: &'s Sandbox,
    random: Random,
}

impl Round<'_> {
    /// Waits a moment, unless the process ends first.
    fn moment(&mut self, process: &mut Started, longest_ms: u64) {
        let moment = Duration::from_millis(self.random.below(longest_ms));
        within(moment, || (!process.is_running()).then_some(()));
    }

    fn supervisor_of(&self, worker: &Started) -> Option<i32> {
        let is_supervisor = |pid: &i32| command_line(*pid).iter().any(|word| word == "__supervise");
        children(worker.pid()).into_iter().find(is_supervisor)
    }

    fn play(&mut self, victim: Victim) {
        let sandbox = self.sandbox;
        match victim {
            Victim::Run => {
                let mut run = sandbox.start(["run", "three.yaml"]);
                self.moment(&mut run, 300);
                run.kill();
                // The process that takes over may be killed as well.
                for _ in 0..self.random.below(3) {
                    if let Some(id) = self.live_runs().pop() {
                        let mut again = sandbox.start(["resume", &id]);
                        self.moment(&mut again, 200);
                        again.kill();
                    }
                }
                self.take_over_live_runs();
            }
            Victim::Worker => {
                sandbox.detach(&sandbox.path("three.yaml"));
                let mut worker = sandbox.start(["worker"]);
                self.moment(&mut worker, 300);
                worker.kill();
                if self.random.below(2) == 0 {
                    self.take_over_live_runs();
                } else {
                    sandbox.sprag(["worker", "--until-idle"]);
                }
            }
            Victim::Supervisor => {
                let run = sandbox.detach(&sandbox.path("three.yaml"));
                let mut worker = sandbox.start(["worker", "--until-idle"]);
                for _ in 0..1 + self.random.below(3) {
                    self.moment(&mut worker, 100);
                    if let Some(pid) = self.supervisor_of(&worker) {
                        signal(pid, sprag_tests::Signal::KILL);
                    }
                }
                worker.finish().expect(0);
                let told = sandbox.sprag(["status", &run]).stdout;
                assert_eq!(sandbox.status_word(&run), "completed", "{told}");
            }
            Victim::WorkerAndSupervisor => {
                sandbox.detach(&sandbox.path("three.yaml"));
                let mut worker = sandbox.start(["worker"]);
                self.moment(&mut worker, 200);
                let supervisor = self.supervisor_of(&worker);
                if let Some(pid) = supervisor {
                    signal(pid, sprag_tests::Signal::KILL);
                }
                worker.kill();
                sandbox.sprag(["worker", "--until-idle"]);
            }
            Victim::OneOfTwoWorkers => {
                for _ in 0..3 {
                    sandbox.detach(&sandbox.path("three.yaml"));
                }
                let mut victim = sandbox.start(["worker", "--slots", "2"]);
                let other = sandbox.start(["worker", "--slots", "2", "--until-idle"]);
                self.moment(&mut victim, 300);
                victim.kill();
                other.finish();
            }
            Victim::WorkerOfACancelledRun => {
                let run = sandbox.detach(&sandbox.path("three.yaml"));
                let mut worker = sandbox.start(["worker"]);
                self.moment(&mut worker, 200);
                let cancel = sandbox.start(["cancel", &run]);
                self.moment(&mut worker, 40);
                worker.kill();
                cancel.finish();
                sandbox.sprag(["worker", "--until-idle"]);
            }
        }
    }

    fn live_runs(&self) -> Vec<String> {
        let runs = self.sandbox.json(["ls", "--json"]);
        let live = runs.as_array().expect("runs").iter().filter(|run| run["ended_at"].is_null());
        live.filter_map(|run| run["id"].as_str().map(str::to_owned)).collect()
    }

    /// Resumes each run whose process was killed.
    fn take_over_live_runs(&self) {
        for run in self.live_runs() {
            self.sandbox.sprag(["resume", &run]).expect(0);
        }
    }
}

/// Asserts the invariants afterwards, whatever was killed when.
fn check(sandbox: &Sandbox) {
    assert_eq!(sandbox.read("trouble"), "", "attempts overlapped");
    let whole = sandbox.journal(None);
    whole.replay();
    let ledger = sandbox.lines("ledger");
    let runs = sandbox.json(["ls", "--json", "-n", "10000"]);
    for run in runs.as_array().expect("runs") {
        let id = run["id"].as_str().expect("an id");
        let journal = sandbox.check(id);
        until("no process of it is left", || sandbox.processes_of(id).is_empty());
        if journal.events("cancel.requested") == 1 {
            assert_eq!(run["status"], "cancelled", "{run}");
            continue;
        }
        assert_eq!(run["status"], "completed", "{run}");
        for step in sandbox.status(id)["steps"].as_array().expect("steps") {
            let (name, attempt) = (step["id"].as_str().expect("an id"), &step["attempt"]);
            let began = format!("begin {id} {name} ");
            let attempts: Vec<&str> = ledger.iter().filter_map(|line| line.strip_prefix(&began)).collect();
            let mut once = attempts.clone();
            once.dedup();
            assert_eq!(attempts, once, "{id} {name}: an attempt began twice");
            assert_eq!(
                attempts.last().copied(),
                Some(attempt.to_string().as_str()),
                "{id} {name}: began after its end"
            );
            let events = journal.of_step(name);
            assert_eq!(events.iter().filter(|event| **event == "step.succeeded").count(), 1);
            assert_eq!(events.last(), Some(&"step.succeeded"), "{id} {name}");
        }
    }
}

fn rounds(victim: Victim, seed: u64) {
    let seed = std::env::var("SPRAG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(seed);
    println!("{victim:?}, repeat with SPRAG_SEED={seed}");
    let sandbox = Sandbox::new();
    sandbox.pipeline("three", &[("a", STEP), ("b", STEP), ("c", STEP)]);
    let mut round = Round { sandbox: &sandbox, random: Random::new(seed) };
    let many = std::env::var_os("SPRAG_NIGHTLY").map_or(ROUNDS, |_| NIGHTLY_ROUNDS);
    for _ in 0..many {
        round.play(victim);
    }
    check(&sandbox);
}

#[test]
fn o14_kill_the_process_of_a_run() {
    rounds(Victim::Run, 1);
}

#[test]
fn o14_kill_workers() {
    rounds(Victim::Worker, 2);
}

#[test]
fn o14_kill_supervisors() {
    rounds(Victim::Supervisor, 3);
}

#[test]
fn o14_kill_workers_and_supervisors_together() {
    rounds(Victim::WorkerAndSupervisor, 4);
}

#[test]
fn o14_kill_one_of_two_workers() {
    rounds(Victim::OneOfTwoWorkers, 5);
}

#[test]
fn o14_kill_the_worker_of_a_cancelled_run() {
    rounds(Victim::WorkerOfACancelledRun, 6);
}
