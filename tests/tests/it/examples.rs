//! The examples, run by the real program as their comments say.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sprag_tests::{Sandbox, until_some};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").canonicalize().expect("examples")
}

fn example(name: &str) -> String {
    folder().join(name).to_str().expect("a name").to_owned()
}

/// Returns the pipeline files in a folder.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")).collect()
}

fn git(folder: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-C"]).arg(folder).args(args);
    assert!(command.status().expect("git").success(), "{args:?}");
}

#[test]
fn every_example_is_valid_without_a_warning_and_listed() {
    let sandbox = Sandbox::new();
    let listed = std::fs::read_to_string(folder().join("README.md")).expect("a list");
    let top = files_in(&folder());
    assert!(top.len() >= 10);
    for file in &top {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(listed.contains(&format!("[{name}]({name})")), "{name} is not in the list");
    }
    for file in top.into_iter().chain(files_in(&folder().join("parts"))) {
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(text.starts_with("# "), "{} begins with what it is for", file.display());
        sandbox.sprag(["validate", "--strict", file.to_str().expect("a name")]).expect(0);
    }
}

#[test]
fn the_simple_examples_run_unchanged() {
    let sandbox = Sandbox::new();
    for name in ["hello.yaml", "diamond.yaml", "retry.yaml", "cleanup.yaml"] {
        sandbox.run(&[&example(name)], 0);
    }
    let run = sandbox.run(&[&example("cleanup.yaml"), "-i", "fail=true"], 100);
    assert_eq!(sandbox.steps(&run), "prepare done, work failed, tidy done");
}

#[test]
fn the_examples_of_conditions_and_joins_do_what_they_say() {
    let sandbox = Sandbox::new();
    let said = |run: &str, step: &str| sandbox.sprag(["logs", run, step]).expect(0).stdout;
    let run = sandbox.run(&[&example("ci-matrix.yaml")], 0);
    assert_eq!(said(&run, "test[1]"), "testing linux 2 --slow\n");
    assert_eq!(said(&run, "test[3]"), "testing mac 2 \n");
    let run = sandbox.run(&[&example("ci-matrix.yaml"), "-i", "broken=[\"bsd\"]"], 100);
    let why = sandbox.sprag(["explain", &run]).expect(0).stdout;
    assert!(why.contains("a test failed on bsd"), "{why}");
    assert_eq!(sandbox.step(&run, "publish")["status"], "cancelled");

    std::fs::create_dir(sandbox.path("full")).expect("a folder");
    sandbox.write("full/file", "content");
    let run = sandbox.run(&[&example("nothing-to-do.yaml"), "-i", "folder=nowhere"], 0);
    assert_eq!(sandbox.steps(&run), "look done, nothing done, work skipped, report done");
    let run = sandbox.run(&[&example("nothing-to-do.yaml"), "-i", "folder=full"], 0);
    assert_eq!(said(&run, "work"), "1 files to work on\n");

    let run = sandbox.run(&[&example("mirrors.yaml"), "-i", "good=south"], 0);
    assert_eq!(sandbox.steps(&run), "north failed, south done, unpack done, alarm skipped");
    let run = sandbox.run(&[&example("mirrors.yaml"), "-i", "good=none"], 100);
    assert_eq!(said(&run, "alarm"), "no mirror answered, the run is failing\n");

    let run = sandbox.run(&[&example("polish.yaml")], 0);
    assert_eq!(
        (said(&run, "tell").as_str(), sandbox.step(&run, "write")["attempt"].as_u64()),
        ("the text is only 3 words\n", Some(3))
    );
    let run = sandbox.run(&[&example("polish.yaml"), "-i", "words=2"], 0);
    assert_eq!(said(&run, "tell"), "the text is good\n");

    let run = sandbox.run(&[&example("by-language.yaml")], 0);
    assert_eq!(said(&run, "list"), "compiled core\nbundled page\n");

    let all = "days=[\"Mon\", \"Tue\", \"Wed\", \"Thu\", \"Fri\", \"Sat\", \"Sun\"]";
    let run = sandbox.run(&[&example("only-on-monday.yaml"), "-i", all], 0);
    assert_eq!(sandbox.steps(&run), "collect done, write done, send done");
    let run = sandbox.run(&[&example("only-on-monday.yaml"), "-i", "days=[]"], 0);
    assert_eq!(sandbox.steps(&run), "collect skipped, write skipped, send skipped");
    let file = example("diamond.yaml");
    let run = sandbox.run(&[&file, "--only", "start"], 0);
    assert_eq!(sandbox.steps(&run).matches("done").count(), 1, "{}", sandbox.steps(&run));
    let run = sandbox.run(&[&file, "--skip", "start"], 0);
    assert_eq!(sandbox.steps(&run).matches("skipped").count(), 1, "{}", sandbox.steps(&run));
    sandbox.sprag(["run", &file, "--from", "nowhere"]).expect(2);
}

