//! Keys of GitHub Actions, Dagu and other tools, answered with the key that has the same meaning here.

/// The keys of other tools: the record as messages name it, the key, the answer.
#[rustfmt::skip]
const KEYS: &[(&str, &[&str], &str)] = &[
    ("a pipeline", &["jobs", "tasks", "stages"],         "write `steps`: a list of steps with an `id` each; `needs` orders them"),
    ("a pipeline", &["params", "parameters"],            "write `inputs`"),
    ("a pipeline", &["run-name"],                        "write `run_name`"),
    ("a pipeline", &["max_active_steps", "maxActiveSteps", "max-parallel"], "write `max_parallel`"),
    ("a pipeline", &["schedule", "cron"],                "write it as a rule under `on:`: schedules are `- { id: nightly, schedule: { cron: … } }`"),
    ("a pipeline", &["working_dir", "workingDir", "dir"], "write it under `defaults:` as `dir`"),
    ("a pipeline", &["retry", "queue", "shell"], "write it under `defaults:`, for every step"),
    ("a pipeline", &["containers", "sidecars"],          "write `services: { db: { run: COMMAND, ports: [db], ready: { port: db } } }`"),
    ("a service",  &["image"],                           "write the command that starts it: `run: docker run --rm …`"),
    ("a service",  &["command", "cmd", "script"],        "write `run`"),
    ("a service",  &["healthcheck", "readiness", "options"], "write `ready: { run: COMMAND }`, `{ port: NAME }` or `{ log: PATTERN }`"),
    ("a pipeline", &["handlerOn", "handler_on", "hooks"], "write `handlers: { success: [steps], failure: [steps], cancel: [steps], finally: [steps] }`"),
    ("a step",     &["if", "precondition", "preconditions", "condition"], "write `when`, an expression: when: inputs.mode == 'quick'"),
    ("a step",     &["depends_on", "depends", "dependsOn", "after"], "write `needs`"),
    ("a step",     &["name"],                            "write `id`, and `description` for a text"),
    ("a step",     &["command", "script", "cmd", "exec"], "write `run`: text for a shell, or a list of a program and its arguments"),
    ("a step",     &["uses"],                            "write the command with `run`, or a child pipeline with `pipeline`"),
    ("a step",     &["working_dir", "workingDir", "working-directory", "working_directory", "cwd"], "write `dir`"),
    ("a step",     &["continue_on_error", "continue-on-error", "continue_on", "continueOn", "allow_failure"], "write `on_fail: continue`"),
    ("a step",     &["timeout-minutes", "timeout_minutes", "timeout_sec", "timeoutSec"], "write `timeout` with its unit: timeout: 30m"),
    ("a step",     &["retry_policy", "retryPolicy", "retries"], "write `retry: { attempts: 3, delay: 5s }`"),
    ("a step",     &["strategy"],                        "write `matrix` and `max_parallel` directly in the step"),
    ("a step",     &["runs-on", "runs_on"],              "write `labels`, which a worker must have"),
    ("a step",     &["parallel"],                        "write `foreach` or `matrix`, and `max_parallel`"),
    ("a step",     &["repeat_policy", "repeatPolicy", "loop", "until", "while"], "write `repeat: { until: EXPRESSION, max: 10, delay: 5s }`"),
    ("a step",     &["output"],                          "write `outputs: { NAME: { stdout: text } }`"),
    ("a step",     &["environment_variables", "variables", "vars"], "write `env`"),
    ("`retry`",    &["limit", "max_attempts", "maxAttempts", "count", "max"], "write `attempts`: the first attempt counts too"),
    ("`retry`",    &["interval", "interval_sec", "intervalSec", "wait"], "write `delay` with its unit: delay: 5s"),
];

/// Returns the answer to a key of another tool; none for a key that no other tool has.
pub(crate) fn answer(record: &str, key: &str) -> Option<&'static str> {
    if key == "<<" {
        return Some("merge keys are not supported: repeat the keys, or write them under `defaults:`");
    }
    KEYS.iter().find(|(what, keys, _)| *what == record && keys.contains(&key)).map(|(.., answer)| *answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::ALL;

    #[test]
    fn no_answered_key_is_one_of_the_language() {
        for (what, keys, answer) in KEYS {
            let record = ALL.iter().find(|record| record.what == *what).expect(what);
            for key in *keys {
                assert!(record.key(key).is_none(), "{what} has {key}");
            }
            assert!(answer.contains('`'), "{answer}");
        }
    }

    #[test]
    fn keys_of_other_tools_are_answered_at_their_places() {
        let text = "schedule: '0 * * * *'\nsteps:\n  - id: a\n    command: make\n    if: 'true'\n    depends_on: b\n    \
                    name: A\n    working_dir: x\n    continue_on_error: true\n    script: y\n";
        let wrong = crate::parse("f.yaml", text).expect_err("foreign keys").to_string();
        for words in [
            "schedules",
            "write `run`",
            "write `when`",
            "write `needs`",
            "write `id`",
            "write `dir`",
            "on_fail: continue",
        ] {
            assert!(wrong.contains(words), "{words}: {wrong}");
        }
        let wrong = crate::parse("f.yaml", "x: &x { a: 1 }\nsteps:\n  - { id: a, run: echo, <<: *x }\n");
        assert!(wrong.expect_err("a merge key").to_string().contains("merge keys"));
    }
}
