//! Pipes, links, devices and endless files in the place of outputs and logs: no process waits for them, and nothing is
//! read or served through them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use sprag_tests::{Project, Sandbox, Server, Signal, now_ms, until};

fn fifo(path: &Path) {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

/// Returns a pipeline of one step `a` that runs this command and has the output `out`.
fn hands_on(command: &str, output: &str) -> String {
    format!("steps:\n  - id: a\n    run: |\n      {command}\n    outputs: {{ x: {output} }}\n")
}

#[test]
fn e03_an_output_that_is_no_regular_file_fails_its_step_and_nothing_else() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &[]);
    sandbox.write("foreign", "of somebody else");
    for (nth, (command, why)) in [
        ("mkfifo out-0", "not a regular file"),
        ("ln -s foreign out-1", "symbolic link"),
        ("ln -s /dev/zero out-2", "symbolic link"),
        ("mkdir out-3", "not a regular file"),
        ("mkdir real-4; echo x > real-4/file; ln -s real-4 way-4; ln -s way-4/file out-4", "symbolic link"),
        ("ln -s out-5 out-5", "symbolic link"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("out-{nth}");
        for output in
            [path.clone(), format!("{{ file: {path}, as: text }}"), format!("{{ file: {path}, as: json }}")]
        {
            let command = format!("rm -rf {path} way-{nth} real-{nth}; {command}");
            let run = server.run(&hands_on(&command, &output));
            server.until(&run, "failed");
            let told = server.get(&format!("/v1/runs/{run}/executions")).to_string();
            assert!(told.contains(why) && told.contains("output `x`"), "{output}: {told}");
            assert!(!told.contains("of somebody else"), "{told}");
        }
    }
    // A link on the way is refused too, and what is meant can be named without it.
    let run = server.run(&hands_on("mkdir -p real; echo yes > real/file; ln -sfn real way", "way/file"));
    server.until(&run, "failed");
    let run = server.run(&hands_on("mkdir -p deep/er; echo yes > real/file", "./deep/er/../../real/file"));
    server.until(&run, "completed");
    assert!(server.get("/v1/runs").is_object(), "it answers");
    let began_ms = now_ms();
    server.process().signal(Signal::TERM);
    server.into_process().finish_within(Duration::from_secs(20)).expect(0);
    assert!(now_ms() - began_ms < 20_000, "it ends when it is told to");
}

/// Pipes where git and Sprag keep their own files: a worktree's link, records of landings, marks of dead processes, the log
/// of a branch.
#[test]
fn e03_a_pipe_among_gits_and_sprags_own_files_blocks_no_process() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    let repo = project.repo().display().to_string();
    let server = Server::start(sandbox, &["--project", &repo]);
    let start = |steps: &str| {
        let yaml = format!("environment: {{ worktree: {{ base: main }} }}\nsteps:\n{steps}");
        let told = server.post("/v1/runs", &json!({ "yaml": yaml, "dir": repo })).expect(201).json();
        told["id"].as_str().expect("an id").to_owned()
    };
    let run = start("  - id: a\n    run: rm .git && mkfifo .git\n  - id: b\n    run: 'true'\n");
    // Whether the step counts as done or as failed, the run ends.
    until("the run ends", || {
        let status = server.get(&format!("/v1/runs/{run}"))["status"].clone();
        status == "failed" || status == "completed"
    });
    let sprag = project.repo().join(".git/sprag");
    std::fs::create_dir_all(sprag.join("land")).expect("a folder");
    fifo(&sprag.join("land/x.json"));
    std::fs::create_dir_all(sandbox.data().join("reading")).expect("a folder");
    fifo(&sandbox.data().join("reading/1-1"));
    for command in
        [vec!["env", "ls"], vec!["env", "gc", "--older-than", "0s"], vec!["diff", &run], vec!["doctor"]]
    {
        sandbox.start(command).finish_within(Duration::from_secs(60));
    }
    let work = "echo more > more.txt && git add more.txt && git commit --quiet --message more";
    let run = start(&format!("  - id: a\n    run: {work}\n  - id: land\n    land: main\n"));
    sandbox.ends_as(&run, "completed");
    let log = project.repo().join(".git/logs/refs/heads/main");
    fifo(&log);
    sandbox.start(["doctor"]).finish_within(Duration::from_secs(60));
    std::fs::remove_file(log).expect("the pipe");
    // A new process counts the marks of dead ones.
    drop(server);
    sandbox.yaml("plain", "steps:\n  - id: a\n    run: 'true'\n");
    sandbox.run(&["plain.yaml"], 0);
}

#[test]
fn e03_a_step_that_replaces_its_own_log_blocks_no_reader() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let runs = sandbox.data().join("runs");
    let place = |name: &str| format!("{}/$SPRAG_RUN_ID/{name}", runs.display());
    // What it printed, which is handed on; and its log, whose end is told when it fails.
    let swap = format!("rm {0}; mkfifo {0}", place("a.1.stdout"));
    let run = server.run(&hands_on(&swap, "{ stdout: text }"));
    server.until(&run, "failed");
    let swap = format!("rm {0}; mkfifo {0}; exit 3", place("a.1.log"));
    let run = server.run(&format!("steps:\n  - id: a\n    run: |\n      {swap}\n"));
    server.until(&run, "failed");
    sandbox.sprag(["logs", &run]);
    sandbox.sprag(["status", &run]).expect(0);
    // A log that grows without any end of line, and one that is larger than memory.
    let long = format!("head -c 300000000 /dev/zero >> {0}; truncate -s 1T {0}; exit 3", place("a.1.log"));
    let run = server.run(&format!("steps:\n  - id: a\n    run: |\n      {long}\n"));
    server.until(&run, "failed");
    let stream = server.request("GET", &format!("/v1/runs/{run}/steps/a/log?follow=true")).open();
    drop(stream);
    assert!(server.get("/v1/runs").is_object());
}

