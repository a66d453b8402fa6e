//! The one table of the language: every key that a pipeline file may hold, its form and whether it is acted on.

use crate::form::Form::{self, Any, Boolean, Duration, Either, Integer, List, Scalar, Table, Text};
use crate::form::{Key, Record, Rule, State, Word};

const fn key(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, state: State::Ready, required: false, about }
}

const fn required(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, state: State::Ready, required: true, about }
}

/// A key of the language that is not acted on yet: refused with its place.
const fn later(name: &'static str, about: &'static str) -> Key {
    Key { name, form: Any, state: State::Later, required: false, about }
}

const fn word(name: &'static str) -> Word {
    Word { name }
}

/// All tables.
#[cfg(test)]
pub(crate) static ALL: &[&Record] = &[
    &PIPELINE,
    &STEP,
    &DEFAULTS,
    &RETRY,
    &REWORK,
    &CALL,
    &CONCURRENCY,
    &INPUT,
    &TASK,
    &GATE,
    &WAIT,
    &CHILD,
    &CHECK,
    &OUTPUT,
];

/// The whole file.
#[rustfmt::skip]
pub(crate) static PIPELINE: Record = Record {
    what: "a pipeline",
    keys: &[
        key("name",        Text(Rule::Name),                             "The pipeline's name; the file's name without its ending if left out."),
        key("inputs",      Table(Rule::Identifier, &INPUT_FORM),         "What a run is given: each with a type, and perhaps a default."),
        key("env",         ENV,                                          "Environment variables of every step."),
        key("defaults",    Form::Record(&DEFAULTS),                      "What each step has unless it says otherwise."),
        key("concurrency", Form::Record(&CONCURRENCY),                   "How many runs of a group may be live at once."),
        key("environment", Form::Record(&ENVIRONMENT),                   "Where a run works, if not where it is started: a worktree of its own, or a directory."),
        required("steps",  List(&Form::Record(&STEP), 1),                "The steps; each needs the one before it unless it says otherwise."),
        later("on",          "What starts runs: a schedule, a webhook, a git ref, another run."),
    ],
};

/// A step.
#[rustfmt::skip]
pub(crate) static STEP: Record = Record {
    what: "a step",
    keys: &[
        required("id",      Text(Rule::Id),                              "The step's name in its pipeline."),
        key("run",          Either(&[Text(Rule::Filled), List(&Text(Rule::Any), 1)]),
                                                                         "A command: text for a shell, or a list of a program and its arguments."),
        key("call",         Either(&[Text(Rule::Name), Form::Record(&CALL)]),
                                                                         "A handler that the embedding program registered."),
        key("task",    Form::Record(&TASK),                       "Work that is claimed from outside, by an agent or a person."),
        key("gate",    Form::Record(&GATE),                       "A question to a person."),
        key("wait",    Either(&[TIMEOUT, Form::Record(&WAIT)]),   "A wait for a time or a signal."),
        key("pipeline", Either(&[Text(Rule::Filled), Form::Record(&CHILD)]),
                                                                         "A child run: the path of its pipeline file, and its inputs."),
        key("land",         Either(&[Text(Rule::Filled), Form::Record(&LAND)]),
                                                                         "Brings the work of the run's worktree onto a branch."),
        key("needs",        Either(&[Text(Rule::Id), List(&Text(Rule::Id), 0)]),
                                                                         "The steps that come before; the one written before it if left out; `[]` for none."),
        key("when",    Text(Rule::Filled),                        "An expression; the step is skipped where it is false."),
        key("matrix",  Table(Rule::Identifier, &List(&Any, 1)),   "One step for each combination of these values."),
        key("foreach", Either(&[Text(Rule::Filled), List(&Any, 0)]),
                                                                         "One step for each item of a list, or of a template's value."),
        key("max_parallel", Integer(1, 100_000),                  "How many items of a fan-out run at once."),
        key("fail_fast", Boolean,                                 "Whether one failing item ends its siblings."),
        key("timeout",      TIMEOUT,                                     "The longest that one attempt may take."),
        key("retry",        Form::Record(&RETRY),                        "How often a failing step is tried, and how long to wait in between."),
        key("check",   Either(&[Form::Record(&CHECK), List(&Form::Record(&CHECK), 1)]),
                                                                         "What must hold after the work for it to count as done."),
        key("on_fail",      Either(&[Form::Word(&[word("fail"), word("continue")]), Form::Record(&REWORK)]),
                                                                         "What failure means once the tries are used up."),
        key("outputs", Table(Rule::Identifier, &OUTPUT_FORM),     "What the step hands on: files, or what it printed."),
        key("env",          ENV,                                         "Environment variables, added to those of the pipeline."),
        key("dir",          Text(Rule::Filled),                          "The working directory, relative to where the run works."),
        key("shell",        SHELL,                                       "What runs the command text: a shell's name, or a program and its arguments."),
        key("secrets", List(&Text(Rule::Variable), 1),            "Secrets that the step sees as variables, masked in its logs."),
        key("queue",        Text(Rule::Name),                            "The queue in which the step waits for a worker."),
        key("labels",       List(&Text(Rule::Name), 1),                  "What a worker must have to be given the step: all of these."),
        key("priority",     PRIORITY,                                    "Higher is claimed first; 0 if left out."),
        key("always",       Boolean,                                     "Runs even after a failure or a cancel, once its needs are settled."),
        key("at_most_once", Boolean,                                     "Never started again by itself when its worker is lost."),
        key("environment",  Form::Word(&[word("own")]),                  "`own`: an environment for this step alone, and for each item of a fan-out."),
        later("agent", "A turn of a coding agent."),
    ],
};

