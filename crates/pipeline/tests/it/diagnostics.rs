//! The diagnostics of broken files: the complete text, for one case of each kind.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use sprag_pipeline::{Diagnostics, load, parse};

fn refused(source: &str) -> Diagnostics {
    match parse("p.yaml", source) {
        Ok(_) => panic!("accepted:\n{source}"),
        Err(diagnostics) => diagnostics,
    }
}

#[track_caller]
fn check(source: &str, expected: &str) {
    let text = refused(source).to_string();
    assert_eq!(text.trim_end(), expected.trim_matches('\n'), "\n{text}\n");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    check(
        "steps:\n  - id: a\n    rum: make\n",
        r"
error: a step has no key `rum`
 --> p.yaml:3:5
  |
3 |     rum: make
  |     ^^^
  |
  = note: expected one of id, description, run, call, agent, task, gate, wait,
          steps, pipeline, land, end, needs, when, matrix, foreach,
          max_parallel, fail_fast, timeout, retry, repeat, check, on_fail,
          cache, outputs, env, dir, shell, secrets, queue, labels, priority,
          always, at_most_once, sandbox, environment
  = help: did you mean `run`?
",
    );
}

#[test]
fn several_errors_are_reported_at_once_in_the_order_of_the_file() {
    check(
        "steps:\n  - id: build\n    run: make\n    timeout: 30\n  - id: test\n    needs: [biuld]\n    run: make test\n    always: yes\n",
        r"
error: `timeout` cannot be `30`, an integer
 --> p.yaml:4:14
  |
4 |     timeout: 30
  |              ^^ expected a duration such as 500ms, 30s, 5m, 2h, 1d or 1h30m
  |
  = help: add a unit: `30s` for 30 seconds

error: this step needs `biuld`, but there is no such step
 --> p.yaml:6:13
  |
6 |     needs: [biuld]
  |             ^^^^^ expected the id of another step
  |
  = help: did you mean `build`?

error: `always` cannot be `yes`, text
 --> p.yaml:8:13
  |
8 |     always: yes
  |             ^^^ expected true or false
  |
  = help: write `true`
",
    );
}

#[test]
fn a_cycle_is_reported_at_a_need_that_the_file_names() {
    check(
        "steps:\n  - id: a\n    run: x\n    needs: [c]\n  - id: b\n    run: x\n  - id: c\n    run: x\n",
        r"
error: the steps need each other in a cycle: a → c → b → a
 --> p.yaml:4:13
  |
4 |     needs: [c]
  |             ^
  |
  = help: a step without `needs` needs the one written before it; `needs: []`
          needs none
",
    );
}

#[test]
fn columns_count_characters() {
    check(
        "steps:\n  - { id: ä, run: \"日本 {{ inputs.x }}\" }\n",
        r#"
error: `id` cannot be `ä`
 --> p.yaml:2:11
  |
2 |   - { id: ä, run: "日本 {{ inputs.x }}" }
  |           ^
  |
  = note: expected 1 to 64 letters, digits, `-` and `_`, starting with a letter
          or digit

error: the pipeline has no input `x`
 --> p.yaml:2:26
  |
2 |   - { id: ä, run: "日本 {{ inputs.x }}" }
  |                            ^^^^^^^^
  |
  = help: declare it under `inputs:`
"#,
    );
}

