//! What every request passes before it reaches its endpoint, and every answer on its way back.
//!
//! ```text
//!   request ─▶ id ─▶ host, origin ─▶ token, scope, rate ─▶ time limit ─▶ endpoint
//!   answer  ◀─ id, log, metrics ◀─ a problem gets its body ◀──────────────┘
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{fill_random, forbidden, hex, least};
use crate::app::App;
use crate::problem::Problem;
use crate::rate::Whose;

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Lets a request through to its endpoint, or answers it.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let since = clock();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = match check(&app, &mut request).await {
        Ok(()) => match tokio::time::timeout(app.options().request_timeout, next.run(request)).await {
            Ok(response) => response,
            Err(_) => too_slow().into_response(),
        },
        Err(problem) => problem.into_response(),
    };
    let mut response = match response.extensions().get::<Arc<Problem>>() {
        Some(problem) => {
            let mut told = Problem::clone(problem).answer(&id);
            // An endpoint may have more to say in headers.
            for (name, value) in response.headers() {
                told.headers_mut().entry(name).or_insert_with(|| value.clone());
            }
            told
        }
        None => response,
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let took = since.elapsed();
    let status = response.status().as_u16();
    let route = route.as_deref().unwrap_or("none");
    app.metrics().request(&method, route, status, took);
    // A run that was just made is named by its place.
    let made = response.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
    let run = run_in(&path).or(made.and_then(run_in));
    tracing::info!(
        target: "sprag_server::request",
        request_id = &*id, %method, path, status, took_ms = took.as_secs_f64() * 1000.0, run,
    );
    response
}

async fn check(app: &App, request: &mut Request) -> Result<(), Problem> {
    check_host(app, request.headers(), request.uri())?;
    check_origin(app, request.headers())?;
    if is_open(request.uri().path()) {
        return Ok(());
    }
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let now_ms = app.store().now().steady_ms;
    let caller = match app.access().caller(app, request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => {
            // Whoever guesses is slowed down.
            if let Some(peer) = peer {
                app.failed_rate().take(Whose::Failed(peer), now_ms).map_err(Problem::too_many)?;
            }
            return Err(problem);
        }
    };
    let whose = caller.token.map(Whose::Token).or(peer.map(Whose::Peer));
    if let (Some(rate), Some(whose)) = (app.rate(caller.token.is_some()), whose) {
        rate.take(whose, now_ms).map_err(Problem::too_many)?;
    }
    let wanted = least(request.method());
    if !wanted.iter().any(|scope| caller.may(*scope)) {
        return Err(forbidden(wanted[0]));
    }
    request.extensions_mut().insert(caller);
    Ok(())
}

/// What says nothing that a stranger may not know.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/openapi.json")
}

fn too_slow() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request took too long")
        .next("send it faster, or ask for less at once")
}

/// The client's own id if it is a plain word, else a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    const LONGEST: usize = 64;
    let plain = |text: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !text.is_empty() && text.len() <= LONGEST && text.chars().all(word)
    };
    let given = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| plain(id));
    given.map_or_else(
        || {
            let mut bits = [0u8; 8];
            fill_random(&mut bits);
            hex(&bits).into()
        },
        Into::into,
    )
}

/// The run that a path is about.
fn run_in(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/runs/")?.split('/').next().filter(|run| !run.is_empty())
}

/// A page in a browser can have any name point to this machine. The name it used gives it away.
fn check_host(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    let named = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let Some(host) = named.or(uri.authority().map(|authority| authority.as_str())) else {
        return Err(Problem::malformed("the request names no host"));
    };
    if is_allowed(app, host_name(host)) {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "wrong_host", format!("this server is not called {host:?}"))
        .next("call it by its address, or start it with --allow-host NAME"))
}

fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let name = origin.split_once("://").map(|(_, rest)| rest);
    let same = || {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        name.is_some() && name == host
    };
    // Pages of the server itself may call, port included: any other program of this machine may serve pages too. Those
    // of hosts that were named may.
    let listed =
        |name: &str| app.options().allow_hosts.iter().any(|host| host.eq_ignore_ascii_case(host_name(name)));
    match same() || name.is_some_and(listed) {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "wrong_origin",
            format!("pages of {origin:?} may not call"),
        )
        .next("start the server with --allow-host NAME to let them")),
    }
}

fn is_allowed(app: &App, name: &str) -> bool {
    let options = app.options();
    let listed = options.allow_hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    let ours = ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| host.eq_ignore_ascii_case(name));
    match (options.listen.ip().is_loopback(), options.allow_hosts.is_empty()) {
        (true, _) => listed || ours || name == options.listen.ip().to_string(),
        // Every call shows a token, which no foreign page has.
        (false, true) => true,
        (false, false) => listed || ours || name == options.listen.ip().to_string(),
    }
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => &host[..end + 2],
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// A moment, to see how long something took.
pub(crate) struct Since(rustix::time::Timespec);

/// Now.
pub(crate) fn clock() -> Since {
    Since(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

impl Since {
    /// How long ago it was.
    pub(crate) fn elapsed(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let (s, ns) = (now.tv_sec - self.0.tv_sec, now.tv_nsec - self.0.tv_nsec);
        Duration::from_nanos((s * 1_000_000_000 + ns).max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_from_its_port() {
        for (host, name) in [
            ("localhost:7717", "localhost"),
            ("localhost", "localhost"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:7717", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
            ("evil.example:7717", "evil.example"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn a_path_tells_its_run() {
        assert_eq!(run_in("/v1/runs/abc/steps"), Some("abc"));
        assert_eq!(run_in("/v1/runs/abc"), Some("abc"));
        assert_eq!(run_in("/v1/runs/"), None);
        assert_eq!(run_in("/v1/queues/x"), None);
    }
}
