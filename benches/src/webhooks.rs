//! Webhooks in: signed requests of many connections, some of them repeated, with and without servers that are killed.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::board::{Board, Key, Target, key};
use crate::clock::Stopwatch;
use crate::triggers::{PATIENCE, Scene, pause};
use crate::{Result, floors};

/// The number of connections.
const CONNECTIONS: usize = 64;
/// Every request of this number has the content of the one before it.
const REPEATED: usize = 5;
/// The time between two kills.
const KILLED_AFTER: Duration = Duration::from_millis(500);
const SECRET: &str = "sixteen bytes or more";
const SOURCE: &str = "webhook: { kind: generic, secrets: [HOOK], key: '{{ event.body.id }}' }";

/// Measures this many requests, first in peace, then with kills.
pub(crate) async fn webhooks(board: &mut Board, requests: usize) -> Result<()> {
    let scene = Scene::with_source(SOURCE).await?;
    let floor = floors::group_commit(scene.folder(), CONNECTIONS, Duration::from_secs(2)).await?;
    let addr = free_port()?;
    let server = scene.server_at(addr, &[("HOOK", SECRET)])?;
    let answered = answer_all(addr, requests).await?;
    let watch = Stopwatch::start();
    let taken = send_all(addr, requests).await?;
    board.add(taken_key(), requests as f64 / watch.elapsed().as_secs_f64());
    board.add(floor_key(), floor);
    board.add(http_key(), answered);
    check(&scene, &taken).await?;
    drop(server);

    let scene = Scene::with_source(SOURCE).await?;
    let addr = free_port()?;
    let sent = tokio::spawn(send_all(addr, requests));
    let mut kills = 0;
    while !sent.is_finished() {
        let server = scene.server_at(addr, &[("HOOK", SECRET)])?;
        pause(KILLED_AFTER).await;
        drop(server);
        kills += 1;
        if kills > 2_000 {
            return Err("servers that are killed never take all requests".into());
        }
    }
    let taken = sent.await??;
    let _last = scene.server_at(addr, &[("HOOK", SECRET)])?;
    check(&scene, &taken).await?;
    board.add(key("webhooks, lost or twice", "file, kill -9 twice a second", CONNECTIONS, "events"), 0.0);
    board.add(key("webhooks, kills survived", "file", CONNECTIONS, "kills"), f64::from(kills));
    let target = Some(Target::AtLeast(0.2));
    board.ratio("of shared commits", &taken_key(), &floor_key(), target);
    board.ratio("of requests that store nothing", &taken_key(), &http_key(), None);
    Ok(())
}

fn taken_key() -> Key {
    key("webhooks taken", "file", CONNECTIONS, "requests/s")
}

fn floor_key() -> Key {
    key("webhooks, floor", "commits that all waiting callers share", CONNECTIONS, "requests/s")
}

fn http_key() -> Key {
    key("webhooks, requests alone", "the same server, nothing stored", CONNECTIONS, "requests/s")
}

/// Returns the number of requests that the server answers in a second if it stores nothing: the limit of the connections
/// and of the client, which shares the machine.
async fn answer_all(addr: SocketAddr, requests: usize) -> Result<f64> {
    let next = Arc::new(AtomicUsize::new(0));
    let bytes = Arc::new(format!("GET /healthz HTTP/1.1\r\nhost: {addr}\r\n\r\n").into_bytes());
    // The server has just been started.
    let mut first = None;
    let patience = Stopwatch::start();
    while ask(&mut first, addr, &bytes).await.is_err() {
        first = None;
        if patience.elapsed() > PATIENCE {
            return Err("the server does not answer".into());
        }
        pause(Duration::from_millis(20)).await;
    }
    let watch = Stopwatch::start();
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (next, bytes) = (Arc::clone(&next), Arc::clone(&bytes));
        senders.spawn(async move {
            let mut connection = None;
            while next.fetch_add(1, Ordering::SeqCst) < requests {
                let (status, _) = ask(&mut connection, addr, &bytes).await?;
                if status != 200 {
                    return Err(format!("the server answers {status}").into());
                }
            }
            Result::Ok(())
        });
    }
    while let Some(done) = senders.join_next().await {
        done??;
    }
    Ok(requests as f64 / watch.elapsed().as_secs_f64())
}

