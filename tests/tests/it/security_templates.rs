//! Hostile files, expressions and values: the server refuses them, or fails their step, and continues.

use serde_json::json;
use sprag_tests::{Sandbox, Server, peak_mib};

/// Returns files that aborted an earlier server, or made it grow without bound.
fn hostile_files() -> Vec<String> {
    let step = |condition: &str| {
        let step = json!({ "id": "a", "run": "true", "when": condition });
        json!({ "steps": [step] }).to_string()
    };
    let chain = |part: &str| step(&format!("1{}", part.repeat(20_000)));
    vec![
        step("('a\nb'|indent(9223372036854775807)) == 'x'"),
        chain("+1"),
        chain(".a"),
        chain("[0]"),
        chain("|abs"),
        chain(" and 1"),
        step(&format!("{}1", "not ".repeat(20_000))),
        format!("x: &a {}\nsteps: [{}]\n", "y".repeat(400_000), "*a, ".repeat(20_000)),
    ]
}

/// Each file, and each condition with large data, is refused or fails; the same server then does an ordinary run.
#[test]
fn e03_no_file_ends_the_server() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &[]);
    for file in hostile_files() {
        let told = server.post("/v1/runs", &json!({ "yaml": file }));
        match told.status {
            // What is only known when the step starts fails the run.
            200..=299 => {
                let run = told.json()["id"].as_str().expect("a run").to_owned();
                server.until(&run, "failed");
            }
            status => assert!((400..500).contains(&status), "{status}: {}", told.text()),
        }
    }
    // `replace` multiplies a large value with itself.
    let steps = "steps:\n  - id: big\n    run: head -c 300000 /dev/zero | tr '\\0' x\n    outputs: { x: { stdout: text } }\n  \
                 - id: harm\n    when: \"(steps.big.outputs.x | replace('x', steps.big.outputs.x)) == 'x'\"\n    run: 'true'\n";
    let run = server.run(steps);
    server.until(&run, "failed");
    let told = server.get(&format!("/v1/runs/{run}/executions")).to_string();
    assert!(told.contains("the expressions of this step exceed their evaluation limit"), "{told}");
    let run = server.run("steps:\n  - id: say\n    run: echo hello\n");
    server.until(&run, "completed");
    assert!(server.process().is_running(), "it is the server that was started");
}

/// Aliases are copies. However they are arranged, what they add to a file is bounded: the server says where the file grows
/// too long, and stays small.
#[test]
fn e03_aliases_do_not_multiply_a_file() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &["--no-worker"]);
    let pid = server.process().pid();
    let long = "y".repeat(400_000);
    let aliases = |count: usize| "*a, ".repeat(count);
    let anchors: String = (0..20).map(|n| format!("&b{n} [")).collect();
    let ladder: String = (1..30).fold("        v0: &v0 [x, x]\n".to_owned(), |text, n| {
        format!("{text}        v{n}: &v{n} [*v{0}, *v{0}]\n", n - 1)
    });
    let step = |with: &str| format!("steps:\n  - id: a\n    call:\n      handler: h\n      with:\n{with}");
    let too_long = "aliases make the file grow past 4 MiB here";
    let variables: String = (0..20_000).map(|n| format!("V{n}: *a, ")).collect();
    for (file, line, message) in [
        // 480 KB of text that would be 8 GB.
        (step(&format!("        long: &a {long}\n        all: [{}]\n", aliases(20_000))), 7, too_long),
        (format!("steps:\n  - id: a\n    run: &a {long}\n    env: {{ {variables} }}\n"), 4, too_long),
        (step(&format!("        all: {anchors}{long}{}\n", "]".repeat(20))), 6, too_long),
        // Keys are texts too.
        (
            step(&format!("        long: &a {long}\n        all: [{}]\n", "{ *a : 1 }, ".repeat(20_000))),
            7,
            too_long,
        ),
        // Few bytes, many values.
        (step(&ladder), 22, "the file grows past 400000 values here"),
    ] {
        let told = server.post("/v1/runs", &json!({ "yaml": file })).expect(422).json();
        let first = &told["diagnostics"][0];
        assert_eq!((&first["line"], &first["message"]), (&json!(line), &json!(message)), "{told}");
    }
    assert!(peak_mib(pid) < 300, "it has grown to {} MiB", peak_mib(pid));
    // Many short ones are what aliases are for.
    let few = format!("        short: &a {}\n        all: [{}]\n", "y".repeat(150), aliases(20_000));
    server.post("/v1/runs", &json!({ "yaml": step(&few) })).expect(201);
}

