//! The recordings of docs/cli.md: a terminal of 80 columns shows the same today, apart from ids and times.

use std::collections::BTreeMap;

use sprag_tests::{Project, Sandbox, Terminal, git};

const PAGE: &str = include_str!("../../../docs/cli.md");

const FAILS: &str = "\
steps:
  - { id: build, run: echo built }
  - id: test
    retry: { attempts: 2, delay: 2s }
    run: 'echo running 2 tests; echo \"assertion failed: left == right\"; exit 3'
  - { id: ship, run: echo shipped }
";

const RELEASE: &str = "\
inputs:
  version: { type: string, required: true }
steps:
  - { id: build, run: 'echo building {{ inputs.version }}' }
  - { id: ask, gate: { ask: 'Release {{ inputs.version }}?', choices: [canary, all, hold] } }
  - { id: ship, run: 'echo to {{ steps.ask.outputs.choice }}' }
";

/// Returns the recording that starts with this command, without it.
fn recording(command: &str) -> Vec<String> {
    let start = format!("```text\n$ {command}\n");
    let (_, rest) = PAGE.split_once(&start).unwrap_or_else(|| panic!("{command} is not recorded"));
    normal(rest.split("```").next().expect("an end"))
}

/// Returns the lines of a text with the same word for each id of a run and each time.
fn normal(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let (word, dots) = word.split_at(word.trim_end_matches('.').len());
        let is_id =
            word.len() == 12 && word.starts_with("0a") && word.chars().all(|c| c.is_ascii_alphanumeric());
        let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_time = ["ms", "s", "m"].contains(&&word[number.len()..]) && number.parse::<f64>().is_ok();
        let shown = if is_id {
            "RUN"
        } else if is_time {
            "TIME"
        } else {
            word
        };
        format!("{shown}{dots}")
    };
    let line = |line: &str| {
        let (mut words, mut current) = (String::new(), String::new());
        for c in line.chars() {
            if c.is_ascii_alphanumeric() || c == '.' {
                current.push(c);
            } else {
                words += &word(&std::mem::take(&mut current));
                words.push(c);
            }
        }
        words + &word(&current)
    };
    // A column of times is aligned to the right.
    let closed_up = |mut text: String| {
        while text.contains("  TIME") {
            text = text.replace("  TIME", " TIME");
        }
        text
    };
    text.lines().map(|text| closed_up(line(text.trim_end()))).collect()
}

/// Returns the lines that a terminal shows after everything was written: a line that is drawn again is there once.
fn seen(shown: &str) -> Vec<String> {
    let mut text = shown.to_owned();
    while let Some(start) = text.find("\u{1b}[") {
        let end =
            start + 2 + text[start + 2..].find(|c: char| c.is_ascii_alphabetic()).expect("a sequence") + 1;
        // What stands before the start of an erased line is gone.
        let line = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let from = if text[start..end].ends_with("2K") { line } else { start };
        text.replace_range(from..end, "");
    }
    normal(&text.replace('\r', ""))
}

#[track_caller]
fn same(command: &str, terminal: Terminal, code: i32) {
    let (exit, shown) = terminal.finish();
    assert_eq!(exit, code, "{shown}");
    assert_eq!(seen(&shown), recording(command), "{command} shows another text today:\n{shown}");
}

#[test]
fn the_recordings_of_the_page_are_what_a_terminal_shows() {
    let sandbox = Sandbox::new();
    let example = include_str!("../../../examples/hello.yaml");
    sandbox.write("hello.yaml", example);
    same("sprag run hello.yaml", sandbox.on_echoing_terminal(1, ["run", "hello.yaml"]), 0);
    sandbox.write("fails.yaml", FAILS);
    same("sprag run fails.yaml", sandbox.on_echoing_terminal(2, ["run", "fails.yaml"]), 100);
    sandbox.write("release.yaml", RELEASE);
    let mut terminal = sandbox.on_echoing_terminal(3, ["run", "release.yaml"]);
    for (prompt, typed) in [
        ("version: ", "1.2.0\n"),
        ("(Ctrl-C leaves it open): ", "canary\n"),
        ("comment (optional): ", "only to the north\n"),
    ] {
        terminal.shows(prompt);
        terminal.types(typed);
    }
    same("sprag run release.yaml", terminal, 0);
}