#[test]
fn e03_logs_are_served_from_regular_files_alone() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let run = server.run("steps:\n  - id: a\n    run: echo hello\n");
    server.until(&run, "completed");
    let log = sandbox.data().join("runs").join(&run).join("a.1.log");
    let url = format!("/v1/runs/{run}/steps/a/log");
    assert!(server.request("GET", &url).send().expect(200).text().contains("hello"));
    let secret = sandbox.write("secret", "2026-01-01T00:00:00.000Z out secret\n");
    std::fs::remove_file(&log).expect("removed");
    std::os::unix::fs::symlink(&secret, &log).expect("a link");
    server.request("GET", &url).send().problem(404, "not_found");
    let followed = server.request("GET", &format!("{url}?follow=true")).send();
    assert!(!followed.text().contains("secret"), "{}", followed.text());
    let shown = sandbox.sprag(["logs", &run]);
    assert!(!shown.stdout.contains("secret"), "{shown:?}");
    // The folder of the run is a link.
    let folder = sandbox.data().join("runs").join(&run);
    std::fs::remove_file(&log).expect("removed");
    std::fs::remove_dir_all(&folder).expect("removed");
    let elsewhere = sandbox.path("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    std::fs::copy(&secret, elsewhere.join("a.1.log")).expect("a file");
    std::os::unix::fs::symlink(&elsewhere, &folder).expect("a link");
    server.request("GET", &url).send().problem(404, "not_found");
    std::fs::remove_file(&folder).expect("removed");
    // More readers of a pipe than there are places for reads.
    std::fs::create_dir(&folder).expect("a folder");
    fifo(&log);
    let readers: Vec<_> = (0..24)
        .map(|nth| {
            let url = if nth % 2 == 0 { url.clone() } else { format!("{url}?follow=true") };
            let request = server.request("GET", &url);
            std::thread::spawn(move || request.try_send().map(|reply| reply.status))
        })
        .collect();
    let began_ms = now_ms();
    for _ in 0..20 {
        assert!(server.get("/v1/runs").is_object());
    }
    assert!(now_ms() - began_ms < 5_000, "reads go on");
    for reader in readers {
        let status = reader.join().expect("a thread").expect("an answer");
        assert!(matches!(status, 404 | 200), "{status}");
    }
}

#[test]
fn e03_a_remote_workers_files_are_not_waited_for_either() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let url = format!("http://{}", server.addr);
    let data = sandbox.path("elsewhere");
    let mut command = sandbox.command(["worker", "--server", &url, "--slots", "2"]);
    command.env("SPRAG_DATA", &data).env("SPRAG_TOKEN", &server.token);
    let worker = sandbox.start_command(command);
    let runs = data.join("remote/runs");
    let log = format!("{}/$SPRAG_RUN_ID/a.1.log", runs.display());
    let stdout = format!("{}/$SPRAG_RUN_ID/a.1.stdout", runs.display());
    for swap in [
        format!("rm {log}; mkfifo {log}; exit 3"),
        format!("rm {stdout}; mkfifo {stdout}"),
        "mkfifo out".to_owned(),
    ] {
        let output = if swap.contains("stdout") { "{ stdout: text }" } else { "out" };
        let run = server.run(&hands_on(&swap, output));
        server.until(&run, "failed");
    }
    let run = server.run("steps:\n  - id: a\n    run: echo fine\n");
    server.until(&run, "completed");
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn e03_a_log_that_a_remote_worker_sends_follows_no_link() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let run = server.run("steps:\n  - id: a\n    run: 'true'\n");
    let worker = sprag_tests::HandWorker::new(&server, 'a');
    let lease = worker.claim(1).expect("work");
    let victim = sandbox.write("victim", "precious");
    let folder = sandbox.data().join("runs").join(&run);
    std::fs::create_dir_all(&folder).expect("a folder");
    let log = folder.join("a.1.log");
    let send = || {
        let fence = &lease["fence"];
        let path = format!("/v1/work/logs?run={run}&step=0&attempt=1&fence={fence}&part=step&offset=0");
        let request = server.request("POST", &path).header("x-sprag-worker", &worker.key);
        request.body("application/octet-stream", b"overwritten and more").send()
    };
    std::os::unix::fs::symlink(&victim, &log).expect("a link");
    assert!(matches!(send().status, 409 | 500), "it is refused");
    assert_eq!(std::fs::read_to_string(&victim).expect("a file"), "precious");
    fifo(&log);
    let told = send();
    assert!(matches!(told.status, 409 | 500), "{}", told.text());
    std::fs::remove_file(&log).expect("removed");
    assert_eq!(send().expect(200).json(), json!({ "size": 20 }));
}

#[test]
fn e03_a_project_pipeline_that_is_a_pipe_blocks_no_request() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("project/.sprag/pipelines");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("good.yaml"), "steps:\n  - id: a\n    run: 'true'\n").expect("a file");
    let project = sandbox.path("project").display().to_string();
    let server = Server::start(&sandbox, &["--project", &project, "--no-worker"]);
    fifo(&folder.join("pipe.yaml"));
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero.yaml")).expect("a link");
    for name in ["pipe", "zero"] {
        for _ in 0..10 {
            let told = server.post("/v1/runs", &json!({ "pipeline": name }));
            assert!(matches!(told.status, 404 | 422), "{}", told.text());
        }
    }
    let listed = server.get("/v1/pipelines").to_string();
    assert!(listed.contains("good"), "{listed}");
    server.post("/v1/runs", &json!({ "pipeline": "good" })).expect(201);
    until("it answers", || server.request("GET", "/v1/runs").try_send().is_ok());
}
