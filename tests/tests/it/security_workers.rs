//! Attacks with a `work` token: on the server's disk, on other hosts, on other workers and their runs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sprag_tests::{HandWorker, Project, Sandbox, Server, until};

/// A server with a project, a `work` token, and a run whose worktree is kept.
struct Scene {
    project: Project,
    server: Server,
    token: String,
    /// The kept worktree of another run.
    kept: PathBuf,
    /// The server's own host, as `GET /v1/workers` tells it.
    host: String,
}

impl Scene {
    fn new() -> Scene {
        let project = Project::new();
        plant_bare_repository(&project);
        let keep = "environment: { worktree: { base: main, branch: \"b/{{ run.id }}\", keep: always } }";
        let file = project.pipeline("keep", keep, "  - id: a\n    run: echo precious > work.txt");
        let run = project.run(&file, 0);
        let kept = project.worktree(&run);
        let repo = project.repo().display().to_string();
        let server = Server::start(&project.sandbox, &["--project", &repo]);
        let token = new_token(&project, "builder");
        let workers = server.get("/v1/workers");
        let host = workers["workers"][0]["host"].as_str().expect("a host").to_owned();
        Scene { project, server, token, kept, host }
    }

    /// Starts a run whose one step only a worker of the queue `away` takes; its id.
    fn run_away(&self) -> String {
        let yaml = "environment: { worktree: { base: main } }\nsteps:\n  - id: a\n    queue: away\n    run: 'true'\n";
        let body = json!({ "yaml": yaml, "dir": self.project.repo() });
        let told = self.server.post("/v1/runs", &body).expect(201).json();
        told["id"].as_str().expect("an id").to_owned()
    }

    /// Returns a worker that claims to be a process of the server's own host.
    fn liar(&self, key: char) -> HandWorker<'_> {
        let worker = HandWorker::unregistered(&self.server, key, Some(&self.token), "away");
        let process = sprag_process::current().expect("this process").to_string();
        worker.register(&process).expect(200);
        worker
    }

    /// Claims a run of its own, provides this environment for it, and ends the run; the run.
    fn attack(&self, key: char, path: &Path, repository: &Path) -> String {
        let run = self.run_away();
        let worker = self.liar(key);
        let lease = worker.claim(1).expect("the run's step");
        let told = worker.ask(&lease, provide(&run, &self.host, path, repository, i64::from(u32::from(key))));
        assert!(told.status == 200 || (400..500).contains(&told.status), "{}", told.text());
        if told.status == 200 {
            let row = told.json()["provided"]["make"].clone();
            assert!(row["id"].is_i64(), "{row}");
            worker.ask(
                &lease,
                json!({ "about": "made", "environment": row["id"], "attempt": 1, "how": "ready" }),
            );
        }
        worker.complete(&lease).expect(200);
        self.server.until(&run, "completed");
        run
    }

    /// Lets the server and the command line do all their clean-up of ended runs and files.
    fn let_everything_clean_up(&self, runs: &[String]) {
        let sandbox = &self.project.sandbox;
        // What the server does after this run's end comes after what it does for those.
        let file = self.project.pipeline(
            "after",
            "environment: { worktree: { base: main } }",
            "  - id: a\n    run: 'true'",
        );
        let after =
            self.project.sprag(["run", &file.display().to_string(), "--detach", "--json"]).expect(0).json();
        let after = after["run"].as_str().expect("an id").to_owned();
        sandbox.ends_as(&after, "completed");
        until("the last run's worktree is gone", || {
            sandbox.journal(Some(&after)).entries.iter().any(|entry| entry.to == "destroyed")
        });
        for run in runs {
            for command in
                [vec!["env", "rm", run], vec!["explain", run], vec!["diff", run], vec!["env", "show", run]]
            {
                sandbox.sprag(command);
            }
            self.server.request("POST", &format!("/v1/runs/{run}/rewind")).json(&json!({ "to": "a" })).send();
            self.server.request("POST", &format!("/v1/runs/{run}/cancel")).json(&json!({})).send();
        }
        sandbox.sprag(["env", "ls"]).expect(0);
        sandbox.sprag(["env", "gc", "--older-than", "0s"]);
        self.server.get("/v1/environments?all=true");
    }

    #[track_caller]
    fn assert_unharmed(&self) {
        assert_eq!(self.project.sandbox.read("pwned"), "", "a command of the attacker ran on the server");
        let work = std::fs::read_to_string(self.kept.join("work.txt")).unwrap_or_default();
        assert_eq!(work, "precious\n", "another run's kept worktree was touched");
    }
}

