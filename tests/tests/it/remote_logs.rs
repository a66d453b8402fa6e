//! Logs of remote workers: they arrive complete, or are reported and kept; and the worker's folder does not grow
//! for ever.

use std::path::PathBuf;
use std::time::Duration;

use sprag_tests::{Proxy, Sandbox, Signal, Started, now_ms, until, within};

use crate::remote::Scene;

/// A log of some megabytes.
const LOUD: &str = "run: seq -f 'a line of a log that is long enough to count %.0f' 1 40000";

/// Returns the folder of the remote worker.
fn folder(sandbox: &Sandbox) -> PathBuf {
    sandbox.path("elsewhere").join("remote")
}

/// Returns the logs that the worker still has.
fn kept(sandbox: &Sandbox) -> Vec<PathBuf> {
    let runs = std::fs::read_dir(folder(sandbox).join("runs")).into_iter().flatten().flatten();
    let files = runs.flat_map(|run| std::fs::read_dir(run.path()).into_iter().flatten().flatten());
    files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect()
}

/// Returns the number of lines that `sprag logs` prints.
fn lines(sandbox: &Sandbox, run: &str) -> usize {
    sandbox.sprag(["logs", run, "a"]).expect(0).stdout.lines().count()
}

/// Returns a proxy to the server through which a log of [`LOUD`] takes minutes.
fn slow(scene: &Scene) -> Proxy {
    let proxy = Proxy::to(scene.server.addr);
    proxy.delay(Duration::from_millis(150));
    proxy
}

fn stop(worker: Started) -> String {
    worker.signal(Signal::TERM);
    worker.finish_within(Duration::from_secs(120)).expect(0).stderr
}

#[test]
fn e16_f1_a_late_log_is_reported_kept_and_finally_complete() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    sandbox.pipeline("loud", &[("a", LOUD)]);
    let proxy = slow(&scene);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s"]);
    let run = scene.detach("loud");
    // The run does not wait for its log.
    until("it has ended", || sandbox.status_word(&run) == "completed");
    let log = kept(sandbox).pop().expect("the worker has the log");
    let host = sprag_process::current().expect("this process").host;
    let missing = sandbox.step(&run, "a")["log_missing"].clone();
    assert!(missing["host"].as_str().is_some_and(|told| told.starts_with(&host)), "{missing}");
    assert_eq!(missing["path"], *log.to_string_lossy());
    assert!(missing["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{missing}");
    let told = sandbox.sprag(["status", &run]).expect(0).stdout;
    assert!(told.contains("of its log are missing here") && told.contains(&*log.to_string_lossy()), "{told}");
    let told = sandbox.sprag(["logs", &run]).expect(0);
    assert!(
        told.stderr.contains("the rest is on host") && told.stderr.contains(&*log.to_string_lossy()),
        "{told:?}"
    );
    let page = scene.server.get(&format!("/v1/runs/{run}"));
    assert_eq!(page["steps"][0]["log_missing"]["path"], missing["path"], "{page}");
    assert!(lines(sandbox, &run) < 40_000);
    // The way is good again: it arrives, and is not kept any more.
    proxy.delay(Duration::ZERO);
    until("all of it is there", || lines(sandbox, &run) == 40_000);
    until("nothing is said any more", || sandbox.step(&run, "a")["log_missing"].is_null());
    until("the worker has it no more", || kept(sandbox).is_empty());
    assert_eq!(sandbox.sprag(["logs", &run, "a"]).expect(0).stderr, "");
    stop(worker);
}

#[test]
fn e16_f1_a_log_outlives_the_worker_that_was_killed_with_it() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    sandbox.pipeline("loud", &[("a", LOUD)]);
    let proxy = slow(&scene);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s"]);
    let run = scene.detach("loud");
    until("it has ended", || sandbox.status_word(&run) == "completed");
    worker.kill();
    assert!(lines(sandbox, &run) < 40_000);
    assert_eq!(kept(sandbox).len(), 1);
    // The next worker in that folder sends it; nothing was tidied away meanwhile.
    let worker = scene.worker(&scene.url(), &[]);
    until("all of it is there", || lines(sandbox, &run) == 40_000);
    until("the worker has it no more", || kept(sandbox).is_empty());
    stop(worker);
}

/// A worker that is silent for too long loses its step; what it printed is sent all the same.
#[test]
fn e16_f1_the_log_of_an_attempt_that_was_taken_away_arrives_too() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    let steps = "at_most_once: true\nrun: seq 1 20000; echo the end; touch printed; sleep 300";
    sandbox.pipeline("cut", &[("a", steps)]);
    let proxy = Proxy::to(scene.server.addr);
    let worker = scene.worker(&proxy.url(), &["--lease", "5s"]);
    proxy.delay(Duration::from_millis(300));
    let run = scene.detach("cut");
    until("it has printed everything", || sandbox.path("printed").exists());
    proxy.silence(true);
    until("it was taken away", || sandbox.status_word(&run) == "failed");
    proxy.delay(Duration::ZERO);
    proxy.silence(false);
    proxy.cut();
    until("all of it is there", || sandbox.sprag(["logs", &run, "a"]).expect(0).stdout.contains("the end"));
    until("the worker has it no more", || kept(sandbox).is_empty());
    stop(worker);
}

