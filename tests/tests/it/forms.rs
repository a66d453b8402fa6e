//! Gates with fields and with choices that lead to a step: on the command line, over HTTP and on a terminal.

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, until};

const FORM: &str = r#"
outputs:
  got: "{{ steps.ask.outputs }}"
  ran: "{{ [steps.release.status, steps.announce.status, steps.hold.status, steps.joined.status] }}"
steps:
  - id: ask
    gate:
      ask: Ship it?
      fields:
        reason: { required: true, min: 3, description: why }
        count: { type: integer, default: 1, min: 1, max: 9 }
        color: { enum: [red, blue] }
      choices: [{ ship: { to: release } }, { wait: { to: hold } }, stop]
  - { id: release, needs: ask, run: echo release >> ran }
  - { id: announce, needs: release, run: 'echo announce {{ steps.ask.outputs.count }} >> ran' }
  - { id: hold, needs: ask, run: 'echo hold {{ steps.ask.outputs.reason }} >> ran' }
  - { id: joined, needs: [announce, hold], run: echo joined >> ran }
  - { id: tidy, needs: hold, always: true, run: echo tidy >> ran }
"#;

/// P18: an answer is checked when it is given, and the message names the field.
#[test]
fn p18_an_answer_gives_typed_fields_and_chooses_the_way() {
    let sandbox = Sandbox::new();
    sandbox.yaml("form", FORM);
    let run = sandbox.run(&["form.yaml"], 5);
    for (fields, why) in [
        (&[][..], "the field `reason` is required and was not given"),
        (&["reason=no"], "the field `reason` cannot be \"no\""),
        (&["reason=good", "count=many"], "the field `count` cannot be \"many\""),
        (&["reason=good", "count=10"], "at most 9"),
        (&["reason=good", "color=green"], "one of \"red\", \"blue\""),
        (&["reason=good", "colour=red"], "the question has no field \"colour\""),
    ] {
        let mut args = vec!["approve", &run];
        fields.iter().for_each(|field| args.extend(["--field", field]));
        let refused = sandbox.sprag(args).expect(2);
        assert!(refused.stderr.contains(why), "{fields:?}: {}", refused.stderr);
    }
    let refused = sandbox.sprag(["reject", &run, "--choice", "ship"]).expect(2);
    assert!(refused.stderr.contains("leads to step \"release\""), "{}", refused.stderr);
    assert_eq!(sandbox.step(&run, "ask")["status"], "running");
    let told = sandbox.sprag(["questions"]).expect(0).stdout;
    assert!(told.contains("field reason (string, required): why"), "{told}");
    sandbox.sprag(["answer", &run, "--field", "reason=it is good", "--field", "count=2"]).expect(0);
    assert_eq!(
        sandbox.steps(&run),
        "ask done, release done, announce done, hold skipped, joined done, tidy done"
    );
    assert!(sandbox.lines("ran").contains(&"announce 2".to_owned()), "{:?}", sandbox.lines("ran"));
    sandbox.check(&run);

    // Another way: only its target and the steps behind it run.
    let run = sandbox.run(&["form.yaml"], 5);
    sandbox.sprag(["approve", &run, "--choice", "wait", "--field", "reason=too early"]).expect(0);
    assert_eq!(
        sandbox.steps(&run),
        "ask done, release skipped, announce skipped, hold done, joined done, tidy done"
    );
    // A rejection needs no fields.
    let run = sandbox.run(&["form.yaml"], 5);
    let told = sandbox.sprag(["reject", &run]).expect(100).stderr;
    assert!(told.contains("answered \"stop\""), "{told}");
    sandbox.check(&run);
}

