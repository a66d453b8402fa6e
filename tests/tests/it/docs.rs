//! Every example in docs/pipelines.md, run by the real program, and every key of the language named there; the commands in
//! docs/api.md and docs/triggers.md.
//!
//! A comment before an example controls the test:
//!
//! ```text
//!   <!-- load -->                                        only load it: it needs the network, a person, …
//!   <!-- file: NAME -->                                  store it under that name for later examples
//!   <!-- run: ARGUMENTS; exit N; COMMAND RUN …; exit N -->  run it with these arguments, then these commands
//! ```

use std::collections::BTreeSet;

use serde_json::Value;
use sprag_tests::{Sandbox, until};

const PAGE: &str = include_str!("../../../docs/pipelines.md");

/// An example and what the comments before it say.
struct Example<'p> {
    text: &'p str,
    notes: Vec<&'p str>,
}

fn examples() -> Vec<Example<'static>> {
    let mut found = Vec::new();
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("```yaml\n") {
        let (text, after) = after.split_once("```\n").expect("an end");
        let mut notes: Vec<&str> = Vec::new();
        for line in before.lines().rev() {
            match line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
                Some(note) => notes.push(note),
                None => break,
            }
        }
        found.push(Example { text, notes });
        rest = after;
    }
    found
}

impl Example<'_> {
    fn note(&self, name: &str) -> Option<&str> {
        self.notes.iter().find_map(|note| note.strip_prefix(name)).map(str::trim)
    }
}

/// Splits words as a shell would; only single quotes are supported.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (at, part) in text.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

#[test]
fn every_example_does_what_the_page_says() {
    let sandbox = Sandbox::new();
    let examples = examples();
    assert!(examples.len() >= 18, "the examples are found");
    for (at, example) in examples.iter().enumerate() {
        let file = example.note("file:").map_or_else(|| format!("example-{at}.yaml"), str::to_owned);
        sandbox.write(&file, example.text);
        sandbox.sprag(["validate", "--strict", &file]).expect(0);
        if example.note("load").is_some() {
            continue;
        }
        let script = example.note("run:").unwrap_or("; exit 0");
        let mut parts = script.split(';').map(str::trim);
        let mut run = String::new();
        while let Some(command) = parts.next() {
            let exit = parts.next().and_then(|part| part.strip_prefix("exit ")).expect("exit N");
            let exit: i32 = exit.parse().expect("a number");
            if run.is_empty() {
                let mut args = vec![file.clone()];
                args.extend(words(command));
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                run = sandbox.run(&args, exit);
            } else {
                let args =
                    words(command).into_iter().map(|word| if word == "RUN" { run.clone() } else { word });
                sandbox.sprag(args).expect(exit);
            }
        }
        assert_eq!(sandbox.status_word(&run), "completed", "{}", example.text);
        sandbox.check(&run);
    }
}

#[test]
fn the_verify_loop_on_the_page_goes_three_rounds() {
    let sandbox = Sandbox::new();
    let found =
        examples().into_iter().find(|example| example.text.contains("rework: work")).expect("it is there");
    sandbox.yaml("loop", found.text);
    let run = sandbox.run(&["loop.yaml"], 0);
    assert_eq!(sandbox.step(&run, "work")["attempt"], 3);
    let told = sandbox.sprag(["logs", &run, "work"]).expect(0).stdout;
    assert!(told.starts_with("feedback: step `verify` failed: exit code 1\ntoo short"), "{told}");
}

#[test]
fn the_page_names_every_key() {
    let sandbox = Sandbox::new();
    let mut keys = BTreeSet::new();
    collect(&sandbox.json(["schema"]), &mut keys);
    assert!(keys.len() > 50, "{keys:?}");
    let missing: Vec<&String> = keys
        .iter()
        .filter(|key| {
            let forms = [format!("`{key}`"), format!("{key}:"), format!("`{key}:"), format!("{{ {key}")];
            !forms.iter().any(|form| PAGE.contains(form))
        })
        .collect();
    assert!(missing.is_empty(), "docs/pipelines.md does not tell of {missing:?}");
}

