//! The files that a sandboxed step leaves for programs outside of its sandbox: repositories with settings of their own,
//! objects with wrong names, links and pipes among git's files, and sockets of the machine.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::Value;
use sprag_process::sandbox_support;
use sprag_tests::Project;

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

/// A repository inside the worktree that runs a command with every git that enters it, named by the worktree's commit.
/// `$1` is its folder, `$2` its git directory if that is elsewhere.
const NESTED: &str = r#"nested() {
  git init -q ${2:+--separate-git-dir="$2"} "$1"
  ( cd "$1"
    git config user.email a@b; git config user.name a
    echo x > f; echo '* filter=x' > .gitattributes; git add .; git commit -qm s
    git config filter.x.clean 'sh -c "echo clean >> OUT/pwned; cat"'
    git config filter.x.smudge 'sh -c "echo smudge >> OUT/pwned; cat"'
    git config core.sshCommand 'sh -c "echo ssh >> OUT/pwned"'
    git config core.fsmonitor 'sh -c "echo fsmonitor >> OUT/pwned"'
    git config protocol.ext.allow always
    git config url.'ext::sh -c "echo ext >> OUT/pwned" '.insteadOf /
    mkdir -p own-hooks; printf '#!/bin/sh\necho hook >> OUT/pwned\n' > own-hooks/post-checkout
    chmod +x own-hooks/post-checkout; cp own-hooks/post-checkout own-hooks/pre-push
    git config core.hooksPath "$PWD/own-hooks"
  )
  git add "$1"; git commit -qm "link $1"; echo changed$RANDOM > "$1/f"
}
"#;

#[test]
fn s19_no_repository_that_a_sandboxed_step_left_runs_a_command_outside() {
    if !works() {
        return;
    }
    let project = Project::new();
    let sandbox = &project.sandbox;
    project.git(["branch", "trunk"]);
    let attack = NESTED.replace("OUT", &sandbox.path("").display().to_string());
    let attack = attack.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let steps = format!(
        "  - id: plant\n    shell: bash\n    run: |\n{attack}      set -e\n      nested plain\n      nested linked \"$PWD/elsewhere.git\"\n      mkdir -p \"$(git rev-parse --git-dir)/modules/x\" && exit 9\n      echo 'elsewhere.git' >> .gitignore\n      git add .gitignore; git commit -qm ignore\n  - {{ id: more, run: 'echo more > more.txt' }}\n  - {{ id: land, land: {{ into: trunk, message: all }} }}\n"
    );
    let file = project.pipeline("nested", "environment: {worktree: {hooks: false}}\nsandbox: {}", &steps);
    let answer = project.sprag(["run".as_ref(), file.as_os_str()]);
    println!("{}\n{}", answer.stdout, answer.stderr);
    let run = sandbox.newest().expect("a run");
    assert_eq!(sandbox.step(&run, "plant")["status"], "done");
    assert_eq!(sandbox.step(&run, "more")["status"], "done");
    // Every command of Sprag that looks at a worktree.
    for args in [&["diff", &run][..], &["env", "ls"], &["resume", &run], &["gc", "--keep", "0s"], &["doctor"]]
    {
        let answer = project.sprag(args);
        println!("{args:?}: {}{}", answer.stdout, answer.stderr);
    }
    assert!(!sandbox.path("pwned").exists(), "outside ran: {}", sandbox.read("pwned"));
    // Their work is not lost: the worktree stays for a person to decide.
    if let Some(kept) = project.environments().first() {
        let path = kept["path"].as_str().expect("a path");
        assert!(std::path::Path::new(path).join("plain/f").exists(), "{kept}");
    }
}

/// Gives the gitlink in an index a mode that git takes for one and never writes itself. `$1` is the index.
const ODD_MODE: &str = r#"odd() {
  perl -MDigest::SHA=sha1 -e '
    local $/; open F, "<:raw", $ARGV[0]; my $index = <F>; close F; $index = substr $index, 0, -20;
    my $at = index $index, "\0\0\xe0\0"; die "no gitlink" if $at < 0;
    substr($index, $at, 4) = "\0\0\xe1\xa4";
    open F, ">:raw", $ARGV[0]; print F $index, sha1($index);' "$1"
}
"#;

