//! Ticks that no process saw, runs that overlap, and zone data that differs, on both databases.

use std::collections::BTreeSet;

use serde_json::Value;
use sprag_testkit::{Database, Postgres};
use sprag_tests::{Sandbox, Server, Signal, until};

const HOUR_MS: i64 = 3_600_000;

/// A sandbox with a database that a test can change.
pub(crate) struct Scene {
    pub(crate) sandbox: Sandbox,
    database: Option<Database>,
}

impl Scene {
    /// Returns one with a file of its own.
    pub(crate) fn on_sqlite() -> Scene {
        Scene { sandbox: Sandbox::new(), database: None }
    }

    /// Returns one with a schema of its own.
    pub(crate) fn on_postgres() -> Scene {
        let database = Postgres::shared().database();
        Scene { sandbox: Sandbox::on(&database.url), database: Some(database) }
    }

    /// Changes rows as no program would.
    pub(crate) fn sql(&self, sql: &str) {
        match &self.database {
            Some(database) => {
                Postgres::shared().sql(&format!("SET search_path TO {}; {sql}", database.schema));
            }
            None => {
                let conn = rusqlite::Connection::open(self.sandbox.data().join("sprag.db"));
                conn.expect("the database").execute_batch(sql).expect("SQL");
            }
        }
    }

    /// Moves the clocks of all schedules back, as if no process had watched for this time.
    fn set_back(&self, by_ms: i64) {
        self.sql(&format!("UPDATE rules SET seen = seen - {by_ms}, next_ms = next_ms - {by_ms}"));
    }

    /// Returns what a command tells with `--json`.
    pub(crate) fn ask(&self, args: &[&str]) -> Value {
        self.sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json()
    }

    /// Returns a list that a command tells with `--json`.
    pub(crate) fn list(&self, args: &[&str]) -> Vec<Value> {
        self.ask(args).as_array().expect("a list").clone()
    }
}

/// A policy about missed ticks, and what 500 hours without a server lead to.
struct Case {
    missed: &'static str,
    /// The number of runs, with one more in the minute after a tick.
    runs: std::ops::RangeInclusive<usize>,
}

fn missed_ticks(scene: &Scene) {
    let cases = [
        // A tick of less than a minute ago is not missed yet.
        Case { missed: "{ run: none }", runs: 0..=1 },
        Case { missed: "{ run: latest, within: 1d }", runs: 1..=1 },
        Case { missed: "{ run: latest, within: 1s }", runs: 0..=1 },
        Case { missed: "{ run: all, within: 10h }", runs: 10..=11 },
        Case { missed: "{ run: all, within: 60d }", runs: 100..=100 },
    ];
    for (nth, Case { missed, runs }) in cases.into_iter().enumerate() {
        let rule = format!("p{nth}/r");
        let text = format!(
            "name: p{nth}\non:\n  - id: r\n    schedule: {{ every: 1h }}\n    missed: {missed}\n    overlap: allow\nsteps:\n  - id: a\n    run: 'true'\n"
        );
        scene.sandbox.yaml("p", &text);
        scene.sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
        let by_ms = 500 * HOUR_MS;
        scene.sql(&format!(
            "UPDATE rules SET seen = seen - {by_ms}, next_ms = next_ms - {by_ms} WHERE name = '{rule}'"
        ));
        scene.sandbox.sprag(["rule", "tick", "--detach"]).expect(0);
        let events = scene.list(&["delivery", "ls", &rule, "--limit", "1000"]);
        let of_kind = |kind: &str| events.iter().filter(|one| one["kind"] == kind).collect::<Vec<_>>();
        let (ticks, rest) = (of_kind("tick"), of_kind("missed"));
        assert!(runs.contains(&ticks.len()), "{missed}: {} runs", ticks.len());
        assert!(ticks.iter().all(|one| one["status"] == "requested"), "{missed}: {ticks:?}");
        // All others are one row, and no tick is in both.
        assert_eq!(rest.len(), 1, "{missed}: {rest:?}");
        let left = scene.ask(&["rule", "show", &rule])["missed"].as_u64().expect("a number");
        assert_eq!(rest[0]["reason"], format!("missed ×{left}"), "{missed}");
        let all = left + ticks.len() as u64;
        // One more if an hour has just begun.
        assert!((500..=501).contains(&all), "{missed}: {left} left of {all}");
        // The oldest one came first.
        let mut keys: Vec<&str> = ticks.iter().rev().filter_map(|one| one["key"].as_str()).collect();
        let ordered = keys.is_sorted();
        keys.dedup();
        assert!(ordered && keys.len() == ticks.len(), "{missed}: {keys:?}");
        // Nothing is left, and nothing fires twice.
        scene.sandbox.sprag(["rule", "tick", "--detach"]).expect(0);
        assert_eq!(scene.list(&["delivery", "ls", &rule, "--limit", "1000"]).len(), events.len(), "{missed}");
    }
}

