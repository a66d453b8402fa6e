//! The server: one thread per connection, a log of the requests, and the script of the replies.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{HttpRequest, HttpResponse};
use super::request::{Api, ModelRequest};
use super::script::{Reply, Script};
use super::{anthropic, gemini, responses};

/// The longest hang, so that no thread outlives a test run.
const MAX_HANG: Duration = Duration::from_secs(900);
/// The interval at which a hanging connection checks whether the server was dropped.
const HANG_STEP: Duration = Duration::from_millis(200);
/// The time within which a request must arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The stand-in server. Dropping it stops it.
pub struct Models {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    script: Script,
    requests: Vec<ModelRequest>,
    other_paths: Vec<String>,
    failures: HashMap<String, u32>,
    is_stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Models {
    /// Starts a server on a free port of the loopback interface.
    ///
    /// # Panics
    ///
    /// If no port is available.
    pub fn start(script: Script) -> Models {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        shared.lock().script = script;
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.lock().is_stopped {
                    return;
                }
                let shared = Arc::clone(&serving);
                // A client that hangs up or does not speak HTTP fails in its own test.
                std::thread::spawn(move || serve(&stream, &shared).ok());
            }
        });
        Models { address, shared }
    }

    /// Returns the base URL, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests for an answer so far, oldest first.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.shared.lock().requests.clone()
    }

    /// Returns the method and path of every other request so far.
    pub fn other_paths(&self) -> Vec<String> {
        self.shared.lock().other_paths.clone()
    }

    /// Waits until `condition` holds for the requests so far. Returns false after `timeout`.
    pub fn wait_for(&self, timeout: Duration, condition: impl Fn(&[ModelRequest]) -> bool) -> bool {
        let state = self.shared.lock();
        let waited =
            self.shared.changed.wait_timeout_while(state, timeout, |state| !condition(&state.requests));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        TcpStream::connect(self.address).ok();
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let http = HttpRequest::read(stream)?;
    let body: Value = serde_json::from_slice(&http.body).unwrap_or(Value::Null);
    let key = http.header("authorization").map(|value| value.trim_start_matches("Bearer ").to_owned());
    let key = key.or_else(|| http.header("x-api-key").or(http.header("x-goog-api-key")).map(str::to_owned));
    let Some(request) = ModelRequest::read(&http.path, key.unwrap_or_default(), body) else {
        shared.lock().other_paths.push(format!("{} {}", http.method, http.path));
        return other(&http).write(stream);
    };
    let reply = {
        let mut state = shared.lock();
        let (reply, key) = state.script.reply(&request);
        state.requests.push(request.clone());
        match reply {
            Reply::Flaky { times, failure, then } => {
                let failed = state.failures.entry(key).or_default();
                *failed += 1;
                if *failed <= times { Reply::Failure(failure) } else { *then }
            }
            other => other,
        }
    };
    shared.changed.notify_all();
    match &reply {
        Reply::Hang => {
            hang(stream, shared);
            return Ok(());
        }
        Reply::Failure(failure) => match request.api {
            Api::Anthropic => anthropic::failure(*failure),
            Api::Responses => responses::failure(*failure),
            Api::Gemini => gemini::failure(*failure),
        },
        reply => match request.api {
            Api::Anthropic => anthropic::answer(&request, reply),
            Api::Responses => responses::answer(&request, reply),
            Api::Gemini => gemini::answer(&request, reply),
        },
    }
    .write(stream)
}

/// Answers requests outside the conversation: token counts, lists of models, health checks.
fn other(http: &HttpRequest) -> HttpResponse {
    if http.path.contains("count_tokens") {
        return HttpResponse::json(200, &json!({"input_tokens": 100}));
    }
    if http.path.contains(":countTokens") {
        return HttpResponse::json(200, &json!({"totalTokens": 100}));
    }
    if http.method == "HEAD" {
        return HttpResponse { status: 200, headers: Vec::new(), body: Vec::new() };
    }
    HttpResponse::json(
        404,
        &json!({"error": {"type": "not_found_error", "message": "the stand-in has no such path"}}),
    )
}

/// Waits until the client hangs up or the server is dropped.
fn hang(stream: &TcpStream, shared: &Shared) {
    stream.set_read_timeout(Some(HANG_STEP)).ok();
    let mut waited = Duration::ZERO;
    while waited < MAX_HANG && !shared.lock().is_stopped {
        match stream.peek(&mut [0]) {
            Ok(0) => return,
            // The client sent more than its request, so the socket cannot show when it hangs up.
            Ok(_) => {
                let state = shared.lock();
                drop(shared.changed.wait_timeout(state, HANG_STEP));
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        waited += HANG_STEP;
    }
}
