//! `sprag graph` of a file and of a run, in every format.

use serde_json::{Value, json};
use sprag_tests::Sandbox;

/// Returns a sandbox with `diamond`, whose `test` fails.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "diamond",
        &[
            ("build", "run: 'true'"),
            ("lint", "needs: [build]\nrun: 'true'"),
            ("test", "needs: [build]\nrun: exit 3\non_fail: { rework: build }"),
            ("publish", "needs: [lint, test]\nrun: 'true'"),
        ],
    );
    sandbox
}

#[test]
fn a_file_is_drawn_without_any_data() {
    let sandbox = sandbox();
    let drawn = sandbox.sprag(["graph", "diamond.yaml"]).expect(0).stdout;
    let expected = "\
diamond  4 steps
●    build    run
├─╮
│ ●  lint     run
● │  test     run [rework build]
├─╯
●    publish  run
";
    assert_eq!(drawn, expected, "\n{drawn}");
    assert!(!sandbox.data().exists(), "nothing is kept for a drawing");
    let list = sandbox.sprag(["graph", "diamond.yaml", "--format", "list"]).expect(0).stdout;
    assert!(list.ends_with("3 ● publish  run                 ← lint, test\n"), "{list}");
    let mermaid = sandbox.sprag(["graph", "diamond.yaml", "--format", "mermaid"]).expect(0).stdout;
    assert!(
        mermaid.starts_with("flowchart TD\n  s0[\"build\"]\n") && mermaid.contains("s2 -. rework .-> s0")
    );
    let svg = sandbox.sprag(["graph", "diamond.yaml", "--format", "svg"]).expect(0).stdout;
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
}

#[test]
fn a_run_is_drawn_with_its_statuses() {
    let sandbox = sandbox();
    sandbox.sprag(["run", "diamond.yaml"]).expect(100);
    let run = sandbox.newest().expect("a run");
    let drawn = sandbox.sprag(["graph"]).expect(0).stdout;
    assert!(drawn.starts_with(&format!("{run}  diamond  failed\n✓    build ")), "{drawn}");
    assert!(drawn.contains("✗ │  test ") && drawn.contains("failed (attempt 2)\n"), "{drawn}");
    assert_eq!(sandbox.sprag(["graph", &run[6..]]).expect(0).stdout, drawn, "the end of an id is enough");
    let coloured = sandbox.sprag(["graph", "--color", "always"]).expect(0).stdout;
    assert!(!drawn.contains('\u{1b}') && coloured.contains("\u{1b}[32m✓\u{1b}[0m"), "{coloured}");
    let mermaid = sandbox.sprag(["graph", &run, "--format", "mermaid"]).expect(0).stdout;
    assert!(mermaid.contains("s2[\"test<br/>failed (attempt 2)\"]:::failed\n"), "{mermaid}");
    let svg = sandbox.sprag(["graph", &run, "--format", "svg"]).expect(0).stdout;
    assert!(svg.contains(&format!("<title>diamond · {run} · failed</title>")), "{svg}");
}

#[test]
fn a_picture_has_dark_colours_and_one_tip_for_many_lines() {
    let sandbox = Sandbox::new();
    let mut steps: Vec<String> =
        (1..=7).map(|no| format!("  - {{ id: s{no}, needs: [], run: echo }}\n")).collect();
    steps.push("  - { id: all, needs: [s1, s2, s3, s4, s5, s6, s7], run: echo }\n".to_owned());
    sandbox.yaml("seven", &format!("steps:\n{}", steps.concat()));
    let svg = sandbox.sprag(["graph", "seven.yaml", "--format", "svg"]).expect(0).stdout;
    assert!(svg.contains("<style>@media (prefers-color-scheme: dark) { .page { fill: #0d1117 }"), "{svg}");
    for (class, count) in [("page", 1), ("name", 9), ("more", 8), ("step", 8), ("tip", 1)] {
        assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), count, "{class}: {svg}");
    }
    // The tip is drawn after all lines, which end where it begins.
    let tip = svg.split("class=\"tip\" d=\"M").nth(1).and_then(|tip| tip.split(' ').next()).expect("a tip");
    assert_eq!(svg.matches(&format!(" {tip} ")).count(), 7, "{svg}");
    assert!(svg.rfind("fill=\"none\"") < svg.find("class=\"tip\""), "{svg}");
}

#[test]
fn json_has_the_documented_shape() {
    let sandbox = sandbox();
    let file = sandbox.json(["graph", "diamond.yaml", "--json"]);
    assert_eq!(
        (&file["pipeline"], &file["run"], &file["status"]),
        (&json!("diamond"), &Value::Null, &Value::Null)
    );
    let test = json!({
        "id": "test", "kind": "run", "needs": ["build"], "layer": 1, "rework": "build", "fan_out": null,
        "when": false, "always": false, "status": null, "waiting_for": null, "not_run": null, "attempt": null,
    });
    assert_eq!(file["steps"][2], test);
    sandbox.sprag(["run", "diamond.yaml"]).expect(100);
    let run = sandbox.json(["graph", "--json"]);
    assert_eq!((&run["status"], &run["steps"][2]["status"]), (&json!("failed"), &json!("failed")));
    assert_eq!(run["steps"][2]["attempt"], 2);
}

#[test]
fn graph_reports_a_missing_or_invalid_file() {
    let sandbox = sandbox();
    let none = sandbox.sprag(["graph"]).expect(1).stderr;
    assert!(none.contains("there are no runs yet"), "{none}");
    sandbox.sprag(["graph", "nowhere.yaml"]).expect(2);
    sandbox.write("bad.yaml", "steps: [{id: a, rum: x}]\n");
    let bad = sandbox.sprag(["graph", "bad.yaml"]).expect(2).stderr;
    assert!(bad.contains("bad.yaml:1:17") && bad.contains("did you mean `run`?"), "{bad}");
    sandbox.sprag(["graph", "diamond.yaml", "--format", "png"]).expect(2);
}