/// Returns a new token with the scope `work`.
fn new_token(project: &Project, name: &str) -> String {
    let made = project.sandbox.sprag(["token", "new", name, "--scope", "work"]).expect(0).stdout;
    made.lines().find(|line| line.starts_with("sprag_")).expect("a token").trim().to_owned()
}

/// Commits a bare repository into the project: with a filter in its settings, a hook, and a forged mark of Sprag's for
/// a worktree. Running git in it runs commands of the person who committed it.
fn plant_bare_repository(project: &Project) {
    let bare = project.repo().join("vendor");
    let pwned = project.sandbox.path("pwned").display().to_string();
    for folder in ["objects/info", "refs/heads", "hooks", "info", "sprag/owners"] {
        std::fs::create_dir_all(bare.join(folder)).expect("a folder");
    }
    let write = |path: &str, text: &str| std::fs::write(bare.join(path), text).expect("a file");
    write("HEAD", "ref: refs/heads/main\n");
    write("objects/info/keep", "");
    write("refs/heads/keep", "");
    write("sprag/owners/keep", "");
    write(
        "config",
        &format!(
            "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[filter \"evil\"]\n\tclean = \"echo clean >> {pwned}; cat\"\n\
             \tsmudge = \"echo smudge >> {pwned}; cat\"\n\trequired = true\n[diff \"evil\"]\n\ttextconv = \"echo diff >> {pwned}; cat\"\n"
        ),
    );
    write("info/attributes", "* filter=evil diff=evil\n");
    for hook in ["reference-transaction", "post-checkout", "post-index-change"] {
        let path = bare.join("hooks").join(hook);
        std::fs::write(&path, format!("#!/bin/sh\necho {hook} >> {pwned}\n")).expect("a hook");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a hook");
    }
    project.git(["add", "--force", "."]);
    project.git(["commit", "--quiet", "--message", "vendor a library"]);
}

/// Writes an entry with a mark as Sprag writes it, for a worktree at this path.
fn forge_mark(bare: &Path, id: &str, path: &Path, root: &Path, run: &str) {
    let entry = bare.join("worktrees").join(id);
    std::fs::create_dir_all(&entry).expect("a folder");
    let mark = json!({
        "id": id, "run": run, "process": null, "state": "kept", "path": path, "root": root,
        "root_identity": [0, 0], "branch": null, "base": "", "setup_key": null, "sparse": [], "markers": [],
        "created_unix_ms": 0, "reason": null, "prepared": false, "shared": { "stash": null, "config": [0, 0, 0] },
    });
    let gitdir = format!("{}/.git\n", path.display());
    for (name, text) in [
        ("HEAD", "ref: refs/heads/main\n"),
        ("commondir", "../..\n"),
        ("gitdir", &gitdir),
        ("sprag.json", &mark.to_string()),
    ] {
        std::fs::write(entry.join(name), text).expect("a file");
    }
}

fn provide(run: &str, host: &str, path: &Path, repository: &Path, id: i64) -> Value {
    let details =
        json!({ "repository": repository, "branch": "b", "base": "main", "keep": "never" }).to_string();
    json!({
        "about": "provide", "seen": null,
        "wanted": {
            "id": id, "run": run, "scope": null, "host": host, "worker": 0, "managed": true, "path": path,
            "details": details,
        },
    })
}

