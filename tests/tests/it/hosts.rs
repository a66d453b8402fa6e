//! Runs whose files are on a lost host: they continue elsewhere from a remote's state, or wait.

use std::path::PathBuf;

use sprag_testkit::Postgres;
use sprag_tests::{Host, Sandbox, Signal, Started, git, until};

const WORKER: &[&str] = &["worker", "--lease", "5s", "--dispatch-deadline", "5s"];

/// Two machines with a clone each of one repository, and a client that starts runs.
struct Machines {
    client: Sandbox,
    east: Host,
    west: Host,
    place: PathBuf,
    _server: Started,
}

impl Machines {
    /// Creates the machines; none if a process cannot have its own host name and mounts.
    fn new() -> Option<Machines> {
        let database = Postgres::shared().database();
        let client = Sandbox::on(&database.url);
        let origin = client.path("origin.git");
        git(&client.path(""), ["init", "--quiet", "--bare", "--initial-branch=main", "origin.git"]);
        for (number, name) in ["repo", "east", "west"].into_iter().enumerate() {
            let path = client.path(name);
            git(&client.path(""), ["clone", "--quiet", &origin.to_string_lossy(), name]);
            git(&path, ["config", "user.name", name]);
            git(&path, ["config", "user.email", "person@example.org"]);
            if number == 0 {
                git(&path, ["commit", "--quiet", "--allow-empty", "--message", "first"]);
                git(&path, ["push", "--quiet", "origin", "HEAD:main"]);
            }
        }
        let place = client.path("repo");
        let host = |name: &'static str| Host::new(name, &database.url, &client.path(name), &place);
        let (east, west) = match (host("east"), host("west")) {
            (Ok(east), Ok(west)) => (east, west),
            (Err(why), _) | (_, Err(why)) => {
                println!("PASSED OVER: this machine cannot play two: {why}");
                return None;
            }
        };
        let server =
            client.start(["serve", "--listen", "127.0.0.1:0", "--no-worker", "--dispatch-deadline", "5s"]);
        Some(Machines { client, east, west, place, _server: server })
    }

    /// Starts a run that leaves committed and uncommitted changes, then waits for a file. Returns its id.
    fn begin(&self, worktree: &str) -> String {
        let out = self.client.path("out").display().to_string();
        let text = format!(
            "name: moves\nenvironment: {{ worktree: {worktree} }}\nsteps:\n\
             \x20 - id: first\n    run: echo 1 > done; git add done; git commit --quiet -m one; echo 2 > open; uname -n >> {out}\n\
             \x20 - id: second\n    run: uname -n >> {out}; until [ -e {out}.go ]; do sleep 0.1; done; cat done open >> {out}; git log --format=%s -1 >> {out}\n"
        );
        std::fs::write(self.place.join("moves.yaml"), text).expect("a file");
        let mut command = self.client.command(["run", "--detach", "--json", "moves.yaml"]);
        command.current_dir(&self.place);
        let answer = self.client.start_command(command).finish().expect(0);
        answer.json()["run"].as_str().expect("an id").to_owned()
    }

    /// Lets the run start in the east, and loses the east while its second step runs.
    fn lose_the_east(&self) {
        let east = self.east.start(WORKER);
        until("the second step works in the east", || self.client.lines("out") == ["east", "east"]);
        east.kill();
    }

    fn waits_for(&self, run: &str) -> String {
        let told = self.client.json(["explain", run, "--json"]);
        let steps = told["steps"].as_array().expect("steps").clone();
        let second = steps.iter().find(|step| step["id"] == "second");
        second.and_then(|step| step["waits_for"].as_str()).unwrap_or_default().to_owned()
    }
}

fn stop<const N: usize>(workers: [Started; N]) {
    for worker in workers {
        worker.signal(Signal::TERM);
        worker.finish().expect(0);
    }
}