#[test]
fn the_examples_of_rounds_forms_and_handlers_do_what_they_say() {
    let sandbox = Sandbox::new();
    let said = |run: &str, step: &str| sandbox.sprag(["logs", run, step]).expect(0).stdout;
    let whole = |args: &[&str], code: i32| {
        let told = sandbox.sprag(["run", "--json"].iter().chain(args)).expect(code);
        let last = told.lines::<serde_json::Value>().pop().expect("a line");
        (last["run"].as_str().expect("a run").to_owned(), last["outputs"].clone())
    };
    let (run, outputs) = whole(&[&example("stories.yaml")], 0);
    assert_eq!(outputs, json!({ "done": ["login", "search", "export"] }));
    assert_eq!(said(&run, "report"), "login, search, export in 3 rounds\n");

    let (run, outputs) = whole(&[&example("deploy.yaml")], 0);
    assert_eq!(outputs, json!({ "looks": 3 }));
    assert_eq!(said(&run, "announce"), "deployed after 3 looks\n");
    let (run, _) = whole(&[&example("deploy.yaml"), "-i", "healthy_after=99"], 100);
    assert!(said(&run, "roll-back").contains("asks for more than 10 rounds"), "{}", said(&run, "roll-back"));
    assert!(!Path::new(&format!("/tmp/sprag-deploy-{run}")).exists(), "it tidies up");

    let run = sandbox.run(&[&example("decide.yaml")], 5);
    let choice = ["--choice", "canary", "--field", "reason=a risky change"];
    let refused = sandbox.sprag(["approve", &run].iter().chain(&choice).chain(&["--field", "percent=90"]));
    assert!(refused.expect(2).stderr.contains("`percent`"));
    sandbox.sprag(["approve", &run].iter().chain(&choice)).expect(0);
    assert_eq!(said(&run, "canary"), "5 percent, because a risky change\n");
    assert_eq!(said(&run, "log"), "canary, a risky change\n");
    assert_eq!(sandbox.step(&run, "release")["status"], "skipped");
    assert_eq!(sandbox.step(&run, "park")["status"], "skipped");

    let (_, outputs) = whole(&[&example("monorepo.yaml")], 0);
    assert_eq!(outputs, json!({ "packages": ["core.tar", "web.tar"] }));
}