/// The kinds of a step: exactly one of these keys is on each.
pub(crate) const KINDS: &[&str] = &["run", "call", "agent", "task", "gate", "wait", "pipeline", "land"];

const ENV: Form = Table(Rule::Variable, &Scalar);
const TIMEOUT: Form = Duration(1);
const PRIORITY: Form = Integer(-1000, 1000);
const SHELL: Form = Either(&[
    Form::Word(&[word("sh"), word("bash"), word("dash"), word("zsh"), word("ksh")]),
    List(&Text(Rule::Filled), 1),
]);

/// What each step has unless it says otherwise.
#[rustfmt::skip]
pub(crate) static DEFAULTS: Record = Record {
    what: "`defaults`",
    keys: &[
        key("timeout",  TIMEOUT,              "The longest that one attempt may take."),
        key("retry",    Form::Record(&RETRY), "How often a failing step is tried; a step's own `retry` replaces it key by key."),
        key("dir",      Text(Rule::Filled),   "The working directory."),
        key("shell",    SHELL,                "What runs command texts."),
        key("queue",    Text(Rule::Name),     "The queue in which steps wait for a worker."),
        key("labels",   List(&Text(Rule::Name), 1), "What a worker must have to be given a step; a step's own `labels` replace them."),
        key("priority", PRIORITY,             "Higher is claimed first."),
    ],
};

/// How often, and how long in between.
#[rustfmt::skip]
pub(crate) static RETRY: Record = Record {
    what: "`retry`",
    keys: &[
        key("attempts",   Integer(1, 1000),                 "How often the work may be tried in all; 1 if left out."),
        key("backoff",    Form::Word(&[word("fixed"), word("linear"), word("exponential")]),
                                                            "How the wait grows: always the same, by one delay each time, or doubled."),
        key("delay",      Duration(0),                      "The first wait; none if left out."),
        key("max_delay",  TIMEOUT,                          "No wait is longer."),
        key("jitter",     Integer(0, 100),                  "Part of each wait, in percent, that is left to chance."),
        key("from",       Form::Word(&[word("before"), word("here")]), "Where a further try begins in a worktree: `before`, with the files as they were before the step, or `here`, as the last try left them."),
        key("exit_codes", List(&Integer(1, 255), 1),        "Only these exit codes are worth another try; all if left out."),
    ],
};

/// Going back to an earlier step.
#[rustfmt::skip]
pub(crate) static REWORK: Record = Record {
    what: "`on_fail`",
    keys: &[
        required("rework", Text(Rule::Id),   "The earlier step that is done again, with all that follows from it."),
        key("max",         Integer(1, 1000), "How often; once if left out."),
    ],
};

/// A handler and what it is given.
#[rustfmt::skip]
pub(crate) static CALL: Record = Record {
    what: "`call`",
    keys: &[
        required("handler", Text(Rule::Name), "The name under which the handler was registered."),
        key("with",         Any,              "What the handler is given, as JSON."),
    ],
};

/// Work that is claimed from outside.
#[rustfmt::skip]
pub(crate) static TASK: Record = Record {
    what: "`task`",
    keys: &[
        required("prompt", Text(Rule::Filled), "What is to be done."),
        key("queue",       Text(Rule::Name),   "The queue from which it is claimed."),
        key("with",        Any,                "More for who claims it, as JSON."),
    ],
};

/// A question to a person.
#[rustfmt::skip]
pub(crate) static GATE: Record = Record {
    what: "`gate`",
    keys: &[
        required("ask", Text(Rule::Filled),           "The question."),
        key("choices",  List(&Text(Rule::Filled), 1), "The answers to choose from: an approval means the first, a rejection the last, unless it names one; `[yes, no]` if left out."),
        key("timeout",  TIMEOUT,                      "How long to wait for an answer."),
    ],
};

