//! Webhooks: signed, in order, independent of each other, parked when they do not answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sprag_tests::{Sandbox, Server, until};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n  - id: end\n    run: echo bye\n";

/// A message as it came.
#[derive(Debug, Clone)]
struct Message {
    headers: Vec<(String, String)>,
    body: String,
}

impl Message {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(one, _)| one == name).map_or("", |(_, value)| value)
    }

    fn events(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).expect("JSON");
        body["events"].as_array().expect("events").clone()
    }
}

/// A receiver of webhooks that answers as configured.
pub(crate) struct Listener {
    addr: SocketAddr,
    got: Arc<Mutex<Vec<Message>>>,
    status: Arc<Mutex<u16>>,
}

impl Listener {
    pub(crate) fn start(status: u16) -> Listener {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = socket.local_addr().expect("an address");
        let listener = Listener { addr, got: Arc::default(), status: Arc::new(Mutex::new(status)) };
        let (got, answer) = (Arc::clone(&listener.got), Arc::clone(&listener.status));
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                let mut lines = BufReader::new(stream);
                let mut headers = Vec::new();
                loop {
                    let mut line = String::new();
                    if lines.read_line(&mut line).is_err() || line.trim().is_empty() {
                        break;
                    }
                    if let Some((name, value)) = line.trim().split_once(": ") {
                        headers.push((name.to_ascii_lowercase(), value.to_owned()));
                    }
                }
                let length = headers.iter().find(|(name, _)| name == "content-length");
                let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
                let mut body = vec![0; length];
                let _ = lines.read_exact(&mut body);
                let status = *answer.lock().expect("a status");
                if status == 200 {
                    let body = String::from_utf8(body).expect("text");
                    got.lock().expect("messages").push(Message { headers, body });
                }
                let _ = write!(lines.get_mut(), "HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            }
        });
        listener
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.addr)
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.got.lock().expect("messages").iter().flat_map(Message::events).collect()
    }

    fn bodies(&self) -> Vec<String> {
        self.got.lock().expect("messages").iter().map(|message| message.body.clone()).collect()
    }

    pub(crate) fn has_ended(&self, runs: usize) -> bool {
        self.events().iter().filter(|event| event["event"] == "run.succeeded").count() == runs
    }
}

/// Returns the HMAC-SHA256 as another program computes it.
pub(crate) fn hmac(secret: &str, text: &str) -> String {
    let mut command = std::process::Command::new("openssl");
    command.args(["dgst", "-sha256", "-hmac", secret]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("openssl");
    child.stdin.take().expect("stdin").write_all(text.as_bytes()).expect("written");
    let told = child.wait_with_output().expect("an answer").stdout;
    String::from_utf8_lossy(&told).trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn messages_are_signed_and_come_in_order() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let listener = Listener::start(200);
    let made = sandbox.json(["hook", "add", &listener.url(), "--json"]);
    let secret = made["secret"].as_str().expect("a secret");
    for _ in 0..5 {
        server.run(HELLO);
    }
    until("all runs were told of", || listener.has_ended(5));
    let journal = server.get("/v1/journal?limit=1000");
    let since = made["cursor"].as_u64().expect("a number");
    let entries = journal["entries"].as_array().expect("entries").iter();
    let told = listener.events();
    let wanted: Vec<&Value> =
        entries.filter(|entry| entry["seq"].as_u64() > Some(since)).take(told.len()).collect();
    assert_eq!(told.iter().collect::<Vec<_>>(), wanted, "in order, no gap, none twice");
    for message in listener.got.lock().expect("messages").iter() {
        let signed = format!("{}.{}", message.header("sprag-timestamp"), message.body);
        assert_eq!(message.header("sprag-signature"), format!("v1={}", hmac(secret, &signed)));
        let last = message.events().last().map(|event| event["seq"].to_string()).expect("events");
        assert_eq!(message.header("sprag-event-id"), last);
        assert_eq!(message.header("content-type"), "application/json");
    }
    assert!(!sandbox.sprag(["hook", "ls", "--json"]).expect(0).stdout.contains(secret));
    sandbox.sprag(["hook", "rm", made["id"].as_str().expect("an id")]).expect(0);
    assert_eq!(server.get("/v1/hooks")["hooks"], json!([]));
}

#[test]
fn a_dead_hook_is_parked_delays_no_other_and_can_be_retried() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--hook-tries", "3"]);
    let good = Listener::start(200);
    let broken = Listener::start(500);
    // No process listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let add = |url: &str| {
        let made =
            server.post("/v1/hooks", &json!({ "url": url, "filter": { "entities": ["run"] } })).expect(201);
        made.json()["id"].as_str().expect("an id").to_owned()
    };
    let gone = add(&format!("http://{gone}/"));
    let broken_id = add(&broken.url());
    add(&good.url());
    server.run(HELLO);
    until("the good one is told", || good.has_ended(1));
    let parked = |id: &str| server.get(&format!("/v1/hooks/{id}"))["parked"].clone();
    until("the dead ones are parked", || parked(&gone) != Value::Null && parked(&broken_id) != Value::Null);
    assert!(parked(&broken_id).as_str().is_some_and(|why| why.contains("500")));
    let listed = sandbox.sprag(["hook", "ls"]).expect(0).stdout;
    assert_eq!(listed.matches("parked").count(), 2, "{listed}");
    server.run(HELLO);
    until("the good one is told of what comes after", || good.has_ended(2));
    assert!(broken.events().is_empty());
    *broken.status.lock().expect("a status") = 200;
    sandbox.sprag(["hook", "retry", &broken_id]).expect(0);
    until("it is told of everything that it missed", || broken.has_ended(2));
    assert_eq!(broken.events(), good.events());
    assert_eq!(parked(&broken_id), Value::Null);
    server.request("POST", "/v1/hooks/5/retry").send().problem(404, "not_found");
    server.request("DELETE", &format!("/v1/hooks/{gone}")).send().expect(204);
    server.request("GET", &format!("/v1/hooks/{gone}")).send().problem(404, "not_found");
}

