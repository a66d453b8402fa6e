//! Recordings of real agents: the drivers write what was recorded, and report the events of the golden files.

use std::path::PathBuf;

use super::common::brief::brief;
use super::common::recording::{data, replay};

fn recordings() -> Vec<PathBuf> {
    let folders =
        std::fs::read_dir(data()).expect("tests/data").flatten().filter(|entry| entry.path().is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder").flatten());
    let mut files: Vec<PathBuf> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
        .collect();
    files.sort();
    files
}

/// `SPRAG_BLESS=1` writes the golden files again.
#[test]
fn recordings_of_real_agents_are_understood() {
    let bless = std::env::var_os("SPRAG_BLESS").is_some();
    let mut problems = Vec::new();
    let all = recordings();
    assert!(all.len() >= 30, "only {} recordings in {}", all.len(), data().display());
    for path in all {
        let text = std::fs::read_to_string(&path).expect("a recording");
        let story = match replay(&text, usize::MAX) {
            Ok(events) => events.iter().map(brief).collect::<Vec<_>>().join("\n") + "\n",
            Err(problem) => {
                problems.push(format!("{}: {problem}", path.display()));
                continue;
            }
        };
        let golden = path.with_extension("events");
        if bless {
            std::fs::write(&golden, &story).expect("a golden file");
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != story {
            problems.push(format!("{}: the events are now\n{story}", path.display()));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

#[test]
fn the_pieces_in_which_a_stream_comes_do_not_matter() {
    for path in recordings() {
        let text = std::fs::read_to_string(&path).expect("a recording");
        let whole = replay(&text, usize::MAX).expect("it replays");
        for chunk in [1, 7] {
            assert_eq!(replay(&text, chunk).expect("it replays"), whole, "{}", path.display());
        }
    }
}

/// A stream that breaks off anywhere ends the conversation once, without a false success.
#[test]
fn t02_a_stream_that_breaks_off_is_no_success() {
    for path in recordings() {
        let text = std::fs::read_to_string(&path).expect("a recording");
        let lines: Vec<&str> = text.lines().collect();
        let whole = replay(&text, usize::MAX).expect("it replays");
        let all_ends = whole.iter().filter(|event| matches!(event, sprag_agent::Event::TurnEnded(_))).count();
        for cut in 1..lines.len() {
            if lines[cut].starts_with("> ") || lines[cut].contains("\"end_of_stream\"") {
                continue;
            }
            let short = format!("{}\n! {{\"do\":\"end_of_stream\"}}\n", lines[..cut].join("\n"));
            let Ok(events) = replay(&short, usize::MAX) else { continue };
            let ends = events.iter().filter(|event| matches!(event, sprag_agent::Event::Ended(_))).count();
            assert_eq!(ends, 1, "{} cut at line {cut}", path.display());
            let turns =
                events.iter().filter(|event| matches!(event, sprag_agent::Event::TurnEnded(_))).count();
            assert!(turns <= all_ends, "{} cut at line {cut}", path.display());
        }
    }
}
