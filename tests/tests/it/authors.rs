//! Every write of every endpoint and of every command names who did it.
//!
//! The endpoints come from the server's own description and the commands from its help, so that a new one fails here
//! until it is in the table.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sprag_tests::{HandWorker, Project, Sandbox, Server};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The writing endpoints: each is either sent by a token of its own name, with the word that the audit or the journal must
/// have for it, or is listed with the reason why nothing names its caller.
const ENDPOINTS: &str = "
POST /in/{pipeline}/{rule} = signed by the sender, and recorded as the rule's event
POST /v1/session = a cookie for the page, no change of the store
DELETE /v1/session = as above
POST /v1/pipelines/validate = changes nothing
POST /v1/rules/{pipeline}/{rule}/test = changes nothing
POST /v1/hooks/{id}/test = sends a message, changes nothing
POST /v1/tasks/{token}/start = renews a lease
POST /v1/tasks/{token}/heartbeat = renews a lease
POST /v1/work/heartbeat = renews leases
POST /v1/work/watch = changes nothing
POST /v1/work/logs = appends to a log, which belongs to its attempt
POST /v1/work/environment = recorded as the worker's, see security_workers
POST /v1/work/tidy = changes nothing
POST /v1/work/destroy = recorded as the worker's, see security_workers
POST /v1/work/destroyed = recorded as the worker's, see security_workers
POST /v1/runs/{run}/comments/sent = sends the comments as a message: thread/messages
POST /v1/runs/{run}/steps/{step}/thread/messages = starts a run, as POST /v1/runs
POST /v1/runs/{run}/steps/{step}/thread/stop = see threads: it needs an agent that answers
POST /v1/runs/{run}/steps/{step}/thread/archive = see transcripts: it needs the thread of an agent
DELETE /v1/runs/{run}/steps/{step}/thread = see transcripts: it needs the thread of an agent
POST /v1/work/file = changes nothing
POST /v1/work/files = sends a file of a step that the worker holds, see passed_files
POST /v1/environments/{id}/cleanup = see below: it needs a worktree
POST /v1/runs
POST /v1/runs/{run}/cancel
POST /v1/runs/{run}/retry
POST /v1/runs/{run}/resume
POST /v1/runs/{run}/rewind
POST /v1/runs/{run}/fork
POST /v1/runs/{run}/skip
POST /v1/runs/{run}/signals
POST /v1/runs/{run}/comments
DELETE /v1/runs/{run}/comments/{id}
POST /v1/gates/{id}/answer
POST /v1/queues/{queue}/hold
POST /v1/queues/{queue}/release
PUT /v1/queues/{queue}/limit
POST /v1/accounts/{account}/hold
POST /v1/accounts/{account}/release
POST /v1/rules
DELETE /v1/rules/{pipeline}/{rule}
POST /v1/rules/{pipeline}/{rule}/pause
POST /v1/rules/{pipeline}/{rule}/resume
POST /v1/rules/{pipeline}/{rule}/fire
POST /v1/rules/{pipeline}/{rule}/backfill
POST /v1/deliveries/{id}/replay
POST /v1/hooks
DELETE /v1/hooks/{id}
POST /v1/hooks/{id}/retry
POST /v1/tokens
DELETE /v1/tokens/{id}
POST /v1/tokens/{id}/rotate
POST /v1/boards
PUT /v1/boards/{board}/plan
POST /v1/boards/{board}/close
POST /v1/boards/{board}/tasks
POST /v1/boards/{board}/tasks/{task}/cancel
POST /v1/boards/{board}/tasks/{task}/retry
POST /v1/boards/{board}/notes
POST /v1/tasks/claim
POST /v1/tasks/{token}/done
POST /v1/tasks/{token}/fail
POST /v1/tasks/{token}/release
POST /v1/work/register
POST /v1/work/claim
POST /v1/work/drain
POST /v1/work/leave
POST /v1/work/finish
POST /v1/work/release
POST /v1/work/vanished
";

fn author(entry: &Value) -> String {
    entry["by"].as_str().unwrap_or_default().to_owned()
}

