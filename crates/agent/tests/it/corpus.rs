//! Replays the fuzzer's corpus: no stream, text or script in it breaks a guarantee.

#[path = "../../../../fuzz/src/agent_exercise.rs"]
pub mod agent_exercise;

use std::path::Path;

use agent_exercise::{Exercised, exercise};

#[test]
fn the_corpus_breaks_no_promise() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/agent");
    let (mut files, mut streams, mut turns, mut scripts) = (0, 0, 0, 0);
    for entry in std::fs::read_dir(&folder).expect("a corpus") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("an input");
        files += 1;
        match exercise(&bytes) {
            Exercised::Stream(ended) => {
                streams += 1;
                turns += ended;
            }
            Exercised::Script(accepted) => scripts += usize::from(accepted),
            Exercised::Text => {}
        }
    }
    println!(
        "figure: fuzzing, agents: {files} inputs replayed, {streams} of them streams with {turns} turns that ended"
    );
    assert!((100..800).contains(&files), "{files} inputs");
    assert!(turns >= 30 && scripts >= 5, "{turns} turns, {scripts} scripts: the corpus reaches all parts");
}
