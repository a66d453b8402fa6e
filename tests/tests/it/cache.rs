//! `cache` on steps, through the program.

use sprag_tests::Sandbox;

/// P18: files are restored before the step and kept after its success; a key keeps its first files.
#[test]
fn p18_files_are_kept_between_runs() {
    let sandbox = Sandbox::new();
    sandbox.yaml(
        "cached",
        r#"
inputs: { key: string, fail: { type: boolean, default: false } }
steps:
  - id: build
    cache: { key: "k-{{ inputs.key }}", paths: [out, tool] }
    run: |
      cat out/deep/result >> seen 2>/dev/null || echo nothing >> seen
      mkdir -p out/deep; echo $SPRAG_RUN_ID > out/deep/result
      printf '#!/bin/sh\\necho tool\\n' > tool; chmod +x tool
      test {{ inputs.fail }} = false
"#,
    );
    let clear = || {
        let _ = std::fs::remove_dir_all(sandbox.path("out"));
        let _ = std::fs::remove_file(sandbox.path("tool"));
    };
    let failed = sandbox.run(&["cached.yaml", "-i", "key=a", "-i", "fail=true"], 100);
    clear();
    let first = sandbox.run(&["cached.yaml", "-i", "key=a"], 0);
    clear();
    let second = sandbox.run(&["cached.yaml", "-i", "key=a"], 0);
    clear();
    sandbox.run(&["cached.yaml", "-i", "key=b"], 0);
    clear();
    sandbox.run(&["cached.yaml", "-i", "key=a"], 0);
    // A failed step keeps nothing, and the second run with a key does not change its files.
    assert_eq!(sandbox.lines("seen"), ["nothing", "nothing", &first, "nothing", &first], "{failed} {second}");
    let log = sandbox.sprag(["logs", &first, "build"]).expect(0).stdout;
    assert!(log.contains("cache k-a: not found") && log.contains("cache k-a: 4 files kept"), "{log}");
    let log = sandbox.sprag(["logs", &second, "build"]).expect(0).stdout;
    assert!(log.contains("cache k-a: 4 files restored"), "{log}");
    for (cache, told) in [
        ("{ key: x, paths: [../x] }", "inside the step's folder"),
        ("{ key: x }", "`paths`"),
        ("{ key: x, paths: [x], more: 1 }", "more"),
    ] {
        sandbox.yaml("bad", &format!("steps:\n  - {{ id: a, run: echo, cache: {cache} }}\n"));
        let refused = sandbox.sprag(["validate", "bad.yaml"]).expect(2);
        assert!(refused.stderr.contains(told) || refused.stdout.contains(told), "{told}: {refused:?}");
    }
}
