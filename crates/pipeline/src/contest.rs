//! Best of N: an agent step with several agents in `use` becomes ordinary steps.
//!
//! ```text
//!   work-claude ─┐   each in a worktree of its own, with the step's checks and retries
//!   work-codex ──┼─▶ work-compare ─▶ work-pick (a person) or work-judge (an agent) ─▶ work
//!   work-gemini ─┘   status, diff, cost                    takes the winner's commits into the run's worktree
//! ```
//!
//! If one agent alone has succeeded, no one is asked. If none has, the last step fails.

use serde_json::{Map, Value, json};

use crate::diagnostic::{Problem, Report};
use crate::source::Span;
use crate::yaml::{MapKey, Node, Scalar, ScalarKind, Yaml, quoted};

/// The most agents of one step. Each of them costs a whole attempt.
const MOST_AGENTS: usize = 8;
/// The keys of the step that concern its result, and not the work of each agent.
const RESULT_KEYS: [&str; 3] = ["id", "needs", "on_fail"];
/// The keys that all steps of the contest have.
const SHARED_KEYS: [&str; 3] = ["when", "always", "queue"];
/// The keys of a step that make no sense for a contest.
const REFUSED_KEYS: [&str; 5] = ["foreach", "matrix", "repeat", "environment", "outputs"];

/// Shows the state of one agent's work: `show NAME STEP STATUS TOKENS COST`.
const SHOW: &str = r#"ref=refs/sprag/runs/$SPRAG_RUN_ID
show() {
  echo "$1: $3, $4 tokens, \$$5"
  git rev-parse --quiet --verify "$ref/$2^{commit}" > /dev/null || return 0
  git --no-pager diff --stat=100 "$ref/_$2" "$ref/$2" | tail -n 20
  [ -z "$DIFF" ] || git --no-pager diff "$ref/_$2" "$ref/$2" | head -c 40000
  echo
}
"#;

/// Takes the work of the winner. Its commits come first, then the changes that it did not commit.
const TAKE: &str = r#"name=${CHOICE:-$ONLY}
case " $DONE " in *" $name "*) ;; *) name= ;; esac
if [ -z "$name" ]; then echo "none of $ALL has succeeded" >&2; exit 1; fi
ref=refs/sprag/runs/$SPRAG_RUN_ID/$STEP-$(printf %s "$name" | tr . -)
git merge --quiet --no-edit "$ref^" || exit 1
git diff --quiet "$ref^" "$ref" || git diff --binary "$ref^" "$ref" | git apply || exit 1
echo "winner=$name" >> "$SPRAG_OUTPUT"
echo "the work of $name counts"
"#;

/// Returns whether a step is a contest of several agents.
pub(crate) fn is_contest(step: &Node) -> bool {
    step.get("agent").and_then(|agent| agent.get("use")).is_some_and(|used| used.text().is_none())
}

/// Returns the steps with contests as ordinary steps.
pub(crate) fn with_contests(root: &Node, written: &[Node], report: &mut Report) -> Vec<Node> {
    let has_worktree = root.get("environment").is_some_and(|node| node.get("worktree").is_some());
    let id_of = |step: &Node| step.get("id").and_then(Node::text).map(str::to_owned);
    let mut steps: Vec<Node> = Vec::with_capacity(written.len());
    for (no, step) in written.iter().enumerate() {
        let names = names(step);
        match id_of(step) {
            Some(id) if names.len() > 1 && is_contest(step) => {
                check(step, &names, has_worktree, report);
                let before = no.checked_sub(1).and_then(|before| id_of(&written[before]));
                steps.extend(Contest { step, id, names, before }.steps());
            }
            _ => steps.push(step.clone()),
        }
        if let Some(target) = step.get("on_fail").and_then(|on_fail| on_fail.get("rework"))
            && written.iter().any(|other| is_contest(other) && id_of(other).as_deref() == target.text())
        {
            let problem = Problem::at(target.span, "a step of several agents cannot be reworked");
            report.error(problem.help("name a step before it, or use one agent"));
        }
    }
    steps
}

/// Returns the agents of a step.
fn names(step: &Node) -> Vec<(&str, Span)> {
    let used = step.get("agent").and_then(|agent| agent.get("use"));
    let listed = used.map(Node::items).unwrap_or_default();
    listed.iter().filter_map(|name| Some((name.text()?, name.span))).collect()
}

