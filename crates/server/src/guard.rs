//! Checks that every request passes before it reaches its endpoint, and every answer on its way back.
//!
//! ```text
//!   request ─▶ id ─▶ host, origin ─▶ token, scope, reach, rate ─▶ time limit ─▶ endpoint
//!   answer  ◀─ id, log, metrics ◀─ a problem gets its body ◀──────────────┘
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sprag_app::Id;

use sprag_app::{fill_random, hex};

use crate::access::{Caller, forbidden, least, unauthorized};
use crate::connections::origin_of;
use crate::permits::{Permit, Revoked, hold};
use crate::problem::Problem;
use crate::rate::Whose;
use crate::state::{Auth, ServerState};

/// The address that a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The number of a journal entry: what the answer shows contains this entry and all before it. `/v1/events?after=` of it
/// has every change that the answer may lack.
const SEQ: HeaderName = HeaderName::from_static("sprag-seq");

/// The time between two looks whether the token of an open request is still valid. The store is asked once a second for
/// each token.
const LOOK_AT_TOKEN: Duration = Duration::from_millis(500);

/// Lets a request through to its endpoint, or answers it.
pub(crate) async fn guard(State(app): State<ServerState>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let since = clock();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let is_last = request.extensions().get::<HealthOnly>().is_some();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    // Read before the endpoint reads anything.
    let seq = (method == Method::GET && path.starts_with("/v1/")).then(|| app.feed().read_upto());
    let response = match check(&app, &mut request).await {
        Ok(None) => match tokio::time::timeout(app.options().request_timeout, answer(request, next)).await {
            Ok(response) => response,
            Err(_) => too_slow().into_response(),
        },
        Ok(Some(Admitted { place, hash })) => {
            // A token that is removed, or whose overlap has ended, ends the requests and streams that it began.
            let mut revoked: Revoked = Box::pin(revocation(app.clone(), hash));
            tokio::select! {
                answered = tokio::time::timeout(app.options().request_timeout, answer(request, next)) => {
                    match answered {
                        Ok(response) => response.map(|body| hold(body, place, revoked)),
                        Err(_) => too_slow().into_response(),
                    }
                }
                () = &mut revoked => unauthorized("the token is not valid any more").into_response(),
            }
        }
        Err(problem) => problem.into_response(),
    };
    let mut response = match response.extensions().get::<Arc<Problem>>() {
        Some(problem) => {
            let mut told = Problem::clone(problem).answer(&id);
            // An endpoint may have set further headers.
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
    if let Some(seq) = seq.filter(|_| response.status().is_success()) {
        response.headers_mut().insert(SEQ, HeaderValue::from(seq));
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if is_last {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let took = since.elapsed();
    let status = response.status().as_u16();
    let route = route.as_deref().unwrap_or("none");
    app.metrics().request(&method, route, status, took);
    // A run that was just started is named in the `Location` header.
    let made = response.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
    let run = run_in(&path).or(made.and_then(run_in));
    tracing::info!(
        target: "sprag_server::request",
        request_id = &*id, %method, path = without_task_tokens(&path), status, took_ms = took.as_secs_f64() * 1000.0, run,
    );
    response
}

/// Passes a request to its endpoint, on behalf of its caller.
async fn answer(request: Request, next: Next) -> Response {
    match request.extensions().get::<Caller>().map(Caller::author) {
        Some(author) => sprag_app::acting_as(author, next.run(request)).await,
        None => next.run(request).await,
    }
}

/// A request of a caller whose requests are counted, and whose token can be revoked.
struct Admitted {
    place: Permit<Id>,
    /// The token's SHA-256; none for the token of a step, which each of the step's tools checks.
    hash: Option<Arc<str>>,
}

/// Waits until a token is not valid any more.
async fn revocation(app: ServerState, hash: Option<Arc<str>>) {
    let Some(hash) = hash else { return std::future::pending().await };
    loop {
        app.core().pause(LOOK_AT_TOKEN).await;
        if app.access().is_revoked(&app, &hash).await {
            return;
        }
    }
}

/// Checks whether a request may pass. Returns the place that its caller takes for it, if callers of its kind are
/// counted.
async fn check(app: &ServerState, request: &mut Request) -> Result<Option<Admitted>, Problem> {
    if request.extensions().get::<HealthOnly>().is_some() && !HEALTH.contains(&request.uri().path()) {
        return Err(Problem::unavailable("all connections of the server are in use"));
    }
    let is_only_incoming = request.extensions().get::<OnlyIncoming>().is_some();
    if is_only_incoming || request.uri().path().starts_with(INCOMING) {
        // The signature identifies the caller, whatever name, page or proxy the request came by.
        return Ok(None);
    }
    check_host(app, request.headers(), request.uri())?;
    check_origin(app, request.headers())?;
    check_direct(app, request.headers())?;
    if is_open(request.method(), request.uri().path()) {
        return Ok(None);
    }
    let peer = request.extensions().get::<Peer>().map(|peer| origin_of(peer.0.ip()));
    let now_ms = app.core().now().steady_ms;
    let caller = match app.access().caller(app, request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => {
            // Callers that guess tokens are slowed down.
            if let Some(peer) = peer {
                app.failed_rate().take(Whose::Failed(peer), now_ms).map_err(Problem::too_many)?;
            }
            return Err(problem);
        }
    };
    if caller.by_cookie {
        check_own_page(request.method(), request.headers())?;
    }
    let whose = caller.token.map(Whose::Token).or(peer.map(Whose::Peer));
    if let (Some(rate), Some(whose)) = (app.rate(&caller), whose) {
        rate.take(whose, now_ms).map_err(Problem::too_many)?;
    }
    if caller.step.is_some() && request.uri().path() != crate::agents::PATH {
        let message = "the token of a step is for the tools of the step alone";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", message)
            .next("use it with `sprag mcp --step`, or send an access token"));
    }
    let wanted = least(request.method(), request.uri().path());
    if caller.step.is_none() && !wanted.iter().any(|scope| caller.may(*scope)) {
        return Err(forbidden(wanted[0]));
    }
    crate::endpoints::require_reach(app, request, &caller.reach).await?;
    // The server's own user is never locked out of its own server.
    let admitted = match caller.token.filter(|_| !caller.is_own()) {
        None => None,
        Some(token) => {
            let place = app.open().take(token).ok_or_else(|| too_much_open(app.open().most()))?;
            let hash = caller.step.is_none().then(|| Arc::clone(&caller.hash));
            Some(Admitted { place, hash })
        }
    };
    request.extensions_mut().insert(caller);
    Ok(admitted)
}

fn too_much_open(most: usize) -> Problem {
    let mut problem = Problem::too_many(1);
    problem.message = format!("this token has {most} open requests and streams, which is the limit");
    problem.next("close some of them, or use several tokens")
}

/// The mark of a connection beyond the server's limit, which exists so that health can be asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthOnly;

/// The paths that are answered on such a connection.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The mark of an address that takes requests for rules alone: no endpoint there needs a token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnlyIncoming;

/// The prefix of the paths whose requests are signed.
const INCOMING: &str = "/in/";

/// The paths that need no token: they reveal nothing that a stranger may not know.
pub(crate) const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];

fn is_open(method: &Method, path: &str) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    OPEN.contains(&path) || reads && crate::pages::is_page(path) || is_sign_in(method, path)
}

/// Whether a request signs in or out: the endpoint itself checks the token.
fn is_sign_in(method: &Method, path: &str) -> bool {
    path == "/v1/session" && matches!(*method, Method::POST | Method::DELETE)
}

/// Refuses a request with a cookie that no page of this server has sent. Browsers add the cookie to requests of other
/// pages of the same host too, such as those of another port.
fn check_own_page(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let wrong = |message: &str| {
        Problem::new(StatusCode::FORBIDDEN, "wrong_origin", message)
            .next("use the dashboard of this server, or send a token")
    };
    if text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(wrong("a page of another server sent the request with the cookie of this one"));
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let origin = text("origin").and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    if origin.is_some() && origin == text("host") {
        Ok(())
    } else {
        Err(wrong("a change with a cookie needs the origin of this server"))
    }
}

fn too_slow() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request took too long")
        .next("send it faster, or request less at once")
}

