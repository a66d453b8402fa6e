//! Replays the fuzzers' corpora: no input makes the loader or a template panic, and none takes long.

#[path = "../../../../fuzz/src/exercise.rs"]
mod exercise;
#[path = "../../../../fuzz/src/template_exercise.rs"]
mod template_exercise;

use std::path::Path;

/// The figures of one corpus.
struct Replayed {
    files: usize,
    accepted: usize,
    bytes: usize,
    slowest_s: f64,
}

/// Replays a corpus. `exercise` returns whether it accepted an input.
#[expect(clippy::disallowed_methods, reason = "it measures real time, which no simulation replaces")]
fn replay(name: &str, exercise: impl Fn(&[u8]) -> bool) -> Replayed {
    /// The limit in seconds. Each input takes a few milliseconds, but the machine may be busy.
    const MOST_SECONDS: f64 = 5.0;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut all = Replayed { files: 0, accepted: 0, bytes: 0, slowest_s: 0.0 };
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        let start = std::time::Instant::now();
        all.accepted += usize::from(exercise(&text));
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < MOST_SECONDS, "{}: {seconds} s", path.display());
        all.files += 1;
        all.bytes += text.len();
        all.slowest_s = all.slowest_s.max(seconds);
    }
    let Replayed { files, accepted, bytes, .. } = all;
    assert!(files < 500 && bytes < 1_000_000, "{files} files of {bytes} bytes: keep it small");
    assert!(files > 100 && accepted > 20, "{accepted} of {files}: the corpus is there and reaches all parts");
    all
}

#[test]
fn the_corpus_neither_panics_nor_hangs() {
    let Replayed { files, accepted, bytes, slowest_s } = replay("pipeline", exercise::exercise);
    println!(
        "figure: fuzzing, pipeline files: {files} files replayed, {bytes} bytes, {accepted} of them pipelines, the slowest {slowest_s:.3} s"
    );
}

#[test]
fn e03_the_corpus_of_templates_neither_panics_nor_hangs() {
    let Replayed { files, accepted, bytes, slowest_s } =
        replay("template", |text| template_exercise::exercise(text) > 0);
    println!(
        "figure: fuzzing, templates: {files} texts replayed, {bytes} bytes, {accepted} of them accepted, the slowest {slowest_s:.3} s"
    );
}
