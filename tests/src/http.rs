//! A server under test, and a client that sends exactly the given bytes, including invalid ones.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::{SOON, Sandbox, Started, until_some};

/// A running `sprag serve`.
#[derive(Debug)]
pub struct Server {
    process: Started,
    /// The address on which it listens.
    pub addr: SocketAddr,
    /// The token of its data directory.
    pub token: String,
}

impl Server {
    /// Starts one in the sandbox, on a port of its own.
    pub fn start(sandbox: &Sandbox, args: &[&str]) -> Server {
        Server::start_at(sandbox, "127.0.0.1:0", args)
    }

    /// Starts one at this address.
    pub fn start_at(sandbox: &Sandbox, listen: &str, args: &[&str]) -> Server {
        let mut all = vec!["serve", "--listen", listen];
        all.extend(args);
        Server::from_process(sandbox, sandbox.start(all))
    }

    /// Waits until a server that was started in another way listens, and returns it.
    pub fn from_process(sandbox: &Sandbox, process: Started) -> Server {
        let addr = until_some("the server listens", || {
            let told = process.stdout();
            let url = told.lines().find_map(|line| line.split_once("://"))?.1.to_owned();
            url.trim_end_matches(['"', '}']).parse().ok()
        });
        let token = sandbox.local_token();
        Server { process, addr, token }
    }

    /// Returns its process.
    pub fn process(&mut self) -> &mut Started {
        &mut self.process
    }

    /// Gives its process up.
    pub fn into_process(self) -> Started {
        self.process
    }

    /// Returns a request with the token of the server's data directory, which the caller can extend.
    pub fn request(&self, method: &str, path: &str) -> Request {
        self.anonymous(method, path).token(&self.token)
    }

    /// Returns a request without a token.
    pub fn anonymous(&self, method: &str, path: &str) -> Request {
        Request::to(self.addr, method, path)
    }

    /// Gets a path, which must exist.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.request("GET", path).send().expect(200).json()
    }

    /// Sends JSON.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.request("POST", path).json(body).send()
    }

    /// Calls a tool over `/mcp` as the server's own user, and returns its answer.
    #[track_caller]
    pub fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.call_as(&self.token, tool, arguments)
    }

    /// Calls a tool over `/mcp` with this token, and returns its answer.
    #[track_caller]
    pub fn call_as(&self, token: &str, tool: &str, arguments: &Value) -> Value {
        let params = serde_json::json!({ "name": tool, "arguments": arguments });
        let message =
            serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let reply = self
            .request("POST", "/mcp")
            .token(token)
            .json(&message)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-06-18")
            .send()
            .expect(200);
        let told = reply.json();
        assert!(told["result"].is_object(), "{told}");
        told["result"]["structuredContent"].clone()
    }

    /// Starts a run of this pipeline, and returns its id.
    #[track_caller]
    pub fn run(&self, yaml: &str) -> String {
        let reply = self.post("/v1/runs", &serde_json::json!({ "yaml": yaml })).expect(201);
        reply.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Waits until a run has this status.
    #[track_caller]
    pub fn until(&self, run: &str, status: &str) {
        until_some(&format!("run {run} is {status}"), || {
            let told = self.get(&format!("/v1/runs/{run}"));
            (told["status"] == status).then_some(())
        });
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    addr: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Returns a request to this address.
    pub fn to(addr: SocketAddr, method: &str, path: &str) -> Request {
        let headers = vec![("host".into(), addr.to_string())];
        Request { addr, method: method.into(), path: path.into(), headers, body: Vec::new() }
    }

    /// Adds a header, or replaces the host.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if name == "host" {
            self.headers.retain(|(name, _)| name != "host");
        }
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Shows this token, and no other.
    pub fn token(mut self, token: &str) -> Self {
        self.headers.retain(|(name, _)| name != "authorization");
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// Adds a JSON body.
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string().as_bytes())
    }

    /// Adds a body of any kind.
    pub fn body(mut self, kind: &str, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self.header("content-type", kind)
    }

    /// Returns the bytes as they are sent.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            out.extend(format!("{name}: {value}\r\n").bytes());
        }
        if !self.body.is_empty() || self.method != "GET" {
            out.extend(format!("content-length: {}\r\n", self.body.len()).bytes());
        }
        out.extend(b"\r\n");
        out.extend(&self.body);
        out
    }

    /// Sends it on a connection of its own.
    #[track_caller]
    pub fn send(&self) -> Reply {
        self.try_send().unwrap_or_else(|error| panic!("{} {}: {error}", self.method, self.path))
    }

    /// Sends it on a connection of its own; the connection may fail.
    pub fn try_send(&self) -> std::io::Result<Reply> {
        let request = self.clone().header("connection", "close");
        let mut stream = connect(self.addr)?;
        // The server may answer before it has read everything, and close.
        let _ = stream.write_all(&request.bytes());
        let reply = Answering::new(stream)?.whole()?;
        crate::conformance::check(&self.method, &self.path, &reply);
        Ok(reply)
    }

    /// Sends it and reads the answer as it comes.
    pub fn open(&self) -> std::io::Result<Answering> {
        let mut stream = connect(self.addr)?;
        stream.write_all(&self.bytes())?;
        Answering::new(stream)
    }
}

