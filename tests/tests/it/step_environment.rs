//! The environment that steps, and git's hooks and filters, inherit (E06).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sprag_process::DEFAULT_INHERITED;
use sprag_tests::{Project, Sandbox, Server, Signal, until};

/// Writes all that a step sees: its own environment, and what it can read of its supervisor's and its worker's as a
/// process of the same user.
const LOOK: &str = r#"env > "$FILE"
        worker=$(cut -d' ' -f4 /proc/$PPID/stat)
        for pid in $PPID $worker; do
          tr '\0' '\n' < /proc/$pid/environ >> "$FILE"
          tr '\0' '\n' < /proc/$pid/cmdline >> "$FILE"
        done"#;

/// Returns a step that writes its environment to the file `seen-ID`.
fn looking(sandbox: &Sandbox, id: &str, keys: &str) -> String {
    let file = sandbox.path(&format!("seen-{id}"));
    format!("  - id: {id}\n    env: {{ FILE: '{}' }}\n{keys}    run: |\n        {LOOK}\n", file.display())
}

/// Returns a pipeline of one step `look`.
fn pipeline(sandbox: &Sandbox, head: &str, keys: &str) -> PathBuf {
    sandbox.yaml("look", &format!("name: look\n{head}steps:\n{}", looking(sandbox, "look", keys)))
}

/// Returns the variables in a list of `NAME=value` lines.
fn names(text: &str) -> Vec<&str> {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| is_name(name))
        .collect()
}

#[test]
fn e06_a_step_of_a_worker_sees_a_small_environment() {
    let sandbox = Sandbox::new();
    let head = "inherit: [FROM_PIPELINE, 'WANTED_*']\n";
    let run = sandbox.detach(&pipeline(&sandbox, head, "    secrets: [OWN_SECRET]\n"));
    let mut worker = sandbox.command(["worker", "--until-idle", "--inherit", "FROM_FLAG"]);
    worker
        .env_remove("SPRAG_INHERIT")
        .env("SPRAG_TOKEN", "sprag_credential")
        .env("SOMETHING", "somethings-value")
        .env("OTHER_SECRET", "others-value")
        .env("OWN_SECRET", "own-secret-value")
        .env("FROM_PIPELINE", "pipelines-value")
        .env("WANTED_ONE", "wanted-value")
        .env("FROM_FLAG", "flags-value")
        .env("HTTPS_PROXY", "http://proxy.example");
    sandbox.start_command(worker).finish().expect(0);
    sandbox.ends_as(&run, "completed");
    let seen = sandbox.read("seen-look");
    for value in ["sprag_credential", "somethings-value", "others-value"] {
        assert!(!seen.contains(value), "{value}: {seen}");
    }
    for value in
        ["own-secret-value", "pipelines-value", "wanted-value", "flags-value", "http://proxy.example"]
    {
        assert!(seen.contains(value), "{value}: {seen}");
    }
    // What was asked for, and what a shell and Sprag add themselves; the worker's own block shows its own settings.
    let known = "FILE OWN_SECRET FROM_PIPELINE WANTED_ONE FROM_FLAG PWD OLDPWD SHLVL _ NO_COLOR SPRAG_DATA \
                 SPRAG_OUTPUT SPRAG_RUN_ID SPRAG_STEP_ID SPRAG_ATTEMPT SPRAG_FENCE SPRAG_PROCESS_TREE";
    let is_listed = |name: &str| {
        DEFAULT_INHERITED.iter().any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == *entry,
        })
    };
    let strange: Vec<&str> = names(&seen)
        .into_iter()
        .filter(|name| !known.split(' ').any(|one| one == *name) && !is_listed(name))
        .filter(|name| !["RUST_", "CLICOLOR", "SSL_CERT_"].iter().any(|own| name.starts_with(own)))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn e06_credentials_are_in_no_process_of_a_worker_for_a_server() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker", "--auth", "always"]);
    let told = sandbox.sprag(["token", "new", "w", "--scope", "work"]).expect(0).stdout;
    let token = told.lines().find(|line| line.starts_with("sprag_")).expect("a token").trim().to_owned();
    let url = format!("http://{}", server.addr);
    for by_option in [false, true] {
        let _ = fs::remove_file(sandbox.path("seen-look"));
        let run = sandbox.detach(&pipeline(&sandbox, "", ""));
        let mut worker = sandbox.command(["worker", "--server", &url]);
        worker.env("SPRAG_DATA", sandbox.path("elsewhere"));
        if by_option {
            worker.args(["--token", &token]);
        } else {
            worker.env("SPRAG_TOKEN", &token);
        }
        let worker = sandbox.start_command(worker);
        sandbox.ends_as(&run, "completed");
        let seen = sandbox.read("seen-look");
        assert!(seen.contains("--server") && !seen.contains(&token), "by option {by_option}: {seen}");
        worker.signal(Signal::TERM);
        worker.finish().expect(0);
    }
}

