//! The reach of callers: what the limits of a token exclude, and what they leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_app::tokens::{Scope, TokenLimits};
use sprag_app::{App, ErrorKind, Reach, RunFilter, RunId, RunLabels, Subject, boards};

/// Returns an application, and its runs of `deploy-a` and `build-b`.
async fn app(dir: &std::path::Path) -> (App, [RunId; 2]) {
    let app = App::in_memory(dir);
    let mut runs = Vec::new();
    for (name, team, queue) in [("deploy-a", "a", "qa"), ("build-b", "b", "qb")] {
        let text = format!("name: {name}\nsteps:\n  - {{ id: s, run: 'true', queue: {queue} }}\n");
        let pipeline = sprag_app::parse("p.yaml", &text).expect("a pipeline");
        let plan = pipeline.plan(&BTreeMap::new()).expect("a plan");
        let labels = BTreeMap::from([("team".to_owned(), team.to_owned())]);
        let start = app.new_run(plan, &BTreeMap::new()).unwrap().labelled(RunLabels { name: None, labels });
        runs.push(app.start_run(start).await.expect("it starts").run.id);
    }
    (app, [runs[0], runs[1]])
}

fn reach(scopes: &[Scope], limits: &TokenLimits) -> Reach {
    Reach::of_token(&Arc::from("ci"), scopes, limits)
}

#[tokio::test]
async fn e04_limits_exclude_the_runs_beyond_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let (app, [inside, beyond]) = app(dir.path()).await;
    let none = TokenLimits::default();
    let list = |text: &str| vec![text.to_owned()];
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    for limits in [
        TokenLimits { pipelines: list("deploy-*"), ..none.clone() },
        TokenLimits { queues: list("qa"), ..none.clone() },
        TokenLimits { labels, ..none.clone() },
    ] {
        let reach = reach(&[Scope::Run], &limits);
        assert!(app.require_reach(&reach, Subject::Run(inside)).is_ok(), "{limits}");
        let refused = app.require_reach(&reach, Subject::Run(beyond)).expect_err("it is beyond");
        assert_eq!(refused.kind, ErrorKind::Forbidden);
        assert!(refused.message.contains(&limits.to_string()), "{refused}");
        let filter = RunFilter { reach: reach.clone(), ..RunFilter::default() };
        let listed: Vec<RunId> = app.runs(&filter, 10).expect("runs").runs.iter().map(|run| run.id).collect();
        assert_eq!(listed, [inside], "{limits}");
        assert_eq!(app.count_runs(&filter).expect("counts").by_status.values().sum::<usize>(), 1);
        assert_eq!(app.live(&reach).expect("live runs").live, 1);
        assert!(app.require_reach(&reach, Subject::Everything).is_err());
        let newest = sprag_app::find_run_within(&app, None, &reach).expect("the newest run in reach");
        assert_eq!(newest.id(), inside);
    }
    let everything = reach(&[Scope::Run], &none);
    assert!(everything.is_everything());
    assert!(app.require_reach(&everything, Subject::Run(beyond)).is_ok());
}

#[tokio::test]
async fn e04_a_work_token_and_a_step_reach_their_own_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let (app, [first, second]) = app(dir.path()).await;
    let step = Reach::of_step(first);
    assert!(app.reaches(&step, first).expect("a run") && !app.reaches(&step, second).expect("a run"));
    let work = reach(&[Scope::Work], &TokenLimits::default());
    assert!(!app.reaches(&work, first).expect("a run"));
    boards::create(&app, &boards::BoardSpec { name: "b".into(), ..Default::default() })
        .await
        .expect("a board");
    let board = boards::known(&app, "b").expect("a board");
    let task = boards::TaskSpec { text: "t".into(), ..Default::default() };
    boards::add_tasks(&app, &board, &[task]).await.expect("a task");
    assert!(!app.reaches(&work, board.run).expect("a run"));
    let claim = boards::ClaimSpec { name: "ada".into(), board: Some("b".into()), ..Default::default() };
    let wanted = claim.wanted(&app, std::time::Duration::ZERO, "ci".into()).expect("a claim");
    boards::claim(&app, &wanted).await.expect("an answer").expect("a task");
    assert!(app.reaches(&work, board.run).expect("a run"), "it holds a task of the board");
    // The names of other tokens end in the same way.
    for other in ["i", "x@ci", "ada@ci"] {
        let other = Reach::of_token(&Arc::from(other), &[Scope::Work], &TokenLimits::default());
        assert!(!app.reaches(&other, board.run).expect("a run"));
    }
}
