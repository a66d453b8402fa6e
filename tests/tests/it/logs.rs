//! `sprag logs` shows the log, or says why there is none.

use sprag_testkit::Postgres;
use sprag_tests::{Host, Sandbox, Signal, until, until_some};

#[test]
fn a_step_in_backoff_shows_the_log_of_its_last_attempt() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "fails",
        &[("flaky", "retry: { attempts: 3, delay: 10m }\nrun: echo why it failed; exit 3")],
    );
    let running = sandbox.start(["run", "fails.yaml"]);
    let run = until_some("a run", || sandbox.newest());
    until("it waits for its second try", || sandbox.step(&run, "flaky")["attempt"] == 2);
    for args in [&["logs", &run][..], &["logs", &run, "flaky"]] {
        let told = sandbox.sprag(args).expect(0);
        assert!(told.stdout.contains("why it failed"), "{told:?}");
        assert!(told.stderr.contains("flaky: attempt 2 has not begun; this is attempt 1"), "{told:?}");
    }
    running.signal(Signal::TERM);
    running.finish().expect(130);
    // Cancelled there, the same is shown.
    assert!(sandbox.sprag(["logs", &run]).expect(0).stdout.contains("why it failed"));
}

#[test]
fn an_attempt_that_does_not_exist_is_an_error_that_names_those_that_do() {
    let sandbox = Sandbox::new();
    sandbox.pipeline(
        "fails",
        &[("flaky", "retry: { attempts: 2 }\nrun: echo $SPRAG_ATTEMPT; exit 3"), ("never", "run: 'true'")],
    );
    let run = sandbox.run(&["fails.yaml"], 100);
    assert_eq!(sandbox.sprag(["logs", &run, "flaky", "--attempt", "1"]).expect(0).stdout, "1\n");
    let told = sandbox.sprag(["logs", &run, "flaky", "--attempt", "7"]).expect(2);
    assert!(
        told.stderr.contains("step flaky of run") && told.stderr.contains("has no attempt 7"),
        "{told:?}"
    );
    assert!(told.stderr.contains("it has attempts 1, 2"), "{told:?}");
    let told = sandbox.sprag(["logs", &run, "--attempt", "7"]).expect(2);
    assert!(told.stderr.contains("the highest is 2"), "{told:?}");
    let told = sandbox.sprag(["logs", &run, "never", "--attempt", "1"]).expect(2);
    assert!(told.stderr.contains("it has none yet"), "{told:?}");
}

#[test]
fn a_step_without_a_log_says_why() {
    let sandbox = Sandbox::new();
    sandbox.yaml("child", "steps: [{ id: a, run: echo a }]\n");
    sandbox.yaml(
        "all",
        "steps:\n  - { id: silent, run: 'true' }\n  - { id: no, when: 'false', run: echo no }\n  - { id: call, pipeline: child.yaml }\n  - { id: ask, gate: { ask: 'Really?' } }\n  - { id: after, run: echo after }\n",
    );
    let run = sandbox.run(&["all.yaml"], 5);
    let why = |step: &str| {
        let told = sandbox.sprag(["logs", &run, step]).expect(0);
        assert_eq!(told.stdout, "", "{told:?}");
        told.stderr
    };
    assert!(why("silent").contains("silent has printed nothing"));
    assert!(why("no").contains("no was skipped before it started"));
    assert!(why("call").contains("call is run "));
    assert!(why("ask").contains("ask prints nothing"));
    assert!(why("after").contains("after has not started: it waits for ask (running)"));
    let all = sandbox.sprag(["logs", &run]).expect(0);
    assert!(
        all.stderr.contains("silent has printed nothing") && all.stderr.contains("after has not started"),
        "{all:?}"
    );
    let deleted = sandbox.run(&["child.yaml"], 0);
    std::fs::remove_dir_all(sandbox.data().join("runs").join(&deleted)).expect("a folder");
    let told = sandbox.sprag(["logs", &deleted]).expect(0);
    assert!(told.stderr.contains("the log of a, attempt 1: it is not in this data directory"), "{told:?}");
}

#[test]
fn a_log_on_another_host_names_the_host() {
    let database = Postgres::shared().database();
    let client = Sandbox::on(&database.url);
    for name in ["here", "there"] {
        std::fs::create_dir(client.path(name)).expect("a folder");
    }
    let far = match Host::new("far", &database.url, &client.path("there"), &client.path("here")) {
        Ok(far) => far,
        Err(why) => return println!("PASSED OVER: this machine cannot play two: {why}"),
    };
    let file = client.pipeline("prints", &[("one", "run: echo printed there")]);
    let run = client.detach(&file);
    far.start(["worker", "--name", "w7", "--until-idle"]).finish().expect(0);
    client.ends_as(&run, "completed");
    let told = client.sprag(["logs", &run]).expect(0);
    assert_eq!(told.stdout, "");
    assert!(told.stderr.contains("the log of one, attempt 1: it is on host far#"), "{told:?}");
}