#[test]
fn e06_a_foreground_run_does_not_inherit_secrets_of_other_steps() {
    let sandbox = Sandbox::new();
    let given = looking(&sandbox, "given", "    secrets: [DEPLOY_KEY]\n");
    let (other, nephew) = (looking(&sandbox, "other", ""), looking(&sandbox, "nephew", ""));
    let child = "  - id: child\n    pipeline: child.yaml\n";
    sandbox.yaml("fore", &format!("name: fore\nsteps:\n{given}{other}{child}"));
    sandbox.yaml("child", &format!("name: child\nsteps:\n{nephew}"));
    let mut command = sandbox.command(["run", "fore.yaml"]);
    command
        .env("SPRAG_TOKEN", "sprag_credential")
        .env("DEPLOY_KEY", "the-deploy-key")
        .env("EDITOR_OF_CHOICE", "an-editor");
    sandbox.start_command(command).finish().expect(0);
    for (id, sees_key) in [("given", true), ("other", false), ("nephew", false)] {
        let seen = sandbox.read(&format!("seen-{id}"));
        assert!(seen.contains("an-editor"), "{id} inherits the user's environment: {seen}");
        assert!(!seen.contains("sprag_credential"), "{id}: {seen}");
        assert_eq!(seen.contains("the-deploy-key"), sees_key, "{id}: {seen}");
    }
}

/// Sets up hooks and filters that write their environment to a file.
fn spying(project: &Project) -> PathBuf {
    let file = project.sandbox.path("spied");
    let spy = format!("#!/bin/sh\nenv >> '{}'\n", file.display());
    let script = |path: &Path, text: &str| {
        fs::write(path, text).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("a script");
    };
    let filter = project.sandbox.path("filter");
    script(&filter, &format!("{spy}cat\n"));
    for direction in ["smudge", "clean"] {
        project.git(["config", &format!("filter.spy.{direction}"), &filter.display().to_string()]);
    }
    project.commit(".gitattributes", "*.spied filter=spy\n");
    project.commit("one.spied", "text\n");
    for hook in ["post-checkout", "reference-transaction"] {
        script(&project.repo().join(".git/hooks").join(hook), &spy);
    }
    fs::write(&file, "").expect("a file");
    file
}

#[test]
fn e06_hooks_and_filters_see_neither_credentials_nor_secrets() {
    let project = Project::new();
    let file = spying(&project);
    let steps =
        "  - { id: a, secrets: [DEPLOY_KEY], run: echo more >> one.spied }\n  - { id: land, land: main }";
    let pipeline = project.pipeline("spied", "environment: { worktree: {} }", steps);
    let run_with = |mut command: Command| {
        command
            .current_dir(project.repo())
            .env("SPRAG_TOKEN", "sprag_credential")
            .env("DEPLOY_KEY", "the-deploy-key")
            .env("UNRELATED_TOKEN", "an-unrelated-token");
        project.sandbox.start_command(command).finish().expect(0);
        let seen = fs::read_to_string(&file).expect("they ran");
        fs::write(&file, "").expect("a file");
        assert!(seen.contains("PATH="), "hooks and filters run as git runs them: {seen}");
        for value in ["sprag_credential", "the-deploy-key", "SPRAG_"] {
            assert!(!seen.contains(value), "{value}: {seen}");
        }
        seen
    };
    let seen = run_with(project.sandbox.command([OsStr::new("run"), pipeline.as_os_str()]));
    assert!(seen.contains("an-unrelated-token"), "in the foreground the environment is the user's: {seen}");
    project.sprag([OsStr::new("run"), pipeline.as_os_str(), "--detach".as_ref()]).expect(0);
    let run = project.sandbox.newest().expect("a run");
    fs::write(&file, "").expect("a file");
    let seen = run_with(project.sandbox.command(["worker", "--until-idle"]));
    assert!(!seen.contains("an-unrelated-token"), "{seen}");
    project.sandbox.ends_as(&run, "completed");
}

