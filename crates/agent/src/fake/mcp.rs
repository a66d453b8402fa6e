//! A minimal client for MCP servers: one call of one tool.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::launch::{McpServer, McpTransport};

/// The time within which a server must answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of an answer over HTTP.
const MAX_ANSWER: u64 = 4 << 20;
const VERSION: &str = "2025-06-18";

/// Calls a tool, and returns the texts of its result.
pub(super) fn call(server: &McpServer, tool: &str, input: &Value) -> Result<String, String> {
    let result = match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            let mut process = Command::new(command);
            process.args(args).envs(env).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            call_program(process, tool, input)
        }
        McpTransport::Http { url, headers } => {
            let headers: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            call_server(url, &headers, tool, input)
        }
    }?;
    let texts = result["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    let text = texts.collect::<Vec<_>>().join("\n");
    if result["isError"] == true { Err(text) } else { Ok(text) }
}

/// Returns the three messages of a call.
fn messages(tool: &str, input: &Value) -> [Value; 3] {
    let client = json!({"name": "sprag-fake-agent", "version": env!("CARGO_PKG_VERSION")});
    [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": input}}),
    ]
}

/// Returns the result of an answer, or its error.
fn result_of(mut answer: Value) -> Result<Value, String> {
    match answer.get("error") {
        Some(error) => Err(error["message"].as_str().unwrap_or("unknown error").to_owned()),
        None => Ok(answer["result"].take()),
    }
}

fn call_program(mut command: Command, tool: &str, input: &Value) -> Result<Value, String> {
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the server has no pipes".to_owned());
    };
    let (sender, answers) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Ok(answer @ Value::Object(_)) = serde_json::from_str::<Value>(&line) else { continue };
            if sender.send(answer).is_err() {
                return;
            }
        }
    });
    let mut talk = || -> Result<Value, String> {
        let answer_to = |id: u64| loop {
            let answer: Value =
                answers.recv_timeout(PATIENCE).map_err(|_| "the server does not answer".to_owned())?;
            if answer["id"] == id && answer.get("method").is_none() {
                return result_of(answer);
            }
        };
        let [first, second, third] = messages(tool, input);
        let mut send = |message: &Value| {
            writeln!(stdin, "{message}").and_then(|()| stdin.flush()).map_err(|error| error.to_string())
        };
        send(&first)?;
        answer_to(1)?;
        send(&second)?;
        send(&third)?;
        answer_to(2)
    };
    let result = talk();
    // Dropping `stdin` makes the server exit; one that does not exit is killed.
    drop(stdin);
    child.kill().ok();
    child.wait().ok();
    result
}

fn call_server(url: &str, headers: &str, tool: &str, input: &Value) -> Result<Value, String> {
    let [first, second, third] = messages(tool, input);
    let (_, session) = post(url, headers, &first)?;
    let headers = match session {
        Some(session) => format!("{headers}mcp-session-id: {session}\r\n"),
        None => headers.to_owned(),
    };
    post(url, &headers, &second)?;
    let (answer, _) = post(url, &headers, &third)?;
    result_of(answer.ok_or("the server gave no answer")?)
}

/// Posts a message. Returns the JSON-RPC answer in the body, which is JSON or an event, and the session that the server
/// opened.
fn post(url: &str, headers: &str, message: &Value) -> Result<(Option<Value>, Option<String>), String> {
    let rest =
        url.strip_prefix("http://").ok_or_else(|| format!("{url}: the fake agent speaks http:// only"))?;
    let (host, path) =
        rest.split_once('/').map_or((rest, String::new()), |(host, path)| (host, path.to_owned()));
    let fail = |error: std::io::Error| format!("{url}: {error}");
    let mut stream = TcpStream::connect(host).map_err(fail)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(fail)?;
    let body = message.to_string();
    let request = format!(
        "POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         connection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(fail)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).map_err(fail)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{url}: no HTTP answer"))?;
    let status = head.split(' ').nth(1).unwrap_or("");
    if !status.starts_with('2') {
        return Err(format!("{url}: HTTP {status}"));
    }
    let session = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
    });
    // Chunk sizes and event fields are separate lines; the message is the line that is an answer.
    let lines = body.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    let found = lines
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|value| value.get("jsonrpc").is_some());
    Ok((found, session))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_tool_of_a_program_is_called() {
        // Answers both requests without reading them.
        let script = r#"
            read a; echo '{"jsonrpc":"2.0","id":1,"result":{}}'
            echo 'a log line'; echo '{"jsonrpc":"2.0","method":"notifications/x"}'
            read b; read c
            case $c in *'"name":"note"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"noted"}]}}';;
            *) echo '{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no such tool"}}';; esac"#;
        let server = McpServer {
            name: "s".to_owned(),
            transport: McpTransport::Stdio {
                command: "sh".to_owned(),
                args: vec!["-c".to_owned(), script.to_owned()],
                env: BTreeMap::new(),
            },
        };
        assert_eq!(call(&server, "note", &json!({})), Ok("noted".to_owned()));
        assert_eq!(call(&server, "other", &json!({})), Err("no such tool".to_owned()));
    }

    #[test]
    fn a_tool_of_a_server_is_called() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let serving = std::thread::spawn(move || {
            let bodies = [
                "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}".to_owned(),
                String::new(),
                "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[{\"text\":\"ok\"}]}}\n\n".to_owned(),
            ];
            let mut seen = Vec::new();
            for body in bodies {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut buffer = [0; 4096];
                let length = stream.read(&mut buffer).expect("a request");
                seen.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                let head = format!(
                    "HTTP/1.1 200 OK\r\nMcp-Session-Id: s1\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).expect("an answer");
            }
            seen
        });
        let headers = BTreeMap::from([("authorization".to_owned(), "Bearer t".to_owned())]);
        let server = McpServer { name: "s".to_owned(), transport: McpTransport::Http { url, headers } };
        assert_eq!(call(&server, "note", &json!({"a": 1})), Ok("ok".to_owned()));
        let seen = serving.join().expect("it served");
        assert!(seen[2].contains("mcp-session-id: s1") && seen[2].contains("Bearer t"), "{}", seen[2]);
    }
}