/// A wait: exactly one of `for`, `until` and `signal`.
#[rustfmt::skip]
pub(crate) static WAIT: Record = Record {
    what: "`wait`",
    keys: &[
        key("for",     TIMEOUT,            "How long."),
        key("until",   Text(Rule::Filled), "A time such as 2030-01-31T08:00:00Z."),
        key("signal",  Text(Rule::Name),   "The name of a signal."),
        key("timeout", TIMEOUT,            "How long to wait for the signal."),
    ],
};

/// Where a run works: exactly one of `worktree` and `directory`.
#[rustfmt::skip]
pub(crate) static ENVIRONMENT: Record = Record {
    what: "`environment`",
    keys: &[
        key("worktree",  Form::Record(&WORKTREE),        "A git worktree of its own, of the repository that the run is started in."),
        key("directory", Text(Rule::Filled),             "A folder, relative to where the run is started; made if it is not there, never removed."),
        key("include",   List(&Text(Rule::Filled), 1),   "Files that git ignores and the run needs, copied from the main checkout."),
        key("setup",     Either(&[Text(Rule::Filled), Form::Record(&SETUP)]),
                                                         "A command that is run once in a new worktree, and again when the files that it names change."),
        key("ports",     List(&Text(Rule::Variable), 1), "Ports that the run has for itself, as variables SPRAG_PORT_NAME."),
        key("env",       ENV,                            "Variables of every command."),
    ],
};

/// A git worktree.
#[rustfmt::skip]
pub(crate) static WORKTREE: Record = Record {
    what: "`worktree`",
    keys: &[
        key("base",       Text(Rule::Filled),           "The branch, tag or commit that it begins with; HEAD if left out."),
        key("branch",     Text(Rule::Filled),           "The branch that is made for it; `sprag/` and the run's name if left out."),
        key("keep",       Form::Word(&[word("never"), word("on_failure"), word("always")]),
                                                        "When it stays after the run; `never` if left out. What is not committed is saved in any case."),
        key("submodules", Boolean,                      "Whether submodules are checked out too."),
        key("sparse",     List(&Text(Rule::Filled), 1), "Folders to which its files are limited."),
        key("remote",     Text(Rule::Filled),           "A remote that is sent the state after each step: should the host be lost, the run goes on elsewhere from there."),
    ],
};

/// What is run once in a new worktree.
#[rustfmt::skip]
pub(crate) static SETUP: Record = Record {
    what: "`setup`",
    keys: &[
        required("run", Text(Rule::Filled),           "The command."),
        key("files",    List(&Text(Rule::Filled), 1), "It is run again when one of these files has changed."),
        key("caches",   List(&Text(Rule::Filled), 1), "Ignored paths that it makes and that stay when the worktree is used again."),
        key("timeout",  TIMEOUT,                      "The longest that it may take; half an hour if left out."),
    ],
};

/// Bringing work onto a branch.
#[rustfmt::skip]
pub(crate) static LAND: Record = Record {
    what: "`land`",
    keys: &[
        required("into", Text(Rule::Filled),  "The branch."),
        key("strategy",  Form::Word(&[word("rebase"), word("merge"), word("squash")]),
                                              "How; `rebase` if left out."),
        key("verify",    Either(&[Text(Rule::Filled), List(&Text(Rule::Any), 1)]),
                                              "A command that must succeed on the result, before the branch moves."),
        key("message",   Text(Rule::Filled),  "The message of the commits that it makes."),
        key("push",      Either(&[Text(Rule::Name), Form::Record(&PUSH)]),
                                              "A remote to push the branch to afterwards."),
    ],
};

/// Pushing what was landed.
#[rustfmt::skip]
pub(crate) static PUSH: Record = Record {
    what: "`push`",
    keys: &[
        required("remote", Text(Rule::Name), "The remote."),
        key("required",    Boolean,          "Whether the step fails when the remote refuses; it is landed here all the same."),
    ],
};

/// A child run.
#[rustfmt::skip]
pub(crate) static CHILD: Record = Record {
    what: "`pipeline`",
    keys: &[
        required("file", Text(Rule::Filled),            "The path of the pipeline file, relative to this one."),
        key("inputs",    Table(Rule::Identifier, &Any), "What the child run is given."),
    ],
};

/// What must hold after the work: exactly one of `run`, `file` and `output`.
#[rustfmt::skip]
pub(crate) static CHECK: Record = Record {
    what: "`check`",
    keys: &[
        key("run",       Either(&[Text(Rule::Filled), List(&Text(Rule::Any), 1)]), "A command that must succeed."),
        key("file",      Text(Rule::Filled),     "A file that must be there."),
        key("not_empty", Boolean,                "Whether the file must hold something."),
        key("output",    Text(Rule::Identifier), "An output that must fit a JSON schema."),
        key("schema",    Any,                    "The JSON schema of the output."),
    ],
};