#[test]
fn e04_a_work_token_runs_no_command_on_the_server() {
    let scene = Scene::new();
    // The embedded repository lies in the kept worktree, as in every checkout of that commit. The forged mark names a
    // folder that git would look through.
    let bare = scene.kept.join("vendor");
    let victim = scene.project.sandbox.path("victim");
    std::fs::create_dir_all(&victim).expect("a folder");
    std::fs::write(victim.join("file"), "x").expect("a file");
    let root = scene.project.sandbox.data().join("worktrees");
    forge_mark(&bare, "sprag-forged-1", &victim, &root, "x");
    let mut runs = vec![scene.attack('a', &victim, &bare)];
    // A path as the server expects one, and the embedded repository.
    let run = scene.run_away();
    let worker = scene.liar('c');
    let lease = worker.claim(1).expect("work");
    let path = root.join(&run);
    forge_mark(&bare, "sprag-forged-2", &path, &root, &run);
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::write(path.join("file"), "x").expect("a file");
    let told = worker.ask(&lease, provide(&run, &scene.host, &path, &bare, 78)).expect(200).json();
    let id = &told["provided"]["make"]["id"];
    worker
        .ask(&lease, json!({ "about": "made", "environment": id, "attempt": 1, "how": "ready" }))
        .expect(200);
    worker.complete(&lease).expect(200);
    scene.server.until(&run, "completed");
    runs.push(run);
    scene.let_everything_clean_up(&runs);
    scene.assert_unharmed();
    assert!(victim.join("file").exists(), "a folder of the server was removed");
    assert!(path.join("file").exists(), "the server acted on a path that a remote worker told it");
}

#[test]
fn e04_a_work_token_does_not_remove_another_runs_kept_worktree() {
    let scene = Scene::new();
    let repository = scene.project.repo().join(".git");
    let runs = [scene.attack('a', &scene.kept, &repository)];
    scene.let_everything_clean_up(&runs);
    scene.assert_unharmed();
}

#[test]
fn e04_the_same_key_with_another_token_is_another_worker() {
    let scene = Scene::new();
    let run = scene.run_away();
    let worker = scene.liar('a');
    let lease = worker.claim(1).expect("work");
    let other = new_token(&scene.project, "other");
    let thief = HandWorker::unregistered(&scene.server, 'a', Some(&other), "away");
    // Not even registered, although the key is.
    thief.complete(&lease).problem(409, "refused");
    assert_eq!(thief.claim(1), None, "the nonce of another worker gets nothing");
    thief.register("").expect(200);
    for path in ["release", "vanished"] {
        thief.post(path, &json!({ "lease": lease })).problem(409, "refused");
    }
    let beat = thief.post("heartbeat", &json!({ "leases": [lease], "lease_ms": 60_000 })).expect(200).json();
    assert_eq!(beat["kept"], json!(["lost"]));
    thief.ask(&lease, json!({ "about": "plan", "run": run })).problem(409, "refused");
    thief.post("drain", &json!({})).expect(200);
    thief.post("leave", &json!({})).expect(200);
    worker.complete(&lease).expect(200);
    scene.server.until(&run, "completed");
}

#[test]
fn e04_a_remote_worker_is_on_no_host_but_its_tokens() {
    let scene = Scene::new();
    // A run whose files are on the server's own host, and whose next step waits in the queue of the remote worker.
    let yaml = "environment: { worktree: { base: main } }\nsteps:\n  - id: here\n    run: 'true'\n  - id: there\n    queue: away\n    run: 'true'\n";
    let body = json!({ "yaml": yaml, "dir": scene.project.repo() });
    let told = scene.server.post("/v1/runs", &body).expect(201).json();
    let run = told["id"].as_str().expect("an id").to_owned();
    scene.project.sandbox.until_step(&run, "here", "done");
    let liar = scene.liar('a');
    let silent = HandWorker::unregistered(&scene.server, 'b', Some(&scene.token), "away");
    silent.register("").expect(200);
    let odd = HandWorker::unregistered(&scene.server, 'c', Some(&scene.token), "away");
    odd.register(&format!("{}@/1/1/x/1", scene.host)).expect(200);
    for (nonce, worker) in [&liar, &silent, &odd].into_iter().enumerate() {
        assert_eq!(worker.claim(nonce as i64 + 1), None, "its files are not on a host of that token");
    }
    let workers = scene.server.get("/v1/workers");
    let hosts: Vec<&str> = workers["workers"]
        .as_array()
        .expect("workers")
        .iter()
        .filter_map(|one| one["host"].as_str())
        .collect();
    assert_eq!(
        hosts.iter().filter(|host| **host == scene.host).count(),
        1,
        "the server's own alone: {hosts:?}"
    );
    assert_eq!(hosts.iter().filter(|host| host.ends_with("@builder")).count(), 3, "{hosts:?}");
    // Environments of one token's host are not another's to remove.
    let away = scene.run_away();
    let lease = liar.claim(9).expect("work");
    let path = Path::new("/data/worktrees").join(&away);
    let told =
        liar.ask(&lease, provide(&away, &scene.host, &path, Path::new("/r/.git"), 5)).expect(200).json();
    let environment = told["provided"]["make"]["id"].clone();
    let other = new_token(&scene.project, "other");
    let stranger = HandWorker::unregistered(&scene.server, 'a', Some(&other), "away");
    let process = sprag_process::current().expect("this process").to_string();
    stranger.register(&process).expect(200);
    let destroy = json!({ "environment": environment, "present": true });
    stranger.post("destroy", &destroy).problem(409, "refused");
    let destroyed = json!({ "environment": environment, "attempt": 1, "wrong": null });
    stranger.post("destroyed", &destroyed).problem(409, "refused");
    let due = stranger.post("tidy", &json!({ "runs": [] })).expect(200).json();
    assert_eq!(due["environments"], json!([]));
}

