//! A worker that a test plays: it sends to `/v1/work/*` exactly the requests of the test.

use serde_json::{Value, json};

use crate::http::{Reply, Server};

/// A worker that speaks HTTP by hand.
pub struct HandWorker<'s> {
    server: &'s Server,
    /// The key that it shows as `x-sprag-worker`.
    pub key: String,
    token: Option<String>,
    queue: String,
}

impl<'s> HandWorker<'s> {
    /// Returns a worker of the queue `default` that sends the server's own token and no process identity.
    pub fn new(server: &'s Server, key: char) -> HandWorker<'s> {
        let worker = HandWorker::unregistered(server, key, None, "default");
        worker.register("").expect(200);
        worker
    }

    /// Returns a worker that has not registered yet.
    pub fn unregistered(server: &'s Server, key: char, token: Option<&str>, queue: &str) -> HandWorker<'s> {
        let (key, token) = (key.to_string().repeat(32), token.map(str::to_owned));
        HandWorker { server, key, token, queue: queue.to_owned() }
    }

    /// Presents itself as this process (`HOST/PID/START/BOOT/NAMESPACE`).
    pub fn register(&self, process: &str) -> Reply {
        let new = json!({
            "id": 1, "name": "by hand", "process": process, "queues": self.queue, "slots": 1, "lease_ms": 60_000,
        });
        self.post("register", &new)
    }

    /// Sends to `/v1/work/PATH`.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.server.request("POST", &format!("/v1/work/{path}"));
        let request = request.header("x-sprag-worker", &self.key).json(body);
        match &self.token {
            Some(token) => request.token(token).send(),
            None => request.send(),
        }
    }

    /// Returns the terms of a claim with this nonce.
    pub fn claimer(&self, nonce: i64) -> Value {
        json!({
            "worker": 0, "queues": [self.queue], "reserved_only": false, "lease_ms": 60_000, "nonce": nonce,
        })
    }

    /// Claims one execution, and returns its lease.
    pub fn claim(&self, nonce: i64) -> Option<Value> {
        let wanted = json!({ "claimer": self.claimer(nonce), "limit": 1, "wait_ms": 0 });
        let got = self.post("claim", &wanted).expect(200).json();
        got["given"].get(0).map(|given| given["assignment"]["lease"].clone())
    }

    /// Asks or tells about the environment of the run whose step it holds.
    pub fn ask(&self, lease: &Value, ask: Value) -> Reply {
        self.post("environment", &json!({ "lease": lease, "ask": ask }))
    }

    /// Reports how an execution ended.
    pub fn finish(&self, lease: &Value, ending: Value) -> Reply {
        self.post("finish", &json!({ "lease": lease, "ending": ending, "next": null }))
    }

    /// Reports that an execution ended well.
    pub fn complete(&self, lease: &Value) -> Reply {
        self.finish(lease, json!({ "how": "completed", "result": null }))
    }
}
