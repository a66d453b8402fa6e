//! Steps in a sandbox: hostile ones reach nothing, and honest ones work as before.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;
use sprag_process::{missing_limits, sandbox_support};
use sprag_tests::{Project, Server, until};

use crate::agents::{Bench, DIALECTS};

/// Returns whether sandboxes work on this machine; otherwise prints why the test is skipped.
fn works() -> bool {
    match sandbox_support() {
        Ok(()) => true,
        Err(why) => {
            println!("SKIPPED: no sandbox can be made here: {why}");
            false
        }
    }
}

/// Returns whether this machine can limit memory and processes; otherwise prints why that part is skipped.
fn limits() -> bool {
    let missing = missing_limits();
    if !missing.is_empty() {
        println!("SKIPPED: limits cannot be enforced here: {}", missing.join("; "));
    }
    missing.is_empty()
}

/// Runs a pipeline with this home folder and returns the run.
fn run(project: &Project, file: &Path, home: &Path, code: i32) -> String {
    let mut command = project.command_in(&project.repo(), ["run".as_ref(), file.as_os_str()]);
    command.env("HOME", home).env("SSH_AUTH_SOCK", "/run/agent.sock");
    project.sandbox.start_command(command).finish().expect(code);
    project.sandbox.newest().expect("a run")
}

fn log(project: &Project, run: &str, step: &str) -> String {
    project.sprag(["logs", run, step]).expect(0).stdout
}

/// Returns the result that was reported for the last attempt at a step.
fn result(server: &Server, run: &str, id: &str) -> Value {
    let step = server.get(&format!("/v1/runs/{run}/steps/{id}"));
    step["executions"].as_array().and_then(|all| all.last()).unwrap_or_else(|| panic!("{step}"))["result"]
        .clone()
}

/// Returns the processes whose command line contains this word.
fn processes_with(word: &str) -> usize {
    let entries = fs::read_dir("/proc").expect("a process table").flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())).count()
}

