//! The script of the fake agent: its behaviour in each turn, as YAML or JSON.
//!
//! ```yaml
//! start: [ignore_term]            # optional; done when the process starts
//! turns:                          # one entry per prompt; the last one is done again and again
//!   - - say: I will look.
//!     - shell: cargo test
//!     - end: ok
//!   - when: review                # instead of the entry in turn, for prompts that contain this text
//!     do:
//!       - output: { verdict: good }
//! ```

use serde_json::{Value, json};

use super::step::{Ending, Step};
use super::yaml;
use crate::usage::Usage;

/// The steps of the fake agent, for the start and for each turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Script {
    /// The steps when the process starts.
    pub start: Vec<Step>,
    /// The turns.
    pub turns: Vec<ScriptTurn>,
}

/// One turn of a script.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScriptTurn {
    /// The text that a prompt must contain for this turn; absent for a turn that is selected by its position.
    pub when: Option<String>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The error of a script that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ScriptError {
    /// The position: a line, or the turn and step.
    pub place: String,
    /// The mistake, and the correction.
    pub problem: String,
}

impl Script {
    /// Returns the built-in script, which makes a small commit and produces output for any schema.
    pub fn builtin() -> Script {
        const COMMIT: &str = "if git rev-parse --git-dir >/dev/null 2>&1; then \
            printf 'session %s, turn %s\\n' \"$FAKE_SESSION\" \"$FAKE_TURN\" >> \"fake-$FAKE_SESSION.txt\" && \
            git add \"fake-$FAKE_SESSION.txt\" && \
            git -c user.name='Fake agent' -c user.email=fake@localhost commit -qm 'A small commit of the fake agent'; fi";
        let usage = Usage { input_tokens: 1200, output_tokens: 80, cost_usd: Some(0.01), ..Usage::default() };
        let steps = vec![
            Step::Say("I am the fake agent. I make a small commit.".to_owned()),
            Step::Shell(COMMIT.to_owned()),
            Step::Usage(usage),
            Step::Say("Done.".to_owned()),
            Step::End(Ending::Ok),
        ];
        Script { start: Vec::new(), turns: vec![ScriptTurn { when: None, steps }] }
    }

    /// Returns the steps for the `number`th prompt of the session, from 0.
    pub fn steps(&self, number: usize, prompt: &str) -> &[Step] {
        let by_text =
            self.turns.iter().find(|turn| turn.when.as_ref().is_some_and(|when| prompt.contains(when)));
        let in_order: Vec<&ScriptTurn> = self.turns.iter().filter(|turn| turn.when.is_none()).collect();
        let turn = by_text.or_else(|| in_order.get(number).or(in_order.last()).copied());
        turn.map(|turn| turn.steps.as_slice()).unwrap_or_default()
    }

    /// Reads a script from YAML or JSON.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let value = yaml::read(text)
            .map_err(|(line, problem)| ScriptError { place: format!("line {line}"), problem })?;
        let wrong =
            |place: &str, problem: &str| ScriptError { place: place.to_owned(), problem: problem.to_owned() };
        let Value::Object(mut fields) = value else {
            return Err(wrong("the script", "want a map with `turns`"));
        };
        let start = match fields.remove("start") {
            None => Vec::new(),
            Some(steps) => read_steps(steps, "start")?,
        };
        let Some(Value::Array(turns)) = fields.remove("turns") else {
            return Err(wrong("turns", "want a list of turns, each a list of steps"));
        };
        if let Some(key) = fields.keys().next() {
            return Err(wrong(key, "no such key; there are `start` and `turns`"));
        }
        let turns = turns
            .into_iter()
            .enumerate()
            .map(|(number, turn)| read_turn(turn, &format!("turn {}", number + 1)));
        Ok(Script { start, turns: turns.collect::<Result<_, _>>()? })
    }

    /// Returns the script as YAML.
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        let list = |steps: &[Step], first: &str, rest: &str, out: &mut String| {
            for (number, step) in steps.iter().enumerate() {
                let (name, value) = step.to_pair();
                let start = if number == 0 { first } else { rest };
                match value {
                    Value::Null => out.push_str(&format!("{start}- {name}\n")),
                    value => out.push_str(&format!("{start}- {name}: {value}\n")),
                }
            }
        };
        if !self.start.is_empty() {
            out.push_str("start:\n");
            list(&self.start, "  ", "  ", &mut out);
        }
        out.push_str(if self.turns.is_empty() { "turns: []\n" } else { "turns:\n" });
        for turn in &self.turns {
            match &turn.when {
                Some(when) => {
                    out.push_str(&format!("  - when: {}\n    do:\n", json!(when)));
                    list(&turn.steps, "      ", "      ", &mut out);
                }
                None if turn.steps.is_empty() => out.push_str("  - []\n"),
                None => list(&turn.steps, "  - ", "    ", &mut out),
            }
        }
        out
    }
}

