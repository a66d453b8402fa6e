//! Access to a server: tokens, the one in the data directory, proxies, and other users of the machine.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::json;
use sprag_tests::{Sandbox, Server, Signal, Started, until, until_some};

/// A user of this machine who is not the one that runs the tests. None where processes cannot be started as another.
pub fn other_user() -> Option<u32> {
    const NOBODY: u32 = 65_534;
    let tried = Command::new("true").uid(NOBODY).status();
    let may = tried.is_ok_and(|status| status.success()) && !rustix_uid(NOBODY);
    if !may {
        println!("PASSED OVER: this user cannot start processes as another one");
    }
    may.then_some(NOBODY)
}

fn rustix_uid(uid: u32) -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == uid)
}

const HELLO: &str = "steps:\n  - id: say\n    run: echo hello\n";

#[test]
fn e05_every_request_needs_a_token_and_the_data_directory_has_one() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        server.anonymous("GET", path).send().expect(200);
    }
    for (method, path) in
        [("GET", "/v1/runs"), ("POST", "/v1/runs"), ("GET", "/metrics"), ("POST", "/mcp"), ("GET", "/none")]
    {
        let told = server.anonymous(method, path).json(&json!({ "yaml": HELLO })).send();
        let told = told.problem(401, "unauthorized");
        assert!(told["next"].as_str().is_some_and(|next| next.contains("data directory")), "{told}");
    }
    let path = sandbox.data().join("token");
    assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    let run = server.run(HELLO);
    server.until(&run, "completed");
    // It stays the same, is not listed, and its name is taken.
    let before = server.token.clone();
    drop(server);
    let server = Server::start(&sandbox, &[]);
    assert_eq!(server.token, before);
    assert_eq!(server.get("/v1/tokens")["tokens"], json!([]));
    sandbox.sprag(["token", "new", "local"]).expect(2);
    let named = json!({ "name": "local", "scopes": ["read"] });
    server.post("/v1/tokens", &named).problem(409, "refused");
    // After the file is removed, the next start creates another token; the old one is unknown.
    drop(server);
    std::fs::remove_file(&path).expect("removed");
    let server = Server::start(&sandbox, &[]);
    assert_ne!(server.token, before);
    server.request("GET", "/v1/runs").token(&before).send().problem(401, "unauthorized");
}

#[test]
fn e05_auth_none_is_an_explicit_choice_for_this_machine_alone() {
    let sandbox = Sandbox::new();
    for (args, why) in [
        (&["--listen", "0.0.0.0:0"][..], "other machines"),
        (&["--listen", "127.0.0.1:0", "--allow-host", "sprag.example"], "proxy"),
    ] {
        let mut all = vec!["serve", "--auth", "none"];
        all.extend(args);
        let refused = sandbox.sprag(all).expect(1);
        assert!(refused.stderr.contains(why) && refused.stderr.contains("--auth none"), "{}", refused.stderr);
    }
    let mut server = Server::start(&sandbox, &["--auth", "none", "--no-worker"]);
    until("it warns", || server.process().stderr().contains("every user of this machine"));
    server.anonymous("GET", "/v1/runs").send().expect(200);
    // A token that is shown counts all the same.
    server.anonymous("GET", "/v1/runs").token("sprag_unknown").send().problem(401, "unauthorized");
    for (header, value) in [
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("X-Forwarded-Host", "sprag.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-anything", ""),
        ("x-real-ip", "192.0.2.1"),
        ("via", "1.1 proxy"),
    ] {
        let asked = server.anonymous("GET", "/v1/runs").header(header, value).send();
        asked.problem(403, "forwarded");
    }
    // With tokens, a proxy is welcome.
    drop(server);
    let server = Server::start(&sandbox, &["--allow-host", "sprag.example"]);
    let through = server.request("GET", "/v1/runs").header("host", "sprag.example");
    through.clone().header("x-forwarded-for", "192.0.2.1").send().expect(200);
    let anonymous = server.anonymous("GET", "/v1/runs").header("host", "sprag.example");
    anonymous.header("x-forwarded-for", "127.0.0.1").send().problem(401, "unauthorized");
}

#[test]
fn e05_a_worker_of_the_same_user_finds_the_token_by_itself() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let url = format!("http://{}", server.addr);
    let worker = sandbox.start(["worker", "--server", &url]);
    until("it is let in", || worker.stderr().contains("serves"));
    let run = server.run(HELLO);
    server.until(&run, "completed");
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
    // A server that is not there yet is waited for.
    let port = server.addr.port();
    drop(server);
    let worker = sandbox.start(["worker", "--server", &url]);
    until("it waits", || worker.stderr().contains("no server listens"));
    let server = Server::start_at(&sandbox, &format!("127.0.0.1:{port}"), &["--no-worker"]);
    until("it is let in", || worker.stderr().contains("serves"));
    drop(server);
}

#[test]
fn e05_the_token_is_not_shown_to_a_program_of_another_user() {
    let Some(nobody) = other_user() else { return };
    let sandbox = Sandbox::new();
    drop(Server::start(&sandbox, &["--no-worker"]));
    // Another user listens where the server was, and writes down what is sent.
    let script = "import socket\ns=socket.create_server(('127.0.0.1',0))\nprint('http://127.0.0.1:%d' % s.getsockname()[1], flush=True)\n\
                  while True:\n c,_=s.accept()\n print(c.recv(65536), flush=True)\n c.close()\n";
    let mut command = Command::new("python3");
    command.args(["-c", script]).uid(nobody).current_dir("/");
    let thief: Started = sandbox.start_command(command);
    let url = until_some("the thief listens", || thief.stdout().lines().next().map(str::to_owned));
    let told = sandbox.sprag(["worker", "--server", &url]).expect(1);
    assert!(told.stderr.contains("another user") && told.stderr.contains("--token"), "{}", told.stderr);
    let mut relay = sandbox.command(["mcp", "--server", &url]);
    let ask = sandbox.write("ask", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    relay.stdin(std::fs::File::open(ask).expect("a file"));
    let told = sandbox.start_command(relay).finish();
    assert!(told.stdout.contains("another user"), "{told:?}");
    let heard = thief.stdout();
    assert!(!heard.contains(&sandbox.local_token()) && !heard.contains("uthorization"), "{heard}");
}
