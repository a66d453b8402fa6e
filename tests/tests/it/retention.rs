//! `sprag gc`: what ended long ago goes, with its files, and nothing else.

use sprag_tests::Sandbox;

#[test]
fn old_runs_are_forgotten_with_their_logs() {
    let sandbox = Sandbox::new();
    sandbox.pipeline("one", &[("a", "run: echo hello")]);
    sandbox.sprag(["run", "one.yaml"]).expect(0);
    let run = sandbox.newest().expect("a run");
    assert!(sandbox.sprag(["logs", &run]).expect(0).stdout.contains("hello"));

    let none = sandbox.sprag(["gc", "--keep", "30d"]).expect(0);
    assert_eq!(none.stdout, "nothing to forget: no run ended more than 30d ago\n");
    let dry = sandbox.sprag(["gc", "--keep", "0s", "--dry-run"]).expect(0);
    assert!(dry.stdout.starts_with("would forget 1 run, "), "{}", dry.stdout);
    sandbox.sprag(["status", &run]).expect(0);

    let told = sandbox.sprag(["gc", "--keep", "0s", "--json"]).expect(0);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["forgotten"]["runs"], 1, "{told}");
    assert!(told["forgotten"]["bytes"].as_u64().unwrap() > 0, "{told}");
    sandbox.sprag(["status", &run]).expect(1);
    assert!(!sandbox.data().join("runs").join(&run).exists(), "its logs are gone");
    assert_eq!(sandbox.sprag(["ls", "--json"]).expect(0).stdout.trim(), "[]");
    sandbox.sprag(["run", "one.yaml"]).expect(0);
}

#[test]
fn an_age_that_is_none_is_told_with_its_remedy() {
    let sandbox = Sandbox::new();
    let told = sandbox.sprag(["gc", "--keep", "soon"]).expect(2);
    assert!(told.stderr.contains("--keep") && told.stderr.contains("30d"), "{}", told.stderr);
}
