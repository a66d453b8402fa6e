//! Every command, and the output that programs rely on.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};
use sprag_tests::{Answer, Entry, Sandbox, Signal, until};

const COMMANDS: [&str; 26] = [
    "run",
    "rewind",
    "fork",
    "task",
    "env",
    "diff",
    "approve",
    "reject",
    "signal",
    "ls",
    "status",
    "logs",
    "wait",
    "cancel",
    "retry",
    "resume",
    "worker",
    "events",
    "explain",
    "graph",
    "init",
    "validate",
    "schema",
    "lifecycle",
    "doctor",
    "completion",
];

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Returns a sandbox with `ok` (two steps), `bad` (fails) and `slow` (waits for a signal).
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.pipeline("ok", &[("one", "run: echo hello"), ("two", "run: echo again >&2")]);
    sandbox.pipeline("bad", &[("breaks", "run: exit 3"), ("never", "run: echo no")]);
    sandbox.pipeline("slow", &[("sleeps", "run: echo $$ > slow.pid; exec sleep 300")]);
    sandbox
}

#[test]
fn run_json_prints_each_journal_entry_and_the_result_last() {
    let sandbox = sandbox();
    let told: Vec<Value> = sandbox.sprag(["run", "ok.yaml", "--json"]).expect(0).lines();
    let (result, entries) = told.split_last().expect("lines");
    let run = sandbox.newest().expect("a run");
    assert_eq!(*result, json!({ "type": "result", "run": run, "status": "completed" }));
    let journal: Vec<Value> = sandbox.sprag(["events", "--run", &run, "--json"]).expect(0).lines::<Value>();
    assert_eq!(entries, journal);
}

#[test]
fn ls_json_has_the_documented_shape() {
    let sandbox = sandbox();
    assert_eq!(sandbox.json(["ls", "--json"]), json!([]));
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    sandbox.sprag(["run", "bad.yaml"]).expect(100);
    let waiting = sandbox.detach(&sandbox.path("ok.yaml"));
    let runs = sandbox.json(["ls", "--json"]);
    let runs = runs.as_array().expect("an array");
    let statuses: Vec<&str> = runs.iter().filter_map(|run| run["status"].as_str()).collect();
    assert_eq!(statuses, ["running", "failed", "completed"], "newest first");
    for run in runs {
        let wanted =
            ["id", "pipeline", "status", "waiting_for", "progress", "created_at", "started_at", "ended_at"];
        assert_eq!(keys(run), BTreeSet::from(wanted));
    }
    assert_eq!((&runs[0]["id"], &runs[0]["ended_at"]), (&json!(waiting), &Value::Null));
    assert!(runs[2]["ended_at"].as_str().is_some_and(|at| at.ends_with('Z')));
    assert_eq!(sandbox.json(["ls", "--json", "--status", "failed"]).as_array().map(Vec::len), Some(1));
    assert_eq!(sandbox.json(["ls", "--json", "-n", "2"]).as_array().map(Vec::len), Some(2));
    let refused = sandbox.sprag(["ls", "--status", "finished"]).expect(2);
    assert!(refused.stderr.contains("completed"), "{refused:?}");
}

#[test]
fn status_json_has_the_documented_shape() {
    let sandbox = sandbox();
    sandbox.sprag(["run", "bad.yaml"]).expect(100);
    let run = sandbox.newest().expect("a run");
    let wanted = json!({
        "id": run, "pipeline": "bad", "status": "failed", "waiting_for": null, "epoch": 1,
        "steps": [
            { "id": "breaks", "status": "failed", "attempt": 1 },
            { "id": "never", "status": "cancelled", "attempt": 1, "not_run": true },
        ],
        "inputs": {}, "priority": 0, "group": null, "reason": null, "parent": null,
    });
    // Times differ between runs: a step that began has both, and one that never did has only its end.
    let without_times = |mut told: Value| {
        let run = told.as_object_mut().expect("a run");
        for key in ["created_at", "started_at", "ended_at", "version"] {
            assert!(run.remove(key).is_some_and(|value| !value.is_null()), "{key}: {run:?}");
        }
        for step in told["steps"].as_array_mut().expect("steps") {
            let step = step.as_object_mut().expect("a step");
            assert!(step.remove("ended_at").is_some(), "{step:?}");
            assert_eq!(step.remove("started_at").is_none(), step.contains_key("not_run"), "{step:?}");
        }
        told
    };
    assert_eq!(without_times(sandbox.status(&run)), wanted);
    assert_eq!(without_times(sandbox.status(&run[6..])), wanted, "the end of an id is enough");
    let newest = without_times(sandbox.json(["status", "--json"]));
    assert_eq!(newest, wanted, "the newest if none is named");
    let people = sandbox.sprag(["status"]).expect(0).stdout;
    assert!(people.contains("exit code 3") && people.contains("not run"), "{people}");
}

