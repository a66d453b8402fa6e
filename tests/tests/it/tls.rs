//! Encrypted connections: of commands, workers and agents to a server, and of a server to webhooks.

use std::io::Write;
use std::path::Path;

use serde_json::json;
use sprag_testkit::Certificates;
use sprag_tests::{Answer, Request, Sandbox, Server, Signal, until};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n";

/// A receiver of webhooks that speaks https, and writes each body to a file.
const RECEIVER: &str = r#"
import http.server, ssl, sys
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        open("received", "ab").write(body + b"\n")
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct Scene {
    sandbox: Sandbox,
    certificates: Certificates,
}

impl Scene {
    fn new() -> Scene {
        let sandbox = Sandbox::new();
        let certificates = Certificates::make(&sandbox.path(""));
        Scene { sandbox, certificates }
    }

    fn serve(&self, more: &[&str]) -> Server {
        let (certificate, key) = (text(&self.certificates.certificate), text(&self.certificates.key));
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        Server::start(&self.sandbox, &[&tls, more].concat())
    }

    /// Runs a command that trusts the authority of the certificate.
    fn trusting(&self, args: &[&str]) -> Answer {
        self.sandbox.sprag([args, &["--tls-ca", &text(&self.certificates.authority)]].concat())
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn commands_workers_and_agents_reach_a_server_over_https_and_check_its_certificate() {
    let scene = Scene::new();
    let server = scene.serve(&["--no-worker"]);
    let url = format!("https://{}", server.addr);
    scene.sandbox.yaml("hello", HELLO);

    let unknown = scene.sandbox.sprag(["ls", "--server", &url]).expect(1);
    assert!(unknown.stderr.contains("certificate"), "{unknown:?}");
    let other_name = format!("https://localhost:{}", server.addr.port());
    let unnamed = scene.trusting(&["ls", "--server", &other_name]).expect(1);
    assert!(unnamed.stderr.contains("not valid for name"), "{unnamed:?}");
    let plain = scene.sandbox.sprag(["ls", "--server", &format!("http://{}", server.addr)]).expect(2);
    assert!(plain.stderr.contains("write https:// instead of http://"), "{plain:?}");
    let plain = Request::to(server.addr, "GET", "/healthz").send().expect(400);
    assert!(plain.text().contains("https://"), "{plain:?}");

    let started =
        scene.trusting(&["run", "hello.yaml", "--detach", "--json", "--server", &url]).expect(0).json();
    let run = started["run"].as_str().expect("an id").to_owned();
    let authority = text(&scene.certificates.authority);
    let mut worker = scene.sandbox.command(["worker", "--server", &url, "--tls-ca", &authority]);
    worker.env("SPRAG_DATA", scene.sandbox.path("elsewhere")).env("SPRAG_TOKEN", &server.token);
    let worker = scene.sandbox.start_command(worker);
    scene.trusting(&["wait", &run, "--timeout", "60s", "--server", &url]).expect(0);
    worker.signal(Signal::TERM);
    worker.finish().expect(0);

    let mut relay = scene.sandbox.command(["mcp", "--server", &url, "--tls-ca", &authority]);
    relay.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut relay = relay.spawn().expect("the relay starts");
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    writeln!(relay.stdin.take().expect("stdin"), "{hello}").expect("written");
    let said = relay.wait_with_output().expect("an answer").stdout;
    assert!(String::from_utf8_lossy(&said).contains("serverInfo"), "{said:?}");
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let scene = Scene::new();
    let server = scene.serve(&["--no-worker"]);
    let url = format!("https://{}", server.addr);
    let former = scene.sandbox.path("former.crt");
    std::fs::copy(&scene.certificates.authority, &former).expect("a copy");
    let by_former = || scene.sandbox.sprag(["ls", "--server", &url, "--tls-ca", &text(&former)]);
    by_former().expect(0);
    // The key of another certificate is refused, and the former one stays in use.
    let renewed = scene.sandbox.path("renewed");
    std::fs::create_dir(&renewed).expect("a folder");
    let renewed = Certificates::make(&renewed);
    std::fs::copy(&renewed.key, &scene.certificates.key).expect("a copy");
    by_former().expect(0);
    std::fs::copy(&renewed.certificate, &scene.certificates.certificate).expect("a copy");
    let authority = text(&renewed.authority);
    until("the new certificate is shown", || {
        scene.sandbox.sprag(["ls", "--server", &url, "--tls-ca", &authority]).code == 0
    });
    by_former().expect(1);
}

#[test]
fn a_webhook_is_sent_over_https_to_a_receiver_with_a_trusted_certificate() {
    let scene = Scene::new();
    let mut receiver = std::process::Command::new("python3");
    receiver.args(["-c", RECEIVER]).args([&scene.certificates.certificate, &scene.certificates.key]);
    receiver.current_dir(scene.sandbox.path(""));
    let receiver = scene.sandbox.start_command(receiver);
    until("it listens", || receiver.stdout().ends_with('\n'));
    let hook = format!("https://127.0.0.1:{}/hook", receiver.stdout().trim());

    let server = Server::start(&scene.sandbox, &["--tls-ca", &text(&scene.certificates.authority)]);
    scene.sandbox.sprag(["hook", "add", &hook]).expect(0);
    server.run(HELLO);
    let received = || std::fs::read_to_string(scene.sandbox.path("received")).unwrap_or_default();
    until("the end is told", || received().contains("run.succeeded"));

    // A server that trusts the machine's own authorities alone does not send anything.
    let other = Scene::new();
    let server = Server::start(&other.sandbox, &["--hook-tries", "1"]);
    let told = received().len();
    other.sandbox.sprag(["hook", "add", &hook]).expect(0);
    server.run(HELLO);
    until("the hook is parked", || {
        other.sandbox.sprag(["hook", "ls", "--json"]).expect(0).stdout.contains("cannot encrypt")
    });
    assert_eq!(received().len(), told);

    other.sandbox.sprag(["hook", "add", "http://hooks.example/"]).expect(0);
    let told = other.sandbox.sprag(["doctor"]).stdout;
    assert!(told.contains("http://hooks.example/ is not encrypted"), "{told}");
    assert!(!told.contains(&format!("{hook} is not")), "{told}");
}

#[test]
fn files_that_are_no_certificate_are_refused_before_the_server_starts() {
    let scene = Scene::new();
    let (certificate, key) = (text(&scene.certificates.certificate), text(&scene.certificates.key));
    let authority = text(&scene.certificates.authority);
    let nothing = text(&scene.sandbox.write("nothing.pem", "no certificate"));
    for (args, wanted) in [
        (vec!["--tls-cert", &certificate], "--tls-key"),
        (vec!["--tls-cert", "/nonexistent", "--tls-key", &key], "/nonexistent"),
        (vec!["--tls-cert", &nothing, "--tls-key", &key], "has no certificate"),
        (vec!["--tls-cert", &certificate, "--tls-key", &nothing], "has no private key"),
        (vec!["--tls-cert", &authority, "--tls-key", &key], "cannot be used"),
    ] {
        let refused =
            scene.sandbox.sprag([&["serve", "--listen", "127.0.0.1:0"], &args[..]].concat()).expect(2);
        assert!(refused.stderr.contains(wanted), "{args:?}: {refused:?}");
    }
    let untrusted =
        scene.sandbox.sprag(["ls", "--server", "https://127.0.0.1:1", "--tls-ca", &nothing]).expect(1);
    assert!(!untrusted.stderr.is_empty());
}
