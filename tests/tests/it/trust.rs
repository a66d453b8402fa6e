//! The agents.toml of a repository, which counts only after `sprag trust`.

use crate::agents::{Bench, DIALECTS};
use crate::json_shapes::check_shape;

#[test]
fn the_agents_of_a_repository_count_after_trust_and_until_they_change() {
    let bench = Bench::new(DIALECTS[0], "turns:\n  - - say: I am the robot.\n");
    let steps = "  - id: work\n    agent: { use: local, prompt: Work. }\n";
    let file = bench.pipeline(steps);
    let settings = std::fs::read_to_string(bench.project.sandbox.path("config/sprag/agents.toml"))
        .expect("the settings")
        .replace("[robot]", "[local]");
    let inside = bench.project.repo().join(".sprag");
    std::fs::create_dir_all(&inside).expect("a folder");
    std::fs::write(inside.join("agents.toml"), &settings).expect("a file");
    let refused = bench.sprag(&["run", &file]);
    assert!(refused.code != 0 && refused.stderr.contains("is not trusted"), "{refused:?}");
    assert_eq!(bench.starts(), 0);
    check_shape("trust", &bench.sprag(&["trust", "--json"]).expect(0));
    bench.sprag(&["run", &file]).expect(0);
    assert_eq!(bench.starts(), 1);
    // A change, such as one that an agent or a pull brings, ends the trust.
    std::fs::write(inside.join("agents.toml"), format!("{settings}args = []\n")).expect("a file");
    let changed = bench.sprag(&["run", &file]);
    assert!(changed.code != 0 && changed.stderr.contains("is not trusted"), "{changed:?}");
    bench.sprag(&["trust"]).expect(0);
    bench.sprag(&["trust", "--remove"]).expect(0);
    assert_ne!(bench.sprag(&["run", &file]).code, 0);
    assert_eq!(bench.starts(), 1);
}