#[test]
fn s19_no_repository_that_a_forged_index_names_runs_a_command_outside() {
    if !works() {
        return;
    }
    for strategy in ["squash", "rebase"] {
        let project = Project::new();
        let sandbox = &project.sandbox;
        project.git(["branch", "trunk"]);
        let attack = [NESTED, ODD_MODE].concat().replace("OUT", &sandbox.path("").display().to_string());
        let attack = attack.lines().map(|line| format!("      {line}\n")).collect::<String>();
        let steps = format!(
            r#"  - id: plant
    shell: bash
    run: |
{attack}      set -e
      printf '[submodule "plain"]\n\tpath = plain\n\turl = ./plain\n\tignore = none\n' > .gitmodules
      git add .gitmodules
      nested plain
      odd "$(git rev-parse --git-dir)/index"
      git ls-files --stage plain
  - {{ id: more, run: 'echo more > more.txt' }}
  - {{ id: land, land: {{ into: trunk, message: all, strategy: {strategy} }} }}
"#
        );
        let file = project.pipeline("forged", "environment: {worktree: {hooks: false}}\nsandbox: {}", &steps);
        let answer = project.sprag(["run".as_ref(), file.as_os_str()]);
        println!("{strategy}: {}\n{}", answer.stdout, answer.stderr);
        let run = sandbox.newest().expect("a run");
        let planted = project.sprag(["logs", &run, "plant"]).expect(0).stdout;
        assert!(planted.contains("160644"), "the index is forged: {planted}");
        for args in [&["diff", &run][..], &["env", "ls"], &["resume", &run], &["gc", "--keep", "0s"]] {
            let answer = project.sprag(args);
            println!("{args:?}: {}{}", answer.stdout, answer.stderr);
        }
        assert!(!sandbox.path("pwned").exists(), "{strategy}: outside ran: {}", sandbox.read("pwned"));
    }
}

#[test]
fn s19_no_object_or_link_of_a_sandboxed_step_reaches_others() {
    if !works() {
        return;
    }
    let project = Project::new();
    let sandbox = &project.sandbox;
    project.commit("build.sh", "echo honest\n");
    let victim = sandbox.write("victim", "untouched\n");
    let listed = project.git(["ls-tree", "main", "build.sh"]);
    let object = listed.split_whitespace().nth(2).expect("an object").to_owned();
    let objects = project.repo().join(".git/objects");
    let loose = objects.join(&object[..2]).join(&object[2..]);
    assert!(loose.exists(), "the object is loose");
    // Another repository of the user, whose objects must not become readable.
    let foreign = project.repository("foreign");
    fs::write(foreign.join("secret.txt"), "FOREIGN-SECRET\n").unwrap();
    sprag_tests::git(&foreign, ["add", "."]);
    sprag_tests::git(&foreign, ["commit", "-qm", "secret"]);
    let secret = sprag_tests::git(&foreign, ["rev-parse", "HEAD:secret.txt"]).trim().to_owned();
    let steps = format!(
        r#"  - id: object
    on_fail: continue
    shell: bash
    run: |
      d=$(git rev-parse --git-common-dir)/objects/{front}
      mkdir -p $d; rm -f $d/{back}
      printf 'blob 12\0echo PWNED!\n' | perl -MCompress::Zlib -0777 -ne 'print compress($_)' > $d/{back}
      test "$(git cat-file blob {object})" = 'echo PWNED!'
      rm -f $d/{back}; exit 9
  - id: object-kept
    on_fail: continue
    shell: bash
    run: |
      d=$(git rev-parse --git-common-dir)/objects/{front}
      mkdir -p $d; printf 'blob 12\0echo PWNED!\n' | perl -MCompress::Zlib -0777 -ne 'print compress($_)' > $d/{back}
      exit 9
  - id: borrowed-object
    on_fail: continue
    run: rm -f $(git rev-parse --git-common-dir)/sprag-borrowed/{front}/{back}
  - id: foreign-objects
    on_fail: continue
    shell: bash
    run: |
      o=$(git rev-parse --git-common-dir)/objects
      echo {foreign}/.git/objects > $o/info/alternates
      ln -s {foreign}/.git/objects/{secret_front} $o/{secret_front}
      exit 9
  - id: read-foreign
    on_fail: continue
    run: git cat-file blob {secret}
  - id: honest
    run: echo kept > kept.txt; git add kept.txt; echo staged > staged.txt; git add staged.txt
  - id: link
    on_fail: continue
    shell: bash
    run: |
      d=$(git rev-parse --git-dir)
      git commit -qm kept
      mkdir -p $d/logs; rm -f $d/logs/HEAD; ln -s {victim} $d/logs/HEAD
      ln -sf {victim} $d/ORIG_HEAD; mkfifo $d/MERGE_HEAD
      rm -f $d/index; ln -s {victim} $d/index
      exit 9
  - id: after
    sandbox: {{ required: true, network: none }}
    run: cat kept.txt staged.txt
"#,
        front = &object[..2],
        back = &object[2..],
        secret_front = &secret[..2],
        foreign = foreign.display(),
        victim = victim.display(),
    );
    let file = project.pipeline(
        "objects",
        "environment: {worktree: {branch: mine, keep: always}}\nsandbox: {}",
        &steps,
    );
    let run = project.run(&file, 0);
    let log = |step: &str| {
        let told = project.sprag(["logs", &run, step]);
        format!("{}{}", told.stdout, told.stderr)
    };
    for step in ["object", "object-kept", "foreign-objects", "link"] {
        println!("{step}: {}", log(step));
    }
    assert!(log("borrowed-object").contains("Read-only file system"), "{}", log("borrowed-object"));
    assert!(!log("read-foreign").contains("FOREIGN-SECRET"), "{}", log("read-foreign"));
    assert_eq!(log("after"), "kept\nstaged\n");
    // Others check out what was committed.
    let seen = project.git(["cat-file", "blob", &object]);
    assert_eq!(seen.trim(), "echo honest");
    let other = project.pipeline("other", "environment: {worktree: {}}", "  - {id: build, run: sh build.sh}");
    let other = project.run(&other, 0);
    assert_eq!(project.sprag(["logs", &other, "build"]).expect(0).stdout, "honest\n");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched\n", "a link among git's files was followed");
    let kept = project.git(["show", "mine:kept.txt"]);
    assert_eq!(kept.trim(), "kept", "honest commits count");
    assert!(sprag_tests::try_git(&project.repo(), ["cat-file", "-e", &secret]).status.code() != Some(0));
    project.git(["fsck", "--no-dangling"]);
}

