//! Every endpoint with every scope and every kind of limit, through a real server.
//!
//! The endpoints come from the server's own description, so that a new one fails here until it is classified. The table
//! is written for this test alone: it shares nothing with the server's.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sprag_tests::{HandWorker, Reply, Sandbox, Server};

/// The object of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    /// Open to callers without a token.
    Open,
    /// No object: the same for all callers with the scope.
    None,
    Run,
    Gate,
    Board,
    Pipeline,
    Rule,
    Delivery,
    Queue,
    /// The whole server: closed to every caller with limits.
    Server,
    /// A list, in which a limited caller sees its part.
    List,
    /// Checked elsewhere: the request's body names the object, or the caller holds it.
    Other,
}

use Object::*;

/// The scope that each endpoint needs, and its object.
const TABLE: &str = "
GET /healthz - open
GET /readyz - open
GET /metrics read server
POST /in/{pipeline}/{rule} - open
POST /v1/session - open
DELETE /v1/session - open
GET /v1/me read none
GET /v1/lifecycles read none
GET /v1/pipelines read list
POST /v1/pipelines/validate run none
GET /v1/pipelines/{pipeline} read pipeline
GET /v1/runs read list
POST /v1/runs run other
GET /v1/runs/find read list
GET /v1/waiting read list
GET /v1/durations read other
GET /v1/runs/{run} read run
GET /v1/runs/{run}/questions read run
GET /v1/runs/{run}/steps read run
GET /v1/runs/{run}/steps/{step} read run
GET /v1/runs/{run}/executions read run
GET /v1/runs/{run}/explain read run
GET /v1/runs/{run}/graph read run
GET /v1/runs/{run}/changes read run
GET /v1/runs/{run}/diff read run
GET /v1/runs/{run}/comments read run
POST /v1/runs/{run}/comments run run
POST /v1/runs/{run}/comments/sent run run
DELETE /v1/runs/{run}/comments/{id} run run
GET /v1/runs/{run}/artifacts read run
GET /v1/runs/{run}/artifacts/{path} read run
GET /v1/runs/{run}/steps/{step}/log read run
GET /v1/runs/{run}/steps/{step}/log/lines read run
GET /v1/runs/{run}/steps/{step}/log/search read run
GET /v1/runs/{run}/steps/{step}/thread read run
POST /v1/runs/{run}/steps/{step}/thread/messages run run
DELETE /v1/runs/{run}/steps/{step}/thread run run
POST /v1/runs/{run}/steps/{step}/thread/archive run run
GET /v1/runs/{run}/steps/{step}/thread/transcript read run
POST /v1/runs/{run}/steps/{step}/thread/stop run run
POST /v1/runs/{run}/retry run run
POST /v1/runs/{run}/resume run run
POST /v1/runs/{run}/rewind run run
POST /v1/runs/{run}/fork run run
POST /v1/runs/{run}/skip run run
POST /v1/runs/{run}/signals run run
POST /v1/runs/{run}/cancel run run
GET /v1/threads read list
GET /v1/gates read list
GET /v1/gates/{id} read gate
POST /v1/gates/{id}/answer run gate
GET /v1/environments read list
GET /v1/environments/{id} read other
POST /v1/environments/{id}/cleanup run other
GET /v1/landings read list
GET /v1/queues read list
GET /v1/tasks read list
POST /v1/queues/{queue}/hold run queue
POST /v1/queues/{queue}/release run queue
PUT /v1/queues/{queue}/limit run queue
GET /v1/workers read list
GET /v1/accounts read list
POST /v1/accounts/{account}/hold run server
POST /v1/accounts/{account}/release run server
GET /v1/rules read list
GET /v1/rules/{pipeline}/{rule} read rule
POST /v1/rules/{pipeline}/{rule}/pause run rule
POST /v1/rules/{pipeline}/{rule}/resume run rule
POST /v1/rules/{pipeline}/{rule}/fire run rule
POST /v1/rules/{pipeline}/{rule}/test run rule
POST /v1/rules/{pipeline}/{rule}/backfill run rule
GET /v1/rules/{pipeline}/{rule}/explain read rule
POST /v1/rules run server
GET /v1/deliveries read list
GET /v1/deliveries/{id} read delivery
POST /v1/deliveries/{id}/replay run delivery
DELETE /v1/rules/{pipeline}/{rule} run rule
GET /v1/events read list
GET /v1/journal read list
GET /v1/refusals read list
GET /v1/audit admin server
GET /v1/hooks admin server
POST /v1/hooks admin server
GET /v1/hooks/{id} admin server
DELETE /v1/hooks/{id} admin server
POST /v1/hooks/{id}/retry admin server
POST /v1/hooks/{id}/test admin server
GET /v1/tokens admin server
POST /v1/tokens admin server
DELETE /v1/tokens/{id} admin server
POST /v1/tokens/{id}/rotate admin server
GET /v1/boards read list
POST /v1/boards run other
GET /v1/boards/{board} read board
PUT /v1/boards/{board}/plan run board
POST /v1/boards/{board}/close run board
GET /v1/boards/{board}/report read board
GET /v1/boards/{board}/tasks read board
POST /v1/boards/{board}/tasks run board
GET /v1/boards/{board}/tasks/{task} read board
POST /v1/boards/{board}/tasks/{task}/cancel run board
POST /v1/boards/{board}/tasks/{task}/retry run board
GET /v1/boards/{board}/notes read board
POST /v1/boards/{board}/notes work board
POST /v1/tasks/claim work other
POST /v1/tasks/{token}/start work other
POST /v1/tasks/{token}/heartbeat work other
POST /v1/tasks/{token}/done work other
POST /v1/tasks/{token}/fail work other
POST /v1/tasks/{token}/release work other
POST /v1/work/register work other
POST /v1/work/claim work other
POST /v1/work/heartbeat work other
POST /v1/work/watch work other
POST /v1/work/drain work other
POST /v1/work/leave work other
POST /v1/work/finish work other
POST /v1/work/release work other
POST /v1/work/vanished work other
POST /v1/work/logs work other
POST /v1/work/files work other
POST /v1/work/file work other
POST /v1/work/environment work other
POST /v1/work/tidy work other
POST /v1/work/destroy work other
POST /v1/work/destroyed work other
";