/// A server, and a log of the endpoints that were sent.
struct Scene<'s> {
    server: &'s Server,
    sent: BTreeSet<String>,
    /// The number of tokens that were made.
    tokens: usize,
    unnamed: Vec<String>,
}

impl Scene<'_> {
    /// Returns everything that names an author: the audit and the journal.
    fn named(&self) -> Vec<String> {
        let audit = self.server.get("/v1/audit?limit=10000");
        let acts = audit["acts"].as_array().expect("acts").iter();
        let mut named: Vec<String> = acts.map(author).collect();
        let mut after = 0;
        loop {
            let page = self.server.get(&format!("/v1/journal?limit=1000&after={after}"));
            let entries = page["entries"].as_array().expect("entries");
            let Some(last) = entries.last() else { return named };
            after = last["seq"].as_u64().expect("a number");
            named.extend(entries.iter().map(author));
        }
    }

    /// Makes a token for one endpoint.
    fn token(&mut self, endpoint: &str) -> (String, String) {
        self.tokens += 1;
        let name = format!("t{}", self.tokens);
        self.sent.insert(endpoint.to_owned());
        let token = self.server.post("/v1/tokens", &json!({ "name": name, "scopes": ["admin"] }));
        (name, text(&token.expect(201).json()["token"]))
    }

    /// Notes an endpoint whose caller no entry names.
    fn check(&mut self, endpoint: &str, is_author: impl Fn(&str) -> bool) {
        if !self.named().iter().any(|by| is_author(by)) {
            self.unnamed.push(endpoint.to_owned());
        }
    }

    /// Sends a request with a token of its own, and checks that an entry names it.
    fn send(&mut self, endpoint: &str, path: &str, body: &Value) -> Value {
        let (name, token) = self.token(endpoint);
        let (method, _) = endpoint.split_once(' ').expect("a method");
        let reply = self.server.request(method, path).token(&token).json(body).send();
        assert!((200..300).contains(&reply.status), "{endpoint}: {} {}", reply.status, reply.text());
        // An agent is named with its token.
        self.check(endpoint, |by| by == format!("token:{name}") || by.ends_with(&format!("@{name}")));
        serde_json::from_slice(&reply.body).unwrap_or_default()
    }

    /// Has a worker with a token of its own send a request.
    fn work(&mut self, endpoint: &str, key: char, body: impl FnOnce(&HandWorker<'_>) -> Value) {
        let (name, token) = self.token(endpoint);
        let server = self.server;
        let worker = HandWorker::unregistered(server, key, Some(&token), "default");
        worker.register("build-1/1/1/boot/1").expect(200);
        let (_, path) = endpoint.rsplit_once('/').expect("a path");
        let body = body(&worker);
        if path != "register" {
            worker.post(path, &body).expect(200);
        }
        self.check(endpoint, |by| by == format!("token:{name}"));
    }
}

const ASKS: &str = "name: asks\nsteps:\n  - { id: heard, wait: { signal: go } }\n  - { id: ask, needs: [], gate: { ask: 'Go?' } }\n  - { id: work, run: 'true', needs: [ask, heard] }\n";
const FAILS: &str = "name: fails\nsteps:\n  - { id: ask, gate: { ask: 'Go?' } }\n";
const WORK: &str = "name: work\nsteps:\n  - { id: a, run: 'true' }\n";
const RULES: &str = "name: ruled\non:\n  - { id: daily, schedule: { cron: '0 12 * * *' }, overlap: allow }\nsteps:\n  - { id: a, run: 'true' }\n";

