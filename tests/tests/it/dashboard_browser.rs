//! The dashboard's pages in a real browser.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sprag_tests::{Project, Server, nightly, program, until};

const HELLO: &str = "name: hello\nsteps:\n  - id: say\n    run: echo hello\n";
const FAILS: &str =
    "name: sad\nsteps:\n  - id: ok\n    run: 'true'\n  - id: bad\n    run: echo no luck; exit 3\n";
const FAN: &str = "name: fan\nlabels: { team: web }\nsteps:\n  - id: start\n    run: 'true'\n  - id: each\n    needs: [start]\n    \
    matrix: { n: [1, 2, 3] }\n    run: echo $N\n  - id: end\n    needs: [each]\n    run: 'true'\n";
const HOSTILE: &str = "name: hostile\nsteps:\n  - id: say\n    run: |\n      \
    printf '\\033[31mred\\033[0m plain\\n<img src=x onerror=alert(1)>\\n</script><script>alert(1)</script>\\n'\n      \
    printf '\\033]8;;http://evil.example\\007link\\033]8;;\\007 \\342\\200\\256reversed\\n'\n      \
    seq 1 500; echo the needle; seq 500 1500; head -c 100000 /dev/zero | tr '\\0' x; echo\n      \
    mkdir -p ../evil; echo '<script>alert(1)</script>' > '../evil/<img src=x onerror=alert(1)>.html'\n    \
    outputs: { page: '../evil/<img src=x onerror=alert(1)>.html' }\n";
/// A change that a person reviews; what is sent back becomes a line of the file.
const REVIEW: &str = "name: review\nenvironment: { worktree: {} }\nsteps:\n  - id: change\n    run: |\n      \
    printf 'first line\\nsecond line\\n%s\\n' \"$SPRAG_FEEDBACK\" > notes.txt\n      \
    seq 1 2000 > numbers.txt; printf '\\000\\001' > blob.bin; echo '<img src=x>' > '<b>.txt'\n  \
    - id: review\n    needs: [change]\n    gate: { ask: \"Is this <b>good</b>?\", choices: [yes, no] }\n    \
    on_fail: { rework: change, max: 2 }\n  - { id: land, needs: [review], land: main }\n";
const LANDS: &str = "name: lands\nenvironment: { worktree: {} }\nsteps:\n  - id: work\n    run: echo landed > landed.txt\n  \
    - { id: land, needs: [work], land: main }\n";
const SHIP: &str = "name: ship\ndescription: Ships <b>it</b>\non:\n  - id: nightly\n    schedule: { cron: '30 2 * * *', zone: Europe/Berlin }\n    \
    inputs: { count: 3 }\ninputs:\n  place: { type: string, enum: [here, there], default: here }\n  \
    count: { type: integer, required: true, min: 1 }\nsteps:\n  - id: go\n    run: echo {{ inputs.place }} {{ inputs.count }}\n";

/// A question with a form, whose choices lead to different steps.
const DECIDE: &str = "name: decide\nsteps:\n  - { id: build, run: echo built }\n  - id: how\n    needs: [build]\n    gate:\n      \
    ask: How is it released?\n      fields:\n        reason: { required: true, description: For the log }\n        \
    percent: { type: integer, default: 5, min: 1, max: 50 }\n      choices: [{ canary: { to: canary } }, { later: { to: park } }, never]\n  \
    - { id: canary, needs: [how], run: 'echo {{ steps.how.outputs.percent }} percent: {{ steps.how.outputs.reason }}' }\n  \
    - { id: park, needs: [how], run: echo parked }\n";
/// An agent whose work is checked: it fails, so that a person talks to it.
const TALKS: &str = "name: talks\nenvironment: { worktree: { keep: on_failure } }\nsteps:\n  - id: work\n    \
    agent: { use: robot, prompt: Work. }\n    check: { run: grep -q right made.txt }\n";