#[test]
fn of_two_servers_one_delivers_and_the_other_takes_over() {
    let sandbox = Sandbox::new();
    let first = Server::start(&sandbox, &[]);
    let second = Server::start(&sandbox, &["--no-worker"]);
    let listener = Listener::start(200);
    sandbox.sprag(["hook", "add", &listener.url(), "--entity", "run"]).expect(0);
    for _ in 0..10 {
        first.run(HELLO);
        second.run(HELLO);
    }
    until("all runs were told of", || listener.has_ended(20));
    let seqs: Vec<u64> = listener.events().iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "none twice: {seqs:?}");
    let process = first.into_process();
    process.signal(sprag_tests::Signal::TERM);
    process.finish().expect(0);
    let third = Server::start(&sandbox, &[]);
    third.run(HELLO);
    until("the other server goes on", || listener.has_ended(21));
    drop(second);
}

#[test]
fn an_invalid_hook_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    for body in [
        json!({ "url": "ftp://127.0.0.1/" }),
        json!({ "url": "" }),
        json!({ "url": "http://user:password@127.0.0.1/" }),
        json!({ "url": "http://127.0.0.1/", "secret": "short" }),
        json!({ "url": "http://127.0.0.1/", "filter": { "run": "x" } }),
        json!({ "url": "http://127.0.0.1/", "filter": { "odd": "x" } }),
        json!({ "url": "http://127.0.0.1/", "odd": 1 }),
        json!({}),
    ] {
        server.post("/v1/hooks", &body).problem(422, "invalid");
    }
    sandbox.sprag(["hook", "add", "ftp://127.0.0.1/"]).expect(2);
    sandbox.sprag(["hook", "rm", "7"]).expect(2);
}

