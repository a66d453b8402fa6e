//! Exercises every endpoint with a body: runs, boards, tasks, gates, hooks, reports of remote workers, and the messages
//! of agents (`/mcp`).
//!
//! The fuzzer runs it on generated inputs, and an ordinary test of `sprag-server` runs it on the corpus.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::Value;
use sprag_app::App;
use sprag_server::{Auth, Options, openapi, unconnected};
use sprag_store::{Manual, Store};
use tower::ServiceExt;

/// A server without a connection, on a store in memory.
pub struct Api {
    runtime: tokio::runtime::Runtime,
    router: Router,
    /// Method and path of every endpoint that takes a body.
    endpoints: Vec<(String, String)>,
}

impl Api {
    /// Returns a new server.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let store =
            Store::in_memory(Arc::new(Manual::new(1_800_000_000_000, 1)), Arc::new(Manual::new(0, 1)));
        let options = Options {
            auth: Auth::None,
            // Long polls would wait in vain.
            request_timeout: Duration::from_millis(20),
            body_limit: 64 << 10,
            ..Options::new(([127, 0, 0, 1], 7878).into())
        };
        let data = std::env::temp_dir();
        let router = {
            let _entered = runtime.enter();
            unconnected(App::with_store(store, &data), options).expect("memory is there")
        };
        let mut api = Api { runtime, router, endpoints: endpoints() };
        // The paths below refer to this board and its task.
        api.send("POST", "/v1/boards", br#"{"name":"board","goal":"g"}"#);
        api.send("POST", "/v1/boards/board/tasks", br#"{"tasks":[{"id":"task","title":"t"}]}"#);
        api
    }

    /// Calls the endpoint that the first byte selects with the rest as its body. Returns the status of the answer.
    pub fn call(&mut self, bytes: &[u8]) -> u16 {
        let Some((first, body)) = bytes.split_first() else { return 0 };
        let (method, path) = self.endpoints[usize::from(*first) % self.endpoints.len()].clone();
        self.send(&method, &path, body)
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> u16 {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1:7878")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(Body::from(body.to_vec()))
            .expect("the paths are plain");
        let router = self.router.clone();
        self.runtime.block_on(async {
            let answer = router.oneshot(request).await.expect("a router always answers");
            let status = answer.status().as_u16();
            let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or("");
            let is_problem = kind.starts_with("application/problem+json");
            // Agents' messages have their own form of error.
            let told = path == "/mcp" || is_problem;
            assert!(status < 400 || told, "{method} {path}: {status} says nothing");
            assert!(status < 500, "{method} {path}: {status} is the server's fault");
            if is_problem {
                let bytes = answer.into_body().collect().await.expect("a problem is whole").to_bytes();
                let problem: Value = serde_json::from_slice(&bytes).expect("a problem is JSON");
                assert!(problem["title"].is_string() && problem["status"] == status, "{problem}");
            }
            status
        })
    }
}

/// Returns every endpoint that takes a body, with plain names in its path.
fn endpoints() -> Vec<(String, String)> {
    let described = openapi();
    let mut all = vec![("POST".to_owned(), "/mcp".to_owned())];
    for (path, item) in described["paths"].as_object().into_iter().flatten() {
        for method in ["post", "put", "patch"] {
            if !item[method].is_object() {
                continue;
            }
            let path: Vec<&str> = path
                .split('/')
                .map(|part| match part {
                    "{board}" => "board",
                    "{task}" => "task",
                    "{run}" => "00000000000a",
                    part if part.starts_with('{') => "1",
                    part => part,
                })
                .collect();
            all.push((method.to_uppercase(), path.join("/")));
        }
    }
    all
}
