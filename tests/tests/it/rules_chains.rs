//! Rules about the ends of other runs, with real processes: each end counts once, and chains of rules end.

use std::collections::BTreeSet;

use serde_json::Value;
use sprag_testkit::Postgres;
use sprag_tests::{Sandbox, Server, nightly, until};

/// A build that fails if it is told to.
const BUILD: &str = "name: build-app
inputs: { ok: { default: 'yes' }, team: { default: web } }
labels: { team: \"{{ inputs.team }}\" }
steps:
  - id: make
    run: test {{ inputs.ok }} = yes
";

/// The rules about builds: one for those of a team that failed, one for all.
const ALARM: &str = "name: alarm
inputs: { of: string, status: string, ok: string, team: string }
on:
  - id: failed
    run: { pipeline: 'build-*', ended: [failed], labels: { team: web } }
    when: event.inputs.team == 'web'
    overlap: allow
    inputs: { of: '{{ event.run }}', status: '{{ event.status }}', ok: '{{ event.inputs.ok }}', team: '{{ event.labels.team }}' }
steps:
  - id: note
    run: echo {{ inputs.of }} {{ inputs.status }} {{ inputs.ok }} {{ inputs.team }} >> alarms
";

/// Returns what a command tells with `--json`.
fn ask(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json()
}

/// Returns the decisions about a rule's events.
fn decisions(sandbox: &Sandbox, rule: &str) -> Vec<Value> {
    ask(sandbox, &["delivery", "ls", rule, "--limit", "1000"]).as_array().expect("a list").clone()
}

/// Starts a build that a server executes, and returns its run.
fn build(sandbox: &Sandbox, ok: &str, team: &str) -> String {
    let (ok, team) = (format!("ok={ok}"), format!("team={team}"));
    let args = ["run", "build.yaml", "--detach", "--input", &ok, "--input", &team];
    ask(sandbox, &args)["run"].as_str().expect("a run").to_owned()
}

fn each_end_counts_once(sandbox: &Sandbox) {
    sandbox.yaml("build", BUILD);
    sandbox.yaml("alarm", ALARM);
    sandbox.sprag(["rule", "apply", "alarm.yaml"]).expect(0);
    let told = sandbox.sprag(["explain", "alarm/failed"]).expect(0).stdout;
    assert!(told.contains("waits for the end of a run of build-* as failed"), "{told}");
    assert!(told.contains("no process watches"), "{told}");
    let mut wanted = BTreeSet::new();
    let fail = |wanted: &mut BTreeSet<String>| {
        // One that succeeds and one of another team count for nothing.
        build(sandbox, "yes", "web");
        build(sandbox, "no", "api");
        wanted.insert(build(sandbox, "no", "web"));
    };
    let alarms = || decisions(sandbox, "alarm/failed").len();
    for _ in 0..nightly(2, 12) {
        // Two servers read the same journal. Both are killed at any moment, and others find what they left.
        let servers = [Server::start(sandbox, &[]), Server::start(sandbox, &[])];
        let before = alarms();
        fail(&mut wanted);
        until("one end has reached the rule", || alarms() > before);
        fail(&mut wanted);
        servers.into_iter().for_each(|server| server.into_process().kill());
    }
    fail(&mut wanted);
    let last = Server::start(sandbox, &[]);
    until("every end has reached the rule", || alarms() >= wanted.len());
    until("all runs have ended", || {
        let runs = ask(sandbox, &["ls", "--limit", "1000"]);
        runs.as_array().expect("runs").iter().all(|run| run["ended_at"].is_string())
    });
    drop(last);
    let decisions = decisions(sandbox, "alarm/failed");
    let of: Vec<String> = decisions.iter().map(|one| told_of(&one["key"])).collect();
    assert_eq!(of.iter().cloned().collect::<BTreeSet<_>>(), wanted, "the ends that reached the rule");
    assert_eq!(of.len(), wanted.len(), "an end counts twice: {decisions:?}");
    assert!(decisions.iter().all(|one| one["status"] == "requested"), "{decisions:?}");
    let runs: BTreeSet<String> = decisions.iter().map(|one| one["run"].to_string()).collect();
    assert_eq!(runs.len(), wanted.len(), "each has a run of its own");
    // A step of a killed server may run twice; the facts of each run are data of the run that followed.
    let noted: BTreeSet<String> = sandbox.lines("alarms").into_iter().collect();
    assert_eq!(noted, wanted.iter().map(|run| format!("{run} failed no web")).collect());
}

/// Returns the run of a key such as `run RUN failed 7`.
fn told_of(key: &Value) -> String {
    key.as_str().and_then(|key| key.split(' ').nth(1)).expect("a run").to_owned()
}

#[test]
fn r01_r02_r23_each_end_of_a_run_counts_once_whatever_servers_die() {
    each_end_counts_once(&Sandbox::new());
}

#[test]
fn r01_r02_r23_each_end_of_a_run_counts_once_on_postgres() {
    let database = Postgres::shared().database();
    each_end_counts_once(&Sandbox::on(&database.url));
}

fn chains_end(sandbox: &Sandbox) {
    let file = |name: &str, of: &str| {
        format!(
            "name: {name}\non:\n  - id: next\n    run: {{ pipeline: {of} }}\nsteps:\n  - id: a\n    run: echo {name} >> trail\n"
        )
    };
    for (name, of) in [("ping", "pong"), ("pong", "ping")] {
        sandbox.yaml(name, &file(name, of));
        sandbox.sprag(["rule", "apply", &format!("{name}.yaml")]).expect(0);
    }
    sandbox.sprag(["run", "ping.yaml"]).expect(0);
    assert_eq!(sandbox.lines("trail"), ["ping"]);
    // `rule tick` runs what it starts, and what follows from that.
    sandbox.sprag(["rule", "tick"]).expect(0);
    assert_eq!(sandbox.lines("trail"), ["ping", "pong", "ping"]);
    let looped = &decisions(sandbox, "pong/next")[0];
    assert_eq!(looped["status"], "skipped", "{looped}");
    let reason = looped["reason"].as_str().expect("a reason");
    assert_eq!(reason, "a loop: pong/next → ping/next → pong/next");
    // `test` decides as firing did, with the event's own chain, and writes nothing.
    let event = looped["event"].as_str().expect("an event");
    let tested = ask(sandbox, &["rule", "test", "pong/next", "--event", event]);
    assert_eq!((&tested["decision"], tested["reason"].as_str()), (&"skip".into(), Some(reason)));
    let ended = r#"{ "run": "20300101-000000-aaaa", "status": "failed", "pipeline": "ping" }"#;
    sandbox.write("ended.json", ended);
    let given = ask(sandbox, &["rule", "test", "pong/next", "--event", "ended.json"]);
    assert_eq!(given["decision"], "start");
    assert_eq!(decisions(sandbox, "pong/next").len(), 2);
    // A rule without a schedule has no tick to fire; an event that is given by hand starts a run.
    let refused = sandbox.sprag(["rule", "fire", "pong/next"]).expect(2).stderr;
    assert!(refused.contains("event"), "{refused}");
    assert_eq!(ask(sandbox, &["rule", "fire", "pong/next", "--event", "ended.json"])["status"], "requested");
    assert!(sandbox.sprag(["rule", "tick"]).expect(0).stdout.contains("started"));

    // A resumed rule starts nothing of its pause. A changed rule still sees what ended before the change.
    sandbox.sprag(["rule", "rm", "ping/next"]).expect(0);
    sandbox.sprag(["rule", "pause", "pong/next"]).expect(0);
    sandbox.sprag(["run", "ping.yaml"]).expect(0);
    sandbox.sprag(["rule", "resume", "pong/next"]).expect(0);
    assert!(sandbox.sprag(["rule", "tick"]).expect(0).stdout.contains("0 started"));
    sandbox.sprag(["run", "ping.yaml"]).expect(0);
    sandbox.yaml("pong", &file("pong", "ping").replace("echo pong", "echo changed"));
    let before = decisions(sandbox, "pong/next").len();
    sandbox.sprag(["rule", "apply", "pong.yaml"]).expect(0);
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(decisions(sandbox, "pong/next").len(), before + 1);
    assert_ne!(
        sandbox.lines("trail").last().map(String::as_str),
        Some("ping"),
        "{:?}",
        sandbox.lines("trail")
    );

    // A condition without an answer fails, with the name. Wrong words are refused when the file is read.
    let with = |rule: &str| file("pong", "ping").replace("run: { pipeline: ping }", rule);
    sandbox.yaml("pong", &with("run: { pipeline: ping }\n    when: event.inputs.size > 3"));
    sandbox.sprag(["rule", "apply", "pong.yaml"]).expect(0);
    sandbox.sprag(["run", "ping.yaml"]).expect(0);
    sandbox.sprag(["rule", "tick"]).expect(0);
    let failed = &decisions(sandbox, "pong/next")[0];
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["reason"].as_str().expect("a reason").contains("event.inputs.size"), "{failed}");
    for (rule, wrong) in [
        ("run: { pipeline: ping, ended: [done] }", "completed"),
        ("run: { pipeline: '[z-a]' }", "pattern"),
        ("run: { pipeline: ping }\n    missed: { run: all }", "no effect"),
        ("run: { pipeline: ping }\n    when: event.commit", "event.commit"),
        ("run: { pipeline: ping }\n    schedule: { every: 1h }", "only one"),
    ] {
        sandbox.yaml("wrong", &with(rule));
        let told = sandbox.sprag(["validate", "wrong.yaml"]).expect(2);
        assert!((told.stdout.clone() + &told.stderr).contains(wrong), "{rule}: {told:?}");
    }
}

#[test]
fn r21_r24_chains_end_at_their_first_repetition_without_a_server() {
    chains_end(&Sandbox::new());
}

#[test]
fn r21_r24_chains_end_at_their_first_repetition_on_postgres() {
    let database = Postgres::shared().database();
    chains_end(&Sandbox::on(&database.url));
}