/// Collects the names of all properties in a schema.
fn collect(schema: &Value, keys: &mut BTreeSet<String>) {
    match schema {
        Value::Object(entries) => {
            if let Some(Value::Object(properties)) = entries.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            entries.values().for_each(|value| collect(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, keys)),
        _ => {}
    }
}

const TRIGGERS: &str = include_str!("../../../docs/triggers.md");

/// Returns the page without its walk-through, and the walk-through.
fn walk_through() -> (String, &'static str) {
    let (before, rest) = TRIGGERS.split_once("\n## Try it").expect("a walk-through");
    let (walk, after) = rest.split_once("\n## ").expect("a further section");
    (format!("{before}\n## {after}"), walk)
}

/// Returns the blocks of a page that are typed into a shell.
fn typed(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split_once("```").expect("an end").0).collect()
}

/// Types commands into a shell, and returns what they print.
fn shell(sandbox: &Sandbox, script: &str) -> (String, String) {
    let folder = sprag_tests::program().parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let told = std::process::Command::new("sh")
        .args(["-eu", "-c", script])
        .current_dir(sandbox.path("."))
        .env("SPRAG_DATA", sandbox.data())
        .env("PATH", path)
        .output()
        .expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&told.stdout), text(&told.stderr));
    assert!(told.status.success(), "{out}\n{err}");
    (out, err)
}

/// The walk-through of docs/triggers.md, typed as it stands, with the address of this test's server.
#[test]
fn r15_r24_the_walk_through_of_triggers_can_be_typed() {
    let (_, walk) = walk_through();
    let blocks = typed(walk);
    assert_eq!(blocks.len(), 2);
    let sandbox = Sandbox::new();
    let (out, _) = shell(&sandbox, blocks[0]);
    assert!(out.contains("new        site/push") && out.contains("site/often"), "{out}");
    let serve = "HOOK_SECRET=a-long-random-text sprag serve\n";
    assert!(walk.contains(serve), "{walk}");
    let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0"]);
    command.env("HOOK_SECRET", "a-long-random-text");
    let server = sprag_tests::Server::from_process(&sandbox, sandbox.start_command(command));
    let (out, err) = shell(&sandbox, &blocks[1].replace("127.0.0.1:7717", &server.addr.to_string()));
    for wanted in [
        "starts a run with {\"why\":\"a new page\"}",
        "is taken\nsee its decision: sprag delivery show",
        "was taken before",
        "it waits for a request",
        "site/often is paused",
    ] {
        assert!(out.contains(wanted), "{wanted}: {out}\n{err}");
    }
    sandbox.sprag(["rule", "resume", "often"]).expect(0);
    until("the push and a tick have built", || {
        let builds = sandbox.lines("builds");
        let pushes = builds.iter().filter(|line| *line == "built for a new page").count();
        assert!(pushes <= 1, "{builds:?}");
        pushes == 1 && builds.iter().any(|line| line.starts_with("built for the tick of "))
    });
    // Each build is followed by a run of the other pipeline, once.
    until("the builds are told of", || sandbox.lines("told").len() >= 2);
    let told = sandbox.lines("told");
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "{told:?}");
}

/// The other blocks of docs/triggers.md, one after the other in one shell.
#[test]
fn the_page_about_triggers_does_what_it_says() {
    let (page, _) = walk_through();
    let sandbox = Sandbox::new();
    let blocks = typed(&page);
    assert_eq!(blocks.len(), 4);
    let (out, err) = shell(&sandbox, &blocks.join("\n"));
    for wanted in [
        "new        report/nightly",
        "new        alarm/failed",
        "new        ci/push",
        "requested run",
        "starts a run with {\"day\":\"2030-01-31\"}",
        "report/nightly is paused",
        "report/nightly is active",
        "2 new, 0 taken before",
        "0 new, 2 taken before",
        "its next tick is",
    ] {
        assert!(out.contains(wanted), "{wanted}: {out}\n{err}");
    }
    assert!(err.contains("No process watches"), "{err}");
}

