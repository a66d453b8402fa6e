//! Conversations of a remote worker with a server, as a fuzzer generates them.
//!
//! A conversation is a few lines. The first byte of each selects the endpoint, the rest is the body, in which `@L`
//! stands for the lease of the worker, `@R` for its run, `@E` for the run's environment and `@F` for the fence. Without
//! these a fuzzer would never pass the check that the worker owns the step.
//!
//! The fuzzer runs it on generated inputs, and an ordinary test of `sprag-server` runs it on the corpus.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sprag_app::App;
use sprag_server::{Auth, Options, unconnected};
use sprag_store::{Manual, Store};
use tower::ServiceExt;

/// The most lines of a conversation.
const MAX_LINES: usize = 8;
const KEY: &str = "0123456789abcdef0123456789abcdef";
const PIPELINE: &str = "environment: { worktree: {} }\nsteps:\n  - { id: a, run: x, retry: { attempts: 9 } }\n  - { id: b, run: x }\n";

/// The endpoints of workers. Logs take their parameters in the query.
const ENDPOINTS: [&str; 14] = [
    "register",
    "claim",
    "heartbeat",
    "watch",
    "drain",
    "leave",
    "finish",
    "release",
    "vanished",
    "environment",
    "tidy",
    "destroy",
    "destroyed",
    "logs",
];

/// A server without a connection, on a store in memory, and a worker that holds a step.
pub struct WorkerApi {
    runtime: tokio::runtime::Runtime,
    router: Router,
    store: Store,
    /// The folder with the data directory and a file beside it that must stay untouched.
    folder: PathBuf,
    lease: Value,
    nonce: i64,
}

impl WorkerApi {
    /// Returns a new server.
    pub fn new() -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
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
        let nth = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sprag-work-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(folder.join("data")).expect("a folder");
        std::fs::write(folder.join("precious"), "precious").expect("a file");
        let router = {
            let _entered = runtime.enter();
            unconnected(App::with_store(store.clone(), &folder.join("data")), options)
                .expect("memory is there")
        };
        WorkerApi { runtime, router, store, folder, lease: Value::Null, nonce: 0 }
    }

    /// Runs one conversation. Returns the number of accepted lines.
    pub fn converse(&mut self, bytes: &[u8]) -> usize {
        self.begin();
        let mut accepted = 0;
        for line in bytes.split(|byte| *byte == b'\n').take(MAX_LINES) {
            let Some((first, body)) = line.split_first() else { continue };
            let endpoint = ENDPOINTS[usize::from(*first) % ENDPOINTS.len()];
            let status = match endpoint {
                "logs" => self.send_log(body),
                _ => self.send(&format!("/v1/work/{endpoint}"), &self.filled(body)).0,
            };
            accepted += usize::from((200..300).contains(&status));
            self.check();
        }
        self.look();
        accepted
    }

    /// Ensures that the worker is registered and holds a step.
    fn begin(&mut self) {
        let new = json!({
            "id": 1, "name": "w", "process": "east/1/1/b/n", "queues": "default", "labels": "", "slots": 9,
            "lease_ms": 60_000,
        });
        self.send("/v1/work/register", new.to_string().as_bytes());
        for _ in 0..3 {
            self.nonce += 1;
            let claimer = json!({
                "worker": 0, "queues": ["default"], "reserved_only": false, "lease_ms": 60_000, "nonce": self.nonce,
            });
            let wanted = json!({ "claimer": claimer, "limit": 1, "wait_ms": 0 });
            let (_, told) = self.send("/v1/work/claim", wanted.to_string().as_bytes());
            let lease = told["given"][0]["assignment"]["lease"].clone();
            if lease.is_object() {
                self.lease = lease;
                return;
            }
            self.send("/v1/runs", json!({ "yaml": PIPELINE, "dir": "/" }).to_string().as_bytes());
        }
    }

    /// Reads the stored state as other clients would. No report of a worker makes that fail.
    fn look(&mut self) {
        let run = self.lease["execution"]["run"].as_str().unwrap_or_default().to_owned();
        for path in ["", "/steps", "/executions", "/explain"] {
            self.request("GET", &format!("/v1/runs/{run}{path}"), b"");
        }
        for path in ["/v1/environments", "/v1/workers", "/v1/journal"] {
            self.request("GET", path, b"");
        }
    }

    /// Returns a body with its placeholders replaced.
    fn filled(&self, body: &[u8]) -> Vec<u8> {
        let run = self.lease["execution"]["run"].as_str().unwrap_or_default();
        let environment = self.store.queries().environments(true).ok();
        let environment = environment.as_ref().and_then(|rows| rows.last()).map_or(0, |row| row.id);
        let text = String::from_utf8_lossy(body);
        let text = text.replace("@L", &self.lease.to_string()).replace("@R", run);
        let text =
            text.replace("@E", &environment.to_string()).replace("@F", &self.lease["fence"].to_string());
        // A body that is not text is sent unchanged.
        if std::str::from_utf8(body).is_ok() { text.into_bytes() } else { body.to_vec() }
    }

    /// Sends the end of a log. The first two bytes are its offset and its part.
    fn send_log(&mut self, body: &[u8]) -> u16 {
        let [offset, part, text @ ..] = body else { return 0 };
        let (execution, fence) = (&self.lease["execution"], &self.lease["fence"]);
        let run = execution["run"].as_str().unwrap_or_default();
        let part = if part % 2 == 0 { "step" } else { "setup" };
        let path = format!(
            "/v1/work/logs?run={run}&step={}&attempt={}&fence={fence}&part={part}&offset={offset}",
            execution["step"], execution["attempt"],
        );
        self.send(&path, text).0
    }

    fn send(&mut self, path: &str, body: &[u8]) -> (u16, Value) {
        self.request("POST", path, body)
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1:7878")
            .header("content-type", "application/json")
            .header("x-sprag-worker", KEY)
            .body(Body::from(body.to_vec()))
            .expect("the paths are plain");
        let router = self.router.clone();
        self.runtime.block_on(async {
            let answer = router.oneshot(request).await.expect("a router always answers");
            let status = answer.status().as_u16();
            assert!(status < 500, "{path}: {status} is the server's fault");
            let bytes = answer.into_body().collect().await.expect("an answer is whole").to_bytes();
            let told: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
            assert!(status < 400 || told["title"].is_string(), "{path}: {status} says nothing");
            (status, told)
        })
    }

    /// Checks the invariants that hold for any report of a worker.
    fn check(&self) {
        for row in self.store.queries().environments(true).expect("memory is there") {
            assert!(row.host.contains('@'), "{}: an environment on a host of no token", row.host);
            assert!(row.path.contains("/worktrees/"), "{}: an environment that no worker makes", row.path);
        }
        let workers = self.store.queries().workers().expect("memory is there");
        assert!(workers.iter().all(|worker| worker.host().contains('@')), "a worker on a host of no token");
        assert!(
            workers.iter().all(|worker| !worker.name.chars().any(char::is_control)),
            "a name with escapes"
        );
        let names =
            std::fs::read_dir(&self.folder).expect("a folder").flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["data", "precious"], "a file outside the data directory");
        assert_eq!(std::fs::read(self.folder.join("precious")).expect("a file"), b"precious");
    }
}

impl Drop for WorkerApi {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