/// Returns the client's own request id if it is a plain word, else a new one.
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

/// Returns the run that a path is about.
fn run_in(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/runs/")?.split('/').next().filter(|run| !run.is_empty())
}

/// Returns a path as it may be logged. A task's token is the right to the task: its signature is left out, also where
/// the path is mistyped.
fn without_task_tokens(path: &str) -> String {
    const SIGNATURE: usize = 16;
    let parts = path.split('/').enumerate().map(|(nth, part)| {
        let is_token = nth == 3 && path.starts_with("/v1/tasks/") && part != "claim";
        let (place, last) = part.rsplit_once('.').unwrap_or(("", part));
        let is_signature = last.len() == SIGNATURE && last.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (is_token || is_signature, place.is_empty()) {
            (false, _) => part.to_owned(),
            (true, false) => format!("{place}.***"),
            (true, true) => "***".to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Refuses a host name that is not the server's. A page in a browser can have any name point to this machine, and the
/// name that it used gives it away.
fn check_host(app: &ServerState, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    let named = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let Some(host) = named.or(uri.authority().map(|authority| authority.as_str())) else {
        return Err(Problem::malformed("the request names no host"));
    };
    if is_allowed(app, host_name(host)) {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "wrong_host", format!("{host:?} is not a name of this server"))
        .next("use its address, or start it with --allow-host NAME"))
}

fn check_origin(app: &ServerState, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let name = origin.split_once("://").map(|(_, rest)| rest);
    let same = || {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        name.is_some() && name == host
    };
    // Pages of the server itself may call, if the port is the same too: any other program of this machine may serve
    // pages as well. Pages of the allowed hosts may call.
    let listed =
        |name: &str| app.options().allow_hosts.iter().any(|host| host.eq_ignore_ascii_case(host_name(name)));
    if same() || name.is_some_and(listed) {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            "wrong_origin",
            format!("pages of {origin:?} may not call this server"),
        )
        .next("start the server with --allow-host NAME to allow them"))
    }
}

/// Refuses callers behind a proxy while no tokens are needed. Without tokens every caller must be a program of this
/// machine, and a request through a proxy may come from anywhere.
fn check_direct(app: &ServerState, headers: &HeaderMap) -> Result<(), Problem> {
    if app.options().auth == Auth::Token {
        return Ok(());
    }
    let forwarded = |name: &HeaderName| {
        name == header::FORWARDED
            || name == header::VIA
            || name.as_str().starts_with("x-forwarded-")
            || name == "x-real-ip"
    };
    match headers.keys().find(|name| forwarded(name)) {
        Some(name) => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "forwarded",
            format!("the request came through a proxy (`{name}`), and this server requires no token"),
        )
        .next("start the server without `--auth none`, and send a token")),
        None => Ok(()),
    }
}