#[test]
fn the_examples_of_services_remedies_and_votes_do_what_they_say() {
    let sandbox = Sandbox::new();
    let said = |run: &str, step: &str| sandbox.sprag(["logs", run, step]).expect(0).stdout;
    let whole = |args: &[&str], code: i32| {
        let told = sandbox.sprag(["run", "--json"].iter().chain(args)).expect(code);
        let last = told.lines::<serde_json::Value>().pop().expect("a line");
        (last["run"].as_str().expect("a run").to_owned(), last["outputs"].clone())
    };
    let (run, outputs) = whole(&[&example("integration.yaml")], 0);
    assert_eq!(outputs, json!({ "report": "exit codes of the shards [0,0,0]", "failed": 0 }));
    assert!(said(&run, "store").contains("the store is ready"));
    assert!(sandbox.steps(&run).contains("store done"), "{}", sandbox.steps(&run));
    assert!(sandbox.processes_of(&run).is_empty() && !Path::new(&format!("/tmp/sprag-store-{run}")).exists());
    let (run, outputs) = whole(&[&example("integration.yaml"), "-i", "broken=2"], 100);
    assert_eq!(outputs, json!({ "report": "exit codes of the shards [0,1,0]", "failed": 1 }));
    assert!(
        said(&run, "tools").contains("1 files restored") || said(&run, "tools").contains("files restored")
    );

    let (_, outputs) = whole(&[&example("remediate.yaml")], 0);
    assert_eq!(outputs, json!({ "states": [{ "state": "web 40" }, { "state": "ci 67" }] }));
    let full = "hosts=[{\"name\": \"db\", \"used\": 99, \"frees\": 1}]";
    let run = sandbox.run(&[&example("remediate.yaml"), "-i", full], 5);
    sandbox.sprag(["approve", &run, "--field", "gigabytes=50"]).expect(0);
    assert_eq!(said(&run, "hosts[0].grow"), "grew db by 50 GB\n");

    let run = sandbox.run(&[&example("judges.yaml")], 0);
    assert_eq!(said(&run, "merge"), "merged\n");
    let run = sandbox.run(&[&example("judges.yaml"), "-i", "approvals=1"], 5);
    assert_eq!(sandbox.step(&run, "change")["attempt"], 3);
    let asked = sandbox.json(["questions", "--json"]).to_string();
    assert!(asked.contains("too slow, unclear names"), "{asked}");
    sandbox.sprag(["reject", &run]).expect(100);
}

#[test]
fn the_test_matrix_runs_all_and_names_the_failed_ones() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&[&example("test-matrix.yaml")], 0);
    let table = sandbox.sprag(["logs", &run, "table"]).expect(0).stdout;
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.contains("sh C.UTF-8: passed"), "{table}");
    let run = sandbox.run(&[&example("test-matrix.yaml"), "-i", "command=[ $LC_ALL = C ]"], 100);
    let table = sandbox.sprag(["logs", &run, "table"]).expect(0).stdout;
    assert!(table.contains("sh C: passed") && !table.contains("UTF-8: passed"), "{table}");
    assert_eq!(sandbox.step(&run, "verdict")["status"], "failed");
}

#[test]
fn the_release_asks_goes_back_and_publishes() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("source")).expect("a folder");
    sandbox.write("source/file", "content");
    git(&sandbox.path("source"), &["init", "-q"]);
    git(&sandbox.path("source"), &["commit", "-q", "--allow-empty", "-m", "the first change"]);
    let args = [&example("release.yaml"), "-i", "version=1.2.0", "-i", "source=source"];
    let run = sandbox.run(&args, 5);
    let refused = sandbox.sprag(["run"].iter().chain(&args)).expect(1);
    assert!(refused.stderr.contains("release-1.2.0"), "{refused:?}");
    sandbox.sprag(["reject", &run, "--comment", "thank the testers"]).expect(5);
    let told = sandbox.sprag(["wait", &run, "--json"]).expect(5).json();
    assert!(
        told["waits_for"][0]["ask"].as_str().is_some_and(|ask| ask.starts_with("Publish 1.2.0, checksum "))
    );
    assert!(!sandbox.path("dist").exists());
    sandbox.sprag(["approve", &run]).expect(0);
    let notes = sandbox.read("dist/NOTES");
    assert!(notes.contains("- the first change") && notes.contains("thank the testers"), "{notes}");
    assert!(sandbox.path("dist/1.2.0.tar.gz").exists());
    assert!(!Path::new(&format!("/tmp/sprag-release-{run}")).exists(), "it tidies up");
}