#[test]
fn e04_the_environment_that_a_worker_reports_is_checked() {
    let scene = Scene::new();
    let run = scene.run_away();
    let worker = scene.liar('a');
    let lease = worker.claim(1).expect("work");
    let good = Path::new("/data/worktrees").join(&run);
    let git = Path::new("/r/.git");
    for (path, repository) in [
        (Path::new("/etc"), git),
        (Path::new("worktrees/x"), git),
        (&Path::new("/data/worktrees/..").join(&run), git),
        (&good, Path::new("r/.git")),
        (&good, Path::new("/r/../etc")),
    ] {
        worker.ask(&lease, provide(&run, "h", path, repository, 5)).problem(422, "invalid");
    }
    // A number that another environment has, and one that is out of range.
    let known = scene.server.get("/v1/environments");
    let known: i64 = known["environments"][0]["id"].as_str().expect("an id").parse().expect("a number");
    let told = worker.ask(&lease, provide(&run, "h", &good, git, known)).expect(200).json();
    let made = &told["provided"]["make"];
    assert!(made["id"].as_i64().is_some_and(|id| id != known), "{told}");
    let describe = |details: Value| json!({ "about": "describe", "environment": made["id"], "details": details.to_string() });
    worker.ask(&lease, describe(json!({ "surprise": 1 }))).problem(422, "invalid");
    worker.ask(&lease, describe(json!({ "branch": "b", "lost_host": "anywhere" }))).expect(200);
    let shown = scene.server.get(&format!("/v1/environments?run={run}"));
    let host = shown["environments"][0]["host"].as_str().expect("a host");
    assert!(host.ends_with("@builder"), "{shown}");
    assert_eq!(shown["environments"][0]["bytes"], 0, "the server does not look at such a path");
}

#[test]
fn e04_a_token_has_a_bounded_number_of_workers() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let token = |name: &str| {
        let made = sandbox.json(["token", "new", name, "--scope", "work", "--json"]);
        made["token"].as_str().expect("a token").to_owned()
    };
    let (greedy, modest) = (token("greedy"), token("modest"));
    let register = |token: &str, number: usize| {
        let new = json!({
            "id": 1, "name": "many", "process": "", "queues": "away", "slots": 1, "lease_ms": 3_600_000,
        });
        let request = server.request("POST", "/v1/work/register").token(token);
        request.header("x-sprag-worker", &format!("{number:032}")).json(&new).send()
    };
    let threads = 8;
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (register, greedy) = (&register, &greedy);
            scope.spawn(move || {
                for number in (first..1_000).step_by(threads) {
                    register(greedy, number).expect(200);
                }
            });
        }
    });
    register(&greedy, 1_000).problem(429, "rate_limited");
    // One of them comes back; another token has its own.
    register(&greedy, 7).expect(200);
    register(&modest, 1_000).expect(200);
    assert_eq!(server.get("/v1/workers")["workers"].as_array().map(Vec::len), Some(1_001));
}