fn read_turn(turn: Value, place: &str) -> Result<ScriptTurn, ScriptError> {
    match turn {
        Value::Object(mut fields) => {
            let when = fields.remove("when").and_then(|when| when.as_str().map(str::to_owned));
            let steps = fields.remove("do").unwrap_or(Value::Null);
            if when.is_none() || !fields.is_empty() {
                let problem = "a turn is a list of steps, or a map with `when` (a text) and `do`".to_owned();
                return Err(ScriptError { place: place.to_owned(), problem });
            }
            Ok(ScriptTurn { when, steps: read_steps(steps, place)? })
        }
        steps => Ok(ScriptTurn { when: None, steps: read_steps(steps, place)? }),
    }
}

fn read_steps(steps: Value, place: &str) -> Result<Vec<Step>, ScriptError> {
    let Value::Array(steps) = steps else {
        return Err(ScriptError { place: place.to_owned(), problem: "want a list of steps".to_owned() });
    };
    let read = steps.into_iter().enumerate().map(|(number, step)| {
        Step::read(step)
            .map_err(|problem| ScriptError { place: format!("{place}, step {}", number + 1), problem })
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::failure::Reset;

    const ALL: &str = r#"
start: [ignore_term, slow_bytes: 2ms]
turns:
  - - say: I will look.
    - think: hard
    - shell: |
        cargo test
        echo done
    - ask: rm -rf target
    - ask: { tool: Write, input: { file_path: a.rs }, output: ok }
    - tool: { tool: Read, input: {} }
    - mcp: { server: sprag, tool: note, input: { text: hi } }
    - usage: { input: 100, output: 20, usd: 0.5 }
    - output: { verdict: good }
    - wait: 3m
    - orphan
    - exit: 3
    - huge_line: 1000
    - end: { limit: 2h }
  - when: review
    do:
      - silent
      - end: false_success
  - []
"#;

    #[test]
    fn a_script_has_all_steps() {
        let script = Script::parse(ALL).expect("a script");
        assert_eq!(script.start, [Step::IgnoreTerm, Step::SlowBytes(Duration::from_millis(2))]);
        assert_eq!(script.turns[0].steps[2], Step::Shell("cargo test\necho done\n".to_owned()));
        assert_eq!(script.turns[0].steps[13], Step::End(Ending::Limit(Reset::InSeconds(7200))));
        assert_eq!(script.steps(0, "fix it").len(), 14);
        assert_eq!(script.steps(0, "please review")[0], Step::Silent);
        assert_eq!(script.steps(1, "fix it"), []);
        assert_eq!(script.steps(9, "fix it"), []);
    }

    #[test]
    fn a_script_is_written_and_read_back() {
        for script in [Script::parse(ALL).expect("a script"), Script::builtin()] {
            let yaml = script.to_yaml();
            assert_eq!(Script::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}")), script);
        }
        let start: Vec<Step> = Step::BARE.into_iter().map(|(_, step)| step).collect();
        let bare = Script { start, turns: Vec::new() };
        assert_eq!(Script::parse(&bare.to_yaml()), Ok(bare));
    }

    #[test]
    fn json_is_a_script_too() {
        let script = Script::parse(r#"{"turns": [[{"say": "hi"}, "hang"]]}"#).expect("a script");
        assert_eq!(script.turns[0].steps, [Step::Say("hi".to_owned()), Step::Hang]);
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let rows = [
            ("turns: [[{shout: hi}]]", "turn 1, step 1: no step \"shout\""),
            ("turns: [[], [{say: hi}, {say: 3}]]", "turn 2, step 2: say wants a text"),
            ("turns: [[{end: well}]]", "turn 1, step 1: no end \"well\"; there are ok"),
            ("turns: [{do: []}]", "turn 1: a turn is a list of steps, or a map with `when`"),
            ("turns: [[{exit: 300}]]", "turn 1, step 1: exit wants a code from 0 to 255"),
            ("turns: [[{wait: soon}]]", "turn 1, step 1: want a time such as"),
            ("turn: []", "turns: want a list"),
            ("turns: []\nmore: 1", "more: no such key"),
            ("- a", "the script: want a map"),
            ("turns: [", "line "),
        ];
        for (text, problem) in rows {
            let error = Script::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}
