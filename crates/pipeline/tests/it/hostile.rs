//! An input cannot become a command: hostile values in every position that allows a value, in real shells.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::json;
use sprag_pipeline::{Kind, StepSpec, parse, render_step};

/// Values that would leave a file called `owned` behind if any shell read them as a command.
const HOSTILE: [&str; 16] = [
    "; touch owned",
    "$(touch owned)",
    "`touch owned`",
    "' ; touch owned ; '",
    "\" ; touch owned ; \"",
    "\"'; touch owned; '\"",
    "a\ntouch owned\n",
    "| touch owned",
    "&& touch owned",
    "$HOME ${PATH} $((1+1)) * ? [a-z]",
    "\\",
    "\\\"; touch owned; \\\"",
    "EOF\ntouch owned\n",
    "}; touch owned; {",
    "a[$(touch owned)]",
    "-n --help {{ inputs.x }} {% raw %}",
];

/// Commands that print only the value, each with the value in a different position.
const COMMANDS: [&str; 11] = [
    "printf %s {{ inputs.x }}",
    "printf %s \"{{ inputs.x }}\"",
    "printf %s \"\"{{ inputs.x }}\"\"",
    "printf %s \"$(printf %s. {{ inputs.x }})\" | sed '$ s/.$//'",
    "v={{ inputs.x }}; printf %s \"$v\"",
    "cat <<EOF | sed '$ s/.$//' \n{{ inputs.x }}.\nEOF",
    "# {{ inputs.x }}\nprintf %s {{ inputs.x }}",
    "if [ {{ inputs.x }} = \"{{ inputs.x }}\" ]; then printf %s {{ inputs.x }}; fi",
    "export V={{ inputs.x }}; printf %s \"$V\"",
    "f() { printf %s \"$1\"; }; f {{ inputs.x }}",
    "case {{ inputs.x }} in *) printf %s \"{{ inputs.x }}\" ;; esac",
];

fn spec(yaml_step: serde_json::Value) -> StepSpec {
    let file = json!({ "inputs": { "x": "string" }, "steps": [yaml_step] });
    let loaded = parse("p.yaml", &file.to_string()).unwrap_or_else(|wrong| panic!("{wrong}"));
    let plan = loaded.pipeline.plan(&BTreeMap::from([("x".into(), json!("v"))])).unwrap();
    serde_json::from_str(&plan.steps[0].spec).unwrap()
}

/// Returns the output of the rendered step, and whether its folder is still empty.
fn output(spec: &StepSpec, value: &str) -> (String, bool) {
    let rendered =
        render_step(spec, &json!({ "inputs": { "x": value }, "run": { "id": "r", "name": "n" } })).unwrap();
    let argv = rendered.argv().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new(&argv[0])
        .args(&argv[1..])
        .envs(&rendered.env)
        .current_dir(&dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let clean = !dir.path().join("owned").exists();
    (String::from_utf8_lossy(&done.stdout).into_owned(), clean)
}

#[test]
fn a_value_is_data_wherever_it_stands() {
    for shell in ["sh", "bash"] {
        for command in COMMANDS {
            let spec = spec(json!({ "id": "a", "run": command, "shell": shell }));
            for value in HOSTILE {
                let (printed, clean) = output(&spec, value);
                assert!(clean, "{shell}: {command}: {value:?} became a command");
                // `$( )` and `sed` remove line ends by themselves.
                assert_eq!(
                    printed.trim_end_matches('\n'),
                    value.trim_end_matches('\n'),
                    "{shell}: {command}"
                );
            }
        }
    }
}

/// Runs random commands made of all kinds of quoting and evaluation: in no accepted command does a value become a
/// command.
#[test]
fn no_accepted_command_runs_a_value() {
    const VALUE: &str = "{{ inputs.x }}";
    #[rustfmt::skip]
    const PARTS: [&str; 96] = [
        VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE, VALUE,
        "echo ", "echo ", "echo ", " ", " ", "\"", "\"", "'", "'", "$(echo ", "<(echo ", ")", ")", "`", "\\", "; ", "\n",
        "# ", "cat <<EOF\n", "cat <<'EOF'\n", "bash <<EOF\n", "cat <<EOF | sh\n", "\nEOF\n", "${y:-", "${y:", "}", "$((",
        "((", "))", "$[", "]", "[ ", " ]", "[[ ", " -eq 0 ]]", "y[", "]=1", "arr=([", "arr=(", "]=1)", "[ -v ", "test ",
        "printf ", "printf -v ", "printf \"-v", "printf %s ", " -v ", "declare -i n; ", "declare -n n; ", "declare -a n=",
        "local n=", "export n=", "n=", "n+=", "; echo $n", "; echo ${n}", "read n <<< ", "bash <<< ", "cat <<< ", " | bash",
        " | sh -s", " | cat", " | xargs echo", " | xargs sh -c ", " | xargs -I{} sh -c 'echo {}'", "eval ", "sh -c ",
        "bash -xc ", "env -S ", "awk ", "awk \"BEGIN{", "sed \"s/a/", "perl -e ", "python3 -c ", "make -f /dev/null ",
        "flock lock -c ", "timeout 5 ", "{ ", "; }", "if true; then ", "; fi", "for n in ", "; do echo $n; done", "let n=",
    ];
    // Inputs that would make each evaluator leave a file behind.
    let values = [
        "a[$(touch owned)]",
        "-va[$(touch owned)]",
        "$(touch owned)`touch owned`;touch owned;\"$(touch owned)\";'$(touch owned)';\ntouch owned\n'\ntouch owned\n\"\ntouch owned\n",
        "EOF\ntouch owned\n",
        "touch owned",
        "([$(touch owned)]=1)",
        "BEGIN{system(\"touch owned\")}",
        "1e touch owned",
        "x/;e touch owned\n;s/x",
        "system('touch owned')",
        "__import__('os').system('touch owned')",
        "V=$(shell touch owned)",
        "}; system(\"touch owned\"); {",
    ];
    let mut chance = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: usize| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        (chance % bound as u64) as usize
    };
    let mut run = 0;
    let rounds = if std::env::var_os("SPRAG_NIGHTLY").is_some() { 150_000 } else { 6_000 };
    for _ in 0..rounds {
        let command: String = (0..2 + below(9)).map(|_| PARTS[below(PARTS.len())]).collect();
        if !command.contains(VALUE) {
            continue;
        }
        for shell in ["sh", "bash"] {
            let step = json!({ "id": "a", "run": command, "shell": shell });
            let file = json!({ "inputs": { "x": "string" }, "steps": [step] });
            let Ok(loaded) = parse("p.yaml", &file.to_string()) else { continue };
            // A value that is the command itself decides which program runs; the loader warns of it.
            if loaded.warnings.iter().any(|warning| warning.message.contains("the value is the command")) {
                continue;
            }
            let value = values[below(values.len())];
            let (_, clean) = output(&loaded.pipeline.steps[0].spec, value);
            assert!(clean, "{shell}: {value:?} became a command in:\n{command}");
            run += 1;
        }
    }
    assert!(run > 300, "{run} commands were accepted and run");
}