#[test]
fn i01_every_endpoint_that_writes_names_its_caller() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--rate-limit", "100000"]);
    let mut scene = Scene { server: &server, sent: BTreeSet::new(), tokens: 0, unnamed: Vec::new() };
    let none = json!({});

    // Runs.
    let run = text(&scene.send("POST /v1/runs", "/v1/runs", &json!({ "yaml": ASKS }))["id"]);
    let of = |run: &str, what: &str| format!("/v1/runs/{run}/{what}");
    let gate = |run: &str| text(&server.get(&format!("/v1/gates?run={run}"))["gates"][0]["id"]);
    scene.send("POST /v1/runs/{run}/signals", &of(&run, "signals"), &json!({ "name": "go" }));
    let answer = format!("/v1/gates/{}/answer", gate(&run));
    scene.send("POST /v1/gates/{id}/answer", &answer, &json!({ "choice": "yes" }));
    scene.send("POST /v1/runs/{run}/skip", &of(&run, "skip"), &json!({ "step": "work" }));
    server.until(&run, "completed");
    let commit = "a".repeat(40);
    let comment = json!({
        "from": commit, "to": commit, "path": "a.txt", "side": "new", "first": 1, "last": 1, "text": "why?",
    });
    let comment =
        scene.send("POST /v1/runs/{run}/comments", &of(&run, "comments"), &comment)["id"].to_string();
    let comment = of(&run, &format!("comments/{}", comment.trim_matches('"')));
    scene.send("DELETE /v1/runs/{run}/comments/{id}", &comment, &none);
    scene.send("POST /v1/runs/{run}/fork", &of(&run, "fork"), &json!({ "from": "ask" }));
    scene.send("POST /v1/runs/{run}/rewind", &of(&run, "rewind"), &json!({ "to": "ask" }));
    scene.send("POST /v1/runs/{run}/cancel", &of(&run, "cancel"), &none);
    server.until(&run, "cancelled");
    scene.send("POST /v1/runs/{run}/resume", &of(&run, "resume"), &none);
    let failed = server.run(FAILS);
    server.post(&format!("/v1/gates/{}/answer", gate(&failed)), &json!({ "choice": "no" })).expect(200);
    server.until(&failed, "failed");
    scene.send("POST /v1/runs/{run}/retry", &of(&failed, "retry"), &none);

    // Queues, accounts, hooks, tokens.
    scene.send("POST /v1/queues/{queue}/hold", "/v1/queues/q/hold", &none);
    scene.send("POST /v1/queues/{queue}/release", "/v1/queues/q/release", &none);
    scene.send("PUT /v1/queues/{queue}/limit", "/v1/queues/q/limit", &json!({ "limit": 3 }));
    scene.send("POST /v1/accounts/{account}/hold", "/v1/accounts/claude/hold", &json!({ "seconds": 60 }));
    scene.send("POST /v1/accounts/{account}/release", "/v1/accounts/claude/release", &none);
    let hook =
        text(&scene.send("POST /v1/hooks", "/v1/hooks", &json!({ "url": "http://127.0.0.1:9/" }))["id"]);
    scene.send("POST /v1/hooks/{id}/retry", &format!("/v1/hooks/{hook}/retry"), &none);
    scene.send("DELETE /v1/hooks/{id}", &format!("/v1/hooks/{hook}"), &none);
    let new = json!({ "name": "made", "scopes": ["read"] });
    let token = text(&scene.send("POST /v1/tokens", "/v1/tokens", &new)["id"]);
    let rotated = scene.send("POST /v1/tokens/{id}/rotate", &format!("/v1/tokens/{token}/rotate"), &none);
    let token = format!("/v1/tokens/{}", text(&rotated["id"]));
    scene.send("DELETE /v1/tokens/{id}", &token, &none);

    // Rules.
    scene.send("POST /v1/rules", "/v1/rules", &json!({ "yaml": RULES }));
    let rule = |what: &str| format!("/v1/rules/ruled/daily/{what}");
    scene.send("POST /v1/rules/{pipeline}/{rule}/fire", &rule("fire"), &none);
    let event = text(&server.get("/v1/deliveries?rule=ruled/daily")["deliveries"][0]["event"]);
    scene.send("POST /v1/deliveries/{id}/replay", &format!("/v1/deliveries/{event}/replay"), &none);
    let span = json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z" });
    scene.send("POST /v1/rules/{pipeline}/{rule}/backfill", &rule("backfill"), &span);
    scene.send("POST /v1/rules/{pipeline}/{rule}/pause", &rule("pause"), &none);
    scene.send("POST /v1/rules/{pipeline}/{rule}/resume", &rule("resume"), &none);
    scene.send("DELETE /v1/rules/{pipeline}/{rule}", "/v1/rules/ruled/daily", &none);

    // Boards and tasks.
    scene.send("POST /v1/boards", "/v1/boards", &json!({ "name": "b" }));
    scene.send("PUT /v1/boards/{board}/plan", "/v1/boards/b/plan", &json!({ "goal": "g" }));
    let tasks = json!({ "tasks": [{ "text": "1" }, { "text": "2" }, { "text": "3" }, { "text": "4" }] });
    scene.send("POST /v1/boards/{board}/tasks", "/v1/boards/b/tasks", &tasks);
    let note = json!({ "author": "ada", "text": "n" });
    scene.send("POST /v1/boards/{board}/notes", "/v1/boards/b/notes", &note);
    scene.send("POST /v1/boards/{board}/tasks/{task}/cancel", "/v1/boards/b/tasks/4/cancel", &none);
    scene.send("POST /v1/boards/{board}/tasks/{task}/retry", "/v1/boards/b/tasks/4/retry", &none);
    for (what, body) in [("done", &none), ("fail", &json!({ "reason": "r" })), ("release", &none)] {
        let claim = json!({ "board": "b", "name": "ada" });
        let claimed = scene.send("POST /v1/tasks/claim", "/v1/tasks/claim", &claim);
        let path = format!("/v1/tasks/{}/{what}", text(&claimed["task"]["token"]));
        scene.send(&format!("POST /v1/tasks/{{token}}/{what}"), &path, body);
    }
    scene.send("POST /v1/boards/{board}/close", "/v1/boards/b/close", &none);

    // Workers.
    for nonce in 1..=3 {
        let _ = (nonce, server.run(WORK));
    }
    scene.work("POST /v1/work/register", 'a', |_| json!({}));
    scene.work(
        "POST /v1/work/claim",
        'b',
        |worker| json!({ "claimer": worker.claimer(1), "limit": 1, "wait_ms": 0 }),
    );
    let held = |worker: &HandWorker<'_>| worker.claim(2).expect("an execution");
    scene.work("POST /v1/work/finish", 'c', |worker| {
        json!({ "lease": held(worker), "ending": { "how": "completed", "result": null }, "next": null })
    });
    scene.work("POST /v1/work/release", 'd', |worker| json!({ "lease": held(worker) }));
    scene.work("POST /v1/work/vanished", 'e', |worker| json!({ "lease": held(worker) }));
    scene.work("POST /v1/work/drain", 'f', |_| json!({}));
    scene.work("POST /v1/work/leave", 'g', |_| json!({}));

    // Every endpoint that writes is in the table, and every one without a reason was sent.
    let described = server.anonymous("GET", "/openapi.json").send().expect(200).json();
    let mut writing = BTreeSet::new();
    for (path, operations) in described["paths"].as_object().expect("paths") {
        for method in operations.as_object().expect("operations").keys().filter(|method| *method != "get") {
            writing.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let lines = || ENDPOINTS.trim().lines().map(|line| line.split_once(" = ").unwrap_or((line, "")));
    let known: BTreeSet<String> = lines().map(|(endpoint, _)| endpoint.to_owned()).collect();
    assert_eq!(writing, known, "put every endpoint that writes into the table of this test");
    let wanted: BTreeSet<String> =
        lines().filter(|(_, reason)| reason.is_empty()).map(|(endpoint, _)| endpoint.to_owned()).collect();
    assert_eq!(scene.sent, wanted);
    assert_eq!(scene.unnamed, Vec::<String>::new(), "no entry names the callers of these");
    // Nothing else is unnamed either, among what people and agents did.
    let audit = server.get("/v1/audit?limit=10000");
    let unnamed: Vec<&Value> =
        audit["acts"].as_array().expect("acts").iter().filter(|act| act["by"].is_null()).collect();
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}

/// The commands that write, with the act that the local user's audit has for each.
#[test]
fn i01_every_command_that_writes_names_the_local_user() {
    let project = Project::new();
    let sandbox = &project.sandbox;
    let user = {
        project.sprag(["token", "new", "first"]).expect(0);
        text(&sandbox.json(["audit", "--json"])[0]["by"])
    };
    assert!(user.starts_with("user:"), "{user}");
    let count = |act: &str| {
        let acts = sandbox.json(["audit", "--json", "--act", act, "--limit", "10000"]);
        acts.as_array().expect("acts").iter().filter(|one| one["by"] == user.as_str()).count()
    };
    let does = |act: &str, args: &[&str]| {
        let before = count(act);
        let answer = project.sprag(args);
        assert!([0, 5].contains(&answer.code), "{args:?}: {} {}", answer.code, answer.stderr);
        assert!(count(act) > before, "{args:?}: no {act} by {user}: {:#}", sandbox.json(["audit", "--json"]));
        answer.stdout.trim().to_owned()
    };
    let asks = sandbox.yaml("asks", ASKS).display().to_string();
    let ruled = sandbox.yaml("ruled", RULES).display().to_string();
    does("run.created", &["run", &asks, "--detach"]);
    let run = sandbox.newest().expect("a run");
    does("signal.sent", &["signal", &run, "go"]);
    does("step.skip_requested", &["skip", &run, "work"]);
    does("gate.answered", &["approve", &run, "ask"]);
    assert_eq!(sandbox.status_word(&run), "completed");
    does("run.created", &["fork", &run, "--from", "ask", "--detach"]);
    let fork = sandbox.newest().expect("a run");
    does("cancel.requested", &["cancel", &fork]);
    does("run.rewound", &["rewind", &run, "--to", "ask", "--detach"]);
    does("queue.changed", &["queue", "hold", "q"]);
    does("queue.changed", &["queue", "release", "q"]);
    does("queue.changed", &["queue", "limit", "q", "2"]);
    does("hold.set", &["account", "hold", "claude"]);
    does("hold.lifted", &["account", "release", "claude"]);
    does("rule.created", &["rule", "apply", &ruled]);
    does("rule", &["rule", "pause", "daily"]);
    does("rule", &["rule", "resume", "daily"]);
    does("rule", &["rule", "rm", "daily"]);
    does("token.created", &["token", "new", "second"]);
    does("token.rotated", &["token", "rotate", "second"]);
    does("token.removed", &["token", "rm", "second"]);
    does("run.created", &["board", "new", "b"]);
    does("board.changed", &["board", "plan", "b", "--goal", "g"]);
    does("task.added", &["task", "add", "b", "one"]);
    does("task.added", &["task", "add", "b", "two"]);
    does("note.added", &["board", "note", "b", "n", "--as", "ada"]);
    does("task.cancel_requested", &["task", "cancel", "b", "2"]);
    does("task.retry_requested", &["task", "retry", "b", "2"]);
    does("board.closed", &["board", "close", "b"]);
    // What agents, workers and rules did is named, too: nothing is without an author.
    let token = project.sprag(["task", "claim", "--board", "b", "--as", "ada"]).expect(0).stdout;
    project.sprag(["task", "done", token.trim()]).expect(0);
    let acts = sandbox.json(["audit", "--json", "--limit", "10000"]);
    let acts = acts.as_array().expect("acts");
    let unnamed: Vec<&Value> = acts.iter().filter(|act| act["by"].is_null()).collect();
    assert!(unnamed.is_empty(), "{unnamed:#?}");
    assert!(acts.iter().any(|act| act["by"] == "agent:ada"), "{acts:#?}");
    let reported = project.sprag(["events", "--json"]).expect(0).stdout;
    let reported = reported.lines().rfind(|line| line.contains("\"execution.completed\"")).expect("a report");
    assert!(reported.contains("\"by\":\"agent:ada\""), "{reported}");
    // The same names are in `events --json`.
    let events = project.sprag(["events", "--json", "--run", &run]).expect(0).stdout;
    assert!(events.contains(&format!("\"by\":\"{user}\"")), "{events}");
}
