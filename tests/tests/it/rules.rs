//! Rules with real processes: every tick fires once with any number of servers, whatever happens to them.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_testkit::Postgres;
use sprag_tests::{Sandbox, Server, nightly, until};

const EVERY_SECOND: &str = "name: beat
on:
  - id: second
    schedule: { every: 1s }
    overlap: allow
    missed: { run: all }
    inputs: { at: \"{{ tick.time }}\" }
inputs: { at: string }
steps:
  - id: note
    run: echo \"{{ inputs.at }}\" >> ticks
";

/// Returns what a command tells with `--json`.
fn ask(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.sprag(args.iter().copied().chain(["--json"])).expect(0).json()
}

/// Returns the decisions about a rule's ticks, oldest first.
fn decisions(sandbox: &Sandbox) -> Vec<Value> {
    let mut all =
        ask(sandbox, &["delivery", "ls", "second", "--limit", "1000"]).as_array().expect("a list").clone();
    all.reverse();
    all
}

/// Returns the second of the day of a key such as 2030-01-31T08:00:00Z.
fn second_of_day(key: &str) -> u32 {
    let part = |from: usize| key[from..from + 2].parse::<u32>().expect("a number");
    part(11) * 3_600 + part(14) * 60 + part(17)
}

/// Checks that each tick was decided once, that none is left out, and that each run belongs to one tick.
fn check(sandbox: &Sandbox) {
    let decisions = decisions(sandbox);
    let mut ticks = BTreeMap::new();
    for one in decisions.iter().filter(|one| one["kind"] == "tick") {
        let key = one["key"].as_str().expect("a key").to_owned();
        assert_eq!(one["status"], "requested", "{one}");
        assert!(ticks.insert(key, one["run"].as_str().expect("a run").to_owned()).is_none(), "{one} twice");
    }
    let missed = decisions.iter().filter(|one| one["kind"] == "missed").count();
    assert_eq!(missed, 0, "all ticks are young enough: {decisions:?}");
    let times: Vec<u32> = ticks.keys().map(|key| second_of_day(key)).collect();
    let follows = |pair: &[u32]| (pair[0] + 1) % 86_400 == pair[1];
    assert!(times.windows(2).all(follows), "a tick is left out: {ticks:?}");
    let runs: std::collections::BTreeSet<&String> = ticks.values().collect();
    assert_eq!(runs.len(), ticks.len(), "a run of two ticks: {ticks:?}");
    let all = ask(sandbox, &["ls", "--limit", "1000"]);
    let all = all.as_array().expect("runs");
    assert_eq!(all.len(), ticks.len(), "a run without a tick");
}

fn fires_once_with_several_servers(sandbox: &Sandbox) {
    sandbox.yaml("beat", EVERY_SECOND);
    sandbox.sprag(["rule", "apply", "beat.yaml"]).expect(0);
    let mut servers: Vec<Server> = (0..nightly(3, 8)).map(|_| Server::start(sandbox, &[])).collect();
    let count = |n: usize| decisions(sandbox).iter().filter(|one| one["run"].is_string()).count() >= n;
    until("three ticks have fired", || count(3));
    // One server dies in the middle of its work, and all the others continue.
    servers.remove(0).into_process().kill();
    until("three further ticks have fired", || count(6));
    // All servers die. Their successor fires the ticks that were missed.
    servers.drain(..).for_each(|server| server.into_process().kill());
    let before = decisions(sandbox).len();
    let last = Server::start(sandbox, &[]);
    until("the ticks in between have fired", || count(before + 2));
    let paused = ask(sandbox, &["rule", "pause", "beat/second"]);
    assert_eq!(paused["status"], "paused");
    let at_pause = decisions(sandbox).len();
    check(sandbox);
    // Nothing starts after a pause, by hand neither.
    sandbox.sprag(["rule", "fire", "second"]).expect(1);
    assert_eq!(decisions(sandbox).len(), at_pause);
    until("the runs have ended", || {
        let runs = ask(sandbox, &["ls", "--limit", "1000"]);
        runs.as_array().expect("runs").iter().all(|run| run["status"] == "completed")
    });
    // A step of a server that was killed may run twice; each tick has a run of its own.
    let noted: std::collections::BTreeSet<String> = sandbox.lines("ticks").into_iter().collect();
    let runs = ask(sandbox, &["ls", "--limit", "1000"]);
    assert_eq!(noted.len(), runs.as_array().expect("runs").len());
    drop(last);
}

#[test]
fn r01_r02_r04_r10_each_tick_fires_once_whatever_servers_die() {
    fires_once_with_several_servers(&Sandbox::new());
}

#[test]
fn r01_r02_r04_r10_each_tick_fires_once_on_postgres() {
    let database = Postgres::shared().database();
    fires_once_with_several_servers(&Sandbox::on(&database.url));
}

fn by_hand(sandbox: &Sandbox) {
    let file = |schedule: &str, rule: &str| {
        format!(
            "name: p\ninputs: {{ day: {{ default: none }} }}\non:\n  - id: r\n    schedule: {schedule}\n{rule}steps:\n  - id: a\n    run: echo {{{{ inputs.day }}}} >> days\n"
        )
    };
    let told = sandbox.sprag(["explain", "p/r"]).expect(2).stderr;
    assert!(told.contains("no rule \"p/r\" is applied") && told.contains("sprag rule apply FILE"), "{told}");
    sandbox.yaml("p", &file("{ cron: '0 12 * * *' }", "    inputs: { day: '{{ tick.date }}' }\n"));
    let dry = ask(sandbox, &["rule", "apply", "p.yaml", "--dry"]);
    assert_eq!(dry["rules"][0]["outcome"], "new");
    assert!(ask(sandbox, &["rule", "ls"]).as_array().expect("rules").is_empty(), "a dry run writes nothing");
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    assert_eq!(ask(sandbox, &["rule", "apply", "p.yaml"])["rules"][0]["outcome"], "unchanged");
    let shown = ask(sandbox, &["rule", "show", "r", "--next", "3"]);
    assert_eq!(shown["next"].as_array().expect("ticks").len(), 3);
    let told = sandbox.sprag(["explain", "p/r"]).expect(0).stdout;
    assert!(told.contains("no process watches"), "{told}");

    // R12: a fire by hand leaves the next tick as it is. R24: `test` decides as firing does, and writes nothing.
    let tested = ask(sandbox, &["rule", "test", "r", "--at", "2030-01-31T12:00:00Z"]);
    assert_eq!((&tested["decision"], &tested["inputs"]["day"]), (&"start".into(), &"2030-01-31".into()));
    assert!(ask(sandbox, &["delivery", "ls"]).as_array().expect("events").is_empty());
    let fired = ask(sandbox, &["rule", "fire", "r"]);
    assert_eq!(fired["status"], "requested", "{fired}");
    let event = fired["event"].as_str().expect("an event");
    assert_eq!(ask(sandbox, &["rule", "show", "r", "--next", "3"])["next"], shown["next"]);
    let again = ask(sandbox, &["rule", "test", "r", "--event", event]);
    assert_eq!(again["decision"], "skip", "the run of the fire has not ended: {again}");
    let until_then = again["reason"].clone();

    // Overlap: the run of the fire has not ended, because no worker is there.
    let second = ask(sandbox, &["rule", "fire", "r"]);
    assert_eq!(second["status"], "skipped", "{second}");
    assert!(second["reason"].as_str().expect("a reason").contains("has not ended"));
    assert_eq!(second["reason"], until_then, "`test` decides as firing does");
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("days").len(), 1);

    // R13: a second backfill starts nothing.
    let backfill =
        ["rule", "backfill", "r", "--from", "2026-03-01T00:00:00Z", "--to", "2026-03-01T23:00:00Z"];
    let done = ask(sandbox, &backfill);
    assert_eq!((&done["new"][0], &done["known"]), (&"2026-03-01T12:00 UTC".into(), &0.into()), "{done}");
    let done = ask(sandbox, &backfill);
    assert_eq!((&done["new"], &done["known"]), (&Value::Array(vec![]), &1.into()));
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("days").last().map(String::as_str), Some("2026-03-01"));

    // R11: a resumed rule starts nothing of its pause. `rule tick` fires what is due and runs it.
    sandbox.yaml("p", &file("{ every: 1s }", "    inputs: { day: tick }\n"));
    assert_eq!(ask(sandbox, &["rule", "apply", "p.yaml"])["rules"][0]["outcome"], "changed");
    sandbox.sprag(["rule", "pause", "r", "--reason", "holidays"]).expect(0);
    let told = sandbox.sprag(["explain", "p/r"]).expect(0).stdout;
    assert!(told.contains("it is paused by ") && told.contains(": holidays"), "{told}");
    let tested = ask(sandbox, &["rule", "test", "r"]);
    assert_eq!((&tested["decision"], &tested["reason"]), (&"skip".into(), &"the rule is paused".into()));
    let ticked = sandbox.sprag(["rule", "tick"]).expect(0).stdout;
    assert!(ticked.contains("0 started"), "{ticked}");
    sandbox.sprag(["rule", "resume", "r"]).expect(0);
    until("a tick is due, fires and runs", || {
        sandbox.sprag(["rule", "tick"]).expect(0);
        sandbox.lines("days").last().map(String::as_str) == Some("tick")
    });

    // R20: a condition without an answer is failed, with the name.
    sandbox.yaml("p", &file("{ every: 1h }", "    when: tick.date.year > 3\n"));
    sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
    let failed = ask(sandbox, &["rule", "fire", "r"]);
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["reason"].as_str().expect("a reason").contains("tick.date"), "{failed}");
    let replayed = ask(sandbox, &["delivery", "replay", failed["event"].as_str().expect("an event")]);
    assert_eq!(replayed["status"], "failed");

    // A rule that the file no longer has is retired; nothing else finds it.
    sandbox.yaml("p", "name: p\nsteps: [{ id: a, run: 'true' }]\n");
    assert_eq!(ask(sandbox, &["rule", "apply", "p.yaml"])["rules"][0]["outcome"], "retired");
    assert!(ask(sandbox, &["rule", "ls"]).as_array().expect("rules").is_empty());
    sandbox.sprag(["rule", "show", "nothing"]).expect(2);
}

