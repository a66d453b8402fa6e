//! Hostile and broken clients.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use sprag_tests::{Answering, Sandbox, Server, connect, now_ms, peak_mib, through};

const HELLO: &str = "steps:\n  - id: say\n    run: echo hello\n";

#[test]
fn bodies_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--body-limit", "10000"]);
    let post = |kind: &str, body: &[u8]| server.request("POST", "/v1/runs").body(kind, body).send();
    let json = "application/json";
    for body in
        [&b"{"[..], b"", b"nonsense", b"{\"yaml\": \"x\"", b"\xff\xfe", b"{\"yaml\": \"\\ud800\"}", b"{}{}"]
    {
        post(json, body).problem(400, "malformed");
    }
    for body in [
        "null",
        "[]",
        "[[[[[[[[",
        "[\"steps: []\", null, {}, 0, null]",
        "3",
        "\"x\"",
        "{\"yaml\": []}",
        "{\"yaml\": null, \"inputs\": 4}",
        "{\"yaml\":\"a\",\"yaml\":\"b\"}",
    ] {
        post(json, body.as_bytes()).problem(422, "invalid");
    }
    post("text/yaml", HELLO.as_bytes()).problem(415, "unsupported_media_type");
    post("", b"{}").problem(415, "unsupported_media_type");
    let large = serde_json::to_vec(&json!({ "yaml": "x".repeat(20_000) })).expect("JSON");
    post(json, &large).problem(413, "too_large");
    // A length that is never sent: refused by its header.
    let mut stream = connect(server.addr).expect("a connection");
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n",
        server.addr, server.token
    );
    stream.write_all(head.as_bytes()).expect("written");
    assert_eq!(Answering::new(stream).expect("an answer").status, 413);
    // No length at all, and no end.
    let mut stream = connect(server.addr).expect("a connection");
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        server.addr, server.token
    );
    stream.write_all(head.as_bytes()).expect("written");
    for _ in 0..20 {
        let _ = stream.write_all(format!("3e8\r\n{}\r\n", "x".repeat(1000)).as_bytes());
    }
    assert_eq!(Answering::new(stream).expect("an answer").status, 413);
    assert_eq!(server.get("/v1/runs")["runs"], json!([]));
}

#[test]
fn header_floods_and_nonsense_are_refused_and_others_are_served() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let send = |bytes: &[u8]| {
        let mut stream = connect(server.addr).expect("a connection");
        let _ = stream.write_all(bytes);
        Answering::new(stream).map(|answer| answer.status)
    };
    let many: String = (0..5_000).map(|n| format!("x-{n}: y\r\n")).collect();
    let flood = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n{many}\r\n", server.addr);
    let long =
        format!("GET /healthz HTTP/1.1\r\nhost: {}\r\nx: {}\r\n\r\n", server.addr, "y".repeat(1 << 20));
    let path = format!("GET /{} HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(1 << 20), server.addr);
    for (bytes, statuses) in [(flood, [431, 400]), (long, [431, 400]), (path, [414, 431])] {
        // The answer, or a closed door if it was still being sent.
        if let Ok(status) = send(bytes.as_bytes()) {
            assert!(statuses.contains(&status), "{status}");
        }
    }
    for nonsense in
        [&b"\x00\x01\x02\r\n\r\n"[..], b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"]
    {
        let mut stream = connect(server.addr).expect("a connection");
        stream.write_all(nonsense).expect("written");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        assert!(told.is_empty() || told.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&told));
    }
    assert_eq!(server.get("/healthz")["status"], "ok");
}

#[test]
fn slow_and_silent_clients_are_cut_off() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--idle-timeout", "1s"]);
    // Says nothing; says half a line; says all but the end; waits with a connection that it has used.
    let host = format!("host: {}\r\n", server.addr);
    let half = format!("GET /healthz HTTP/1.1\r\n{host}");
    let whole = format!("GET /healthz HTTP/1.1\r\n{host}\r\n");
    let silent: Vec<_> = ["", "GET /heal", &half, &whole]
        .map(|begin| {
            let mut stream = connect(server.addr).expect("a connection");
            stream.write_all(begin.as_bytes()).expect("written");
            stream
        })
        .into();
    let since_ms = now_ms();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let mut told = Vec::new();
        // It ends: with nothing, with an answer, or with an error; not with our patience.
        if let Err(error) = stream.read_to_end(&mut told) {
            assert!(
                !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                "{error}"
            );
        }
    }
    assert!(now_ms() - since_ms < 15_000);
    assert_eq!(server.get("/healthz")["status"], "ok");
}

