//! Best of N: the same step by several agents, each in a worktree of its own; only the winner's work lands.

use sprag_tests::try_git;

use crate::agents::{Bench, DIALECTS};

const COMMITS: &str = "turns:\n  - - usage: { input: 100, output: 20, usd: 0.5 }\n    - shell: echo one > one.txt && git add . && git commit -qm one\n    - say: Committed.\n";
const LEAVES: &str = "turns:\n  - - shell: echo two > two.txt\n    - say: I left it there.\n";
const NOTHING: &str = "turns:\n  - - say: I did nothing.\n";

/// Returns a pipeline that lands what agents make.
fn steps(more: &str) -> String {
    format!(
        "  - id: work\n    agent: {{ use: [robot, other], prompt: Make a file.{more} }}\n    check: {{ run: test -e one.txt || test -e two.txt }}\n  - id: note\n    run: echo {{{{ steps.work.outputs.winner }}}} > $OUT/winner\n  - {{ id: land, land: main }}\n"
    )
}

fn bench(robot: &str, other: &str) -> Bench {
    let bench = Bench::new(DIALECTS[0], robot);
    bench.add("other", DIALECTS[1], other, "");
    bench
}

/// Returns which of the two files have landed.
fn landed(bench: &Bench) -> (bool, bool) {
    let repo = bench.project.repo();
    (repo.join("one.txt").exists(), repo.join("two.txt").exists())
}

#[test]
fn a_person_picks_the_result_that_lands_after_a_comparison() {
    for (choice, files) in [("other", (false, true)), ("robot", (true, false))] {
        let bench = bench(COMMITS, LEAVES);
        let run = bench.run(&steps(""), 5);
        let asked = bench.sprag(&["questions", "--json"]).expect(0).stdout;
        for part in
            ["robot: done, 120 tokens, $0.5", "other: done", "one.txt", "two.txt", "Whose work counts?"]
        {
            assert!(asked.contains(part), "{part}: {asked}");
        }
        assert_eq!(landed(&bench), (false, false), "nothing lands before the answer");
        bench.sprag(&["approve", &run, "work-pick", "--choice", choice]).expect(0);
        assert_eq!(landed(&bench), files, "{choice}");
        assert_eq!(bench.project.sandbox.read("winner").trim(), choice);
        // The commits of the one that was not picked stay on its branch: no work is lost.
        let kept =
            try_git(&bench.project.repo(), ["for-each-ref", "--format=%(refname)", "refs/heads/sprag"]);
        assert_eq!(kept.stdout.is_empty(), choice == "robot", "{choice}: {kept:?}");
    }
}

#[test]
fn no_one_is_asked_if_one_alone_has_succeeded_and_none_fails_the_step() {
    let alone = bench(NOTHING, LEAVES);
    alone.run(&steps(""), 0);
    assert_eq!((landed(&alone), alone.project.sandbox.read("winner").trim()), ((false, true), "other"));
    let none = bench(NOTHING, NOTHING);
    let answer = none.sprag(&["run", &none.pipeline(&steps(""))]);
    assert!(
        answer.code == 100 && format!("{answer:?}").contains("none of robot, other has succeeded"),
        "{answer:?}"
    );
    assert_eq!(landed(&none), (false, false));
}

#[test]
fn a_judge_sees_both_diffs_and_picks() {
    let bench = bench(COMMITS, LEAVES);
    bench.add(
        "judge",
        DIALECTS[2],
        "turns:\n  - - output: { winner: robot, reason: It has a commit. }\n",
        "",
    );
    let run = bench.run(&steps(", pick: { use: judge, prompt: Take the better one. }"), 0);
    assert_eq!(landed(&bench), (true, false));
    let given = format!("{:?}", bench.given_to("judge"));
    for part in ["Take the better one.", "robot: done", "+one", "+two"] {
        assert!(given.contains(part), "{part}: {given}");
    }
    let log = bench.sprag(&["logs", &run, "work"]).expect(0).stdout;
    assert!(log.contains("the work of robot counts"), "{log}");
}

#[test]
fn a_rejection_lands_nothing() {
    let bench = bench(COMMITS, LEAVES);
    let run = bench.run(&steps(""), 5);
    bench.sprag(&["reject", &run, "work-pick"]).expect(100);
    assert_eq!(landed(&bench), (false, false));
}