struct Endpoint {
    method: String,
    path: String,
    /// The scope that it needs; `-` if it is open.
    scope: String,
    object: Object,
}

fn endpoints() -> Vec<Endpoint> {
    let object = |word: &str| match word {
        "open" => Open,
        "none" => None,
        "run" => Run,
        "gate" => Gate,
        "board" => Board,
        "pipeline" => Pipeline,
        "rule" => Rule,
        "delivery" => Delivery,
        "queue" => Queue,
        "server" => Server,
        "list" => List,
        "other" => Other,
        _ => panic!("{word}"),
    };
    let lines = TABLE.trim().lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .map(|words| Endpoint {
            method: words[0].to_owned(),
            path: words[1].to_owned(),
            scope: words[2].to_owned(),
            object: object(words[3]),
        })
        .collect()
}

/// Returns a pipeline with a rule, a question and a step in its own queue.
fn pipeline(name: &str, team: &str, queue: &str) -> String {
    format!(
        "name: {name}\nlabels: {{ team: {team} }}\non:\n  - id: daily\n    schedule: {{ cron: '0 12 * * *' }}\n    \
         overlap: allow\nsteps:\n  - {{ id: ask, gate: {{ ask: 'Go?' }} }}\n  - {{ id: work, run: 'true', queue: {queue} }}\n"
    )
}

/// The objects of one team: of the two, one is within the limits and one beyond.
struct Objects {
    run: String,
    gate: String,
    board: &'static str,
    pipeline: &'static str,
    delivery: String,
    queue: &'static str,
}

