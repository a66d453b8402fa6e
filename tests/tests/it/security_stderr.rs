//! A server whose stderr is closed, or is not read, answers its requests and stops on request.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use serde_json::json;
use sprag_tests::{Sandbox, Server, Signal};

/// Creates a named pipe, and returns its reading end.
fn pipe(path: &Path) -> File {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    let flags = OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path).expect("a pipe")
}

/// Returns a server whose stderr is a pipe, and the pipe's reading end.
fn server(sandbox: &Sandbox) -> (Server, File) {
    let path = sandbox.path("stderr-pipe");
    let reader = pipe(&path);
    let script = format!("exec 2> {}; exec \"$@\"", path.display());
    let process =
        sandbox.start_command(sandbox.command_through(&script, ["serve", "--listen", "127.0.0.1:0"]));
    (Server::from_process(sandbox, process), reader)
}

fn assert_it_serves(server: &Server, requests: usize) {
    let run = server.run("steps:\n  - id: a\n    run: 'true'\n");
    server.until(&run, "completed");
    for _ in 0..requests {
        server.get("/v1/runs");
    }
    server.post("/v1/runs", &json!({ "yaml": "nonsense" })).problem(422, "pipeline");
}

#[track_caller]
fn assert_it_stops(server: Server) {
    let process = server.into_process();
    process.signal(Signal::TERM);
    process.finish_within(Duration::from_secs(30)).expect(0);
}

#[test]
fn e03_without_its_stderr_a_server_answers_and_stops() {
    let sandbox = Sandbox::new();
    let (server, reader) = server(&sandbox);
    drop(reader);
    assert_it_serves(&server, 20);
    assert_it_stops(server);
}

#[test]
fn e03_a_stderr_that_is_never_read_holds_up_no_request() {
    let sandbox = Sandbox::new();
    let (server, reader) = server(&sandbox);
    // Each request is a line of over a hundred bytes: more than a pipe holds.
    assert_it_serves(&server, 2_000);
    assert_it_stops(server);
    drop(reader);
}

#[test]
fn e03_commands_do_their_work_without_stderr() {
    let sandbox = Sandbox::new();
    let file = sandbox.yaml("one", "steps:\n  - id: a\n    run: echo hello > out\n");
    let path = sandbox.path("stderr-pipe");
    let reader = pipe(&path);
    // The shell has the pipe open before its reader goes away.
    let script = format!("exec 2> {}; touch ready; cat wait > /dev/null; exec \"$@\"", path.display());
    assert!(Command::new("mkfifo").arg(sandbox.path("wait")).status().expect("mkfifo").success());
    let run = ["run", &file.display().to_string()].map(str::to_owned);
    let started = sandbox.start_command(sandbox.command_through(&script, run));
    sprag_tests::until("the shell has opened it", || sandbox.path("ready").exists());
    drop(reader);
    std::fs::write(sandbox.path("wait"), "go").expect("written");
    started.finish().expect(0);
    assert_eq!(sandbox.read("out"), "hello\n");
}