#[test]
fn s19_a_hostile_step_reaches_nothing_outside_of_its_sandbox() {
    if !works() {
        return;
    }
    let project = Project::new();
    let sandbox = &project.sandbox;
    let home = sandbox.path("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id_ed25519"), "PRIVATE-KEY\n").unwrap();
    // Another run, whose worktree and branch stay.
    let other = project.pipeline(
        "other",
        "environment: {worktree: {keep: always, branch: others}}",
        "  - {id: work, run: 'echo OTHERS-WORK > work.txt; git add .; git commit -qm others'}",
    );
    let theirs = project.run(&other, 0);
    let theirs = project.worktree(&theirs);
    assert!(theirs.join("work.txt").exists());
    let before = project.git(["rev-parse", "main", "others"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let data = sandbox.data();
    let common = project.repo().join(".git");
    let marker = format!("86{}", std::process::id());

    // Each attack, and the text that shows why it failed.
    let attacks = [
        ("read-worktree", format!("cat {}/work.txt", theirs.display()), "No such file or directory"),
        (
            "write-hooks",
            format!("echo evil > {}/hooks/pre-commit", common.display()),
            "Read-only file system",
        ),
        ("write-config", "git config core.fsmonitor evil".to_owned(), "Device or resource busy"),
        ("replace-git-link", "rm -f .git".to_owned(), "Device or resource busy"),
        (
            "lead-git-elsewhere",
            format!("echo /tmp > $(git rev-parse --git-dir)/commondir; cat {}/x", common.display()),
            "Read-only file system",
        ),
        ("read-keys", "cat $HOME/.ssh/id_ed25519".to_owned(), "No such file or directory"),
        ("read-machine-keys", "cat /etc/shadow".to_owned(), "ermission denied"),
        (
            "reach-store",
            format!("ls {0}/runs; cat {0}/sprag.db", data.display()),
            "No such file or directory",
        ),
        ("reach-network", format!("exec 3<>/dev/tcp/127.0.0.1/{port}"), "ermission denied"),
        ("delete-branch", "git update-ref -d refs/heads/others; exit 9".to_owned(), ""),
        ("move-branch", "git update-ref refs/heads/main HEAD; exit 9".to_owned(), ""),
        ("see-processes", "test $(ls /proc | grep -c '^[0-9]') -gt 12".to_owned(), ""),
        (
            "leave-supervisor",
            format!(
                "setsid env -i sh -c '(sleep {marker} <&- >&- 2>&- &) ; setsid sleep {marker} <&- >&- 2>&- &' & sleep 0.2; exit 9"
            ),
            "",
        ),
    ];
    let mut steps = String::new();
    for (id, command, _) in &attacks {
        steps.push_str(&format!(
            "  - id: {id}\n    on_fail: continue\n    shell: bash\n    run: |\n      echo evil >> evil.txt; git add evil.txt; git commit -qm evil\n      {command}\n"
        ));
    }
    let head = "environment: {worktree: {branch: hostile}}\nsandbox: {network: none}";
    let file = project.pipeline("hostile", head, &steps);
    let hostile = run(&project, &file, &home, 0);
    let server = Server::start(sandbox, &["--no-worker"]);
    for (id, _, reason) in &attacks {
        let found = result(&server, &hostile, id);
        let told = log(&project, &hostile, id);
        println!("{id:20} {}", told.lines().last().unwrap_or("(silent)"));
        assert!(told.contains(reason), "{id}: {told}\n{found}");
        assert!(!told.contains("PRIVATE-KEY") && !told.contains("OTHERS-WORK"), "{id}: {told}");
        assert_ne!(found["exit_code"], 0, "{id}: {told}\n{found}");
    }
    assert!(listener.accept().is_err(), "a step reached a port of the machine");
    assert_eq!(project.git(["rev-parse", "main", "others"]), before, "branches of others moved");
    assert!(!common.join("hooks/pre-commit").exists());
    assert_eq!(processes_with(&marker), 0, "a process outlived its step");
    // Its own branch has its commits: one for each step.
    let own = project.git(["rev-list", "--count", "main..hostile"]);
    assert_eq!(own.trim(), attacks.len().to_string(), "its own commits are kept");
}

#[test]
fn s19_a_step_over_its_limits_is_stopped_and_says_why() {
    if !works() || !limits() {
        return;
    }
    let project = Project::new();
    let steps = r#"  - id: crowd
    on_fail: continue
    sandbox: { processes: 24 }
    run: |
      for i in $(seq 200); do sleep 30 & done
      wait
  - id: hog
    on_fail: continue
    sandbox: { memory: 48MiB }
    run: head -c 400m /dev/zero | tail -c 399m | wc -c; sleep 60
  - id: after
    sandbox: { memory: 64MiB, cpu: 0.5, processes: 32 }
    run: 'echo "count=3" >> "$SPRAG_OUTPUT"; nproc > own.txt'
    outputs: { own: { file: own.txt, as: text } }
  - {id: last, run: 'test {{ steps.after.outputs.count }} = 3'}"#;
    let file = project.pipeline("limits", "environment: {worktree: {}}\nsandbox: {}", steps);
    let run = run(&project, &file, &project.sandbox.path(""), 0);
    let hog = result(&Server::start(&project.sandbox, &["--no-worker"]), &run, "hog");
    assert_eq!(hog["reason"], "memory_limit", "{hog}");
    let shown = project.sprag(["status", &run]).expect(0).stdout;
    assert!(shown.contains("memory limit of 48 MiB"), "{shown}");
    assert!(shown.contains("limit of 24 processes"), "{shown}");
    let told = log(&project, &run, "hog");
    assert!(told.contains("it used more than its memory limit of 48 MiB and was killed"), "{told}");
    assert!(!told.contains("left behind"), "{told}");
}

/// Returns the memory that the machine can still give to processes, in MiB.
fn available_mib() -> u64 {
    let facts = fs::read_to_string("/proc/meminfo").expect("the kernel's facts");
    let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn s19_a_fork_bomb_leaves_the_machine_as_it_was() {
    /// The most processes of the step, beside the two of bubblewrap.
    const MOST: usize = 64;
    /// The memory that other programs of the machine may take meanwhile.
    const OTHERS_MIB: u64 = 2048;
    if !works() || !limits() {
        return;
    }
    let project = Project::new();
    let (out, marker) = (project.sandbox.path("out"), format!("bomb{}", std::process::id()));
    fs::create_dir_all(&out).unwrap();
    // Each process starts two. Without a limit it would end with 2^13 of them.
    fs::write(
        out.join("bomb.sh"),
        "test \"$1\" -le 0 && exec sleep 1\nsh bomb.sh $(($1 - 1)) $2 &\nsh bomb.sh $(($1 - 1)) $2 &\nwait\n",
    )
    .unwrap();
    let steps = format!(
        r#"  - id: bomb
    on_fail: continue
    sandbox: {{ processes: {MOST}, write: [worktree, '{out}'] }}
    run: |
      cd {out}
      for i in 1 2 3 4 5 6; do sh bomb.sh 12 {marker} 2> /dev/null; echo $i > round; done
  - {{id: after, run: 'true'}}"#,
        out = out.display()
    );
    let file = project.pipeline("bomb", "environment: {worktree: {}}\nsandbox: {}", &steps);
    let memory = available_mib();
    let run = project.start(["run".as_ref(), file.as_os_str()]);
    let mut most = 0;
    until("it has burst several times", || {
        most = most.max(processes_with(&marker));
        let other = std::process::Command::new("true").status().expect("the machine can fork");
        assert!(other.success());
        let now = available_mib();
        assert!(now + OTHERS_MIB > memory, "{memory} MiB were available, and now {now} MiB");
        fs::read_to_string(out.join("round")).is_ok_and(|round| round.trim() >= "3")
    });
    run.finish().expect(0);
    assert!((3..=MOST).contains(&most), "{most} processes at once");
    assert_eq!(processes_with(&marker), 0, "a process outlived its step");
    let shown = project.sprag(["status", &project.sandbox.newest().expect("a run")]).expect(0).stdout;
    assert!(shown.contains(&format!("limit of {MOST} processes")), "{shown}");
}

#[test]
fn s19_an_honest_step_works_in_its_sandbox_and_stops_with_grace() {
    if !works() {
        return;
    }
    let project = Project::new();
    let sandbox = &project.sandbox;
    let tools = sandbox.path("tools");
    fs::create_dir_all(&tools).unwrap();
    fs::write(tools.join("greeting"), "hello\n").unwrap();
    let steps = format!(
        r#"  - id: work
    sandbox: {{ network: loopback, read: ["{tools}"] }}
    shell: bash
    check: {{ run: test -s made.txt }}
    outputs: {{ said: {{ stdout: text }} }}
    run: |
      cat {tools}/greeting
      ! touch {tools}/x 2> /dev/null
      echo made > made.txt
      git switch -q -c aside && git switch -q - && git add . && git commit -qm made && git log --oneline -1 > /dev/null
      echo "value=7" >> "$SPRAG_OUTPUT"
      touch /tmp/t $HOME/t
  - id: readonly
    sandbox: {{ write: [] }}
    run: "! touch x 2> /dev/null && git status --short && cat made.txt"
  - {{id: use, run: 'test {{{{ steps.work.outputs.value }}}} = 7 && test "{{{{ steps.work.outputs.said }}}}" = hello && test "$(git log -1 --format=%s)" = made'}}
  - id: slow
    shell: bash
    timeout: 1s
    run: |
      trap 'echo saved > "$PWD/graceful.txt"; exit 3' TERM
      sleep 60 & wait
  - id: kept
    always: true
    run: cat graceful.txt"#,
        tools = tools.display()
    );
    let file = project.pipeline("honest", "environment: {worktree: {keep: always}}\nsandbox: {}", &steps);
    let run = run(&project, &file, &sandbox.path("home"), 100);
    for id in ["work", "readonly", "use", "kept"] {
        assert_eq!(sandbox.step(&run, id)["status"], "done", "{id}: {}", log(&project, &run, id));
    }
    assert_eq!(result(&Server::start(sandbox, &["--no-worker"]), &run, "slow")["reason"], "timeout");
    assert_eq!(log(&project, &run, "kept").trim(), "saved");
    assert_eq!(
        fs::read_dir(sandbox.data().join("runs").join(&run).join("sandbox")).into_iter().flatten().count(),
        0
    );
}

#[test]
fn s19_a_sandbox_that_cannot_be_enforced_is_refused_or_warned_about() {
    let project = Project::new();
    // A program of this name that fails as the real one does where user namespaces are forbidden.
    let tools = project.sandbox.path("bin");
    fs::create_dir_all(&tools).unwrap();
    let fake = tools.join("bwrap");
    fs::write(&fake, "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        .unwrap();
    fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let run_with = |name: &str, sandbox: &str, code: i32| {
        let file = project.pipeline(name, &format!("sandbox: {sandbox}"), "  - {id: a, run: echo ran}");
        let mut command = project.command_in(&project.repo(), ["run".as_ref(), file.as_os_str()]);
        command.env("PATH", &path);
        project.sandbox.start_command(command).finish().expect(code);
        let run = project.sandbox.newest().expect("a run");
        (project.sprag(["status", &run]).expect(0).stdout, project.sprag(["explain", &run]).stdout)
    };
    let (shown, explained) = run_with("refused", "{}", 100);
    assert!(!shown.contains("ran without"), "{shown}");
    assert!(explained.contains("No permissions to create new namespace"), "{explained}");
    assert!(explained.contains("required: false"), "{explained}");
    let (shown, _) = run_with("warned", "{required: false}", 0);
    assert!(shown.contains("it ran without its sandbox, which is not required"), "{shown}");
    // A folder that contains the keys of the user is no place for a sandbox.
    if works() {
        let file = project.pipeline("home", "sandbox: {}", "  - {id: a, run: echo ran}");
        let mut command = project.command_in(&project.repo(), ["run".as_ref(), file.as_os_str()]);
        command.env("HOME", project.repo().join("sub"));
        fs::create_dir_all(project.repo().join("sub")).unwrap();
        project.sandbox.start_command(command).finish().expect(100);
        let run = project.sandbox.newest().expect("a run");
        let explained = project.sprag(["explain", &run]).stdout;
        assert!(explained.contains("its sandbox would contain the home folder"), "{explained}");
    }
    // A machine without the program.
    let bare = project.sandbox.path("bare");
    fs::create_dir_all(&bare).unwrap();
    for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap()) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name() != "bwrap" {
                let _ = std::os::unix::fs::symlink(entry.path(), bare.join(entry.file_name()));
            }
        }
    }
    let steps = "  - {id: a, run: touch ran.txt}\n  - {id: b, needs: [a], sandbox: {}, run: echo ran}";
    let file = project.pipeline("missing", "", steps);
    let mut command = project.command_in(&project.repo(), ["run".as_ref(), file.as_os_str()]);
    command.env("PATH", &bare);
    let told = project.sandbox.start_command(command).finish().expect(100);
    let explained = project.sprag(["explain", &project.sandbox.newest().expect("a run")]).stdout;
    assert!(explained.contains("install the package `bubblewrap`"), "{explained}\n{told:?}");
    assert!(explained.contains("step `b`"), "{explained}");
    assert!(!project.repo().join("ran.txt").exists(), "the first step ran before the run was refused");
    until("nothing runs", || !project.status_is_live(&project.sandbox.newest().expect("a run")));
}

#[test]
fn s19_an_agent_works_in_its_sandbox_with_the_folders_that_it_was_given() {
    if !works() {
        return;
    }
    let script = "turns:\n  - - shell: test ! -e $OUT/data/sprag.db && echo made > made.txt && git add . && git commit -qm made\n    - say: Done.\n";
    let bench = Bench::new(DIALECTS[0], script);
    let sandbox = &bench.project.sandbox;
    fs::create_dir_all(sandbox.path("robot")).unwrap();
    let steps = format!(
        "  - id: work\n    agent: {{ use: robot, prompt: Work. }}\n    sandbox: {{ read: ['{}'], write: [worktree, '{}'] }}\n    check: {{ run: 'test -e made.txt && test \"$(git log -1 --format=%s)\" = made' }}\n",
        sandbox.path("robot.script.yaml").display(),
        sandbox.path("robot").display()
    );
    let run = bench.run(&steps, 0);
    assert_eq!(sandbox.step(&run, "work")["attempt"], 1);
    assert_eq!((bench.starts(), bench.sessions()), (1, 1), "its home folder is the one that it was given");
}
