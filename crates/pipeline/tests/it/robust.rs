//! The loader never panics, hangs or slows down on any input.

use std::fmt::Write;

use sprag_pipeline::parse;

const SEEDS: [&str; 3] = [
    include_str!("../data/every_key.yaml"),
    include_str!("../../../../examples/hello.yaml"),
    include_str!("../../../../examples/cleanup.yaml"),
];
const FRAGMENTS: [&str; 30] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{{ inputs.x }}",
    "{% raw %}",
    "[",
    "]",
    "{",
    "}",
    ":",
    "- ",
    "&a ",
    "*a",
    "!t ",
    "|\n",
    ">",
    "'",
    "\"",
    "\\",
    "\n",
    "\t",
    "#",
    "---\n",
    "<<EOF",
    "$((",
    "💥",
    "\u{202e}",
    "steps:",
    "needs: [plan]",
];

/// A private generator (xorshift), so that a failure can be reproduced.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

#[test]
fn broken_files_never_panic() {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for round in 0..6000 {
        let mut text: Vec<char> = SEEDS[round % SEEDS.len()].chars().collect();
        for _ in 0..=chance.below(6) {
            let at = chance.below(text.len());
            let until = (at + chance.below(12)).min(text.len());
            match chance.below(4) {
                0 => drop(text.drain(at..until)),
                1 => drop(text.splice(at..at, FRAGMENTS[chance.below(FRAGMENTS.len())].chars())),
                2 => {
                    let copied = text[at..until].to_vec();
                    let to = chance.below(text.len());
                    text.splice(to..to, copied);
                }
                _ => text.truncate(text.len() - chance.below(text.len() / 4)),
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(wrong) = parse("p.yaml", &text) {
            assert!(!wrong.is_empty(), "{text}");
            assert!(!wrong.render(round % 2 == 0).is_empty());
        }
    }
}

fn thousand_steps() -> String {
    let mut text =
        String::from("name: large\ninputs: { n: { type: integer, default: 1 } }\nenv: { A: b }\nsteps:\n");
    for n in 0..1000 {
        let needs = if n == 0 { String::new() } else { format!("s{}, s{}", n / 2, n - 1) };
        let needs = if n == 1 { "s0".to_owned() } else { needs };
        let _ = write!(
            text,
            "  - id: s{n}\n    needs: [{needs}]\n    run: |\n      echo \"step {n} of {{{{ inputs.n }}}}\"\n      make target-{n}\n    \
             timeout: 5m\n    retry: {{ attempts: 3, backoff: exponential, delay: 1s }}\n    env: {{ STEP: '{n}' }}\n"
        );
    }
    text
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures real time, which no simulation replaces")]
fn a_thousand_steps_load_in_fifty_milliseconds() {
    let text = thousand_steps();
    let mut best_ms = f64::MAX;
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let loaded = parse("p.yaml", &text).unwrap_or_else(|wrong| panic!("{wrong}"));
        let plan = loaded.pipeline.plan(&Default::default()).unwrap();
        best_ms = best_ms.min(start.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(plan.steps.len(), 1000);
    }
    println!("1,000 steps ({} bytes) load and plan in {best_ms:.1} ms", text.len());
    // Unoptimised builds have a higher limit: the limit is for release builds.
    let bound_ms = if cfg!(debug_assertions) { 500.0 } else { 50.0 };
    assert!(best_ms < bound_ms, "{best_ms} ms");
}

/// Files of the maximum size, each built to cause much work in one part of the loader.
#[test]
#[expect(clippy::disallowed_methods, reason = "it measures real time, which no simulation replaces")]
fn the_largest_files_do_not_hang() {
    let steps = |each: &dyn Fn(usize) -> String| {
        let mut text = String::from("steps:\n");
        for n in 0.. {
            let step = each(n);
            if text.len() + step.len() > 1_000_000 {
                return text;
            }
            text.push_str(&step);
        }
        text
    };
    for (name, text) in [
        ("chain", steps(&|n| format!("- {{id: s{n}, run: x}}\n"))),
        (
            "rework",
            steps(&|n| match n {
                0 => "- {id: s0, run: x}\n".into(),
                1..9000 => format!("- {{id: s{n}, run: x, on_fail: {{rework: s{}}}}}\n", n / 2),
                _ => " ".repeat(1_000_000),
            }),
        ),
        (
            "reading all",
            steps(&|n| match n {
                0 => "- {id: s0, run: x}\n".into(),
                1..9000 => format!(
                    "- {{id: s{n}, run: 'x {{{{ steps.s{}.status }}}} {{{{ steps.s0.attempt }}}}'}}\n",
                    n / 2
                ),
                _ => " ".repeat(1_000_000),
            }),
        ),
        ("unknown needs", steps(&|n| format!("- {{id: s{n}, run: x, needs: [t{n}]}}\n"))),
        ("one id", steps(&|_| "- {id: s, run: x}\n".into())),
        ("templates", format!("steps: [{{id: a, run: 'echo {}'}}]", "{{ run.id }} ".repeat(9_000))),
        ("open braces", format!("steps: [{{id: a, run: '{}'}}]", "{{ ".repeat(300_000))),
        ("raw", format!("steps: [{{id: a, run: '{}'}}]", "{% raw %}".repeat(100_000))),
        (
            "needs twice",
            format!("steps: [{{id: a, run: x}}, {{id: b, run: x, needs: [{}]}}]", "a, ".repeat(300_000)),
        ),
        ("flow", format!("steps: {}", "[".repeat(900_000))),
        ("keys", format!("steps: [{{{}}}]", (0..90_000).map(|n| format!("k{n}: 1,")).collect::<String>())),
        ("one word", "x".repeat(1_000_000)),
        ("quotes", format!("steps: \"{}", "\\\"".repeat(400_000))),
    ] {
        let start = std::time::Instant::now();
        let found = parse("p.yaml", &text).map(|loaded| loaded.pipeline.steps.len());
        if let Err(wrong) = &found {
            let _ = wrong.to_string();
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name}: {} bytes, {seconds:.2} s, {:?}",
            text.len(),
            found.as_ref().map_err(|wrong| wrong.len())
        );
        assert!(seconds < 10.0, "{name}: {seconds} s");
    }
}