/// C09: the same over HTTP and for agents, with the fields in the gate and the refusal as a problem.
#[test]
fn c09_an_answer_over_http_and_mcp_is_checked_field_by_field() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run(FORM);
    until("it asks", || !gates(&server, &run).is_empty());
    let gate = gates(&server, &run).remove(0);
    assert_eq!(gate["leads_to"], json!({ "ship": "release", "wait": "hold" }));
    let reason =
        json!({ "name": "reason", "type": "string", "required": true, "min": 3, "description": "why" });
    assert_eq!(gate["fields"][0], reason, "{gate}");
    let path = format!("/v1/gates/{}/answer", gate["id"].as_str().expect("an id"));
    let wrong = json!({ "choice": "ship", "fields": { "reason": "good", "count": "2" } });
    let problem = server.post(&path, &wrong).problem(422, "invalid");
    assert!(problem.to_string().contains("the field `count` cannot be"), "{problem}");
    let given = json!({ "choice": "ship", "fields": { "reason": "good", "count": 2 } });
    server.post(&path, &given).expect(200);
    server.post(&path, &given).expect(409);
    server.until(&run, "completed");
    let answered = server.get(&format!("/v1/runs/{run}"));
    assert_eq!(answered["outputs"]["got"]["count"], 2, "{answered}");

    let run = server.run(FORM);
    until("it asks", || !gates(&server, &run).is_empty());
    let listed = server.call("gate_list", &json!({}));
    assert_eq!(listed["gates"][0]["fields"][0], reason, "{listed}");
    let given = json!({ "run": run, "choice": "wait", "fields": { "reason": "later" } });
    assert_eq!(server.call("gate_answer", &given)["approved"], true);
    server.until(&run, "completed");

    // The command line against the server converts texts by the types of the fields.
    let run = server.run(FORM);
    until("it asks", || !gates(&server, &run).is_empty());
    let url = format!("http://{}", server.addr);
    let answer = ["answer", &run, "--server", &url, "--field", "reason=good", "--field"];
    let refused = sandbox.sprag(answer.iter().chain(&["count=x"]));
    assert!(refused.code != 0 && refused.stderr.contains("`count`"), "{refused:?}");
    sandbox.sprag(answer.iter().chain(&["count=3"])).expect(0);
    server.until(&run, "completed");
    assert_eq!(server.get(&format!("/v1/runs/{run}"))["outputs"]["got"]["count"], 3);
}

fn gates(server: &Server, run: &str) -> Vec<Value> {
    let told = server.get(&format!("/v1/gates?run={run}"));
    told["gates"].as_array().cloned().unwrap_or_default()
}

/// A terminal asks for the fields, one after the other; the default of a timeout has those of the fields.
#[test]
fn fields_are_asked_for_on_a_terminal_and_have_defaults_at_the_timeout() {
    let sandbox = Sandbox::new();
    sandbox.yaml("form", FORM);
    let mut terminal = sandbox.on_terminal(1, ["run", "form.yaml"]);
    terminal.shows("ask [ship/wait/stop] (Ctrl-C leaves it open): ");
    terminal.types("ship\n");
    terminal.shows("reason (why): ");
    terminal.types("ab\n");
    terminal.shows("expected at least 3 characters");
    terminal.types("good\n");
    terminal.shows("count [1]: ");
    terminal.types("\n");
    terminal.shows("color (optional): ");
    terminal.types("\n");
    terminal.shows("comment (optional): ");
    terminal.types("\n");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    assert!(sandbox.lines("ran").contains(&"announce 1".to_owned()), "{shown}");

    sandbox.yaml(
        "late",
        r#"
steps:
  - id: ask
    gate: { ask: Go?, timeout: 1ms, default: "yes", fields: { n: { type: integer, default: 4 } } }
  - { id: go, run: 'echo {{ steps.ask.outputs.n }} >> late' }
"#,
    );
    // The process may leave before the time is over; then another one continues.
    if sandbox.sprag(["run", "late.yaml"]).code != 0 {
        let run = sandbox.newest().expect("a run");
        sandbox.sprag(["resume", &run]).expect(0);
    }
    assert_eq!(sandbox.lines("late"), ["4"]);
}