#[test]
fn events_json_has_exactly_the_documented_keys() {
    let sandbox = sandbox();
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    let all: Vec<Value> = sandbox.sprag(["events", "--json"]).expect(0).lines();
    let wanted = ["seq", "at", "entity", "id", "run", "step", "event", "from", "to", "actor"];
    for entry in &all {
        // An execution that a worker has, or had, names the worker and its fence.
        let held = ["worker", "fence", "by", "name"].into_iter().filter(|key| entry.get(key).is_some());
        assert_eq!(keys(entry), wanted.into_iter().chain(held).collect(), "{entry}");
        let is_held =
            entry["entity"] == "execution" && ["running", "completed"].map(Into::into).contains(&entry["to"]);
        assert_eq!((entry["worker"].is_string(), entry["fence"].is_u64()), (is_held, is_held), "{entry}");
        // The user who started the run, or the worker; a consequence has no author.
        let by = entry["by"].as_str().unwrap_or_default();
        let author = match entry["actor"].as_str() {
            Some("person") => "user:",
            Some("worker") if is_held => "worker:",
            _ => "",
        };
        assert!(by.starts_with(author), "{entry}");
        assert_eq!(entry.get("name").is_some(), entry["entity"] == "worker", "{entry}");
        assert!(entry["seq"].is_u64() && entry["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{entry}");
    }
    let last = all.len() as u64;
    assert_eq!(all[all.len() - 1]["seq"], last, "without a gap from the first on");
    let since: Vec<Entry> = sandbox.sprag(["events", "--since", "3", "--json"]).expect(0).lines();
    assert_eq!(since.iter().map(|entry| entry.seq).collect::<Vec<_>>(), (4..=last).collect::<Vec<_>>());
    assert!(sandbox.sprag(["events"]).expect(0).stdout.contains("run.succeeded"));
}

#[test]
fn exit_codes_are_as_documented() {
    let sandbox = sandbox();
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
    sandbox.sprag(["status"]).expect(1);
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    sandbox.sprag(["run", "bad.yaml"]).expect(100);
    sandbox.sprag(["wait"]).expect(100);
    sandbox.sprag(["run", "nowhere.yaml"]).expect(2);
    sandbox.sprag(["run"]).expect(2);
    sandbox.sprag(["frobnicate"]).expect(2);
    sandbox.sprag(["wait", "--timeout", "soon"]).expect(2);
    let run = sandbox.detach(&sandbox.path("ok.yaml"));
    sandbox.sprag(["wait", &run, "--timeout", "50ms"]).expect(124);
    let told = sandbox.json(["cancel", &run, "--json"]);
    assert_eq!(told, json!({ "run": run, "status": "cancelled" }));
    sandbox.sprag(["wait", &run]).expect(130);
    let again = sandbox.json(["cancel", &run, "--json"]);
    assert_eq!(again, told, "a second time is fine");
    sandbox.sprag(["retry", &run, "--step", "nowhere"]).expect(2);
    let help = sandbox.sprag(["--help"]).expect(0).stdout;
    for code in
        ["0 ok", "1 error", "2 usage", "4 nothing", "100 run failed", "124 timed out", "130 cancelled"]
    {
        assert!(help.contains(code), "{code}: {help}");
    }
}

#[test]
fn an_error_in_json_has_its_code_and_the_remedy() {
    let sandbox = sandbox();
    let told = sandbox.sprag(["status", "--json"]).expect(1);
    let error: Value = serde_json::from_str(&told.stderr).expect("JSON on stderr");
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!(1)));
    assert!(error["next"].as_str().is_some_and(|next| next.contains("sprag run")), "{error}");
    assert_eq!(told.stdout, "");
}

