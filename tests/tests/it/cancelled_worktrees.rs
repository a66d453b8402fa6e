//! A run that is cancelled while its worktree is being created ends at once, and leaves nothing half created.

use std::ffi::OsStr;
use std::time::Duration;

use sprag_tests::{Project, git, until};

/// Long before what is interrupted would have ended by itself.
const PROMPT: Duration = Duration::from_secs(20);

fn cancel_promptly(project: &Project, file: &std::path::Path, begun: impl Fn() -> bool) {
    let started = project.start([OsStr::new("run"), file.as_os_str()]);
    until("it has begun", begun);
    let run = project.sandbox.newest().expect("a run");
    let asked = sprag_tests::now_ms();
    project.sprag(["cancel", &run]).expect(0);
    started.finish().expect(130);
    let took = Duration::from_millis(sprag_tests::now_ms() - asked);
    assert!(took < PROMPT, "{took:?}");
    assert_eq!(project.sandbox.processes_of(&run), Vec::<i32>::new());
    assert!(!project.sandbox.path("ran").exists());
    project.assert_clean();
}

#[test]
fn a_checkout_is_interrupted() {
    let project = Project::new();
    git(&project.repo(), ["config", "filter.slow.smudge", "touch $OUT/smudging; sleep 300; cat"]);
    project.commit(".gitattributes", "*.slow filter=slow\n");
    project.commit("big.slow", "text\n");
    let file = project.pipeline("slow", "environment: {worktree: {}}", "  - {id: a, run: 'touch $OUT/ran'}");
    cancel_promptly(&project, &file, || project.sandbox.path("smudging").exists());
    let events: Vec<String> =
        project.sandbox.journal(None).entries.into_iter().map(|entry| entry.event).collect();
    assert!(events.contains(&"provision.cancelled".to_owned()), "{events:?}");
}

#[test]
fn a_wait_for_the_repository_is_interrupted() {
    let project = Project::new();
    let file = project.pipeline("waits", "environment: {worktree: {}}", "  - {id: a, run: 'touch $OUT/ran'}");
    let folder = project.repo().join(".git/sprag");
    std::fs::create_dir_all(&folder).expect("a folder");
    let lock = std::fs::File::create(folder.join("lock")).expect("a file");
    lock.lock().expect("it is free");
    let started = project.start([OsStr::new("run"), file.as_os_str()]);
    until("it waits", || {
        project.sandbox.journal(None).entries.iter().any(|entry| entry.event == "environment.created")
    });
    let run = project.sandbox.newest().expect("a run");
    let asked = sprag_tests::now_ms();
    project.sprag(["cancel", &run]).expect(0);
    until("the making was broken off", || {
        project.sandbox.journal(None).entries.iter().any(|entry| entry.event == "provision.cancelled")
    });
    let took = Duration::from_millis(sprag_tests::now_ms() - asked);
    assert!(took < PROMPT, "{took:?}");
    drop(lock);
    started.finish().expect(130);
    assert!(!project.sandbox.path("ran").exists());
    project.assert_clean();
}

#[test]
fn a_setup_is_interrupted() {
    let project = Project::new();
    let head = "environment: {worktree: {}, setup: {run: 'touch $OUT/setting-up; sleep 300'}}";
    let file = project.pipeline("setup", head, "  - {id: a, run: 'touch $OUT/ran'}");
    cancel_promptly(&project, &file, || project.sandbox.path("setting-up").exists());
}