static OUTPUT_FORM: Form = Either(&[Text(Rule::Filled), Form::Record(&OUTPUT)]);

const FORMATS: Form = Form::Word(&[word("text"), word("json")]);

/// What a step hands on: exactly one of `file` and `stdout`.
#[rustfmt::skip]
pub(crate) static OUTPUT: Record = Record {
    what: "an output",
    keys: &[
        key("file",   Text(Rule::Filled), "A file that the step writes."),
        key("as",     FORMATS,            "How the file is read; as a file to be kept if left out."),
        key("stdout", FORMATS,            "How what the step printed is read."),
    ],
};

/// A limit shared by runs.
#[rustfmt::skip]
pub(crate) static CONCURRENCY: Record = Record {
    what: "`concurrency`",
    keys: &[
        required("group",  Text(Rule::Filled), "The group's name; runs with the same group share the limit."),
        key("limit",       Integer(1, 100_000), "How many may be live at once; 1 if left out."),
        key("on_conflict", Form::Word(&[word("queue"), word("reject"), word("cancel_older")]),
                                               "What becomes of a run that finds the group full."),
    ],
};

static INPUT_FORM: Form = Either(&[Form::Word(TYPES), Form::Record(&INPUT)]);

/// The types of inputs.
const TYPES: &[Word] =
    &[word("string"), word("integer"), word("number"), word("boolean"), word("list"), word("object")];

/// What a run is given.
#[rustfmt::skip]
pub(crate) static INPUT: Record = Record {
    what: "an input",
    keys: &[
        key("type",        Form::Word(TYPES), "The type of its values; `string` if left out."),
        key("required",    Boolean,           "Whether a run must be given it."),
        key("default",     Any,               "Its value where none is given."),
        key("enum",        List(&Any, 1),     "The only values it may have."),
        key("description", Text(Rule::Any),   "What it is for."),
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    const EVERY_KEY: &str = include_str!("../tests/data/every_key.yaml");

    /// All that a run is made of, as text.
    fn outcome(file: &Value) -> Option<String> {
        let pipeline = crate::parse_beside_child("p.yaml", &file.to_string()).ok()?.pipeline;
        let plan = pipeline.plan(&BTreeMap::from([("issue".to_owned(), json!(7))])).ok()?;
        let inputs = pipeline.inputs.iter().map(|input| {
            format!(
                "{} {:?} {} {:?} {:?} {:?}",
                input.name, input.kind, input.required, input.default, input.allowed, input.description
            )
        });
        Some(format!("{} {}", serde_json::to_string(&plan).ok()?, inputs.collect::<Vec<_>>().join("\n")))
    }

    /// The file without each of its keys, one at a time.
    fn without_each_key(json: &Value) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        match json {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    for (key, less) in without_each_key(item) {
                        let mut copy = items.clone();
                        copy[at] = less;
                        found.push((key, Value::Array(copy)));
                    }
                }
            }
            Value::Object(entries) => {
                for (name, value) in entries {
                    let mut copy = entries.clone();
                    copy.remove(name);
                    found.push((name.clone(), copy.into()));
                    for (key, less) in without_each_key(value) {
                        let mut copy = entries.clone();
                        copy.insert(name.clone(), less);
                        found.push((format!("{name}.{key}"), copy.into()));
                    }
                }
            }
            _ => {}
        }
        found
    }

    #[test]
    fn p18_every_key_that_is_ready_is_acted_on() {
        let mut report = crate::diagnostic::Report::new(crate::source::Source::new("f", EVERY_KEY));
        let file = crate::yaml::read(&mut report).unwrap().json();
        let whole = outcome(&file).unwrap();
        for (key, less) in without_each_key(&file) {
            assert_ne!(outcome(&less).as_ref(), Some(&whole), "{key} makes no difference");
        }
    }

    #[test]
    fn p18_every_other_key_is_refused_with_its_place() {
        let refused = |text: &str, place: (usize, usize), key: &str| {
            let wrong = crate::parse("p.yaml", text).map(|_| ()).unwrap_err();
            let told = wrong.iter().any(|d| {
                (d.line, d.column) == (Some(place.0), Some(place.1))
                    && d.message == format!("`{key}` is not supported yet")
            });
            assert!(told, "{wrong}");
        };
        let later = |record: &'static Record| record.keys.iter().filter(|key| key.state != State::Ready);
        for key in later(&PIPELINE) {
            refused(&format!("steps: [{{id: a, run: x}}]\n{}: {{}}\n", key.name), (2, 1), key.name);
        }
        for key in later(&STEP) {
            refused(&format!("steps:\n  - id: a\n    run: x\n    {}: 1\n", key.name), (4, 5), key.name);
        }
        assert!(ALL.iter().skip(2).all(|record| later(record).count() == 0));
    }
}