#[test]
fn an_interrupt_cancels_the_run_and_says_130() {
    let sandbox = sandbox();
    let run = sandbox.start(["run", "slow.yaml"]);
    let step = sandbox.pid_in("slow.pid");
    run.signal(Signal::INT);
    let told = run.finish().expect(130);
    assert!(told.stderr.contains("Cancelling. Press Ctrl-C again to quit."), "{told:?}");
    assert!(!sprag_tests::is_running(step));
    assert_eq!(sandbox.status_word(&sandbox.newest().expect("a run")), "cancelled");
}

#[test]
fn an_interrupt_is_heard_however_much_there_is_to_show() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("loud", &[("talks", "run: echo > began; while :; do seq 1 2000; done")]);
    let run = sandbox.start(["run", "loud.yaml"]);
    until("it talks", || run.stdout().len() > 10_000);
    run.signal(Signal::INT);
    run.finish().expect(130);
}

#[test]
fn every_help_fits_and_explains() {
    let sandbox = sandbox();
    for name in COMMANDS {
        let mut command = sandbox.command([name, "--help"]);
        command.env_remove("SPRAG_DATA");
        let help = sandbox.start_command(command).finish().expect(0).stdout;
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{name}: {line:?}");
        }
        let first = help.lines().next().unwrap_or_default();
        assert!(first.len() > 20 || help.contains("Examples:"), "{name}: {help}");
    }
    let listed = sandbox.sprag(["--help"]).expect(0).stdout;
    assert!(COMMANDS.iter().all(|name| listed.contains(&format!("  {name}"))), "{listed}");
}

#[test]
fn completions_name_the_commands() {
    let sandbox = sandbox();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.sprag(["completion", shell]).expect(0).stdout;
        assert!(script.contains("explain") && script.contains("until-idle"), "{shell}");
    }
    sandbox.sprag(["completion", "cmd"]).expect(2);
}

#[test]
fn schema_lifecycle_and_validate_need_no_data() {
    let sandbox = sandbox();
    let schema = sandbox.json(["schema"]);
    assert!(schema["$schema"].is_string() && schema["properties"]["steps"].is_object(), "{schema}");
    let all = sandbox.sprag(["lifecycle"]).expect(0).stdout;
    let run = sandbox.sprag(["lifecycle", "run"]).expect(0).stdout;
    assert!(run.starts_with("## Run") && all.contains(run.trim_end()) && !run.contains("## Step"), "{run}");
    sandbox.sprag(["lifecycle", "unicorn"]).expect(2);
    sandbox.write("broken.yaml", "steps:\n  - id: a\n    rum: echo\n");
    let told = sandbox.sprag(["validate", "ok.yaml", "broken.yaml", "--json"]).expect(2).json();
    assert_eq!(told[0], json!({ "file": "ok.yaml", "valid": true, "diagnostics": [] }));
    assert_eq!((&told[1]["file"], &told[1]["valid"]), (&json!("broken.yaml"), &json!(false)));
    let first = &told[1]["diagnostics"][0];
    assert_eq!(first["line"], 3, "{told}");
    assert!(!sandbox.data().exists(), "nothing was made");
}

#[test]
fn warnings_are_shown_counted_and_refused_only_if_asked() {
    let sandbox = Sandbox::new();
    sandbox.write("odd.yaml", "inputs:\n  unused: string\nsteps:\n  - id: a\n    run: [echo, $HOME]\n");
    let told = sandbox.sprag(["validate", "odd.yaml"]).expect(0);
    assert_eq!(told.stdout, "odd.yaml: ok, pipeline \"odd\" with 1 step, 2 warnings\n");
    assert!(
        told.stderr.contains("warning: nothing uses the input `unused`\n --> odd.yaml:2:3\n"),
        "{told:?}"
    );
    assert!(told.stderr.contains("  ^^^^^^"), "{told:?}");
    sandbox.sprag(["validate", "odd.yaml", "--strict"]).expect(2);
    let json = sandbox.sprag(["validate", "--json", "--strict", "odd.yaml"]).expect(2).json();
    assert_eq!(json[0]["valid"], true);
    let first = &json[0]["diagnostics"][0];
    assert_eq!(
        (&first["severity"], &first["line"], &first["column"]),
        (&json!("warning"), &json!(2), &json!(3))
    );
    sandbox.write("broken.yaml", "steps: []\n");
    sandbox.sprag(["validate", "--strict", "odd.yaml", "broken.yaml"]).expect(2);
    let ran = sandbox.sprag(["run", "odd.yaml"]).expect(0);
    assert!(ran.stderr.contains("2 warnings about odd.yaml: see `sprag validate odd.yaml`"), "{ran:?}");
    assert!(!ran.stderr.contains("-->"), "{ran:?}");
}