#[test]
fn arguments_and_variables_pass_values_unchanged() {
    let argv = spec(json!({ "id": "a", "run": ["printf", "%s", "{{ inputs.x }}"] }));
    let env = spec(json!({ "id": "a", "run": "printf %s \"$VALUE\"", "env": { "VALUE": "{{ inputs.x }}" } }));
    for value in HOSTILE {
        assert_eq!(output(&argv, value), (value.to_owned(), true));
        assert_eq!(output(&env, value), (value.to_owned(), true));
    }
}

#[test]
fn the_command_never_holds_the_value() {
    let spec = spec(json!({ "id": "a", "run": "echo {{ inputs.x }} \"<{{ inputs.x }}>\"" }));
    let rendered = render_step(&spec, &json!({ "inputs": { "x": "secret words" } })).unwrap();
    let Kind::Run { command, .. } = &rendered.kind else { panic!("{rendered:?}") };
    assert_eq!(command, "echo \"${SPRAG_VALUE_1}\" \"<${SPRAG_VALUE_2}>\"");
    assert_eq!(rendered.env["SPRAG_VALUE_1"], "secret words");
}

#[test]
fn a_missing_value_is_an_error_and_never_empty() {
    let spec = spec(json!({ "id": "a", "run": "echo {{ inputs.x }}" }));
    for (context, why) in [
        (json!({ "inputs": {} }), "undefined"),
        (json!({}), "undefined"),
        (json!({ "inputs": { "x": null } }), "null"),
        (json!({ "inputs": { "x": "a\0b" } }), "zero byte"),
        (json!({ "inputs": { "x": "y".repeat(200_000) } }), "more than"),
    ] {
        let error = render_step(&spec, &context).unwrap_err().to_string();
        assert!(error.starts_with("the command cannot be filled in: ") && error.contains(why), "{error}");
    }
}

#[test]
fn a_handler_gets_values_with_their_types() {
    let with = json!({ "n": "{{ inputs.x }}", "text": "n={{ inputs.x }}", "deep": [{ "id": "{{ run.id }}" }], "k": 1 });
    let spec = spec(json!({ "id": "a", "call": { "handler": "h", "with": with } }));
    let rendered = render_step(&spec, &json!({ "inputs": { "x": [1, 2] }, "run": { "id": "r1" } })).unwrap();
    let Kind::Call { with, .. } = rendered.kind else { panic!() };
    assert_eq!(with, json!({ "n": [1, 2], "text": "n=[1,2]", "deep": [{ "id": "r1" }], "k": 1 }));
}