#[test]
fn e08_hooks_can_be_turned_off_for_a_worktree() {
    let project = Project::new();
    let ran = project.sandbox.path("hooks-ran");
    for hook in ["post-checkout", "post-index-change", "reference-transaction", "pre-push", "post-commit"] {
        let path = project.repo().join(".git/hooks").join(hook);
        fs::write(&path, format!("#!/bin/sh\necho {hook} >> '{}'\n", ran.display())).expect("a hook");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).expect("a hook");
    }
    let steps = "  - { id: a, run: echo more >> file }\n  - { id: land, land: main }";
    for hooks in [true, false] {
        let head = format!("environment: {{ worktree: {{ hooks: {hooks} }} }}");
        let pipeline = project.pipeline("hooks", &head, steps);
        fs::write(&ran, "").expect("a file");
        project.sprag([OsStr::new("run"), pipeline.as_os_str()]).expect(0);
        let told = fs::read_to_string(&ran).expect("the file");
        assert_eq!(told.contains("post-checkout"), hooks, "hooks: {hooks}: {told}");
        assert_eq!(!told.is_empty(), hooks, "hooks: {hooks}: {told}");
    }
}

#[test]
fn e06_a_pipeline_cannot_name_credentials() {
    let sandbox = Sandbox::new();
    for key in ["inherit: [SPRAG_TOKEN]", "inherit: [PATH, SPRAG_STORE]"] {
        sandbox.write("wants.yaml", &format!("{key}\nsteps: [{{ id: a, run: env }}]\n"));
        let told = sandbox.sprag(["validate", "wants.yaml"]).expect(2).stderr;
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("SPRAG_TOKEN, SPRAG_STORE or SPRAG_BUS"), "{told}");
    }
    sandbox.write("wants.yaml", "steps: [{ id: a, secrets: [SPRAG_TOKEN], run: env }]\n");
    sandbox.sprag(["validate", "wants.yaml"]).expect(2);
    // A pattern that fits a credential's name does not fetch it.
    let run = sandbox.detach(&pipeline(&sandbox, "inherit: ['SPRAG_*', '*']\n", ""));
    let mut worker = sandbox.command(["worker", "--until-idle"]);
    worker.env("SPRAG_TOKEN", "sprag_credential");
    sandbox.start_command(worker).finish().expect(0);
    sandbox.ends_as(&run, "completed");
    assert!(!sandbox.read("seen-look").contains("sprag_credential"));
    let refused = sandbox.sprag(["worker", "--inherit", "SPRAG_STORE"]).expect(2);
    assert!(refused.stderr.contains("no step sees"), "{refused:?}");
}

#[test]
fn e06_a_server_keeps_its_environment_to_itself() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0"]);
    command.env("SPRAG_TOKEN", "sprag_credential").env("CLOUD_KEY", "a-key-of-the-cloud");
    let server = sandbox.start_command(command);
    until("the server listens", || server.stdout().contains("http://"));
    let block = fs::read(format!("/proc/{}/environ", server.pid())).expect("its environment");
    let block = String::from_utf8_lossy(&block);
    assert!(block.contains("PATH=") && !block.contains("sprag_credential"), "{block}");
    assert!(!block.contains("a-key-of-the-cloud"), "{block}");
    let run = sandbox.detach(&pipeline(&sandbox, "", ""));
    sandbox.ends_as(&run, "completed");
    let seen = sandbox.read("seen-look");
    assert!(!seen.contains("sprag_credential") && !seen.contains("a-key-of-the-cloud"), "{seen}");
    server.signal(Signal::TERM);
    server.finish().expect(0);
}