const SCRIPT: &str = "turns:\n  - when: the word right\n    do:\n      - shell: echo right > made.txt\n      - say: Corrected.\n  \
    - when: finish the task\n    do:\n      - say: There is nothing left to do.\n  - when: Work\n    do:\n      - shell: echo wrong > made.txt\n      - say: I made the file.\n";
/// A step that waits for a worker that never comes, and rounds.
const STUCK: &str = "name: stuck\nsteps:\n  - id: count\n    repeat: { until: steps.count.round >= 3, max: 5 }\n    run: echo round\n  \
    - { id: never, needs: [count], queue: nowhere, run: 'true' }\n  - { id: after, needs: [never], run: echo after }\n";

/// What the browser is shown: runs of every kind.
fn facts(project: &Project, server: &Server) -> Value {
    let folder = project.repo();
    let start = |yaml: &str, name: &str| -> String {
        let body = json!({ "yaml": yaml, "dir": folder, "name": name, "labels": { "team": "web" } });
        server.post("/v1/runs", &body).expect(201).json()["id"].as_str().expect("an id").to_owned()
    };
    let long = format!(
        "name: long\nsteps:\n  - id: ask\n    gate: {{ ask: \"{}\" }}\n",
        "a very long question without an end ".repeat(280)
    );
    let facts = json!({
        "board": "demo",
        "fan": start(FAN, "Nightly build of everything"),
        "failed": start(FAILS, &format!("A very long name {}", "that does not end ".repeat(6))),
        "hostile": start(HOSTILE, "<img src=x onerror=alert(1)>"),
        "gone": start(HELLO, "Soon forgotten"),
        "landed": start(LANDS, "Land it"),
        "asks": start(REVIEW, "Change the notes"),
        "long": start(&long, "A long question"),
        "decide": start(DECIDE, "Release 4.2"),
        "talks": start(TALKS, "Ask the agent"),
        "stuck": start(STUCK, "Stuck"),
        "slow": start("name: slow\nsteps:\n  - id: nap\n    run: echo napping; sleep 600\n", "A long nap"),
    });
    server.post("/v1/boards", &json!({ "name": "demo", "goal": "Show <i>tasks</i>" })).expect(201);
    let tasks =
        json!({ "tasks": [{ "text": "Write it", "key": "a" }, { "text": "Check it", "needs": ["a"] }] });
    server.post("/v1/boards/demo/tasks", &tasks).expect(200);
    server.post("/v1/rules", &json!({ "pipeline": "ship" })).expect(200);
    let id = |key: &str| facts[key].as_str().expect("an id").to_owned();
    for key in ["fan", "hostile", "gone", "landed"] {
        server.until(&id(key), "completed");
    }
    for key in ["failed", "talks"] {
        server.until(&id(key), "failed");
    }
    until("the rounds are over", || {
        server.get(&format!("/v1/runs/{}", id("stuck")))["waiting_for"] == "worker"
    });
    for key in ["asks", "long", "decide"] {
        until("the question is asked", || {
            server.get(&format!("/v1/runs/{}", id(key)))["waiting_for"] == "person"
        });
    }
    facts
}

/// The server under the browser, and what the browser asks its caller to do.
struct Stage {
    project: Project,
    server: Option<Server>,
    /// The number and the secret of a token that is removed later.
    guest: Option<(String, String)>,
}

impl Stage {
    /// Starts a server with a project, and with an agent that follows a script.
    fn serve(project: &Project, listen: &str) -> Server {
        let shop = project.sandbox.path("shop").display().to_string();
        let mut command = project.sandbox.command(["serve", "--listen", listen, "--project", &shop]);
        command.env("XDG_CONFIG_HOME", project.sandbox.path("config"));
        Server::from_process(&project.sandbox, project.sandbox.start_command(command))
    }

