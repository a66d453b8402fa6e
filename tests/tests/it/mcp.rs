//! Agents over the Model Context Protocol, driven by the official client, which is independent of this project.

use std::process::Command;
use std::time::Duration;

use sprag_tests::{Sandbox, Server, python};

/// Runs the client script to its end, which must be a success.
fn drive(sandbox: &Sandbox, arguments: &[&str]) {
    drive_with(sandbox, arguments, "")
}

/// Runs the client script with this token in its environment.
fn drive_with(sandbox: &Sandbox, arguments: &[&str], token: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/board.py");
    let mut command = Command::new(python());
    command.arg(script).args(arguments).current_dir(sandbox.path("")).env("SPRAG_TOKEN", token);
    sandbox.start_command(command).finish_within(Duration::from_secs(300)).expect(0);
}

fn program() -> &'static str {
    sprag_tests::program().to_str().expect("a plain path")
}

#[test]
fn c09_a_whole_board_over_stdio() {
    for protocol in ["auto", "legacy"] {
        let sandbox = Sandbox::new();
        drive(&sandbox, &["stdio", protocol, program(), sandbox.data().to_str().expect("a plain path")]);
    }
}

#[test]
fn c09_a_whole_board_over_http() {
    for protocol in ["auto", "legacy"] {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox, &[]);
        drive_with(&sandbox, &["http", protocol, &format!("http://{}", server.addr)], &server.token);
    }
}

#[test]
fn c09_a_whole_board_over_stdio_to_a_server() {
    for protocol in ["auto", "legacy"] {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox, &[]);
        let (url, data) = (format!("http://{}", server.addr), sandbox.data());
        // The relay finds the token of its user's own server by itself.
        drive(&sandbox, &["relay", protocol, program(), &url, data.to_str().expect("a plain path")]);
    }
}

#[test]
fn c01_sixteen_stdio_servers_on_one_file_claim_each_task_once() {
    let sandbox = Sandbox::new();
    let data = sandbox.data();
    drive(&sandbox, &["race", "auto", program(), data.to_str().expect("a plain path"), "16", "320"]);
}