/// One line per case: the file, and the message with its position.
#[test]
fn each_kind_of_error_has_its_place() {
    let bomb = (1..9).fold("a0: &a0 x\n".to_owned(), |text, n| {
        let ten = vec![format!("*a{}", n - 1); 10].join(", ");
        format!("{text}a{n}: &a{n} [{ten}]\n")
    });
    for (source, expected) in [
        ("", "-:- the file is empty"),
        ("# nothing\n", "-:- the file is empty"),
        ("just text", "1:1 a pipeline file cannot be `just text`, text"),
        ("[1]", "1:1 a pipeline file cannot be a list"),
        ("name: x\n", "1:1 a pipeline needs the key `steps`"),
        ("steps: []", "1:8 `steps` is an empty list"),
        ("steps:\n", "1:6 `steps` cannot be null"),
        ("steps:\n  - run: x\n", "2:5 a step needs the key `id`"),
        ("steps:\n  - id: a\n", "2:5 this step has no action"),
        (
            "steps:\n  - id: a\n    run: x\n    call: y\n",
            "4:5 a step has one action, and this one has `run` and `call`",
        ),
        (
            "steps:\n  - id: a\n    run: x\n  - id: a\n    run: x\n",
            "4:9 two steps have the id `a`; the first is on line 2",
        ),
        ("steps:\n  - id: a\n    id: b\n    run: x\n", "3:5 the key `id` is written twice"),
        ("steps:\n  - id: ../x\n    run: x\n", "2:9 `id` cannot be `../x`"),
        ("steps:\n  - id: \"a\\u001b[2J\"\n    run: x\n", "2:9 `id` cannot be `a\\u{1b}[2J`"),
        ("steps:\n  - id: a\u{1b}\n    run: x\n", "2:10 control character U+001B in the file"),
        ("steps:\n  - id: a\r    run: x\n", "2:10 control character U+000D in the file"),
        ("steps:\n  - id: 7\n    run: x\n", "2:9 `id` cannot be `7`, an integer"),
        (
            "steps:\n  - id: a\n    run: x\n    needs: [a]\n",
            "4:13 the steps need each other in a cycle: a → a",
        ),
        (
            "steps:\n  - id: a\n    run: x\n    on_fail: {rework: a}\n",
            "4:23 a failure here cannot go back to `a`",
        ),
        ("steps:\n  - id: a\n    run: x\n    on_fail: retry\n", "4:14 `on_fail` cannot be `retry`"),
        ("steps:\n  - id: a\n    run: x\n    retry: 3\n", "4:12 `retry` cannot be `3`, an integer"),
        ("steps:\n  - id: a\n    run: x\n    retry: {attempts: 0}\n", "4:23 `attempts` cannot be `0`"),
        (
            "steps:\n  - id: a\n    run: x\n    timeout: 1.5h\n",
            "4:14 `timeout`: this is not a duration: `1.5h`",
        ),
        (
            "steps:\n  - id: a\n    run: x\n    env: {SPRAG_X: 1}\n",
            "4:11 a name in `env` cannot be `SPRAG_X`",
        ),
        ("steps:\n  - id: a\n    run: x\n    env: {X: }\n", "4:12 `X` in `env` cannot be null"),
        ("steps:\n  - id: a\n    call: x\n    shell: sh\n", "4:5 `shell` has no effect on a `call`"),
        (
            "steps:\n  - id: a\n    run: [x]\n    shell: sh\n",
            "4:5 `shell` has no effect on a `run` without a shell",
        ),
        ("steps:\n  - id: a\n    run: ['']\n", "3:11 the program's name is empty"),
        ("steps:\n  - id: a\n    run: echo {{ x\n", "3:15 `{{` without its `}}`"),
        ("steps:\n  - id: a\n    run: echo {{ run.nmae }}\n", "3:18 a run has no `nmae`"),
        ("steps:\n  - id: a\n    run: echo {{ steps.b.outputs }}\n", "3:18 there is no step `b`"),
        (
            "steps:\n  - id: a\n    run: echo '{{ run.id }}'\n",
            "3:19 a value cannot be used inside single quotes",
        ),
        (
            "steps:\n  - id: a\n    run: print({{ run.id }})\n    shell: [python3, -c]\n",
            "3:19 a value cannot be part of a command for this shell, whose quoting is not known",
        ),
        (
            "steps:\n  - id: a\n    run: [sh, -c, 'echo {{ run.id }}']\n",
            "3:19 a value cannot be used where it is evaluated, as by `eval`, `sh -c`, `awk`, `ssh` or `declare`",
        ),
        (
            "inputs: {a: {type: integer, default: x}}\nsteps: [{id: a, run: x}]",
            "1:38 the default of input `a` cannot be text",
        ),
        (
            "inputs: {a: {required: true, default: x}}\nsteps: [{id: a, run: x}]",
            "1:39 input `a` is required and has a default",
        ),
        (
            "concurrency: {group: 'g-{{ run.id }}'}\nsteps: [{id: a, run: x}]",
            "1:28 `run` is not available here",
        ),
        (
            "concurrency: {group: g, on_conflict: refuse}\nsteps: [{id: a, run: x}]",
            "1:38 `on_conflict` cannot be `refuse`",
        ),
        ("steps:\n  - id: a\n    run: x\n    dir: {{ run.id }}\n", "4:10 YAML takes this for a map"),
        ("steps:\n  - id: a\n    run: {{ run.id }} x\n", "3:10 YAML takes this for a map"),
        ("a: [1, 2", "1:4 not YAML: unclosed bracket '['"),
        (&bomb, "7:15 the file grows past 400000 values here"),
    ] {
        let found = refused(source);
        let first = found.iter().next().unwrap();
        let place = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
        let text = format!("{}:{} {}", place(first.line), place(first.column), first.message);
        assert_eq!(text, expected, "\n{source}\n{found}");
    }
}

