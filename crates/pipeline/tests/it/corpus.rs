//! The fuzzer's corpus, replayed: nothing in it makes the loader panic, and nothing takes long.

#[path = "../../../../fuzz/src/exercise.rs"]
mod exercise;

use std::path::Path;

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures real time, which no simulation replaces")]
fn the_corpus_neither_panics_nor_hangs() {
    /// Each takes a few milliseconds; a busy machine may take its time.
    const MOST_SECONDS: f64 = 5.0;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pipeline");
    let (mut files, mut pipelines, mut bytes, mut slowest) = (0, 0, 0, 0.0_f64);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read(&path).unwrap();
        let start = std::time::Instant::now();
        pipelines += usize::from(exercise::exercise(&text));
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < MOST_SECONDS, "{}: {seconds} s", path.display());
        (files, bytes, slowest) = (files + 1, bytes + text.len(), slowest.max(seconds));
    }
    println!(
        "figure: fuzzing, pipeline files: {files} files replayed, {bytes} bytes, {pipelines} of them pipelines, the slowest {slowest:.3} s"
    );
    assert!(
        files > 100 && pipelines > 20,
        "{pipelines} of {files}: the corpus is there and reaches all parts"
    );
    assert!(files < 500 && bytes < 1_000_000, "{files} files of {bytes} bytes: keep it small");
}