#[test]
fn the_nightly_looks_at_every_repository() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        std::fs::create_dir_all(sandbox.path(&format!("root/{name}"))).expect("a folder");
        git(&sandbox.path(&format!("root/{name}")), &["init", "-q"]);
    }
    let run = sandbox.run(&[&example("nightly.yaml"), "-i", "root=root"], 0);
    let report = sandbox.sprag(["logs", &run, "report"]).expect(0).stdout;
    assert!(report.contains("root/one/.git: ") && report.contains("root/two/.git: "), "{report}");
    std::fs::write(sandbox.path("root/two/.git/HEAD"), "nonsense\n").expect("a file");
    std::fs::create_dir(sandbox.path("scratch")).expect("a folder");
    let args = [&example("nightly.yaml"), "-i", "root=root", "-i", "scratch=scratch"];
    let run = sandbox.run(&args, 100);
    let report = sandbox.sprag(["logs", &run, "report"]).expect(0).stdout;
    assert!(report.contains("repositories: failed, scratch: done"), "{report}");
    assert!(report.contains("root/one/.git: ") && !report.contains("root/two/.git: "), "{report}");
}

#[test]
fn p13_every_file_has_its_own_rounds_with_the_verifier() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&[&example("tidy-files.yaml")], 0);
    assert_eq!(sandbox.read("tidy/blanks.txt"), "blanks at the end\n");
    assert_eq!(sandbox.read("tidy/tabs.txt"), "a   tab, and blanks\n");
    assert_eq!(sandbox.read("tidy/good.txt"), "already tidy\n");
    let rounds = |item: &str| {
        let child = sandbox.step(&run, item)["child"].as_str().expect("a run").to_owned();
        sandbox.step(&child, "tidy")["attempt"].as_u64().expect("a number")
    };
    assert_eq!((rounds("tidy[0]"), rounds("tidy[1]"), rounds("tidy[2]")), (2, 1, 2));
    assert!(!Path::new(&format!("/tmp/sprag-tidy-{run}")).exists(), "it tidies up");
    std::fs::create_dir(sandbox.path("empty")).expect("a folder");
    sandbox.run(&[&example("tidy-files.yaml"), "-i", "folder=empty"], 0);
}

#[test]
fn the_children_build_and_pass_outputs_on() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&[&example("children.yaml")], 0);
    assert_eq!(sandbox.read("dist/core.lib"), "part 1 of core\npart 2 of core\n");
    let report = sandbox.sprag(["logs", &run, "report"]).expect(0).stdout;
    assert_eq!(report, "core: 2 parts linked\nweb: 3 parts linked\n");
    let wrong = json!({ "components": [{ "name": "api", "parts": "many" }] }).to_string();
    sandbox.run(&[&example("children.yaml"), "--inputs", &wrong], 100);
}

#[test]
fn the_review_is_claimed_from_outside() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(["run", &example("review.yaml"), "--json"]);
    let task = until_some("a task", || {
        let told = sandbox.sprag(["task", "claim", "--queue", "reviewers", "--wait", "5s"]);
        (told.code == 0).then_some(told)
    });
    assert!(task.stderr.contains("Review the last commit:"), "{task:?}");
    sandbox.sprag(["task", "done", task.stdout.trim(), "--output", "verdict=good"]).expect(0);
    running.finish().expect(0);
    assert!(sandbox.sprag(["logs"]).expect(0).stdout.contains("the verdict is good"));
}

#[test]
fn the_examples_with_agents_run_offline_with_the_fake_one() {
    let project = sprag_tests::Project::new();
    let run = |name: &str, args: &[&str], code: i32| {
        let file = example(name);
        let all = ["run", &file, "--agents", "fake"].into_iter().chain(args.iter().copied());
        project.sprag(all).expect(code);
        project.sandbox.newest().expect("a run")
    };
    let feature = run("feature.yaml", &["-i", "issue=demo"], 5);
    project.sprag(["approve", &feature]).expect(0);
    assert_eq!(project.sandbox.status_word(&feature), "completed");
    run("fix-bug.yaml", &["-i", "bug=demo"], 0);
    let before = project.git(["rev-list", "--count", "main"]);
    run("five-agents.yaml", &[], 0);
    let after = project.git(["rev-list", "--count", "main"]);
    assert_eq!(after.parse::<u32>().expect("a number"), before.parse::<u32>().expect("a number") + 5);
    project.assert_clean();
}