impl Objects {
    fn of(
        server: &sprag_tests::Server,
        pipeline: &'static str,
        queue: &'static str,
        board: &'static str,
    ) -> Objects {
        let run = server.post("/v1/runs", &json!({ "pipeline": pipeline })).expect(201).json();
        let run = text(&run["id"]);
        let gate = text(&server.get(&format!("/v1/gates?run={run}"))["gates"][0]["id"]);
        server.post("/v1/boards", &json!({ "name": board, "queue": queue })).expect(201);
        server.post(&format!("/v1/rules/{pipeline}/daily/fire"), &json!({})).expect(200);
        let fired = server.get(&format!("/v1/deliveries?rule={pipeline}/daily"));
        let delivery = text(&fired["deliveries"][0]["event"]);
        Objects { run, gate, board, pipeline, delivery, queue }
    }

    /// Returns the path of a request about these objects.
    fn path(&self, endpoint: &Endpoint) -> String {
        let id = match endpoint.object {
            Gate => &self.gate,
            Delivery => &self.delivery,
            _ => "999",
        };
        let values: BTreeMap<&str, &str> = BTreeMap::from([
            ("{run}", &*self.run),
            ("{id}", id),
            ("{board}", self.board),
            ("{pipeline}", self.pipeline),
            ("{rule}", "daily"),
            ("{queue}", self.queue),
            ("{step}", "work"),
            ("{task}", "1"),
            ("{token}", "none"),
            ("{path}", "none"),
            ("{account}", "none"),
        ]);
        values.iter().fold(endpoint.path.clone(), |path, (name, value)| path.replace(name, value))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// Sends a request. Of a stream only the head is read.
fn send(server: &Server, token: &str, method: &str, path: &str) -> Reply {
    let request = server.request(method, path).token(token);
    let request = if method == "GET" { request } else { request.json(&json!({})) };
    if path.starts_with("/v1/events") {
        let head = request.open().expect("an answer");
        let (status, headers) = (head.status, head.headers.clone());
        head.cut();
        return Reply { status, headers, body: Vec::new() };
    }
    request.send()
}

fn is_refused(reply: &Reply) -> bool {
    reply.status == 403 || reply.status == 401
}

fn token(sandbox: &Sandbox, name: &str, args: &[&str]) -> String {
    let mut all = vec!["token", "add", name];
    all.extend(args);
    sandbox.sprag(all).expect(0).stdout.trim().to_owned()
}

#[test]
fn e04_every_endpoint_keeps_every_scope_and_every_limit() {
    let sandbox = Sandbox::new();
    for (name, team, queue) in [("deploy-a", "a", "qa"), ("build-b", "b", "qb")] {
        sandbox.write(&format!("project/.sprag/pipelines/{name}.yaml"), &pipeline(name, team, queue));
        sandbox.sprag(["rule", "apply", &format!("project/.sprag/pipelines/{name}.yaml")]).expect(0);
    }
    let project = sandbox.path("project").display().to_string();
    let server = Server::start(&sandbox, &["--no-worker", "--project", &project]);
    let inside = Objects::of(&server, "deploy-a", "qa", "deploy-tasks");
    let beyond = Objects::of(&server, "build-b", "qb", "build-tasks");

    // Every endpoint of the server is in the table.
    let described = server.anonymous("GET", "/openapi.json").send().expect(200).json();
    let mut known: Vec<(String, String)> = Vec::new();
    for (path, operations) in described["paths"].as_object().expect("paths") {
        for method in operations.as_object().expect("operations").keys() {
            known.push((method.to_uppercase(), path.clone()));
        }
    }
    known.sort();
    let endpoints = endpoints();
    let mut listed: Vec<(String, String)> =
        endpoints.iter().map(|one| (one.method.clone(), one.path.clone())).collect();
    listed.sort();
    assert_eq!(known, listed, "classify every endpoint of the API in this test");

    let scopes = ["read", "run", "work", "admin"];
    let tokens = scopes.map(|scope| (scope, token(&sandbox, scope, &["--scope", scope])));
    let limited = [
        ("pipeline", token(&sandbox, "by-pipeline", &["--scope", "run", "--pipeline", "deploy-*"])),
        ("label", token(&sandbox, "by-label", &["--scope", "run", "--label", "team=a"])),
        ("queue", token(&sandbox, "by-queue", &["--scope", "run", "--scope", "work", "--queue", "qa"])),
    ];
    // The token of a step, which a worker asks for and hands to the agent of the step.
    server.run("name: held\nsteps:\n  - { id: a, run: 'true' }\n");
    let worker = HandWorker::new(&server, 'a');
    let lease = worker.claim(1).expect("an execution");
    let of_step =
        text(&worker.ask(&lease, json!({ "about": "step_token" })).expect(200).json()["step_token"]);
    let mut wrong: Vec<String> = Vec::new();
    for endpoint in &endpoints {
        let Endpoint { method, scope, object, .. } = endpoint;
        let path = beyond.path(endpoint);
        let mut check = |what: String, is_right: bool, reply: &Reply| {
            if !is_right {
                wrong.push(format!("{method} {path}, {what}: {} {}", reply.status, reply.text()));
            }
        };
        // Without a token. Guesses are slowed down, so that some are answered with 429.
        let reply = match path.as_str() {
            "/v1/events" => server.anonymous(method, &path).send(),
            _ => server.anonymous(method, &path).json(&json!({})).send(),
        };
        let closed = reply.status == 401 || reply.status == 429;
        check("without a token".into(), closed != (*object == Open) || path == "/v1/session", &reply);
        if *object == Open {
            continue;
        }
        let reply = send(&server, &of_step, method, &path);
        check("the token of a step".into(), reply.status == 403, &reply);
        for (has, token) in &tokens {
            let reply = send(&server, token, method, &path);
            // A `work` token reads what it holds, which here is nothing.
            let reads_nothing = *has == "work"
                && matches!(object, Run | Gate | Board | Pipeline | Rule | Delivery | Queue | Server);
            let covers = has == scope || *has == "admin" || scope == "read";
            check(format!("scope {has}"), is_refused(&reply) == (!covers || reads_nothing), &reply);
        }
        for (limit, token) in &limited {
            let may_work = *limit == "queue";
            let covers = scope == "read" || scope == "run" || scope == "work" && may_work;
            for (objects, is_inside) in [(&inside, true), (&beyond, false)] {
                let reply = send(&server, token, method, &objects.path(endpoint));
                let reached = match (object, *limit) {
                    (Server, _) => false,
                    (List | Other | None | Open, _) => true,
                    (Run | Gate, _) => is_inside,
                    (Board, "label") => false,
                    (Board, _) => is_inside,
                    (Pipeline, "pipeline") | (Rule | Delivery, "pipeline") | (Queue, "queue") => is_inside,
                    (Pipeline, _) => true,
                    (Rule | Delivery | Queue, _) => false,
                };
                let what = format!("limit {limit}, inside {is_inside}");
                check(what, is_refused(&reply) != (covers && reached), &reply);
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));

    // No list shows a limited caller anything of the other team, and the unlimited one sees both.
    for endpoint in endpoints.iter().filter(|one| one.object == List && one.path != "/v1/events") {
        let path = &endpoint.path;
        for (limit, token) in &limited {
            let told = send(&server, token, "GET", path).expect(200).text();
            for secret in [&*beyond.run, "build-b", "build-tasks"] {
                // Without a limit on names, the project's pipelines are all shown.
                let is_shown = *path == "/v1/pipelines" && *limit != "pipeline";
                assert!(is_shown || !told.contains(secret), "{path} shows {secret} to {limit}: {told}");
            }
        }
    }
    for path in ["/v1/runs", "/v1/journal?limit=1000", "/v1/gates"] {
        for (limit, token) in &limited {
            let told = send(&server, token, "GET", path).expect(200).text();
            let all = send(&server, &tokens[0].1, "GET", path).expect(200).text();
            assert!(path == "/v1/gates" || told.contains(&*inside.run), "{path} {limit}: {told}");
            assert!(path == "/v1/gates" || all.contains(&*beyond.run), "{path}: {all}");
        }
    }
}