/// Returns an address that no program listens on.
fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Sends requests until each has been acknowledged. Returns the events, by the ids in the requests.
async fn send_all(addr: SocketAddr, requests: usize) -> Result<BTreeMap<usize, String>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        senders.spawn(send_some(addr, requests, Arc::clone(&next)));
    }
    let mut taken = BTreeMap::new();
    while let Some(sent) = senders.join_next().await {
        for (id, event) in sent?? {
            if taken.insert(id, event.clone()).is_some_and(|other| other != event) {
                return Err(format!("request {id} became two events").into());
            }
        }
    }
    Ok(taken)
}

async fn send_some(
    addr: SocketAddr,
    requests: usize,
    next: Arc<AtomicUsize>,
) -> Result<Vec<(usize, String)>> {
    let watch = Stopwatch::start();
    let mut connection: Option<BufReader<TcpStream>> = None;
    let mut taken = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        if number >= requests {
            return Ok(taken);
        }
        let id = if number % REPEATED == REPEATED - 1 { number - 1 } else { number };
        let bytes = signed(addr, id)?;
        loop {
            if watch.elapsed() > PATIENCE {
                return Err(format!("request {id} was not acknowledged in {PATIENCE:?}").into());
            }
            match ask(&mut connection, addr, &bytes).await {
                Ok((200 | 202, body)) => {
                    let told: Value = serde_json::from_slice(&body)?;
                    taken.push((id, told["event"].as_str().ok_or("an answer without an event")?.to_owned()));
                    break;
                }
                Ok((503, _)) => {}
                Ok((status, body)) => {
                    return Err(format!("request {id}: {status} {}", String::from_utf8_lossy(&body)).into());
                }
                // The server was killed: the sender tries again, as senders do.
                Err(_) => connection = None,
            }
            pause(Duration::from_millis(20)).await;
        }
    }
}

/// Sends a request and reads its answer.
async fn ask(
    connection: &mut Option<BufReader<TcpStream>>,
    addr: SocketAddr,
    bytes: &[u8],
) -> Result<(u16, Vec<u8>)> {
    let stream = match connection {
        Some(stream) => stream,
        None => connection.insert(BufReader::new(TcpStream::connect(addr).await?)),
    };
    stream.get_mut().write_all(bytes).await?;
    let (mut line, mut status, mut length) = (String::new(), 0, 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err("the connection was closed".into());
        }
        let text = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = text.strip_prefix("http/1.1 ") {
            status = rest.split(' ').next().unwrap_or_default().parse()?;
        } else if let Some(rest) = text.strip_prefix("content-length:") {
            length = rest.trim().parse()?;
        } else if text.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((status, body))
}

/// Returns the bytes of a signed request.
fn signed(addr: SocketAddr, id: usize) -> Result<Vec<u8>> {
    let body = json!({ "id": id, "text": "a payload of a usual length ".repeat(20) }).to_string();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    mac.update(body.as_bytes());
    let signature: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!(
        "POST /in/p/r HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\nx-signature-256: {signature}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Ok((head + &body).into_bytes())
}

/// Checks that each acknowledged request is one event, and that each event is decided once.
async fn check(scene: &Scene, taken: &BTreeMap<usize, String>) -> Result<()> {
    let expected = taken.len() as i64;
    scene.until("SELECT count(*) FROM enforcements WHERE run IS NOT NULL", expected).await?;
    for (what, sql) in [
        ("events", "SELECT count(*) FROM deliveries"),
        ("decisions", "SELECT count(*) FROM enforcements"),
        ("runs", "SELECT count(*) FROM runs"),
    ] {
        let found = scene.number(sql)?;
        if found != expected {
            return Err(format!("{expected} requests became {found} {what}").into());
        }
    }
    Ok(())
}