#[test]
fn r11_r12_r13_r20_r24_by_hand_without_a_server() {
    by_hand(&Sandbox::new());
}

#[test]
fn r11_r12_r13_r20_r24_by_hand_on_postgres() {
    let database = Postgres::shared().database();
    by_hand(&Sandbox::on(&database.url));
}

/// Has many processes fire many rules that are due at one moment: each rule starts one run.
fn many_processes_fire_each_rule_once(sandbox: &Sandbox) {
    let (processes, rules) = nightly((8, 60), (64, 1_000));
    // Applying so many rules may take longer than expected: then the moment is over, and other rules get a later one.
    let apply = |seconds: i64| {
        let moment = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        let at = moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let rule = |number: usize| format!("  - id: r{number}\n    schedule: {{ at: '{at}' }}\n");
        let all: String = (0..rules).map(rule).collect();
        let name = format!("p{seconds}");
        sandbox.yaml("p", &format!("name: {name}\non:\n{all}steps:\n  - id: a\n    run: 'true'\n"));
        sandbox.sprag(["rule", "apply", "p.yaml"]).expect(0);
        let whole = jiff::Timestamp::from_second(moment.as_second()).expect("a time");
        (jiff::Timestamp::now() < whole).then_some((whole, name))
    };
    let (moment, name) = [3, 15, 60].into_iter().find_map(apply).expect("rules are applied within a minute");
    until("the moment has come", || jiff::Timestamp::now() > moment);
    let runs = || {
        let all = ask(sandbox, &["ls", "--pipeline", &name, "--limit", "1000"]);
        all.as_array().expect("runs").len()
    };
    for _ in 0..20 {
        let all: Vec<_> = (0..processes).map(|_| sandbox.start(["rule", "tick", "--detach"])).collect();
        all.into_iter().for_each(|process| drop(process.finish().expect(0)));
        if runs() == rules {
            break;
        }
    }
    let events = ask(sandbox, &["delivery", "ls", "--limit", "1000"]);
    let of_these =
        |one: &&Value| one["rule"].as_str().is_some_and(|rule| rule.starts_with(&format!("{name}/")));
    let events: Vec<&Value> = events.as_array().expect("events").iter().filter(of_these).collect();
    let others: Vec<&&Value> = events.iter().filter(|one| !one["run"].is_string()).collect();
    assert_eq!(runs(), rules, "a tick started twice, or not at all: {} events, {others:?}", events.len());
    let of: std::collections::BTreeSet<&str> =
        events.iter().map(|one| one["rule"].as_str().expect("a rule")).collect();
    let ran: std::collections::BTreeSet<&str> =
        events.iter().map(|one| one["run"].as_str().expect("a run")).collect();
    assert_eq!((events.len(), of.len(), ran.len()), (rules, rules, rules));
}