#[test]
fn e16_f1_a_worker_with_too_many_unsent_logs_takes_no_steps_and_says_why() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    sandbox.pipeline("loud", &[("a", LOUD), ("b", "run: echo b >> ran")]);
    let proxy = slow(&scene);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s", "--unsent-logs", "100KB"]);
    let run = scene.detach("loud");
    until("it says why it takes nothing", || worker.stderr().contains("takes no further steps: "));
    assert!(worker.stderr().contains("wait to be sent, and 100.0 KB may"), "{}", worker.stderr());
    let other = scene.detach("loud");
    let begun =
        within(Duration::from_secs(3), || (sandbox.step(&other, "a")["status"] == "running").then_some(()));
    assert_eq!(begun, None, "it takes no steps");
    proxy.delay(Duration::ZERO);
    until("it goes on", || worker.stderr().contains("claims steps again"));
    sandbox.ends_as(&run, "completed");
    sandbox.ends_as(&other, "completed");
    stop(worker);
}

#[test]
fn e16_f1_a_worker_that_leaves_says_which_logs_it_has_not_sent() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    sandbox.pipeline("loud", &[("a", LOUD)]);
    let proxy = slow(&scene);
    let worker = scene.worker(&proxy.url(), &["--lease", "10s"]);
    let run = scene.detach("loud");
    until("it has ended", || sandbox.status_word(&run) == "completed");
    worker.signal(Signal::TERM);
    until("it drains", || worker.stderr().contains("Finishing the running steps"));
    worker.signal(Signal::TERM);
    let told = worker.finish().expect(0).stderr;
    assert!(told.contains("1 log (") && told.contains("sent when a worker runs there again"), "{told}");
    assert_eq!(kept(sandbox).len(), 1);
}

/// Returns the folder name of a run that the server does not know.
fn unknown_run(no: u64) -> String {
    sprag_lifecycle::RunId::from_i64(1_000_000 + no as i64).to_string()
}

#[test]
fn f4_every_folder_is_cleaned_up_with_the_output_files_of_deleted_runs() {
    let scene = Scene::new();
    let sandbox = &scene.sandbox;
    let file = "outputs: { out: out.txt }\nrun: echo made > out.txt";
    sandbox.pipeline("makes", &[("a", file)]);
    let worker = scene.worker(&scene.url(), &[]);
    let run = scene.detach("makes");
    sandbox.ends_as(&run, "completed");
    stop(worker);
    let of_run = folder(sandbox).join("runs").join(&run);
    assert!(of_run.join("files").exists(), "what it handed on is there");
    // More folders than are asked about at once, each with something that only a live run needs. An older version has made
    // one of them with files: whose they are is not known.
    let runs = folder(sandbox).join("runs");
    for no in 0..1_200 {
        let path = runs.join(unknown_run(no));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("a.1.stdout"), "left").expect("a file");
    }
    let unknown = runs.join(unknown_run(0)).join("files");
    std::fs::create_dir(&unknown).expect("a folder");
    let worker = scene.worker(&scene.url(), &[]);
    until("all were looked at", || std::fs::read_dir(&runs).is_ok_and(|left| left.count() == 2));
    assert!(unknown.exists() && of_run.join("files").exists());
    stop(worker);
    sandbox.sprag(["gc", "--keep", "0s"]).expect(0);
    let worker = scene.worker(&scene.url(), &[]);
    until("what it handed on is gone", || !of_run.exists());
    assert!(unknown.exists());
    stop(worker);
}

/// The files of one server's runs are none of another's business.
#[test]
fn f4_another_server_deletes_nothing() {
    let (first, second) = (Scene::new(), Scene::new());
    let sandbox = &first.sandbox;
    sandbox.pipeline("makes", &[("a", "outputs: { out: out.txt }\nrun: echo made > out.txt")]);
    let worker = first.worker(&first.url(), &[]);
    let run = first.detach("makes");
    sandbox.ends_as(&run, "completed");
    stop(worker);
    let of_run = folder(sandbox).join("runs").join(&run);
    let worker = first.worker_of(&second.server, &second.url(), &[]);
    // A run of the second server's is done by it: by then it has tidied once.
    second.sandbox.pipeline("other", &[("a", "run: 'true'")]);
    let other = second.detach("other");
    second.sandbox.ends_as(&other, "completed");
    let since_ms = now_ms();
    until("it has had time to tidy", || now_ms() > since_ms + 2_000);
    assert!(of_run.join("files").exists());
    stop(worker);
}