#[test]
fn doctor_accepts_a_new_folder() {
    let sandbox = sandbox();
    let told = sandbox.json(["doctor", "--json"]);
    assert_eq!(told["healthy"], true, "{told}");
    for check in told["checks"].as_array().expect("checks") {
        assert_eq!(keys(check), BTreeSet::from(["check", "ok", "message"]));
    }
    assert!(sandbox.sprag(["doctor"]).expect(0).stdout.contains("database"));
}

#[test]
fn colours_are_printed_only_on_request() {
    let sandbox = sandbox();
    sandbox.sprag(["run", "ok.yaml"]).expect(0);
    let coloured = |answer: Answer| answer.expect(0).stdout.contains('\x1b');
    assert!(!coloured(sandbox.sprag(["status"])), "a pipe is no terminal");
    assert!(!coloured(sandbox.sprag(["status", "--color", "never"])));
    assert!(coloured(sandbox.sprag(["status", "--color", "always"])));
    let mut command = sandbox.command(["status"]);
    command.env("NO_COLOR", "1");
    assert!(!coloured(sandbox.start_command(command).finish()));
    sandbox.sprag(["status", "--color", "blue"]).expect(2);
}

#[test]
fn output_of_steps_has_no_control_characters_in_a_terminal() {
    let sandbox = sandbox();
    sandbox.pipeline("escape", &[("one", r#"run: printf 'a\033[2Jb\n'"#)]);
    let told = sandbox.sprag(["run", "escape.yaml"]).expect(0);
    assert!(!told.stdout.contains('\x1b') && told.stdout.contains('b'), "{told:?}");
}

#[test]
fn a_step_gets_its_ids_and_its_folder() {
    let sandbox = sandbox();
    let script = "run: |\n  echo $SPRAG_RUN_ID $SPRAG_STEP_ID $SPRAG_ATTEMPT > who\n  echo $SPRAG_FENCE >> fences\n  pwd > where\n  cat > heard\n  [ $SPRAG_ATTEMPT = 2 ]\nretry: { attempts: 2 }";
    sandbox.pipeline("who", &[("me", script)]);
    let mut command = sandbox.command(["run", "who.yaml"]);
    command.stdin(Stdio::piped());
    sandbox.start_command(command).finish().expect(0);
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.read("who"), format!("{run} me 2\n"));
    assert_eq!(sandbox.read("heard"), "", "stdin is closed");
    let here = sandbox.path("").canonicalize().expect("a folder");
    assert_eq!(sandbox.read("where").trim_end(), here.to_str().expect("a name"));
    let fences: Vec<u64> =
        sandbox.lines("fences").iter().map(|line| line.parse().expect("a number")).collect();
    assert!(
        fences.len() == 2 && 0 < fences[0] && fences[0] < fences[1],
        "it grows over attempts: {fences:?}"
    );
}

#[test]
fn a_detached_run_works_where_it_was_started() {
    let sandbox = sandbox();
    std::fs::create_dir(sandbox.path("elsewhere")).expect("a folder");
    std::fs::create_dir(sandbox.path("sub")).expect("a folder");
    sandbox.pipeline("where", &[("top", "run: pwd > top"), ("below", "dir: sub\nrun: pwd > ../below")]);
    sandbox.detach(&sandbox.path("where.yaml"));
    let mut worker = sandbox.command(["worker", "--until-idle"]);
    worker.current_dir(sandbox.path("elsewhere"));
    sandbox.start_command(worker).finish().expect(0);
    let here = sandbox.path("").canonicalize().expect("a folder");
    assert_eq!(sandbox.read("top").trim_end(), here.to_str().expect("a name"));
    assert_eq!(sandbox.read("below").trim_end(), here.join("sub").to_str().expect("a name"));
}

#[test]
fn a_detached_run_waits_for_a_worker() {
    let sandbox = sandbox();
    let told = sandbox.sprag(["run", "ok.yaml", "--detach"]).expect(0);
    assert!(told.stderr.contains("sprag worker"), "{told:?}");
    let run = told.stdout.trim().to_owned();
    assert_eq!(sandbox.status_word(&run), "running");
    let waiter = sandbox.start(["wait", &run, "--json"]);
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    let answer = waiter.finish().expect(0).json();
    assert_eq!(answer, json!({ "type": "result", "run": run, "status": "completed" }));
    sandbox.sprag(["worker", "--until-idle"]).expect(4);
}

#[test]
fn a_line_that_came_in_pieces_is_shown_whole() {
    let sandbox = Sandbox::new();
    let slowly = "run: 'printf one; sleep 1; printf two >&2; sleep 1; echo _end; echo _end >&2; printf rest'";
    sandbox.pipeline("slow", &[("a", slowly)]);
    let id = sandbox.detach(&sandbox.path("slow.yaml"));
    let followed = sandbox.start(["logs", "-f", &id, "a"]);
    let worker = sandbox.start(["worker"]);
    sandbox.ends_as(&id, "completed");
    let lines = |shown: &str| {
        let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&followed.finish().expect(0).stdout), ["one_end", "rest", "two_end"]);
    assert_eq!(lines(&sandbox.sprag(["logs", &id, "a"]).expect(0).stdout), ["one_end", "rest", "two_end"]);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn logs_and_events_are_followed_from_other_processes() {
    let sandbox = sandbox();
    let script = "run: |\n  echo first\n  until [ -e go ]; do :; done\n  echo last >&2";
    sandbox.pipeline("talks", &[("one", script)]);
    let id = sandbox.detach(&sandbox.path("talks.yaml"));
    let logs = sandbox.start(["logs", "-f", &id]);
    let json_logs = sandbox.start(["logs", "-f", &id, "--json"]);
    let events = sandbox.start(["events", "-f", "--json"]);
    let worker = sandbox.start(["worker", "--until-idle"]);
    until("the first line is followed", || logs.stdout().contains("first"));
    until("the start is followed", || events.stdout().contains("step.started"));
    assert!(!logs.stdout().contains("last"));
    sandbox.write("go", "");
    worker.finish().expect(0);
    let people = logs.finish().expect(0).stdout;
    assert_eq!(people.lines().filter(|line| line.contains("last")).count(), 1, "{people}");
    let lines: Vec<Value> = json_logs.finish().expect(0).lines();
    let said: Vec<_> = lines.iter().map(|line| (line["stream"].as_str(), line["text"].as_str())).collect();
    assert_eq!(said, [(Some("out"), Some("first")), (Some("err"), Some("last"))]);
    until("the end is followed", || events.stdout().contains("run.succeeded"));
    until("the worker's end is followed", || events.stdout().contains("worker.left"));
    events.signal(Signal::INT);
    let followed: Vec<Entry> = events.finish().expect(0).lines();
    assert_eq!(followed, sandbox.journal(None).entries);
}

#[test]
fn logs_show_one_step_or_one_attempt() {
    let sandbox = sandbox();
    sandbox.pipeline(
        "twice",
        &[
            ("a", "run: echo from a"),
            ("b", "run: echo try $SPRAG_ATTEMPT; [ $SPRAG_ATTEMPT = 2 ]\nretry: { attempts: 2 }"),
        ],
    );
    sandbox.sprag(["run", "twice.yaml"]).expect(0);
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.sprag(["logs", &run, "a"]).expect(0).stdout, "from a\n");
    assert_eq!(sandbox.sprag(["logs", &run, "b"]).expect(0).stdout, "try 2\n");
    assert_eq!(sandbox.sprag(["logs", &run, "b", "--attempt", "1"]).expect(0).stdout, "try 1\n");
    let refused = sandbox.sprag(["logs", &run, "c"]).expect(2);
    assert!(refused.stderr.contains("a, b"), "{refused:?}");
}

#[test]
fn inputs_reach_the_steps_as_data() {
    let sandbox = sandbox();
    let text = "inputs:\n  who: { default: nobody }\n  times: { type: integer, required: true }\nsteps:\n  - id: say\n    run: echo {{ inputs.who }} {{ inputs.times }} > said\n";
    sandbox.write("greet.yaml", text);
    sandbox.sprag(["run", "greet.yaml", "--input", "times=3", "-i", "who=$(id); x"]).expect(0);
    assert_eq!(sandbox.read("said"), "$(id); x 3\n");
    for wrong in [
        vec![],
        vec!["--input", "times=many"],
        vec!["--input", "times"],
        vec!["-i", "times=1", "-i", "tmes=2"],
    ] {
        let args = ["run", "greet.yaml"].into_iter().chain(wrong.clone());
        sandbox.sprag(args).expect(2);
    }
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn the_same_key_never_starts_a_second_run() {
    let sandbox = sandbox();
    let first = sandbox.sprag(["run", "ok.yaml", "--idempotency-key", "k", "--json"]).expect(0);
    let again = sandbox.sprag(["run", "ok.yaml", "--idempotency-key", "k", "--json"]).expect(0);
    let result = |answer: &Answer| answer.lines::<Value>().pop().expect("a result");
    assert_eq!(result(&first), result(&again));
    assert_eq!(sandbox.json(["ls", "--json"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn the_same_key_given_by_many_at_once_starts_one_run() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("once", &[("a", "run: echo ran >> ran")]);
    let args = ["run", "once.yaml", "--idempotency-key", "k", "--json"];
    let many: Vec<_> = (0..8).map(|_| sandbox.start(args)).collect();
    let results: BTreeSet<String> = many
        .into_iter()
        .map(|one| one.finish().expect(0).lines::<Value>().pop().expect("a result").to_string())
        .collect();
    assert_eq!((results.len(), sandbox.lines("ran").len()), (1, 1), "{results:?}");
}

#[test]
fn a_run_needs_little_memory() {
    let sandbox = sandbox();
    let run = sandbox.start(["run", "slow.yaml"]);
    sandbox.pid_in("slow.pid");
    let told = std::fs::read_to_string(format!("/proc/{}/status", run.pid())).expect("a process");
    let peak = told.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its largest size");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    // A third of it is the program itself, which is not optimised here; what is shipped has 11 MB in all (W3 cold).
    assert!(kib < 52 << 10, "{kib} KiB");
}

#[test]
fn retry_and_resume_are_accepted_only_in_fitting_statuses() {
    let sandbox = sandbox();
    sandbox.pipeline(
        "mend",
        &[
            ("a", "run: echo a >> ran"),
            ("b", "run: echo b >> ran; [ -e mended ]"),
            ("c", "run: echo c >> ran"),
        ],
    );
    sandbox.sprag(["run", "mend.yaml"]).expect(100);
    let run = sandbox.newest().expect("a run");
    sandbox.sprag(["resume", &run]).expect(100);
    sandbox.write("mended", "");
    sandbox.sprag(["retry", &run]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "b", "b", "c"]);
    sandbox.sprag(["resume", &run]).expect(4);
    sandbox.sprag(["retry", &run, "--step", "b", "--detach"]).expect(0);
    sandbox.sprag(["retry", &run]).expect(1);
    sandbox.sprag(["worker", "--until-idle"]).expect(0);
    assert_eq!(sandbox.lines("ran"), ["a", "b", "b", "b", "c", "b", "c"]);
    let status = sandbox.status(&run);
    assert_eq!((&status["epoch"], &status["status"]), (&json!(4), &json!("completed")));
    sandbox.check(&run);
}

#[test]
fn explain_says_what_a_step_waits_for() {
    let sandbox = sandbox();
    let run = sandbox.detach(&sandbox.path("ok.yaml"));
    let told = sandbox.json(["explain", &run, "--json"]);
    let expected = [
        "id",
        "pipeline",
        "status",
        "waits_for",
        "waiting_for",
        "reason",
        "steps",
        "failed",
        "blocked",
        "refused",
    ];
    assert_eq!(keys(&told), BTreeSet::from(expected));
    for step in told["steps"].as_array().expect("steps") {
        assert_eq!(keys(step), BTreeSet::from(["id", "status", "waits_for", "since", "until", "owner"]));
    }
    assert_eq!(told["steps"][0]["owner"], "queue \"default\"");
    assert_eq!(told["steps"][1]["waits_for"], "one (pending)");
    let people = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(people.contains("sprag worker --queue default"), "{people}");
}

#[test]
fn verbose_prints_more_only_on_stderr() {
    let sandbox = sandbox();
    let told = sandbox.sprag(["run", "ok.yaml", "--json", "-vv"]).expect(0);
    assert!(told.lines::<Value>().len() > 5);
}