#[test]
fn the_recording_of_watch_is_what_a_terminal_shows() {
    let sandbox = Sandbox::new();
    sandbox.write("release.yaml", RELEASE);
    sandbox.write("hello.yaml", include_str!("../../../examples/hello.yaml"));
    sandbox.sprag(["run", "release.yaml", "-i", "version=1.2.0"]).expect(5);
    sandbox.sprag(["run", "hello.yaml", "--detach"]).expect(0);
    let mut terminal = sandbox.on_terminal(1, ["watch"]);
    terminal.shows("  release");
    terminal.types("\u{3}");
    let (code, shown) = terminal.finish();
    assert_eq!(code, 0, "{shown}");
    let first = shown.split("\u{1b}[2A").next().expect("the first picture");
    // Ctrl-C ends the line of the cursor.
    assert_eq!(seen(first.trim_end_matches('\n')), recording("sprag watch"), "{shown}");
}

/// Returns the kinds of lines that runs print which land at once, and how often each appears. Their order, the number of
/// conflicts and the waits for each other differ each time.
fn kinds(lines: &[String]) -> BTreeMap<String, usize> {
    let is_hash = |word: &str| {
        [7, 40].contains(&word.len())
            && word.chars().all(|c| c.is_ascii_hexdigit() && !c.is_uppercase())
            && word.chars().any(|c| c.is_ascii_digit())
    };
    let mut kinds = BTreeMap::new();
    // Without the commands, the messages of the shell about its jobs, and waits with their second rows.
    let is_other = |line: &&String| {
        line.starts_with(['$', '[']) || line.contains("│ waiting for run ") || line.len() < 3
    };
    for line in lines.iter().filter(|line| !is_other(line)) {
        let words = line.split(' ').map(|word| if is_hash(word) { "HASH" } else { word });
        let kind = words.collect::<Vec<_>>().join(" ").replace("(HEAD -> main) ", "");
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[test]
fn three_runs_land_as_in_the_recording() {
    let project = Project::new();
    let scratch = project.sandbox.path("scratch");
    std::fs::create_dir(&scratch).expect("a folder");
    git(&scratch, ["init", "--quiet", "--initial-branch=main"]);
    git(&scratch, ["config", "user.name", "A Person"]);
    git(&scratch, ["config", "user.email", "person@example.org"]);
    std::fs::write(scratch.join("land.yaml"), include_str!("../../../examples/land.yaml")).expect("a file");
    git(&scratch, ["add", "."]);
    git(&scratch, ["commit", "--quiet", "--message", "first"]);
    let start = "for word in red green blue; do sprag run land.yaml -i word=$word & done; wait";
    let look = "git log --oneline main; cat words.txt";
    let lines = format!("export GIT_PAGER=cat\n{start}\n{look}");
    let (code, shown) = project.sandbox.bash_on_terminal(1, &scratch, &lines).finish();
    assert_eq!(code, 0, "{shown}");
    let (mut recorded, mut today) = (kinds(&recording(start)), kinds(&seen(&shown)));
    for kind in [
        "land RUN · 3 steps",
        " land │ landed HASH on main",
        "✓ land TIME",
        "completed in TIME",
        "next: sprag status RUN · sprag logs RUN",
    ] {
        assert_eq!((recorded[kind], today.get(kind)), (3, Some(&3)), "{kind}: {shown}");
    }
    // The recording has conflicts. On a slow machine one run may start after another has landed.
    let conflict = "✗ land failed: it conflicts with the branch in words.txt TIME";
    assert!(recorded.remove(conflict).is_some_and(|count| count >= 2));
    today.remove(conflict);
    assert_eq!(recorded.keys().collect::<Vec<_>>(), today.keys().collect::<Vec<_>>(), "{shown}");
}

#[test]
fn recordings_fit_80_columns() {
    let recordings: Vec<&str> =
        PAGE.split_once("## Recordings").expect("recordings").1.split("```").skip(1).step_by(2).collect();
    assert_eq!(recordings.len(), 5, "first run, failure, question, three runs landing, watch");
    let long: Vec<&str> =
        recordings.iter().flat_map(|text| text.lines()).filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
}