/// Returns a connection that waits no longer than tests do.
pub fn connect(addr: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers, in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Asserts the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    /// Asserts a complete problem with this status and code.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        let reply = self.expect(status);
        assert_eq!(reply.headers["content-type"], "application/problem+json");
        let told = reply.json();
        assert_eq!(told["code"], code, "{told}");
        assert_eq!(told["status"], status);
        assert_eq!(told["type"], format!("urn:sprag:problem:{code}"));
        assert_eq!(told["request_id"], reply.headers["x-request-id"].as_str());
        assert!(told["title"].is_string() && told["message"].is_string(), "{told}");
        told
    }

    /// Returns its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns its body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Answering {
    lines: BufReader<TcpStream>,
    /// Its status.
    pub status: u16,
    /// Its headers, in lower case.
    pub headers: BTreeMap<String, String>,
    /// The rest of the current chunk.
    left: usize,
    chunked: bool,
    over: bool,
}

impl Answering {
    /// Reads an answer's head.
    pub fn new(stream: TcpStream) -> std::io::Result<Answering> {
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        if lines.read_line(&mut first)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("no answer: {first:?}")))?;
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let chunked = headers.get("transfer-encoding").is_some_and(|kind| kind == "chunked");
        let length = headers.get("content-length").and_then(|length| length.parse().ok());
        let left = if chunked { 0 } else { length.unwrap_or(usize::MAX) };
        Ok(Answering { lines, status, headers, left, chunked, over: false })
    }

    /// Reads the rest, and returns the complete answer.
    pub fn whole(mut self) -> std::io::Result<Reply> {
        let mut body = Vec::new();
        match self.left {
            // Until the connection ends.
            usize::MAX if !self.chunked => drop(self.lines.read_to_end(&mut body)?),
            _ => drop(self.read_to_end(&mut body)?),
        }
        Ok(Reply { status: self.status, headers: self.headers, body })
    }

    /// Sets the time to wait for more.
    pub fn patience(&self, limit: Duration) {
        let _ = self.lines.get_ref().set_read_timeout(Some(limit));
    }

    /// Cuts the connection off.
    pub fn cut(self) {
        let _ = self.lines.get_ref().shutdown(std::net::Shutdown::Both);
    }

    /// Returns the next server-sent event; none at the stream's end.
    pub fn event(self: &mut Answering) -> std::io::Result<Option<Event>> {
        let mut event = Event::default();
        let mut lines = BufReader::with_capacity(1, self);
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end_matches('\n').split_once(':') {
                Some(("id", id)) => event.id = id.trim().parse().unwrap_or(0),
                Some(("event", name)) => event.name = name.trim().to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap_or_default(),
                None if !event.name.is_empty() => return Ok(Some(event)),
                _ => {}
            }
        }
    }
}

/// Decodes chunks as they come.
impl Read for Answering {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.over {
            return Ok(0);
        }
        if self.chunked && self.left == 0 {
            let mut size = String::new();
            if self.lines.read_line(&mut size)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if size.trim().is_empty() {
                size.clear();
                self.lines.read_line(&mut size)?;
            }
            self.left = usize::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
            if self.left == 0 {
                self.over = true;
                return Ok(0);
            }
        }
        let most = buffer.len().min(self.left);
        let count = self.lines.read(&mut buffer[..most])?;
        self.left -= count;
        if count == 0 && most > 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }
}

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The event's data.
    pub data: Value,
}
