//! Secrets from files, commands and systemd credentials, and secret inputs: they reach their step, and nothing else.

use std::fs;
use std::path::Path;

use serde_json::json;
use sprag_tests::{HandWorker, Sandbox, Server};

const VALUES: [&str; 5] = [
    "t0ken-of-the-run",
    "value-of-a-c0mmand",
    "value-of-a-f1le",
    "value-of-a-credent1al",
    "value-of-an0ther-variable",
];

/// Returns the files below a folder that contain a text.
fn files_with(folder: &Path, text: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_with(&path, text, found);
        } else if path.is_file()
            && fs::read(&path).unwrap_or_default().windows(text.len()).any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn s19_secrets_reach_their_step_and_are_kept_and_shown_nowhere() {
    let sandbox = Sandbox::new();
    let [token, command, file, credential, variable] = VALUES;
    fs::create_dir_all(sandbox.path("credentials")).unwrap();
    sandbox.write("credentials/db", &format!("{credential}\n"));
    sandbox.write("for-command", &format!("{command}\n"));
    let key = sandbox.write("key", &format!("{file}\n"));
    let yaml = sandbox.yaml(
        "secrets",
        &format!(
            r#"name: secrets
inputs: {{ token: {{ secret: true, required: true, min: 6 }}, plain: string }}
secrets:
  FROM_COMMAND: {{ run: "cat {command_file}" }}
  FROM_FILE: {{ file: "{key}" }}
  FROM_SYSTEMD: {{ credential: db }}
  FROM_ENV: {{ env: ELSEWHERE }}
steps:
  - id: use
    secrets: [FROM_COMMAND, FROM_FILE, FROM_SYSTEMD, FROM_ENV]
    env: {{ TOKEN: "{{{{ inputs.token }}}}" }}
    outputs: {{ said: {{ stdout: text }} }}
    run: |
      test "$TOKEN" = {token_check} -a {{{{ inputs.token }}}} = "$TOKEN"
      echo "$TOKEN $FROM_COMMAND $FROM_FILE $FROM_SYSTEMD $FROM_ENV {{{{ inputs.plain }}}}"
      test ${{#FROM_COMMAND}} = {command_length} -a ${{#FROM_SYSTEMD}} = {credential_length}
  - id: later
    run: "test -z \"$FROM_FILE\"; cat {key}; echo {{{{ steps.use.outputs.said }}}}""#,
            command_file = sandbox.path("for-command").display(),
            key = key.display(),
            token_check = "\"$(printf %s t0ken-of; echo -the-run)\"",
            command_length = command.len(),
            credential_length = credential.len(),
        ),
    );
    let with = |args: &[&str]| {
        let mut started = sandbox.command(args);
        started.env("ELSEWHERE", variable).env("CREDENTIALS_DIRECTORY", sandbox.path("credentials"));
        sandbox.start_command(started).finish()
    };
    let file_name = yaml.display().to_string();
    let given = format!("token={token}");
    let start = ["run", &file_name, "-i", &given, "-i", "plain=visible", "--idempotency-key", "once"];
    let said = with(&start).expect(0);
    let run = sandbox.newest().expect("a run");
    let mut shown = format!("{}{}", said.stdout, said.stderr);
    for args in [
        &["logs", &run][..],
        &["status", &run, "--json"],
        &["explain", &run],
        &["events", "--run", &run, "--json"],
        &["audit", "--json"],
    ] {
        shown.push_str(&with(args).expect(0).stdout);
    }
    assert!(shown.contains("visible") && shown.contains("***"), "{shown}");
    let server = Server::start(&sandbox, &[]);
    let detail = server.get(&format!("/v1/runs/{run}"));
    assert_eq!(detail["inputs"], json!({ "token": "***", "plain": "visible" }), "{detail}");
    shown.push_str(&detail.to_string());
    for value in VALUES {
        assert!(!shown.contains(value), "{value}: {shown}");
        let mut found = Vec::new();
        files_with(&sandbox.data(), value, &mut found);
        assert!(found.is_empty(), "{value} is in {found:?}");
    }
    drop(server);
    // The same request is the same run, and another value is another request.
    with(&start).expect(0);
    assert_eq!(sandbox.newest().as_deref(), Some(run.as_str()));
    let other =
        ["run", &file_name, "-i", "token=another-token", "-i", "plain=visible", "--idempotency-key", "once"];
    assert_ne!(with(&other).code, 0);
    // A value that does not fit is not shown either.
    let refused = with(&["run", &file_name, "-i", "token=sh0rt"]);
    assert!(refused.stderr.contains("token") && !refused.stderr.contains("sh0rt"), "{}", refused.stderr);
}

#[test]
fn s19_a_secret_that_cannot_be_read_fails_its_step_by_name() {
    let sandbox = Sandbox::new();
    let yaml = sandbox.yaml(
        "broken",
        "name: broken\nsecrets:\n  A: { run: 'echo h1dden-value; exit 3' }\n  B: { run: 'echo h1dden-value; sleep 600', timeout: 1s }\n  C: { credential: none }\nsteps:\n  - { id: a, on_fail: continue, secrets: [A], run: echo ran }\n  - { id: b, on_fail: continue, secrets: [B], run: echo ran }\n  - { id: c, on_fail: continue, secrets: [C], run: echo ran }\n",
    );
    sandbox.sprag(["run", &yaml.display().to_string()]).expect(0);
    let run = sandbox.newest().expect("a run");
    let server = Server::start(&sandbox, &["--no-worker"]);
    let results = ["a", "b", "c"].map(|id| server.get(&format!("/v1/runs/{run}/steps/{id}")).to_string());
    let status = format!("{}{}", results.concat(), sandbox.sprag(["status", &run]).expect(0).stdout);
    for part in [
        "the secret A: its command ended with exit code 3",
        "the secret B: its command did not end within 1 s",
        "the secret C: ",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert!(!status.contains("h1dden-value"), "{status}");
}

#[test]
fn s19_a_remote_worker_gets_a_secret_input_and_callers_do_not() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let yaml = "name: remote\ninputs: { token: { secret: true } }\nsteps:\n  - { id: a, run: 'echo {{ inputs.token }}' }\n";
    let body = json!({ "yaml": yaml, "inputs": { "token": "t0ken-of-the-run" } });
    let started = server.post("/v1/runs", &body).expect(201).json();
    assert!(!started.to_string().contains("t0ken"), "{started}");
    let worker = HandWorker::new(&server, 'a');
    let wanted = json!({ "claimer": worker.claimer(1), "limit": 1, "wait_ms": 5_000 });
    let work = worker.post("claim", &wanted).expect(200).json();
    assert!(work.to_string().contains("t0ken-of-the-run"), "{work}");
    let run = started["id"].as_str().expect("an id");
    assert!(!server.get(&format!("/v1/runs/{run}")).to_string().contains("t0ken"));
}