#[test]
fn notifications_have_formats_filters_commands_and_a_test() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--hook-tries", "2"]);
    let [chat, standard, template] = std::array::from_fn(|_| Listener::start(200));
    let add = |args: &[&str]| {
        let made = sandbox.json([&["hook", "add", "--json"], args].concat());
        made["id"].as_str().expect("an id").to_owned()
    };
    let chat_id = add(&[&chat.url(), "--format", "slack", "--status", "failed"]);
    add(&[&standard.url(), "--format", "standard", "--pipeline", "fails", "--event", "failure.settled"]);
    let text = "{{ run.pipeline }} is {{ event.to }}: {{ failures | join(\", \") }}";
    add(&[&template.url(), "--template", text, "--label", "team=web", "--status", "failed"]);
    let told = sandbox.path("told");
    let command = add(&["--run", &format!("cat >> {}", told.display()), "--status", "completed"]);
    let broken = add(&["--run", "echo no such luck; exit 3", "--entity", "run"]);
    // What each hook is asked at once.
    let said = sandbox.sprag(["hook", "test", &chat_id]).expect(0).stdout;
    assert!(said.contains("accepted a test message (200"), "{said}");
    assert!(chat.bodies()[0].contains("✓ *test* (a test message)"), "{:?}", chat.bodies());
    sandbox.sprag(["hook", "test", &command]).expect(0);
    assert!(sandbox.read("told").contains("hook.test"));
    let said = sandbox.sprag(["hook", "test", &broken]).expect(1).stderr;
    assert!(said.contains("ended with exit code 3: no such luck"), "{said}");
    let answer = server.post(&format!("/v1/hooks/{chat_id}/test"), &json!({})).expect(200);
    assert!(answer.json()["answer"].as_str().is_some_and(|told| told.starts_with("200")));
    server.post(&format!("/v1/hooks/{broken}/test"), &json!({})).problem(409, "refused");
    // And by the journal.
    let fails = "name: fails\nsteps:\n  - { id: test, run: exit 3 }\n";
    server.run(HELLO);
    server.post("/v1/runs", &json!({ "yaml": fails })).expect(201);
    server.post("/v1/runs", &json!({ "yaml": fails, "labels": { "team": "web" } })).expect(201);
    until("the chat is told", || chat.bodies().len() == 4);
    assert!(chat.bodies()[3].contains("*fails*") && chat.bodies()[3].contains("> test failed: exit code 3"));
    until("the other two are told", || standard.bodies().len() == 2 && !template.bodies().is_empty());
    assert_eq!(template.bodies(), ["fails is failed: test failed: exit code 3"]);
    let message: Value = serde_json::from_str(&standard.bodies()[0]).expect("JSON");
    assert_eq!(
        (&message["type"], &message["data"]["run"]["pipeline"]),
        (&"failure.settled".into(), &"fails".into())
    );
    let got = standard.got.lock().expect("messages").clone();
    assert!(got.iter().all(|one| one.header("webhook-signature").starts_with("v1,")), "{got:?}");
    assert_ne!(got[0].header("webhook-id"), got[1].header("webhook-id"));
    until("the command is told", || sandbox.read("told").contains("run.succeeded"));
    assert!(sandbox.read("told").contains("\"pipeline\":\"hello\""), "{}", sandbox.read("told"));
    // A command that fails is parked, shown, and retried.
    until("it is parked", || server.get(&format!("/v1/hooks/{broken}"))["parked"] != Value::Null);
    let doctor = sandbox.sprag(["doctor"]).expect(1).stdout;
    assert!(
        doctor.contains("✗ webhook") && doctor.contains(&format!("sprag hook retry {broken}")),
        "{doctor}"
    );
    let listed = sandbox.sprag(["hook", "ls"]).expect(0);
    assert!(listed.stdout.contains("run:echo no such luck") && listed.stderr.contains("sprag hook retry"));
    sandbox.sprag(["hook", "retry"]).expect(0);
    sandbox.sprag(["hook", "rm", &broken]).expect(0);
    sandbox.sprag(["hook", "retry"]).expect(4);
    for wrong in [
        &["http://127.0.0.1:9/", "--template", "{{ nosuch }}"][..],
        &["http://127.0.0.1:9/", "--format", "template"],
        &["http://127.0.0.1:9/", "--status", "faild"],
        &["http://127.0.0.1:9/", "--run", "true"],
        &["--run", " "],
        &[],
    ] {
        sandbox.sprag([&["hook", "add"], wrong].concat()).expect(2);
    }
    // No caller of the API makes the server run a command.
    server
        .post("/v1/hooks", &json!({ "url": "http://127.0.0.1/", "command": "true" }))
        .problem(422, "invalid");
}
