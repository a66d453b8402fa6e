//! The dashboard's files. They need no token, because they contain nothing but the program that asks for one.

use axum::Router;
use axum::http::{HeaderMap, StatusCode, Uri, header};
#[cfg(feature = "dashboard")]
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::state::ServerState;

/// The pages' paths. Each of them is answered with the same file, whose program reads the address.
const PAGES: [&str; 19] = [
    "/",
    "/runs",
    "/runs/{*rest}",
    "/questions",
    "/boards",
    "/boards/{*rest}",
    "/landing",
    "/agents",
    "/agents/{*rest}",
    "/workers",
    "/rules",
    "/rules/{*rest}",
    "/pipelines",
    "/pipelines/{*rest}",
    "/environments",
    "/lifecycles",
    "/journal",
    "/settings",
    "/sign-in",
];

/// Scripts, styles and requests of this server alone, and no frame around it: a foreign page cannot click "approve".
#[cfg(feature = "dashboard")]
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Returns the routes of the pages and of their files.
pub(crate) fn router() -> Router<ServerState> {
    let pages = PAGES.into_iter().fold(Router::new(), |router, path| router.route(path, get(page)));
    pages.route("/assets/{*path}", get(asset)).route("/favicon.svg", get(asset))
}

/// Whether a path belongs to the dashboard.
pub(crate) fn is_page(path: &str) -> bool {
    let first = path.strip_prefix('/').and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let is_first_of_a_page = PAGES.iter().any(|page| page[1..].split('/').next() == Some(first));
    path == "/" || path == "/favicon.svg" || first == "assets" || (!first.is_empty() && is_first_of_a_page)
}

/// Returns the build of the dashboard; none if the server was built without it.
pub(crate) fn build() -> Option<String> {
    #[cfg(feature = "dashboard")]
    return Some(sprag_dashboard::build().to_owned());
    #[cfg(not(feature = "dashboard"))]
    None
}

async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let mut response = answer("index.html", &headers, "no-cache");
    if let Some(links) = preloads(uri.path()).and_then(|links| links.parse().ok()) {
        response.headers_mut().insert(header::LINK, links);
    }
    response
}

#[cfg(feature = "dashboard")]
fn preloads(path: &str) -> Option<&'static str> {
    sprag_dashboard::preloads(path)
}

#[cfg(not(feature = "dashboard"))]
fn preloads(_: &str) -> Option<&'static str> {
    None
}

async fn asset(uri: Uri, headers: HeaderMap) -> Response {
    answer(uri.path().trim_start_matches('/'), &headers, "public, max-age=31536000, immutable")
}

#[cfg(feature = "dashboard")]
fn answer(name: &str, headers: &HeaderMap, cache: &'static str) -> Response {
    send(name, headers, cache)
}

#[cfg(not(feature = "dashboard"))]
fn answer(_: &str, _: &HeaderMap, _: &'static str) -> Response {
    without()
}

/// Returns the answer of a server that was built without the dashboard.
#[cfg(any(test, not(feature = "dashboard")))]
fn without() -> Response {
    let text = "This server was built without the dashboard. Build it with the cargo feature `dashboard` of sprag-server.\n\
        The API is there: see /openapi.json.\n";
    (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

#[cfg(feature = "dashboard")]
fn send(name: &str, headers: &HeaderMap, cache: &'static str) -> Response {
    let Some(file) = sprag_dashboard::file(name) else {
        return crate::problem::Problem::not_found(format!("there is no file {name:?}"))
            .next("reload the page: the server may be newer")
            .into_response();
    };
    let tag = format!("\"{}\"", file.hash);
    let seen = headers.get(header::IF_NONE_MATCH).and_then(|seen| seen.to_str().ok());
    let mut response = if seen == Some(&tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let takes_gzip = accepted.is_some_and(|accepted| accepted.contains("gzip"));
        let mut response = match &file.gzipped {
            Some(gzipped) if takes_gzip => {
                let mut response = bytes::Bytes::from_static(gzipped).into_response();
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                response
            }
            _ => bytes::Bytes::from_static(file.bytes).into_response(),
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
        response
    };
    let out = response.headers_mut();
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    out.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    out.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    out.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    out.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        out.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn e24_a_server_without_the_pages_says_so() {
        let answer = without();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.expect("a body");
        assert!(body.starts_with(b"This server was built without the dashboard."), "{body:?}");
    }

    #[test]
    fn e24_only_pages_and_their_files_need_no_token() {
        for open in ["/", "/runs", "/runs/abc/steps/x", "/assets/x.js", "/favicon.svg", "/questions"] {
            assert!(is_page(open), "{open}");
        }
        for closed in
            ["/v1/runs", "/metrics", "/mcp", "//v1/runs", "/runsx", "", "/v1", "/openapi.json", "/assetsx"]
        {
            assert!(!is_page(closed), "{closed}");
        }
    }
}