#[test]
fn r04_missed_ticks_start_none_the_latest_or_at_most_a_hundred() {
    missed_ticks(&Scene::on_sqlite());
}

#[test]
fn r04_missed_ticks_start_none_the_latest_or_at_most_a_hundred_on_postgres() {
    missed_ticks(&Scene::on_postgres());
}

/// The step notes that it began and ended. It waits for a file, and fails the first time if a file says so.
const EXCLUSIVE: &str = "name: p
inputs: { of: string }
on:
  - id: r
    schedule: { every: 1h }
    overlap: OVERLAP
    inputs: { of: \"{{ tick.time }}\" }
steps:
  - id: a
    run: |
      echo begin >> trace
      if [ -e fail ]; then rm fail; echo end >> trace; exit 1; fi
      until [ -e go ]; do sleep 0.05; done
      echo end >> trace
";

/// Returns the most steps that were running at once, by the notes that they left.
fn most_at_once(sandbox: &Sandbox) -> i32 {
    let mut now = 0;
    let counts = sandbox.lines("trace").into_iter().map(|line| {
        now += if line == "begin" { 1 } else { -1 };
        now
    });
    counts.max().unwrap_or(0)
}

/// A run of a rule fails, the next tick starts another, and the failed one is resumed beside it, with two servers of
/// which one dies: the runs of the rule never execute at once.
fn overlap_holds(scene: &Scene, overlap: &str, own_group: bool) {
    let sandbox = &scene.sandbox;
    let group = if own_group { "concurrency: { group: mine, limit: 5 }\n" } else { "" };
    sandbox.yaml("p", &format!("{group}{}", EXCLUSIVE.replace("OVERLAP", overlap)));
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let mut servers = vec![Server::start(sandbox, &[]), Server::start(sandbox, &[])];
    let decisions = || scene.list(&["delivery", "ls", "p/r"]);
    let fire = || scene.ask(&["rule", "fire", "p/r"]);
    sandbox.write("fail", "");
    let first = fire()["run"].as_str().expect("a run").to_owned();
    sandbox.ends_as(&first, "failed");
    let second = fire()["run"].as_str().expect("a run").to_owned();
    until("the second run executes", || sandbox.lines("trace").len() == 3);
    // Resuming it now is refused, or makes it wait for its place.
    let resumed = sandbox.start(["resume", &first, "--detach"]).finish();
    assert!(resumed.stderr.contains("\"rule:p/r\" is full"), "{overlap}: {resumed:?}");
    servers.remove(0).into_process().kill();
    let third = fire();
    match overlap {
        "skip" => {
            assert!(third["reason"].as_str().is_some_and(|why| why.contains("has not ended")), "{third}")
        }
        _ => assert_eq!(third["status"], "requested", "{third}"),
    }
    sandbox.write("go", "");
    sandbox.ends_as(&second, "completed");
    for one in decisions().iter().filter_map(|one| one["run"].as_str()) {
        if one != first || resumed.code == 0 {
            sandbox.ends_as(one, "completed");
        }
    }
    // The step of a killed server may begin twice without an end; its process is gone before it begins again.
    let at_once = most_at_once(sandbox);
    assert!(at_once <= 2, "{overlap}: {at_once} at once: {:?}", sandbox.lines("trace"));
    let begun = sandbox.lines("trace").iter().filter(|line| *line == "begin").count();
    let ended = sandbox.lines("trace").iter().filter(|line| *line == "end").count();
    assert!(
        at_once as usize <= 1 + begun - ended,
        "{overlap}: {at_once} at once: {:?}",
        sandbox.lines("trace")
    );
}

#[test]
fn r07_runs_of_a_rule_never_overlap_across_servers_and_resumes() {
    for overlap in ["skip", "queue"] {
        overlap_holds(&Scene::on_sqlite(), overlap, false);
    }
}

#[test]
fn r07_hr9_runs_of_a_rule_never_overlap_if_the_pipeline_has_a_group() {
    for overlap in ["skip", "queue"] {
        overlap_holds(&Scene::on_sqlite(), overlap, true);
    }
}

#[test]
fn r07_runs_of_a_rule_never_overlap_on_postgres() {
    overlap_holds(&Scene::on_postgres(), "queue", false);
}

#[test]
fn r07_hr9_runs_of_a_rule_never_overlap_if_the_pipeline_has_a_group_on_postgres() {
    overlap_holds(&Scene::on_postgres(), "skip", true);
}

/// Returns a file of zone data for a zone that is always this many hours ahead of UTC.
fn zone_data(hours: u8) -> Vec<u8> {
    let block = |version: u8| {
        let mut block = vec![b'T', b'Z', b'i', b'f', version];
        block.extend([0; 15]);
        // The numbers of: two kinds of indicators, leap seconds, changes, offsets, characters of names.
        [0u32, 0, 0, 0, 1, 4].iter().for_each(|number| block.extend(number.to_be_bytes()));
        block.extend((i32::from(hours) * 3_600).to_be_bytes());
        block.extend([0, 0]);
        block.extend(b"TST\0");
        block
    };
    let mut file = block(b'2');
    file.extend(block(b'2'));
    file.extend(format!("\nTST-{hours}\n").into_bytes());
    file
}

fn zone_data_differs(scene: &Scene) {
    let sandbox = &scene.sandbox;
    for (folder, hours) in [("one", 1), ("two", 2)] {
        let file = sandbox.write(&format!("{folder}/Test/Zone"), "");
        std::fs::write(file, zone_data(hours)).expect("zone data");
    }
    sandbox.yaml(
        "p",
        "name: p\non:\n  - id: r\n    schedule: { cron: '* * * * *', zone: Test/Zone }\n    overlap: allow\n    missed: { run: all, within: 2h }\nsteps:\n  - id: a\n    run: 'true'\n",
    );
    let with_data = |folder: &str, args: &[&str]| {
        let mut command = sandbox.command(args);
        command.env("TZDIR", sandbox.path(folder));
        let output = command.output().expect("sprag runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    with_data("one", &["rule", "apply", "p.yaml"]);
    scene.set_back(10 * 60_000);
    with_data("one", &["rule", "tick", "--detach"]);
    let count = || scene.list(&["ls", "--limit", "500"]).len();
    let first = count();
    assert!((9..=11).contains(&first), "{first}");
    // For the second server the ticks of the last ten minutes are an hour ago.
    scene.set_back(70 * 60_000);
    with_data("two", &["rule", "tick", "--detach"]);
    let events = scene.list(&["delivery", "ls", "--limit", "500"]);
    let ticks: Vec<&Value> = events.iter().filter(|event| event["kind"] == "tick").collect();
    let keys: BTreeSet<&str> = ticks.iter().map(|event| event["key"].as_str().expect("a key")).collect();
    assert_eq!((keys.len(), count()), (ticks.len(), ticks.len()), "each nominal tick has one run");
    assert!((first + 55..=first + 65).contains(&ticks.len()), "{} after {first}", ticks.len());
}

#[test]
fn r06_servers_with_different_zone_data_start_one_run_for_each_nominal_tick() {
    zone_data_differs(&Scene::on_sqlite());
}

#[test]
fn r06_servers_with_different_zone_data_start_one_run_for_each_nominal_tick_on_postgres() {
    zone_data_differs(&Scene::on_postgres());
}

const EVERY_SECOND: &str = "name: beat
on:
  - id: second
    schedule: { every: 1s }
    overlap: allow
    missed: { run: latest }
steps:
  - id: a
    run: 'true'
";

fn stopped_past_ticks(scene: &Scene) {
    let sandbox = &scene.sandbox;
    sandbox.yaml("beat", EVERY_SECOND);
    sandbox.sprag(["rule", "apply", "beat.yaml"]).expect(0);
    let mut server = Server::start(sandbox, &[]);
    let decisions = || {
        let mut all = scene.list(&["delivery", "ls", "second", "--limit", "1000"]);
        all.reverse();
        all
    };
    let fired = || decisions().iter().filter(|one| one["run"].is_string()).count();
    until("a tick has fired", || fired() > 0);
    server.process().stop_between_writes();
    let at_stop = fired();
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(6);
    until("six ticks have passed", || jiff::Timestamp::now() > later);
    server.process().signal(Signal::CONT);
    until("the missed ticks are recorded", || decisions().iter().any(|one| one["kind"] == "missed"));
    until("it goes on", || fired() > at_stop + 1);
    let all = decisions();
    let missed = all.iter().find(|one| one["kind"] == "missed").expect("it is there");
    let shown = scene.ask(&["rule", "show", "second"]);
    assert!(shown["missed"].as_i64().expect("a number") >= 3, "{shown}");
    let mut keys = BTreeSet::new();
    assert!(all.iter().all(|one| keys.insert(one["key"].as_str().expect("a key").to_owned())), "{all:?}");
    assert_eq!(missed["run"], Value::Null, "ticks that were missed start nothing: {all:?}");
}

#[test]
fn r09_a_server_that_was_stopped_past_ticks_fires_the_latest_one() {
    stopped_past_ticks(&Scene::on_sqlite());
}

#[test]
fn r09_a_server_that_was_stopped_past_ticks_fires_the_latest_one_on_postgres() {
    stopped_past_ticks(&Scene::on_postgres());
}

/// Events of different ages, with a rule whose missed ticks may start runs for forty days.
fn gc_keeps_keys(scene: &Scene) {
    let sandbox = &scene.sandbox;
    let file = |within: &str| {
        format!(
            "name: p\non:\n  - id: r\n    schedule: {{ every: 1h }}\n    missed: {{ run: latest, within: {within} }}\n    overlap: allow\nsteps:\n  - id: a\n    run: 'true'\n"
        )
    };
    sandbox.yaml("p", &file("1d"));
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let events = || scene.list(&["delivery", "ls"]).len();
    let backfill = |to: &str| {
        let done = scene.ask(&["rule", "backfill", "r", "--from", "2026-03-01T00:30:00Z", "--to", to]);
        done["new"].as_array().expect("ticks").len()
    };
    assert_eq!(backfill("2026-03-01T02:30:00Z"), 2);
    let gc = |age_days: i64| {
        let age_ms = age_days * 24 * HOUR_MS;
        let now_ms = jiff::Timestamp::now().as_millisecond();
        scene.sql(&format!("UPDATE deliveries SET received_ms = {}", now_ms - age_ms));
        sandbox.sprag(["gc", "--keep", "1d"]).expect(0);
    };
    // However short the time for runs is, keys stay for thirty days.
    gc(29);
    assert_eq!((events(), backfill("2026-03-01T02:30:00Z")), (2, 0), "the ticks are known");
    // They stay for longer if a tick of this age may still start a run.
    sandbox.yaml("p", &file("40d"));
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    gc(39);
    assert_eq!((events(), backfill("2026-03-01T02:30:00Z")), (2, 0), "the ticks are known");
    gc(41);
    assert_eq!(events(), 0, "decided long ago");
}

#[test]
fn r26_gc_frees_no_key_inside_its_window() {
    gc_keeps_keys(&Scene::on_sqlite());
}

#[test]
fn r26_gc_frees_no_key_inside_its_window_on_postgres() {
    gc_keeps_keys(&Scene::on_postgres());
}