#[test]
fn more_connections_than_there_are_places_are_turned_away() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--connections", "4"]);
    let held: Vec<_> =
        (0..4).map(|_| server.request("GET", "/v1/events").open().expect("a stream")).collect();
    for _ in 0..3 {
        let turned = server.request("GET", "/v1/runs").send().problem(503, "unavailable");
        assert!(turned["message"].as_str().is_some_and(|told| told.contains("in use")), "{turned}");
        // Places are reserved for those who ask after its health.
        server.anonymous("GET", "/healthz").send().expect(200);
        server.anonymous("GET", "/readyz").send().expect(200);
    }
    held.into_iter().for_each(Answering::cut);
    sprag_tests::until("there is a place again", || {
        server.request("GET", "/v1/runs").try_send().is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn e04_one_token_does_not_take_all_connections() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--connections", "200"]);
    let token =
        |name: &str| sandbox.json(["token", "new", name, "--scope", "read", "--json"])["token"].clone();
    let (greedy, modest) = (token("greedy"), token("modest"));
    let open = |token: &serde_json::Value| {
        server.request("GET", "/v1/events").token(token.as_str().expect("a token")).open()
    };
    let held: Vec<_> = (0..100).map(|_| open(&greedy).expect("a stream")).collect();
    let request = |token: &serde_json::Value| {
        server.request("GET", "/v1/runs").token(token.as_str().expect("a token")).send()
    };
    let told = request(&greedy).problem(429, "rate_limited");
    assert!(
        told["message"].as_str().is_some_and(|told| told.contains("100 open requests and streams")),
        "{told}"
    );
    request(&modest).expect(200);
    server.get("/v1/runs");
    held.into_iter().for_each(Answering::cut);
    sprag_tests::until("it may ask again", || request(&greedy).status == 200);
}

/// A token may have many requests open, each with a body that never ends. The server holds what a token may send at once,
/// and turns the rest away.
#[test]
fn e04_bodies_that_do_not_end_fill_no_memory() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &["--no-worker"]);
    let made = sandbox.json(["token", "new", "greedy", "--scope", "work", "--json"]);
    let token = made["token"].as_str().expect("a token");
    let pid = server.process().pid();
    let before_mib = peak_mib(pid);
    let head = format!(
        "POST /v1/work/finish HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\nx-sprag-worker: {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        server.addr,
        "k".repeat(32),
        31 << 20,
    );
    let body = vec![b' '; 30 << 20];
    let mut open = Vec::new();
    for _ in 0..24 {
        let mut stream = connect(server.addr).expect("a connection");
        stream.write_all(head.as_bytes()).expect("written");
        // Refused before its end, it may be cut off.
        let _ = stream.write_all(&body);
        open.push(stream);
    }
    let grown_mib = peak_mib(pid) - before_mib;
    assert!(grown_mib < 400, "720 MiB were sent, and it has grown by {grown_mib} MiB");
    // The others are served meanwhile, with bodies of their own.
    server.run(HELLO);
    let turned_away = open.pop().map(Answering::new).expect("a stream").map(|answer| answer.status);
    assert!(matches!(turned_away, Ok(429 | 503) | Err(_)), "{turned_away:?}");
}

/// Takes a network of its own with addresses of three other machines, and becomes the command.
const OWN_NETWORK: &str = "ip link set lo up && for ip in 10.7.7.1 10.7.7.2 10.7.7.3 fd00:7::2 fd00:7::3 fd00:8::2; do ip address add $ip dev lo; done && exec \"$@\"";

/// Asks from many addresses, and tells the status of each answer.
const ASK: &str = r#"
import socket, sys, time
port, token = int(sys.argv[1]), sys.argv[2]
def ask(source, path='/v1/runs'):
    to = 'fd00:7::3' if ':' in source else '127.0.0.1' if source.startswith('127') else '10.7.7.1'
    stream = socket.create_connection((to, port), timeout=20, source_address=(source, 0))
    stream.sendall(f'GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n'.encode())
    return stream, stream.recv(64).split(b' ')[1].decode()
def status(*args):
    stream, told = ask(*args)
    stream.close()
    return told
held = [ask('10.7.7.2', '/v1/events') for _ in range(4)]
print('streams', *[told for _, told in held])
print('more', status('10.7.7.2'), status('10.7.7.2', '/healthz'))
print('others', status('10.7.7.3'), status('127.0.0.1'), status('fd00:7::2'))
held.pop()[0].close()
for _ in range(400):
    if status('10.7.7.2') == '200': break
    time.sleep(0.02)