fn is_allowed(app: &ServerState, name: &str) -> bool {
    let options = app.options();
    let listed = options.allow_hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    let ours = ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| host.eq_ignore_ascii_case(name));
    match (options.listen.ip().is_loopback(), options.allow_hosts.is_empty()) {
        (true, _) => listed || ours || name == options.listen.ip().to_string(),
        // Every request shows a token, which no foreign page has.
        (false, true) => true,
        (false, false) => listed || ours || name == options.listen.ip().to_string(),
    }
}

/// Returns a host without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => &host[..end + 2],
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// A moment from which to measure how long something took.
pub(crate) struct Since(rustix::time::Timespec);

/// Returns the present moment.
pub(crate) fn clock() -> Since {
    Since(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

impl Since {
    /// Returns the time since that moment.
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
    fn a_host_and_its_port_are_split() {
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
    fn e04_a_logged_path_holds_no_task_token() {
        for (path, shown) in [
            ("/v1/tasks/run-a.0.1.7.0123456789abcdef/done", "/v1/tasks/run-a.0.1.7.***/done"),
            ("/v1/tasks/run-a%2E0.1.7.0123456789abcdef", "/v1/tasks/run-a%2E0.1.7.***"),
            ("/v1/tasks/run-a%2E0123456789abcdef/fail", "/v1/tasks/***/fail"),
            ("//v1/tasks//run-a.0.1.7.0123456789abcdef/fail", "//v1/tasks//run-a.0.1.7.***/fail"),
            ("/v1/tasks/claim", "/v1/tasks/claim"),
            ("/v1/boards/b/tasks/v1.2", "/v1/boards/b/tasks/v1.2"),
        ] {
            assert_eq!(without_task_tokens(path), shown);
        }
    }

    #[test]
    fn the_run_is_parsed_from_a_path() {
        assert_eq!(run_in("/v1/runs/abc/steps"), Some("abc"));
        assert_eq!(run_in("/v1/runs/abc"), Some("abc"));
        assert_eq!(run_in("/v1/runs/"), None);
        assert_eq!(run_in("/v1/queues/x"), None);
    }
}