/// Refuses what a contest cannot do.
fn check(step: &Node, names: &[(&str, Span)], has_worktree: bool, report: &mut Report) {
    for (at, (name, span)) in names.iter().enumerate() {
        if names[..at].iter().any(|(other, _)| other.replace('.', "-") == name.replace('.', "-")) {
            let problem = Problem::at(*span, format!("{} is listed twice", quoted(name)));
            report.error(problem.help("an agent with another model needs another name in agents.toml"));
        }
    }
    if let Some((_, span)) = names.get(MOST_AGENTS) {
        report.error(Problem::at(*span, format!("at most {MOST_AGENTS} agents can do the same step")));
    }
    if !has_worktree {
        let problem = Problem::at(names[0].1, "several agents need worktrees of their own");
        report.error(problem.help("add `environment: { worktree: {} }` to the pipeline"));
    }
    for (key, _) in step.entries().iter().filter(|(key, _)| REFUSED_KEYS.contains(&key.text.as_str())) {
        let message = format!("`{}` does not work for a step of several agents", key.text);
        report.error(Problem::at(key.span, message).help("use one agent, or a step after this one"));
    }
    if let Some(session) = step.get("agent").and_then(|agent| agent.get("session"))
        && session.text() != Some("new")
    {
        let problem = Problem::at(session.span, "several agents cannot continue one session");
        report.error(problem.help("remove `session`"));
    }
}

/// A step that several agents do.
struct Contest<'n> {
    step: &'n Node,
    id: String,
    names: Vec<(&'n str, Span)>,
    /// The step before it in the file.
    before: Option<String>,
}