/// The blocks of docs/api.md, one after the other in one shell, against a server of this test's.
#[test]
fn the_api_page_does_what_it_says() {
    const API: &str = include_str!("../../../docs/api.md");
    let sandbox = Sandbox::new();
    let server = sprag_tests::Server::start(&sandbox, &[]);
    let blocks: Vec<&str> =
        API.split("```sh\n").skip(1).map(|rest| rest.split_once("```").expect("an end").0).collect();
    assert!(blocks.len() >= 7, "{}", blocks.len());
    let script = blocks.join("\necho\n").replace("127.0.0.1:7717", &server.addr.to_string());
    let folder = sprag_tests::program().parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let told = std::process::Command::new("sh")
        .args(["-eu", "-c", &script])
        .current_dir(sandbox.path("."))
        .env("SPRAG_DATA", sandbox.data())
        .env("PATH", path)
        .output()
        .expect("a shell");
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{out}\n{err}");
    for wanted in [
        "\"pipeline\":\"hello\"",
        "out hello",
        "event: line",
        "event: run.succeeded",
        "\"outcome\":{\"kind\":\"illegal\",\"entity\":\"run\",\"status\":\"completed\",\"wrong_actor\":false}",
        "\"executions\":[",
    ] {
        assert!(out.contains(wanted), "{wanted}: {out}");
    }
    // Every code that a problem can have is on the page.
    let code = concat!(
        include_str!("../../../crates/server/src/problem.rs"),
        include_str!("../../../crates/app/src/error.rs")
    );
    for word in [
        "malformed",
        "invalid",
        "not_found",
        "refused",
        "rate_limited",
        "unavailable",
        "pipeline",
        "internal",
    ] {
        assert!(code.contains(&format!("\"{word}\"")) && API.contains(&format!("`{word}`")), "{word}");
    }
}

/// The three settings of docs/security.md, each typed from top to bottom.
#[test]
fn s19_the_settings_of_the_security_page_can_be_typed() {
    const SECURITY: &str = include_str!("../../../docs/security.md");
    let blocks = typed(SECURITY);
    let [alone, certificate, team, untrusted] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let sandbox = Sandbox::new();
    let (out, err) = shell(&sandbox, alone);
    assert!(out.contains("the key is ***") && !out.contains("the-key-of-one-user"), "{out}\n{err}");
    assert!(out.contains("only this user can look into") && out.contains("run.created"), "{out}\n{err}");

    shell(&sandbox, certificate);
    assert!(SECURITY.contains("`sprag serve --no-worker --tls-cert cert.pem --tls-key key.pem`"));
    let files = [sandbox.path("cert.pem"), sandbox.path("key.pem")].map(|file| file.display().to_string());
    let args = ["--no-worker", "--tls-cert", &files[0], "--tls-key", &files[1]];
    let server = sprag_tests::Server::start(&sandbox, &args);
    let (out, err) = shell(&sandbox, &team.replace("127.0.0.1:7717", &server.addr.to_string()));
    for wanted in [
        "ada started it: others answer",
        "bo reaches pipelines named deploy-* alone",
        "token:ada",
        "token:cy",
        "gate.answered",
        "shipped",
    ] {
        assert!(out.contains(wanted), "{wanted}: {out}\n{err}");
    }

    if let Err(why) = sprag_process::sandbox_support() {
        println!("SKIPPED: no sandbox can be made here: {why}");
        return;
    }
    let (out, err) = shell(&Sandbox::new(), untrusted);
    for wanted in ["no keys here", "no store here", "+done", "landed"] {
        assert!(out.contains(wanted), "{wanted}: {out}\n{err}");
    }
}
