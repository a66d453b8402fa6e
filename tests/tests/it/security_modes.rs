//! Only its user can access the data directory, whatever the umask; steps keep the umask of the user.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sprag_tests::{Project, Sandbox, Server, Signal, Started, until};

use crate::security_access::other_user;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o777
}

/// Returns all paths below a folder except those in worktrees, without following links.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() && entry.file_name() != "worktrees" {
                todo.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

#[track_caller]
fn assert_private(data: &Path) {
    for path in everything(data) {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), wanted, "{} has mode {:03o}", path.display(), mode(&path));
    }
}

/// Returns `sprag` with another umask than the test's.
fn with_umask(sandbox: &Sandbox, umask: &str, args: &[&str]) -> Command {
    sandbox.command_through(&format!("umask {umask} && exec \"$@\""), args)
}

#[test]
fn e05_everything_in_the_data_directory_is_its_users_alone_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let project = Project::new();
        let sandbox = &project.sandbox;
        let listen = ["serve", "--listen", "127.0.0.1:0", "--lease", "10s"];
        let server: Started = sandbox.start_command(with_umask(sandbox, umask, &listen));
        until("it listens", || server.stdout().contains("http://"));
        let head = "environment: { worktree: { base: main, keep: always }, ports: [web] }";
        let steps = format!(
            "  - id: a\n    run: |\n      umask > {0}; touch {1}; echo x > out\n    outputs: {{ kept: out, said: {{ stdout: text }} }}\n",
            sandbox.path("umask").display(),
            sandbox.path("touched").display(),
        );
        let file = project.pipeline("all", head, &steps);
        let told = project.sprag(["run", &file.display().to_string(), "--detach", "--json"]).expect(0).json();
        let run = told["run"].as_str().expect("an id").to_owned();
        sandbox.ends_as(&run, "completed");
        sandbox.sprag(["doctor"]).expect(0);
        // While the server runs, with all that SQLite and the bells have open.
        assert_private(&sandbox.data());
        assert_eq!(
            sandbox.read("umask").trim().trim_start_matches('0').parse::<u32>().unwrap_or(0),
            umask.parse::<u32>().expect("a number"),
            "the step has the umask of its user"
        );
        let wanted = 0o666 & !u32::from_str_radix(umask, 8).expect("octal");
        assert_eq!(mode(&sandbox.path("touched")), wanted);
        server.signal(Signal::TERM);
        server.finish().expect(0);
        assert_private(&sandbox.data());
    }
}

#[test]
fn e05_a_remote_workers_data_is_its_users_alone() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--no-worker"]);
    let url = format!("http://{}", server.addr);
    let mut command = with_umask(&sandbox, "000", &["worker", "--server", &url]);
    let data = sandbox.path("elsewhere");
    command.env("SPRAG_DATA", &data).env("SPRAG_TOKEN", &server.token);
    let worker = sandbox.start_command(command);
    let run = server.run("steps:\n  - id: a\n    run: echo x | tee out\n    outputs: { kept: out }\n");
    server.until(&run, "completed");
    assert_private(&data);
    assert_private(&sandbox.data());
    worker.signal(Signal::TERM);
    worker.finish().expect(0);
}

#[test]
fn e05_an_open_data_directory_is_closed_with_a_message() {
    let sandbox = Sandbox::new();
    let file = sandbox.yaml("one", "steps:\n  - id: a\n    run: echo hello\n");
    let run = sandbox.run(&[&file.display().to_string()], 0);
    let data = sandbox.data();
    let open = |path: &Path| {
        let bits = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).expect("its mode");
    };
    everything(&data).iter().for_each(|path| open(path));
    let told = sandbox.sprag(["ls"]).expect(0);
    assert!(told.stderr.contains("other users could read") && told.stderr.contains("755"), "{told:?}");
    assert_private(&data);
    assert!(sandbox.sprag(["logs", &run]).expect(0).stdout.contains("hello"));
    assert!(!sandbox.sprag(["ls"]).expect(0).stderr.contains("other users"), "once");
    // What was opened since is told by doctor.
    open(&data.join("sprag.db"));
    let told = sandbox.sprag(["doctor"]).expect(1);
    assert!(
        told.stdout.contains("sprag.db has mode 644") && told.stdout.contains("chmod"),
        "{}",
        told.stdout
    );
    // A folder that is not Sprag's own is not closed.
    let shared = sandbox.path("shared");
    std::fs::create_dir(&shared).expect("a folder");
    std::fs::write(shared.join("thesis"), "x").expect("a file");
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = sandbox.command(["ls"]);
    command.env("SPRAG_DATA", &shared);
    let told = sandbox.start_command(command).finish().expect(1);
    assert!(told.stderr.contains("its own folder") && told.stderr.contains("--data"), "{}", told.stderr);
    assert_eq!(mode(&shared), 0o755);
}

#[test]
fn e05_another_user_reads_nothing() {
    let Some(nobody) = other_user() else { return };
    let sandbox = Sandbox::new();
    // The way to the data directory is open: it is the directory itself that is not.
    std::fs::set_permissions(sandbox.path("."), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let command = with_umask(&sandbox, "000", &["serve", "--listen", "127.0.0.1:0"]);
    let server = sandbox.start_command(command);
    until("it listens", || server.stdout().contains("http://"));
    sandbox.sprag(["hook", "add", "http://127.0.0.1:9/", "--secret", "sixteen bytes or more"]).expect(0);
    for path in ["", "token", "sprag.db", "sprag.db-wal", "runs", "bell"] {
        let path = sandbox.data().join(path);
        let mut look = Command::new("sh");
        look.args(["-c", "ls \"$0\" || cat \"$0\""]).arg(&path).uid(nobody).current_dir("/");
        let told = look.output().expect("sh");
        assert!(!told.status.success() && told.stdout.is_empty(), "{}: {told:?}", path.display());
    }
    server.kill();
}