impl Contest<'_> {
    /// Returns the id of one agent's step.
    fn candidate(&self, name: &str) -> String {
        format!("{}-{}", self.id, name.replace('.', "-"))
    }

    fn steps(&self) -> Vec<Node> {
        let pick = self.step.get("agent").and_then(|agent| agent.get("pick"));
        let judge = pick.filter(|pick| pick.text().is_none());
        let mut steps: Vec<Node> = self.names.iter().map(|(name, span)| self.work(name, *span)).collect();
        steps.push(self.compare(judge.is_some()));
        steps.push(match judge {
            Some(judge) => self.judge(judge),
            None => self.ask(),
        });
        steps.push(self.take(if judge.is_some() { "judge" } else { "pick" }));
        steps
    }

    /// Returns the step of one agent.
    fn work(&self, name: &str, span: Span) -> Node {
        let mut entries: Vec<(MapKey, Node)> = self.step.entries().to_vec();
        entries.retain(|(key, _)| !RESULT_KEYS.contains(&key.text.as_str()));
        for (_, agent) in entries.iter_mut().filter(|(key, _)| key.text == "agent") {
            if let Yaml::Map(keys) = &mut agent.yaml {
                keys.retain(|(key, _)| !["use", "pick"].contains(&key.text.as_str()));
                keys.push(entry("use", &json!(name), span));
            }
        }
        entries.push(entry("id", &json!(self.candidate(name)), span));
        entries.push(entry("environment", &json!("own"), span));
        entries.push(entry("on_fail", &json!("continue"), span));
        match (self.step.get("needs"), &self.before) {
            (Some(needs), _) => entries.push((key("needs", span), needs.clone())),
            (None, Some(before)) => entries.push(entry("needs", &json!([before]), span)),
            (None, None) => entries.push(entry("needs", &json!([]), span)),
        }
        Node::new(self.step.span, Yaml::Map(entries))
    }

    /// Returns the step that compares the work of all agents.
    fn compare(&self, with_diff: bool) -> Node {
        let mut env = Map::new();
        let mut script = SHOW.to_owned();
        for (at, (name, _)) in self.names.iter().enumerate() {
            let step = format!("steps[{}]", json!(self.candidate(name)));
            env.insert(format!("STATUS_{at}"), json!(format!("{{{{ {step}.status }}}}")));
            for (variable, output) in [("TOKENS", "tokens"), ("COST", "cost_usd")] {
                // An agent that failed has no outputs, and some agents report no cost.
                let found = format!("{step}.outputs.{output}");
                let value =
                    format!("{{{{ \"?\" if {found} is undefined or {found} is none else {found} }}}}");
                env.insert(format!("{variable}_{at}"), json!(value));
            }
            let id = self.candidate(name);
            script += &format!("show {name} {id} \"$STATUS_{at}\" \"$TOKENS_{at}\" \"$COST_{at}\"\n");
        }
        env.insert("DIFF".to_owned(), json!(if with_diff { "1" } else { "" }));
        let candidates: Vec<String> = self.names.iter().map(|(name, _)| self.candidate(name)).collect();
        self.made(&json!({
            "id": format!("{}-compare", self.id),
            "needs": candidates,
            "run": script,
            "env": env,
            "outputs": { "table": { "stdout": "text" } },
        }))
    }

    /// Returns the question to a person.
    fn ask(&self) -> Node {
        let compare = format!("{}-compare", self.id);
        let mut choices: Vec<Value> =
            self.names.iter().map(|(name, _)| json!({ *name: { "to": self.id } })).collect();
        choices.push(json!("none"));
        let ask = format!("Whose work counts?\n\n{{{{ steps[{}].outputs.table }}}}", json!(compare));
        self.made(&json!({
            "id": format!("{}-pick", self.id),
            "needs": [compare],
            "when": self.several(),
            "gate": { "ask": ask, "choices": choices },
        }))
    }

    /// Returns the step of the agent that judges.
    fn judge(&self, judge: &Node) -> Node {
        let compare = format!("{}-compare", self.id);
        let task = judge.get("prompt").and_then(Node::text).unwrap_or(
            "Several agents did the same work. Compare their changes, and name the one that is best: correct, complete, simple.",
        );
        let names: Vec<&str> = self.names.iter().map(|(name, _)| *name).collect();
        let prompt = format!(
            "{task}\n\nOnly work whose status is `done` can win.\n\n{{{{ steps[{}].outputs.table }}}}",
            json!(compare)
        );
        let mut agent = json!({
            "prompt": prompt,
            "permissions": "read_only",
            "output": { "schema": {
                "type": "object",
                "required": ["winner", "reason"],
                "properties": { "winner": { "enum": names }, "reason": { "type": "string" } },
            } },
        });
        for key in ["use", "model"] {
            if let Some(value) = judge.get(key).and_then(Node::text) {
                agent[key] = value.into();
            }
        }
        self.made(&json!({
            "id": format!("{}-judge", self.id),
            "needs": [compare],
            "when": self.several(),
            "agent": agent,
            "retry": { "attempts": 2 },
        }))
    }

    /// Returns the step that takes the winner's work into the run's worktree.
    fn take(&self, decided_by: &str) -> Node {
        let decision = format!("{}-{decided_by}", self.id);
        let output = if decided_by == "judge" { "winner" } else { "choice" };
        let names: Vec<&str> = self.names.iter().map(|(name, _)| *name).collect();
        let done = |name: &str| format!("steps[{}].status == \"done\"", json!(self.candidate(name)));
        let each =
            |name: &&str| format!("{{{{ {} if {} else \"\" }}}}", json!(format!("{name} ")), done(name));
        let only = |name: &&str| format!("{{{{ {} if {} else \"\" }}}}", json!(name), done(name));
        let env = json!({
            "STEP": self.id,
            "ALL": names.join(", "),
            "CHOICE": format!("{{{{ steps[{}].outputs.{output} | default(\"\") }}}}", json!(decision)),
            "DONE": names.iter().map(each).collect::<String>(),
            "ONLY": names.iter().map(only).collect::<String>(),
        });
        let node = self.made(&json!({
            "id": self.id,
            "needs": [format!("{}-compare", self.id), decision],
            "run": TAKE,
            "env": env,
        }));
        let mut entries = node.entries().to_vec();
        entries.extend(self.step.entries().iter().filter(|(key, _)| key.text == "on_fail").cloned());
        Node::new(node.span, Yaml::Map(entries))
    }

    /// Returns the condition that at least two agents have succeeded.
    fn several(&self) -> String {
        let done: Vec<String> = self
            .names
            .iter()
            .map(|(name, _)| {
                format!("(1 if steps[{}].status == \"done\" else 0)", json!(self.candidate(name)))
            })
            .collect();
        format!("{} > 1", done.join(" + "))
    }

    /// Returns a step that is not in the file, with the keys that all steps of the contest share.
    fn made(&self, keys: &Value) -> Node {
        let span = self.names[0].1;
        let mut node = node(keys, span);
        if let Yaml::Map(entries) = &mut node.yaml {
            let shared = |(key, _): &&(MapKey, Node)| SHARED_KEYS.contains(&key.text.as_str());
            for (name, value) in self.step.entries().iter().filter(shared) {
                if !entries.iter().any(|(known, _)| known.text == name.text) {
                    entries.push((name.clone(), value.clone()));
                }
            }
        }
        node
    }
}

fn key(name: &str, span: Span) -> MapKey {
    MapKey { text: name.to_owned(), span }
}

fn entry(name: &str, value: &Value, span: Span) -> (MapKey, Node) {
    (key(name, span), node(value, span))
}

/// Returns a value as a node of the file, at one place.
fn node(value: &Value, span: Span) -> Node {
    let scalar = |text: String, kind| Yaml::Scalar(Scalar { text, kind });
    let yaml = match value {
        Value::Object(entries) => {
            Yaml::Map(entries.iter().map(|(name, value)| entry(name, value, span)).collect())
        }
        Value::Array(items) => Yaml::List(items.iter().map(|item| node(item, span)).collect()),
        Value::Bool(flag) => scalar(flag.to_string(), ScalarKind::Boolean(*flag)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => scalar(number.to_string(), ScalarKind::Integer(whole)),
            None => scalar(number.to_string(), ScalarKind::Text),
        },
        Value::String(text) => scalar(text.clone(), ScalarKind::Text),
        Value::Null => scalar(String::new(), ScalarKind::Null),
    };
    Node::new(span, yaml)
}