    fn start(project: Project) -> Stage {
        let sandbox = &project.sandbox;
        sandbox.write("shop/.sprag/pipelines/ship.yaml", SHIP);
        let script = sandbox.write("script.yaml", SCRIPT).display().to_string();
        let (program, home) = (program().display(), sandbox.path("robot").display().to_string());
        let agents = format!(
            "[robot]\ndriver = \"claude-stream\"\ncommand = [\"{program}\", \"agent\", \"fake\", \"{script}\", \"--speak\", \"claude\", \
             \"--home\", \"{home}\"]\n"
        );
        sandbox.write("config/sprag/agents.toml", &agents);
        let server = Stage::serve(&project, "127.0.0.1:0");
        Stage { project, server: Some(server), guest: None }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }

    /// Does what a line asks for, and returns the answer.
    fn act(&mut self, words: &[&str]) -> Value {
        match words {
            ["restart"] => {
                let running = self.server.take().expect("a server");
                let addr = running.addr.to_string();
                running.into_process().kill();
                let started = Stage::serve(&self.project, &addr);
                let made = started.run(HELLO);
                self.server = Some(started);
                json!({ "made": made })
            }
            ["unlog", run, step] => {
                let folder = self.project.sandbox.data().join("runs").join(run);
                let logs = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
                let name = |path: &std::path::PathBuf| {
                    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
                };
                let of_step = logs.filter(|path| name(path).contains(step));
                let removed = of_step.map(|path| std::fs::remove_file(path).expect("removed")).count();
                assert!(removed > 0, "{step} of {run} has a log");
                json!({ "removed": removed })
            }
            ["gc", run] => {
                until("the run is forgotten", || {
                    self.project.sandbox.sprag(["gc", "--keep", "1s"]).expect(0);
                    self.server().request("GET", &format!("/v1/runs/{run}")).send().status == 404
                });
                json!({})
            }
            ["token"] => {
                let body = json!({ "name": "guest", "scopes": ["read"] });
                let made = self.server().post("/v1/tokens", &body).expect(201).json();
                let text = |key: &str| made[key].as_str().expect("a text").to_owned();
                self.guest = Some((text("id"), text("token")));
                json!({ "token": made["token"] })
            }
            ["untoken"] => {
                let (id, token) = self.guest.take().expect("a token");
                self.server().request("DELETE", &format!("/v1/tokens/{id}")).send().expect(204);
                until("the token is refused", || {
                    self.server().anonymous("GET", "/v1/me").token(&token).send().status == 401
                });
                // Something happens, so that open pages ask the server.
                self.server().run(HELLO);
                json!({})
            }
            other => panic!("the browser asks for {other:?}"),
        }
    }
}

/// Browsers see every page, review and approve a change, meet bad input, and a server that is killed under them.
#[test]
fn e24_the_dashboard_works_in_a_browser() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser");
    assert!(
        folder.join("node_modules/playwright-core").exists(),
        "run `cargo xtask test`, or `npm ci` in tests/browser"
    );
    let mut stage = Stage::start(Project::new());
    let facts = facts(&stage.project, stage.server());
    let url = format!("http://{}", stage.server().addr);
    let mut command = Command::new("node");
    command
        .args(["smoke.mjs", &url, &stage.server().token, &facts.to_string()])
        .args(nightly(None, Some("--grid")));
    if let Some(shots) = std::env::var_os("SPRAG_SHOTS") {
        command.arg("--shots").arg(shots);
    }
    let mut browser = command
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node, which `cargo xtask test` installs");
    let mut told = Vec::new();
    for line in BufReader::new(browser.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if let Some(wish) = line.strip_prefix("do ") {
            let answer = stage.act(&wish.split(' ').collect::<Vec<_>>());
            writeln!(browser.stdin.as_mut().expect("a pipe"), "{answer}").expect("written");
        }
        told.push(line);
    }
    let status = browser.wait().expect("it has ended");
    assert!(status.success(), "{}", told.join("\n"));
    let slow = facts["slow"].as_str().expect("an id");
    stage.server().post(&format!("/v1/runs/{slow}/cancel"), &json!({})).expect(200);
}