#[test]
fn a_run_continues_elsewhere_from_the_state_on_a_remote() {
    let Some(machines) = Machines::new() else { return };
    let run = machines.begin("{ base: main, remote: origin }");
    machines.lose_the_east();
    let west = machines.west.start(WORKER);
    until("it works in the west", || machines.client.lines("out").len() == 3);
    machines.client.write("out.go", "");
    machines.client.ends_as(&run, "completed");
    assert_eq!(machines.client.lines("out"), ["east", "east", "west", "1", "2", "one"]);
    let journal = machines.client.check(&run);
    assert_eq!(journal.events("host.lost"), 1);
    // The east comes back, and is not given what is the west's now; what it still has can go.
    let east = machines.east.start(WORKER);
    let kept = || {
        machines.client.path("east/.git/worktrees").read_dir().is_ok_and(|mut found| found.next().is_some())
    };
    assert!(kept(), "the east still has its worktree");
    let gc = machines.east.command(["env", "gc"]);
    machines.east.sandbox.start_command(gc).finish().expect(0);
    assert!(!kept(), "and has not any more");
    stop([east, west]);
}

#[test]
fn a_run_that_no_remote_knows_waits_for_its_host() {
    let Some(machines) = Machines::new() else { return };
    let run = machines.begin("{ base: main }");
    machines.lose_the_east();
    let west = machines.west.start(WORKER);
    until("it is said what it waits for", || machines.waits_for(&run).starts_with("a worker on east"));
    machines.client.write("out.go", "");
    // Longer than it would take to be given up.
    let since_ms = sprag_tests::now_ms();
    until("time passes", || sprag_tests::now_ms() > since_ms + 12_000);
    assert_eq!(machines.client.lines("out"), ["east", "east"]);
    let east = machines.east.start(WORKER);
    machines.client.ends_as(&run, "completed");
    assert_eq!(machines.client.lines("out"), ["east", "east", "east", "1", "2", "one"]);
    stop([east, west]);
}

#[test]
fn a_run_whose_state_never_reached_the_remote_does_not_start_without_it() {
    let Some(machines) = Machines::new() else { return };
    let hooks = machines.client.path("origin.git/hooks/pre-receive");
    std::fs::write(&hooks, "#!/bin/sh\necho no room\nexit 1\n").expect("a hook");
    std::fs::set_permissions(&hooks, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a hook");
    let run = machines.begin("{ base: main, remote: origin }");
    machines.lose_the_east();
    let west = machines.west.start(WORKER);
    machines.client.ends_as(&run, "failed");
    assert_eq!(machines.client.lines("out"), ["east", "east"], "nothing was worked on without its files");
    let told = machines.client.sprag(["status", &run]).expect(0).stdout;
    let shown = machines.client.step(&run, "second").to_string();
    assert!(shown.contains("which is lost") || told.contains("which is lost"), "{told}\n{shown}");
    stop([west]);
    // As it says: its host comes back, and has what the run has done.
    let east = machines.east.start(WORKER);
    machines.client.write("out.go", "");
    machines.client.sprag(["resume", "--detach", &run]).expect(0);
    machines.client.ends_as(&run, "completed");
    assert_eq!(machines.client.lines("out"), ["east", "east", "east", "1", "2", "one"]);
    stop([east]);
}

#[test]
fn environments_of_a_lost_host_are_not_listed_for_ever() {
    let Some(machines) = Machines::new() else { return };
    let run = machines.begin("{ base: main, remote: origin }");
    machines.lose_the_east();
    until("its host is given up", || machines.client.journal(Some(&run)).events("host.lost") == 1);
    machines.client.sprag(["cancel", &run]).expect(0);
    machines.client.ends_as(&run, "cancelled");
    let west = machines.west.start(WORKER);
    until("nothing is left of it", || {
        machines.client.json(["env", "ls", "--json"]).as_array().is_some_and(Vec::is_empty)
    });
    stop([west]);
}