#[test]
fn s19_a_sandbox_without_network_reaches_no_socket_of_the_machine() {
    if !works() {
        return;
    }
    let project = Project::new();
    let name = format!("sprag-test-{}", std::process::id());
    let file = std::path::PathBuf::from(format!("/tmp/{name}"));
    let _ = fs::remove_file(&file);
    // As X11 and D-Bus have them: an abstract one, and files.
    let abstract_address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let listeners = [UnixListener::bind_addr(&abstract_address).unwrap(), UnixListener::bind(&file).unwrap()];
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let connect = |address: &str| {
        format!(
            "perl -e 'use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) or die; connect(S, pack_sockaddr_un(\"{address}\")) or die \"refused: $!\\n\"; print \"reached\\n\"'"
        )
    };
    let steps = format!(
        "  - id: abstract\n    on_fail: continue\n    run: |\n      {}\n  - id: file\n    on_fail: continue\n    run: |\n      {}\n  - id: first\n    run: |\n      tr '\\0' '\\n' < /proc/1/environ | grep -c SPRAG_TOKEN || true\n      ls -l /proc/1/root /proc/1/cwd > /dev/null 2>&1; ls /proc/1/root/home 2>/dev/null || true\n",
        connect(&format!("\\0{name}")),
        connect(&file.display().to_string()),
    );
    for network in ["none", "loopback"] {
        let pipeline = project.pipeline(network, &format!("sandbox: {{network: {network}}}"), &steps);
        let dir = project.repo();
        let mut command = project.command_in(&dir, ["run".as_ref(), pipeline.as_os_str()]);
        command.env("SPRAG_TOKEN", "sprag_supervisors_own");
        project.sandbox.start_command(command).finish().expect(0);
        let run = project.sandbox.newest().expect("a run");
        for step in ["abstract", "file"] {
            let told: Value = project.sandbox.step(&run, step);
            let log = project.sprag(["logs", &run, step]).expect(0).stdout;
            assert!(told["status"] == "failed" && log.contains("refused"), "{network} {step}: {told} {log}");
        }
        let first = project.sprag(["logs", &run, "first"]).expect(0).stdout;
        assert_eq!(first.trim(), "0", "the first process of the sandbox shows what it should not: {first}");
    }
    assert!(listeners.iter().all(|listener| listener.accept().is_err()));
    let _ = fs::remove_file(&file);
}