#[test]
fn nothing_in_a_message_acts_on_the_terminal() {
    let name = "a\u{1b}[2J\u{202e}\u{7}";
    let source = format!("steps:\n  - id: \"\\u001b[2J\"\n    run: x # \u{202e}\n    {name}: 1\n");
    for text in [source.as_str(), &source.replace(['\u{1b}', '\u{7}'], "")] {
        let found = parse("p\u{1b}[2J.yaml", text).map(|_| ()).unwrap_err().to_string();
        assert!(!found.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{found:?}");
    }
}

#[test]
fn programs_read_the_same_as_json() {
    let found = refused("steps:\n  - id: a\n    rum: make\n    run: x\n");
    let expected = json!([{
        "severity": "error", "file": "p.yaml", "line": 3, "column": 5, "end_line": 3, "end_column": 8,
        "message": "a step has no key `rum`",
        "expected": "one of id, description, run, call, agent, task, gate, wait, steps, pipeline, land, end, needs, when, matrix, foreach, max_parallel, fail_fast, timeout, retry, repeat, check, on_fail, cache, outputs, env, dir, shell, secrets, queue, labels, priority, always, at_most_once, sandbox, environment",
        "nearest": "run",
    }]);
    assert_eq!(serde_json::to_value(&found).unwrap(), expected);
}

#[test]
fn colour_is_asked_for() {
    let found = refused("steps: []");
    assert!(found.render(true).contains("\u{1b}["));
    assert!(!found.render(false).contains('\u{1b}'));
}

#[test]
fn a_file_of_nonsense_gets_at_most_fifty_errors() {
    let found = refused(&format!("steps:\n{}", "  - {x: 1}\n".repeat(3000)));
    assert_eq!((found.len(), found.omitted()), (50, 5950));
    let one_line = format!("steps: [{}]", "{x: 1},".repeat(20_000));
    let text = refused(&one_line).to_string();
    assert!(text.len() < 100_000, "{}", text.len());
    assert!(text.contains("--> p.yaml:1:9"), "{text}");
}

#[test]
fn suspicious_files_are_warned_of() {
    let loaded = parse(
        "p.yaml",
        "inputs: {a: string}\nsteps:\n  - {id: a, run: x}\n  - {id: b, run: x, needs: [a, a]}\n",
    );
    let warnings: Vec<String> = loaded.unwrap().warnings.iter().map(|w| w.message.clone()).collect();
    assert_eq!(warnings, ["nothing uses the input `a`", "`a` is named twice"]);
    let forgotten = "steps:\n  - {id: a, run: x}\n  - {id: b, run: x, needs: a}\n  - {id: c, run: x, needs: a}\n  - {id: d, run: x, needs: a}\n  - {id: end, run: x, needs: [b, c], retry: {delay: 1s}}\n";
    let warnings: Vec<String> =
        parse("p.yaml", forgotten).unwrap().warnings.iter().map(|w| w.message.clone()).collect();
    assert_eq!(warnings, ["no step needs `d`", "`retry` without `attempts` tries once"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let big = file("big.yaml", b"");
    // The file is sparse: it has a size but no stored bytes.
    std::fs::OpenOptions::new().write(true).open(&big).unwrap().set_len(100_000_000).unwrap();
    for (path, expected) in [
        (dir.path().join("missing.yaml"), "cannot read"),
        (dir.path().to_owned(), "cannot read"),
        (big, "the file is larger than 1 MiB"),
        (file("latin.yaml", b"steps:\n  - id: caf\xe9\n"), "the file is not UTF-8 text from here on"),
        ("/dev/zero".into(), "cannot read /dev/zero: it is not a regular file"),
    ] {
        let text = load(&path).map(|_| ()).unwrap_err();
        let first = text.iter().next().unwrap();
        assert!(first.message.starts_with(expected), "{text}");
        assert_eq!(first.file, path.display().to_string());
    }
    // A person may name a pipe or a device, which is read to its end within the same limit.
    let endless = sprag_pipeline::load_stream(Path::new("/dev/zero")).map(|_| ()).unwrap_err();
    assert!(endless.to_string().contains("the file is larger than 1 MiB"), "{endless}");
    let plain = file("my pipeline.v2.yaml", b"\xef\xbb\xbfsteps: [{id: a, run: x}]\r\n");
    assert_eq!(load(&plain).unwrap().pipeline.name, "my-pipeline.v2");
}

/// Values that all steps inherit from the pipeline count for each step, so a short file cannot create an unbounded plan.
#[test]
fn e03_a_plan_has_a_bound() {
    let steps = |count: usize| -> String {
        (0..count).map(|n| format!("  - {{ id: s{n}, run: 'true' }}\n")).collect()
    };
    let long = "x".repeat(800_000);
    let with_variable = |count| format!("env: {{ LONG: {long} }}\nsteps:\n{}", steps(count));
    assert!(parse("fits.yaml", &with_variable(20)).is_ok());
    let told = parse("p.yaml", &with_variable(21)).map(|_| ()).unwrap_err();
    let first = told.iter().next().unwrap();
    assert_eq!(
        first.message,
        "the steps up to here, with the defaults and variables they share, have more than 16 MiB"
    );
    assert_eq!(first.line, Some(23), "{told}");
    // The secrets of one step are masked in what all others leave behind.
    let names: String = (0..20_000).map(|n| format!("SECRET_{n}, ")).collect();
    let many = format!("steps:\n  - {{ id: a, run: 'true', secrets: [{names}] }}\n{}", steps(100));
    let told = parse("p.yaml", &many).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("have more than 16 MiB"), "{}", &told[..told.len().min(2_000)]);
}

#[test]
fn inputs_are_checked_where_they_are_given() {
    let source = "inputs:\n  issue: { type: integer, required: true }\n  mode: { enum: [quick, slow], default: quick }\n  tags: list\nsteps:\n  - id: a\n    run: echo {{ inputs.issue }} {{ inputs.mode }} {{ inputs.tags }}\n";
    let pipeline = parse("p.yaml", source).unwrap().pipeline;
    let texts = |given: &[(&str, &str)]| {
        let given: BTreeMap<String, String> = given.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let typed = pipeline.coerce(&given).and_then(|values| pipeline.complete(&values));
        typed.map(|values| serde_json::to_value(values).unwrap()).map_err(|wrong| {
            wrong.iter().map(|d| format!("{} near={:?}", d.message, d.nearest)).collect::<Vec<_>>().join("; ")
        })
    };
    for (given, expected) in [
        (&[("issue", "7")][..], Ok(json!({ "issue": 7, "mode": "quick" }))),
        (
            &[("issue", "7"), ("tags", "[1, \"x\"]")],
            Ok(json!({ "issue": 7, "mode": "quick", "tags": [1, "x"] })),
        ),
        (&[], Err("input `issue` is required and was not given near=None")),
        (&[("issue", "seven")], Err("input `issue` cannot be `seven` near=None")),
        (&[("issue", "7.5")], Err("input `issue` cannot be `7.5` near=None")),
        (&[("isue", "7")], Err("the pipeline has no input `isue` near=Some(\"issue\")")),
        (&[("issue", "7"), ("mode", "quik")], Err("input `mode` cannot be `\"quik\"` near=Some(\"quick\")")),
        (&[("issue", "7"), ("tags", "a,b")], Err("input `tags` cannot be `a,b` near=None")),
    ] {
        assert_eq!(texts(given), expected.map_err(str::to_owned), "{given:?}");
    }
}

#[test]
fn a_template_without_its_input_is_refused_before_the_run_begins() {
    let source = "inputs: {a: string, b: string}\nsteps:\n  - id: s\n    run: echo {{ inputs.a | default('x') }} {{ inputs.b }} {{ run.id }}\n";
    let pipeline = parse("p.yaml", source).unwrap().pipeline;
    let wrong = pipeline.plan(&BTreeMap::new()).unwrap_err();
    let messages: Vec<&str> = wrong.iter().map(|d| d.message.as_str()).collect();
    assert_eq!(
        messages,
        ["step `s` uses `{{ inputs.b }}`, which has no value in this run: `inputs.b` is undefined"]
    );
    assert!(pipeline.plan(&BTreeMap::from([("b".into(), json!("v"))])).is_ok());
}

#[test]
fn a_step_whose_id_has_a_hyphen_is_named_in_brackets() {
    let source = |name: &str| {
        format!("steps:\n  - id: hand-on\n    run: echo\n  - id: b\n    run: echo {{{{ {name}.status }}}}\n")
    };
    let wrong = parse("p.yaml", &source("steps.hand-on")).map(|_| ()).unwrap_err();
    let told = wrong.iter().find(|d| d.message == "there is no step `hand`").unwrap();
    assert_eq!(told.help.as_deref(), Some("here `-` is minus: write steps[\"hand-on\"]"));
    assert!(parse("p.yaml", &source("steps[\"hand-on\"]")).is_ok());
}

#[test]
fn p18_a_key_without_meaning_for_a_kind_is_refused_with_its_position() {
    for (keys, line, column, expected) in [
        ("task: { prompt: x }\n    timeout: 1m", 4, 5, "`timeout` has no effect on a `task`"),
        ("gate: { ask: x }\n    queue: q", 4, 5, "`queue` has no effect on a `gate`"),
        (
            "task: { prompt: x }\n    retry: { attempts: 2, exit_codes: [1] }",
            4,
            27,
            "`exit_codes` has no effect in the `retry` of a `task`",
        ),
        (
            "call: x\n    retry: { attempts: 2, exit_codes: [1] }",
            4,
            27,
            "`exit_codes` has no effect in the `retry` of a `call`",
        ),
    ] {
        let wrong = parse("p.yaml", &format!("steps:\n  - id: a\n    {keys}\n")).map(|_| ()).unwrap_err();
        let told: Vec<_> = wrong.iter().map(|d| (d.line, d.column, d.message.as_str())).collect();
        assert_eq!(told, [(Some(line), Some(column), expected)]);
    }
}
