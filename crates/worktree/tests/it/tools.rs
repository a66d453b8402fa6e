//! Included files and leased ports.

use std::{collections::HashSet, fs, net::TcpListener};

use sprag_worktree::{Cancel, Kind, Ports};

use crate::{common::*, helper};

#[test]
fn ignored_files_are_included_by_pattern_and_nothing_leads_out() {
    let place = Place::new(3);
    let repo = place.repo();
    fs::create_dir_all(repo.join("ignored/deep")).expect("a folder");
    fs::write(repo.join("ignored/deep/file"), "x").expect("a file");
    fs::write(repo.join("local.env"), "SECRET=1").expect("a file");
    fs::write(repo.join("other.env"), "x").expect("a file");
    fs::write(repo.join("untracked"), "not ignored").expect("a file");
    fs::write(repo.join(".worktreeinclude"), "# ours\n\nignored/deep/\n").expect("a file");
    let worktrees = place.worktrees();
    let mut options = options("work", "work");
    options.include = vec!["local.env".to_owned(), "untracked".to_owned()];
    let worktree = worktrees.create(&options, &Cancel::default()).expect("a worktree");
    assert_eq!(fs::read_to_string(worktree.path().join("local.env")).expect("copied"), "SECRET=1");
    assert!(worktree.path().join("ignored/deep/file").exists());
    assert!(!worktree.path().join("other.env").exists() && !worktree.path().join("untracked").exists());
    remove(&worktrees, worktree);

    let outside = place.path().join("outside.env");
    fs::write(&outside, "x").expect("a file");
    std::os::unix::fs::symlink(&outside, repo.join("link.env")).expect("a link");
    for pattern in ["../outside.env", "a/../../b", "/etc/passwd", "link.env"] {
        options.include = vec![pattern.to_owned()];
        let error = worktrees.create(&options, &Cancel::default()).expect_err(pattern);
        assert!(matches!(&error.kind, Kind::IncludeRefused { .. }), "{pattern}: {error}");
    }
    place.git(&["branch", "--list"]);
    place.assert_nothing_left();
}

#[test]
fn leased_ports_are_distinct_free_kept_and_reclaimed() {
    let place = Place::new(1);
    let ports = Ports::open(&place.data()).expect("ports");
    let names = ["web".to_owned(), "db".to_owned()];
    let mut seen = HashSet::new();
    for run in 0..10 {
        let given = ports.lease(&format!("r{run}"), &names).expect("ports");
        for port in given.values() {
            assert!(seen.insert(*port), "{port} was given twice");
            drop(TcpListener::bind(("127.0.0.1", *port)).expect("free"));
        }
    }
    let first = ports.lease("r0", &names).expect("ports");
    assert_eq!(ports.lease("r0", &names).expect("ports"), first, "a run keeps its ports");
    helper::run(helper::command(&place, "lease-port")).expect("a lease");
    assert!(ports.list().expect("listed").iter().any(|(_, run, _)| run == "elsewhere"));
    ports.lease("r0", &names).expect("ports");
    assert!(
        ports.list().expect("listed").iter().all(|(_, run, _)| run != "elsewhere"),
        "its process is dead"
    );
    assert_eq!(ports.release("r0").expect("released"), 2);
    assert_eq!(ports.list().expect("listed").len(), 18);
}

#[test]
fn ports_are_leased_from_threads_and_processes_at_once() {
    let place = Place::new(1);
    let all: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|number| {
                let data = place.data();
                scope.spawn(move || {
                    let ports = Ports::open(&data).expect("ports");
                    let given = ports
                        .lease(&format!("r{number}"), &["web".to_owned(), "db".to_owned()])
                        .expect("ports");
                    given.into_values().collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 32);
}

#[test]
fn w13_every_log_line_of_this_crate_has_run_and_path() {
    let folders = ["/src", "/src/land"].map(|folder| format!("{}{folder}", env!("CARGO_MANIFEST_DIR")));
    let sources = folders.into_iter().flat_map(|folder| fs::read_dir(folder).expect("the sources"));
    let mut lines = 0;
    for source in sources.flatten().filter(|source| source.path().extension().is_some()) {
        let text = fs::read_to_string(source.path()).expect("a source");
        for (at, _) in text.match_indices("tracing::") {
            let call = text[at..].split_once(");").map_or("", |(call, _)| call);
            let has = |field: &str| {
                let forms =
                    [format!("{field} ="), format!("%{field},"), format!("({field},"), format!(" {field},")];
                forms.iter().any(|form| call.contains(form))
            };
            assert!(has("run") && has("path"), "{}: {call}", source.path().display());
            lines += 1;
        }
    }
    assert!(lines >= 10, "{lines}");
}
