//! The sources of secrets: `secrets:` of a pipeline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::duration_ms;
use crate::diagnostic::{Problem, Report};
use crate::kinds::one_of;
use crate::yaml::{Node, quoted};

/// The time limit of a command that gives a secret, unless the file has another one.
const COMMAND_MS: u64 = 30_000;

/// The place from which a worker takes a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", untagged, deny_unknown_fields)]
pub enum SecretSource {
    /// The standard output of a command, run by `sh` as the worker's user.
    Run {
        /// The command text.
        run: String,
        /// The time limit in milliseconds.
        timeout_ms: u64,
    },
    /// A file of the worker's machine.
    File {
        /// The path: absolute, or below the home folder as `~/…`.
        file: String,
    },
    /// A credential that systemd passes to the worker's service.
    Credential {
        /// The name of the credential.
        credential: String,
    },
    /// A variable of the worker's environment with another name.
    Env {
        /// The name of the variable.
        env: String,
    },
}

/// Decodes the sources, by the names of the secrets.
pub(crate) fn sources(node: Option<&Node>, report: &mut Report) -> BTreeMap<String, SecretSource> {
    let written = node.map(Node::entries).unwrap_or_default();
    let mut found = BTreeMap::new();
    for (name, node) in written {
        let Some((key, value)) = one_of(node, &["run", "file", "credential", "env"], report) else {
            continue;
        };
        let Some(text) = value.text().map(str::to_owned) else { continue };
        if text.contains("{{") {
            let problem = Problem::at(value.span, "the source of a secret cannot contain templates");
            report.error(problem.help("write it out: a worker reads it before the step has any values"));
        }
        if let Some(timeout) = node.get("timeout").filter(|_| key != "run") {
            let problem = Problem::at(timeout.span, format!("`timeout` has no effect on `{key}`"));
            report.error(problem.help("remove it"));
        }
        let timeout_ms = node.get("timeout").and_then(duration_ms).unwrap_or(COMMAND_MS);
        let source = match key {
            "run" => SecretSource::Run { run: text, timeout_ms },
            "file" => SecretSource::File { file: text },
            "credential" => SecretSource::Credential { credential: text },
            _ => SecretSource::Env { env: text },
        };
        found.insert(name.text.clone(), source);
    }
    found
}

/// Warns of sources that no step uses. Steps inside a step share the sources of the file, which are checked with it.
pub(crate) fn check_unused(root: &Node, report: &mut Report) {
    if report.outer.is_some() {
        return;
    }
    let mut named = Vec::new();
    add_named(root, &mut named);
    for (name, _) in root.get("secrets").map(Node::entries).unwrap_or_default() {
        if !named.contains(&name.text.as_str()) {
            let problem = Problem::at(name.span, format!("no step uses the secret {}", quoted(&name.text)));
            report.warn(problem.help(format!("add `secrets: [{}]` to the step that needs it", name.text)));
        }
    }
}

/// Adds the secrets that the steps of a pipeline, or of a step, name.
fn add_named<'n>(parent: &'n Node, named: &mut Vec<&'n str>) {
    for step in parent.get("steps").map(Node::items).unwrap_or_default() {
        named.extend(step.get("secrets").map(Node::items).unwrap_or_default().iter().filter_map(Node::text));
        add_named(step, named);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steps_own_secrets_have_their_sources() {
        let file = "secrets:\n  DB: {run: pass show db, timeout: 5s}\n  KEY: {file: ~/.keys/k}\n  C: {credential: db}\n  OTHER: {env: THERE}\nsteps:\n- {id: a, run: x, secrets: [DB, PLAIN, OTHER]}\n- {id: b, run: x, secrets: [KEY, C]}\n";
        let loaded = crate::parse("p.yaml", file).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        let first = &loaded.pipeline.steps[0].spec;
        assert_eq!(first.sources.keys().collect::<Vec<_>>(), ["DB", "OTHER"]);
        assert_eq!(first.sources["DB"], SecretSource::Run { run: "pass show db".into(), timeout_ms: 5_000 });
        // A worker reads them back from the plan.
        let read: crate::StepSpec = serde_json::from_str(&serde_json::to_string(first).unwrap()).unwrap();
        assert_eq!(&read, first);
        let second = &loaded.pipeline.steps[1].spec;
        assert_eq!(second.sources["C"], SecretSource::Credential { credential: "db".into() });
        assert_eq!(second.masks.len(), 5, "every step masks all of them");
    }

    #[test]
    fn every_mistake_in_a_source_is_refused() {
        for (source, expected) in [
            ("{run: x, file: /y}", "only one of these keys is allowed"),
            ("{}", "one of these keys is required"),
            ("{file: y}", "`file`"),
            ("{file: /y, timeout: 1s}", "`timeout` has no effect on `file`"),
            ("{run: 'echo {{ inputs.x }}'}", "cannot contain templates"),
            ("{credential: ../x}", "`credential`"),
        ] {
            let file = format!("secrets: {{A: {source}}}\nsteps: [{{id: a, run: x, secrets: [A]}}]\n");
            let wrong = crate::parse("p.yaml", &file).map(|_| ()).unwrap_err();
            assert!(wrong.iter().next().unwrap().message.contains(expected), "{file}\n{wrong}");
        }
        let unused = crate::parse("p.yaml", "secrets: {A: {env: B}}\nsteps: [{id: a, run: x}]\n").unwrap();
        assert_eq!(unused.warnings.len(), 1, "{}", unused.warnings);
    }

    #[test]
    fn s19_a_secret_input_reaches_variables_and_commands_alone() {
        let input = "inputs: {token: {type: string, secret: true}}\n";
        let used = format!(
            "{input}steps: [{{id: a, run: 'echo {{{{ inputs.token }}}}', env: {{T: '{{{{ inputs.token }}}}'}}}}]\n"
        );
        let loaded = crate::parse("p.yaml", &used).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(loaded.pipeline.steps[0].spec.secret_inputs, ["token"]);
        for rest in [
            "run_name: '{{ inputs.token }}'\nsteps: [{id: a, run: x}]\n",
            "labels: {a: '{{ inputs.token }}'}\nsteps: [{id: a, run: x}]\n",
            "outputs: {a: '{{ inputs.token }}'}\nsteps: [{id: a, run: x}]\n",
            "outputs: {a: '{{ inputs }}'}\nsteps: [{id: a, run: x}]\n",
            "steps: [{id: a, run: x, when: inputs.token == 'x'}]\n",
            "steps: [{id: a, gate: {ask: '{{ inputs.token }}'}}]\n",
            "steps: [{id: a, task: {prompt: '{{ inputs.token }}'}}]\n",
        ] {
            let wrong = crate::parse("p.yaml", &format!("{input}{rest}")).map(|_| ()).unwrap_err();
            assert!(wrong.to_string().contains("the secret input `token`"), "{rest}\n{wrong}");
        }
        for (declared, expected) in [
            ("{type: integer, secret: true}", "`secret` needs an input of type string"),
            ("{secret: true, default: x}", "a secret input has no default"),
            ("{secret: true, enum: [x]}", "a secret input has no `enum`"),
        ] {
            let file =
                format!("inputs: {{a: {declared}}}\nsteps: [{{id: a, run: 'echo {{{{ inputs.a }}}}'}}]\n");
            let wrong = crate::parse("p.yaml", &file).map(|_| ()).unwrap_err();
            assert!(wrong.to_string().contains(expected), "{file}\n{wrong}");
        }
    }
}
