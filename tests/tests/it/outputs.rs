//! Outputs of a step: files and standard output, and the failure if one is missing.

use std::path::Path;

use sprag_tests::Sandbox;

#[test]
fn outputs_are_files_texts_and_json() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "hand-on",
        r#"
steps:
  - id: make
    run: |
      echo '{"n": 5, "tags": ["a", "b c"]}' > facts.json
      printf 'two\nlines\n\n' > note.txt
      echo report > report.md
      echo printed
    outputs:
      facts: { file: facts.json, as: json }
      note: { file: note.txt, as: text }
      report: report.md
      same: { file: report.md }
      printed: { stdout: text }
  - id: change
    run: echo changed > report.md
  - id: use
    run: |
      echo {{ steps.make.outputs.facts.n + 1 }} {{ steps.make.outputs.facts.tags[1] }} > used
      echo "[{{ steps.make.outputs.note }}]" >> used
      cat {{ steps.make.outputs.report }} {{ steps.make.outputs.same }} >> used
      echo {{ steps.make.outputs.printed }} >> used
"#,
    );
    let run = sandbox.run(&["hand-on.yaml"], 0);
    assert_eq!(sandbox.read("used"), "6 b c\n[two\nlines]\nreport\nreport\nprinted\n");
    assert!(sandbox.sprag(["logs", &run, "make"]).expect(0).stdout.contains("printed"));
    sandbox.check(&run);
}

#[test]
fn an_output_that_cannot_be_read_fails_the_step() {
    let sandbox = Sandbox::new();
    let wrong = [
        ("run: echo oops\noutputs: { x: { stdout: json } }", "not JSON"),
        ("run: 'true'\noutputs: { x: { stdout: json } }", "not JSON"),
        ("run: 'true'\noutputs: { x: nowhere.md }", "No such file"),
        ("run: mkdir -p folder\noutputs: { x: folder }", "is not a regular file"),
        ("run: echo '{' > f\noutputs: { x: { file: f, as: json } }", "not JSON"),
        ("run: printf '\\377' > f\noutputs: { x: { file: f, as: text } }", "not UTF-8"),
        (
            "run: head -c 1048577 /dev/zero > f\noutputs: { x: { file: f, as: text } }",
            "more than 1048576 bytes",
        ),
        ("run: head -c 1048577 /dev/zero\noutputs: { x: { stdout: text } }", "more than 1048576 bytes"),
    ];
    for (keys, why) in wrong {
        sandbox.pipeline("wrong", &[("one", keys), ("two", "run: echo ran >> ran")]);
        let run = sandbox.run(&["wrong.yaml"], 100);
        let told = sandbox.sprag(["status", &run]).expect(0).stdout;
        assert!(told.contains("output `x`") && told.contains(why), "{keys}: {told}");
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn an_output_of_the_largest_size_is_passed_on() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "large",
        r#"
steps:
  - id: make
    run: head -c 1048576 /dev/zero | tr '\0' x
    outputs: { text: { stdout: text } }
  - id: count
    when: steps.make.outputs.text | length == 1048576
    run: echo {{ steps.make.outputs.text | length }} > counted
  - id: too-long-for-a-variable
    run: echo {{ steps.make.outputs.text }}
"#,
    );
    let run = sandbox.run(&["large.yaml"], 100);
    assert_eq!(sandbox.read("counted"), "1048576\n");
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("pass it in a file"), "{told}");
}

/// Returns a step with this many outputs of a million bytes each.
fn handing_on_millions(id: &str, outputs: usize) -> String {
    let outputs: Vec<String> = (0..outputs).map(|n| format!("o{n}: {{ file: f, as: text }}")).collect();
    format!(
        "  - id: {id}\n    run: head -c 1000000 /dev/zero | tr '\\0' x > f\n    outputs: {{ {} }}\n",
        outputs.join(", ")
    )
}

#[test]
fn e03_the_outputs_of_a_step_have_a_bound_together() {
    let sandbox = Sandbox::new();
    let use_it = "  - id: use\n    run: echo {{ steps.fits.outputs.o3 | length }} > used\n";
    sandbox.yaml("many", &format!("steps:\n{}{use_it}", handing_on_millions("fits", 4)));
    sandbox.run(&["many.yaml"], 0);
    assert_eq!(sandbox.read("used"), "1000000\n");
    sandbox.yaml("more", &format!("steps:\n{}", handing_on_millions("more", 5)));
    let run = sandbox.run(&["more.yaml"], 100);
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(
        told.contains("the outputs up to `o4` have more than 4194304 bytes: pass on files instead"),
        "{told}"
    );
}

