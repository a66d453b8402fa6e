//! The part of HTTP/1.1 that the agents' clients need: one request per connection, bodies by length or in chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// The largest body; no request of a test is larger.
const MAX_BODY_BYTES: usize = 64 << 20;
const MAX_HEADERS: usize = 200;

/// A parsed request.
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// The path with its query.
    pub(super) path: String,
    /// Headers with names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpRequest {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Reads one request.
    pub(super) fn read(stream: &TcpStream) -> io::Result<HttpRequest> {
        let mut reader = BufReader::new(stream);
        let first = line(&mut reader)?;
        let mut words = first.split(' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(invalid("request line"));
        };
        let (method, path) = (method.to_owned(), path.to_owned());
        let mut headers = Vec::new();
        loop {
            let text = line(&mut reader)?;
            if text.is_empty() {
                break;
            }
            let (name, value) = text.split_once(':').ok_or_else(|| invalid("header"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if headers.len() > MAX_HEADERS {
                return Err(invalid("too many headers"));
            }
        }
        let mut request = HttpRequest { method, path, headers, body: Vec::new() };
        if request.header("expect").is_some() {
            (&*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        if request.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            request.body = chunks(&mut reader)?;
        } else if let Some(length) = request.header("content-length") {
            let length: usize = length.parse().map_err(|_| invalid("content-length"))?;
            request.body = body(&mut reader, length)?;
        }
        Ok(request)
    }
}

fn invalid(part: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("HTTP: {part}"))
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    if reader.take(64 << 10).read_line(&mut text)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn body(reader: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    if length > MAX_BODY_BYTES {
        return Err(invalid("body too large"));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let size = line(reader)?;
        let size =
            usize::from_str_radix(size.split(';').next().unwrap_or(""), 16).map_err(|_| invalid("chunk"))?;
        if bytes.len() + size > MAX_BODY_BYTES {
            return Err(invalid("body too large"));
        }
        bytes.extend(body(reader, size)?);
        line(reader)?;
        if size == 0 {
            return Ok(bytes);
        }
    }
}

/// A complete response.
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpResponse {
    pub(super) fn json(status: u16, value: &serde_json::Value) -> HttpResponse {
        let headers = vec![("content-type", "application/json".to_owned())];
        HttpResponse { status, headers, body: value.to_string().into_bytes() }
    }

    pub(super) fn events(body: String) -> HttpResponse {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        HttpResponse { status: 200, headers, body: body.into_bytes() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> HttpResponse {
        self.headers.push((name, value.to_string()));
        self
    }

    pub(super) fn write(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut head = format!(
            "HTTP/1.1 {} -\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.status,
            self.body.len()
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        stream.flush()
    }
}