/// Schemas that ask for more work or memory than there is. They are refused, or their checks fail within the step's time,
/// away from the threads that serve.
#[test]
fn e03_no_schema_ends_or_freezes_the_server() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &["--slots", "8"]);
    let pid = server.process().pid();
    let ladder = |rungs: usize, rung: &str| {
        let mut defs = serde_json::Map::new();
        for n in 0..rungs {
            let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
            let rung = if rung.is_empty() { next } else { json!({ rung: [next.clone(), next] }) };
            defs.insert(format!("d{n}"), rung);
        }
        defs.insert(format!("d{rungs}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    let names: serde_json::Map<_, _> = (0..30_000).map(|n| (format!("n{n}"), json!(true))).collect();
    let patterns: serde_json::Map<_, _> =
        (0..20_000).map(|n| (format!("^\\w{{20}}{n}"), json!(true))).collect();
    let texts: Vec<String> = (0..30_000).map(|n| format!("a{n}")).collect();
    let schemas = [
        ladder(60, "anyOf"),
        ladder(60, "allOf"),
        ladder(15_000, ""),
        json!({ "not": { "$ref": "#" } }),
        json!({ "items": { "enum": texts } }),
        json!({ "patternProperties": patterns }),
        json!({ "properties": { "x".repeat(400_000): { "properties": names } } }),
    ];
    let mut runs = Vec::new();
    for schema in &schemas {
        let step = json!({
            "id": "a", "run": "seq 1 100000 | tr '\n' , | sed 's/^/[/; s/,$/]/'",
            "outputs": { "x": { "stdout": "json" } }, "check": [{ "output": "x", "schema": schema }],
        });
        let told = server.post("/v1/runs", &json!({ "yaml": json!({ "steps": [step] }).to_string() }));
        match told.status {
            201 => runs.push(told.json()["id"].as_str().expect("an id").to_owned()),
            status => assert_eq!(status, 422, "{}", told.text()),
        }
    }
    assert!(!runs.is_empty());
    for run in &runs {
        server.until(run, "failed");
        let told = server.get(&format!("/v1/runs/{run}/executions")).to_string();
        assert!(told.contains("does not fit its schema"), "{}", &told[..told.len().min(4_000)]);
    }
    let run = server.run("steps:\n  - id: say\n    run: echo hello\n");
    server.until(&run, "completed");
    assert!(server.process().is_running(), "it is the server that was started");
    assert!(peak_mib(pid) < 500, "it has grown to {} MiB", peak_mib(pid));
}

/// A step whose texts have killed three processes in a row fails with that reason; others go on.
#[test]
fn e03_a_step_that_has_killed_three_processes_is_not_rendered_again() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "poison",
        "steps:\n  - id: ask\n    gate: { ask: go on? }\n  - id: poison\n    run: echo {{ steps.ask.outputs.choice }} >> ran\n",
    );
    let run = sandbox.run(&["poison.yaml"], 5);
    // The marks that processes leave which die while they fill in the step.
    let marks = sandbox.data().join("reading");
    std::fs::create_dir_all(&marks).expect("the folder");
    for pid in 1..=3 {
        std::fs::write(marks.join(format!("{pid}-1")), format!("{run} poison\n")).expect("a mark");
    }
    let told = sandbox.sprag(["approve", &run]).expect(100);
    assert!(told.stderr.contains("has killed a process of Sprag 3 times in a row"), "{told:?}");
    assert!(!sandbox.path("ran").exists());
    assert_eq!(sandbox.steps(&run), "ask done, poison failed");
    let other = sandbox.run(&["poison.yaml"], 5);
    sandbox.sprag(["approve", &other]).expect(0);
    assert_eq!(sandbox.steps(&other), "ask done, poison done");
}