#[test]
fn r01_many_processes_fire_each_rule_once() {
    many_processes_fire_each_rule_once(&Sandbox::new());
}

#[test]
fn r01_many_processes_fire_each_rule_once_on_postgres() {
    let database = Postgres::shared().database();
    many_processes_fire_each_rule_once(&Sandbox::on(&database.url));
}

/// Returns a time as milliseconds since 1970.
fn ms(time: &Value) -> i64 {
    let time: jiff::Timestamp = time.as_str().expect("a time").parse().expect("a time");
    time.as_millisecond()
}

/// Has two servers fire ticks with jitter, and kills them in between.
fn jitter_is_the_same(sandbox: &Sandbox) {
    let file = "name: beat\non:\n  - id: second\n    schedule: { every: 3s, jitter: 2s }\n    overlap: allow\n    missed: { run: all }\nsteps:\n  - id: a\n    run: 'true'\n";
    sandbox.yaml("beat", file);
    sandbox.sprag(["rule", "apply", "beat.yaml"]).expect(0);
    // The time at which each tick fires, by its nominal time.
    let next = || -> BTreeMap<i64, i64> {
        let shown = ask(sandbox, &["rule", "show", "second", "--next", "20"]);
        let ticks = shown["next"].as_array().expect("ticks");
        ticks.iter().map(|tick| (ms(&tick["time"]), tick["fires_ms"].as_i64().expect("a time"))).collect()
    };
    let planned = next();
    assert!(planned.values().collect::<std::collections::BTreeSet<_>>().len() > 10);
    for (tick, fires_ms) in &planned {
        assert!((*tick..tick + 2_000).contains(fires_ms), "{tick} fires at {fires_ms}");
    }
    assert!(planned.iter().any(|(tick, fires_ms)| fires_ms > tick), "there is some jitter: {planned:?}");
    let start = || [Server::start(sandbox, &["--no-worker"]), Server::start(sandbox, &["--no-worker"])];
    let servers = start();
    until("a tick has fired", || !decisions(sandbox).is_empty());
    servers.into_iter().for_each(|server| server.into_process().kill());
    let later = next();
    let same = later.iter().filter(|(tick, _)| planned.contains_key(tick)).collect::<Vec<_>>();
    assert!(!same.is_empty());
    assert!(same.iter().all(|(tick, fires_ms)| planned[tick] == **fires_ms), "{planned:?}, {later:?}");
    let servers = start();
    until("three further ticks have fired", || decisions(sandbox).len() >= 4);
    for one in decisions(sandbox) {
        let (tick, at_ms) = (ms(&one["key"]), one["at_ms"].as_i64().expect("a time"));
        let fires_ms = planned.get(&tick).expect("a planned tick");
        assert!(at_ms >= *fires_ms, "{tick} fired at {at_ms}, and not at {fires_ms}");
    }
    drop(servers);
}

#[test]
fn r08_jitter_is_the_same_with_two_servers_and_after_a_restart() {
    jitter_is_the_same(&Sandbox::new());
}

#[test]
fn r08_jitter_is_the_same_with_two_servers_on_postgres() {
    let database = Postgres::shared().database();
    jitter_is_the_same(&Sandbox::on(&database.url));
}