#[test]
fn e03_the_values_that_a_step_uses_have_a_bound_together() {
    let sandbox = Sandbox::new();
    let ids = ["a", "b", "c", "d", "e"];
    let make: String = ids.iter().map(|id| handing_on_millions(id, 4)).collect();
    let naming = |ids: &[&str]| {
        let lengths: String =
            ids.iter().map(|id| format!(" {{{{ steps.{id}.outputs.o0 | length }}}}")).collect();
        format!("    run: echo{lengths} >> used\n")
    };
    let steps = format!("steps:\n{make}  - id: four\n{}  - id: five\n{}", naming(&ids[..4]), naming(&ids));
    sandbox.yaml("all", &steps);
    let run = sandbox.run(&["all.yaml"], 100);
    assert_eq!(sandbox.read("used"), "1000000 1000000 1000000 1000000\n");
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("the values that its texts name have more than 16 MiB in all"), "{told}");
}

#[test]
fn an_output_that_is_missing_is_worth_another_try() {
    let sandbox = Sandbox::new();
    let keys =
        "run: '[ $SPRAG_ATTEMPT = 1 ] || echo 1'\nretry: { attempts: 2 }\noutputs: { x: { stdout: json } }";
    sandbox.pipeline("late", &[("one", keys), ("two", "run: echo {{ steps.one.outputs.x }} > got")]);
    sandbox.run(&["late.yaml"], 0);
    assert_eq!(sandbox.read("got"), "1\n");
}

#[test]
fn an_attempt_passes_on_only_its_own_files() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "attempts",
        r#"
steps:
  - id: make
    run: echo $SPRAG_ATTEMPT > result
    outputs: { result: result }
  - id: judge
    run: cat {{ steps.make.outputs.result }} >> seen; [ "$(cat {{ steps.make.outputs.result }})" = 2 ]
    on_fail: { rework: make }
"#,
    );
    sandbox.run(&["attempts.yaml"], 0);
    assert_eq!(sandbox.lines("seen"), ["1", "2"]);
}

#[test]
fn p16_runs_with_equal_names_never_mix_their_outputs() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "same",
        r#"
inputs: { who: { required: true } }
steps:
  - id: make
    run: |
      mkdir -p {{ inputs.who }}
      echo {{ inputs.who }} > {{ inputs.who }}/result.txt
      echo {{ inputs.who }}
    outputs: { result: "{{ inputs.who }}/result.txt", said: { stdout: text } }
  - id: meet
    run: |
      touch {{ inputs.who }}.there
      until [ -e ada.there ] && [ -e bob.there ]; do :; done
  - id: each
    foreach: [0, 1]
    run: echo {{ inputs.who }}{{ item }}
    outputs: { said: { stdout: text } }
  - id: use
    run: |
      echo "$(cat {{ steps.make.outputs.result }}) {{ steps.make.outputs.said }} {{ steps.each.outputs.said }}" > {{ inputs.who }}.used
"#,
    );
    let both =
        ["ada", "bob"].map(|who| sandbox.start(["run", "same.yaml", "-i", &format!("who={who}"), "--json"]));
    let runs = both.map(|run| {
        let told = run.finish().expect(0).lines::<serde_json::Value>().pop().expect("a result");
        told["run"].as_str().expect("an id").to_owned()
    });
    for (who, run) in ["ada", "bob"].iter().zip(&runs) {
        let expected = format!("{who} {who} [\"{who}0\",\"{who}1\"]\n");
        assert_eq!(sandbox.read(&format!("{who}.used")), expected);
        let kept = sandbox.data().join("runs").join(run).join("files");
        assert_eq!(files_in(&kept), [format!("{who}\n")]);
        sandbox.check(run);
    }
}

/// Returns the contents of the files under a folder.
fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let read = |path: std::path::PathBuf| match path.is_dir() {
        true => files_in(&path),
        false => vec![std::fs::read_to_string(&path).expect("a file")],
    };
    entries.flat_map(read).collect()
}