else: sys.exit('it never had a place again')
for stream, _ in held: stream.close()
for _ in range(400):
    held = [ask(source, '/v1/events') for source in ('fd00:7::2', 'fd00:7::3') * 2]
    if [told for _, told in held] == ['200'] * 4: break
    for stream, _ in held: stream.close()
    time.sleep(0.02)
print('one network', *[told for _, told in held], status('fd00:7::2'), status('fd00:7::3'), status('fd00:8::2'))
"#;

#[test]
fn e04_one_address_does_not_take_all_connections() {
    let tried = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return println!("PASSED OVER: no network of its own can be made here");
    }
    let sandbox = Sandbox::new();
    let serve = sandbox.command(["serve", "--listen", "[::]:0", "--no-worker", "--connections", "8"]);
    let command = through(&["unshare", "--net", "sh", "-c", OWN_NETWORK, "sh"], &serve);
    let mut server = Server::from_process(&sandbox, sandbox.start_command(command));
    let (pid, port) = (server.process().pid().to_string(), server.addr.port().to_string());
    let mut ask = Command::new("nsenter");
    ask.args(["--target", &pid, "--net", "python3", "-c", ASK, &port, &server.token]);
    let told = sandbox.start_command(ask).finish().expect(0);
    assert_eq!(
        told.stdout.lines().collect::<Vec<_>>(),
        [
            "streams 200 200 200 200",
            "more 503 200",
            "others 200 200 200",
            "one network 200 200 200 200 503 503 200"
        ],
        "{told:?}"
    );
}

#[test]
fn a_page_that_has_its_name_point_here_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--allow-host", "sprag.test"]);
    let port = server.addr.port();
    let host = |host: &str| server.request("GET", "/v1/runs").header("host", host).send();
    for good in ["localhost", "127.0.0.1", "[::1]", "sprag.test", "LOCALHOST"] {
        host(&format!("{good}:{port}")).expect(200);
        host(good).expect(200);
    }
    for bad in [
        "evil.example",
        "evil.example:7717",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::2]",
        "",
        "0.0.0.0",
    ] {
        host(bad).problem(403, "wrong_host");
    }
    let origin = |origin: &str| {
        server.request("POST", "/v1/runs").header("origin", origin).json(&json!({ "yaml": HELLO })).send()
    };
    for bad in [
        "http://evil.example",
        "null",
        "",
        "https://127.0.0.1.evil.example",
        "file://",
        "http://localhost:1",
        "http://127.0.0.1:1",
    ] {
        origin(bad).problem(403, "wrong_origin");
    }
    origin(&format!("http://127.0.0.1:{port}")).expect(201);
    origin("http://sprag.test").expect(201);
    assert_eq!(server.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_rate_limited_caller_is_told_when_to_retry() {
    let sandbox = Sandbox::new();
    let token = |name: &str| {
        let made = sandbox.json(["token", "new", name, "--json"]);
        made["token"].as_str().expect("a token").to_owned()
    };
    let (greedy, modest) = (token("greedy"), token("modest"));
    let server = Server::start(&sandbox, &["--no-worker", "--rate-limit", "5", "--auth", "always"]);
    let ask = |token: &str| server.request("GET", "/v1/runs").token(token).send();
    let answers: Vec<u16> = (0..30).map(|_| ask(&greedy).status).collect();
    assert!(answers.contains(&200) && answers.contains(&429), "{answers:?}");
    let refused = (0..30).map(|_| ask(&greedy)).find(|reply| reply.status == 429).expect("one is refused");
    assert!(refused.headers["retry-after"].parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    refused.problem(429, "rate_limited");
    ask(&modest).expect(200);
    // A caller that guesses tokens is slowed down as well.
    let guesses: Vec<u16> = (0..60).map(|n| ask(&format!("sprag_{n}")).status).collect();
    assert!(
        guesses.iter().all(|status| matches!(status, 401 | 429)) && guesses.contains(&429),
        "{guesses:?}"
    );
}

#[test]
fn requests_have_ids_in_and_out() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let given = server.request("GET", "/healthz").header("x-request-id", "my-id.1").send();
    assert_eq!(given.headers["x-request-id"], "my-id.1");
    for odd in ["with space", "\"quoted\"", &"x".repeat(65), ""] {
        let drawn = server.request("GET", "/healthz").header("x-request-id", odd).send();
        assert_ne!(drawn.headers["x-request-id"], odd);
        assert_eq!(drawn.headers["x-request-id"].len(), 16);
    }
}
