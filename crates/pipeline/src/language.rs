//! The table of the language: every key of a pipeline file, its form, and whether this version supports it.

mod agents;
mod cache;
mod flow;
mod sandbox;
mod services;
mod triggers;

use crate::form::Form::{self, Any, Boolean, Duration, Either, Integer, List, Scalar, Table, Text};
use crate::form::{Key, Record, Rule, Word};

pub(crate) use agents::AGENT;
pub(crate) use cache::CACHE;
use flow::{END, ENDS, NEEDS, WHEN};
pub(crate) use triggers::TRIGGER;

const fn key(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, required: false, about }
}

const fn required(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, required: true, about }
}

const fn word(name: &'static str) -> Word {
    Word { name }
}

/// All tables.
#[cfg(test)]
pub(crate) static ALL: &[&Record] = &[
    &PIPELINE,
    &STEP,
    &HANDLERS,
    &EACH,
    &END,
    &NEEDS,
    &WHEN,
    &DEFAULTS,
    &RETRY,
    &REPEAT,
    &REWORK,
    &THEN,
    &CALL,
    &CONCURRENCY,
    &ENVIRONMENT,
    &WORKTREE,
    &SETUP,
    &LAND,
    &PUSH,
    &INPUT,
    &TASK,
    &AGENT,
    &CACHE,
    &agents::AGENT_OUTPUT,
    &agents::ON_LIMIT,
    &agents::PICK,
    &agents::SESSION,
    &agents::BUDGET,
    &GATE,
    &CHOICE,
    &WAIT,
    &CHILD,
    &CHECK,
    &OUTPUT,
    &sandbox::SANDBOX,
    &sandbox::SECRET,
    &services::SERVICE,
    &services::READY,
    &services::RESTART,
    &TRIGGER,
    &triggers::SCHEDULE,
    &triggers::MISSED,
    &triggers::WEBHOOK,
    &triggers::DEBOUNCE,
    &triggers::RATE,
    &triggers::ENDED_RUN,
    &triggers::GIT,
];

/// The whole file.
#[rustfmt::skip]
pub(crate) static PIPELINE: Record = Record {
    what: "a pipeline",
    keys: &[
        key("name",        Text(Rule::Name),                             "The pipeline's name; by default the file's name without its extension."),
        key("description", Text(Rule::Filled),                           "The purpose of the pipeline, for people; `sprag run` shows its first line."),
        key("run_name",    Text(Rule::Filled),                           "The name of each run, a template over `inputs`; the name that a caller gives counts more."),
        key("labels",      Table(Rule::Name, &Scalar),                   "The labels of each run, templates over `inputs`; the labels that a caller gives count more."),
        key("inputs",      Table(Rule::Identifier, &INPUT_FORM),         "The inputs of a run, each with a type and an optional default."),
        key("env",         ENV,                                          "Environment variables for every step."),
        key("dotenv",      Either(&[Text(Rule::Filled), List(&Text(Rule::Filled), 1)]),
                                                                         "Files with lines NAME=value that are variables of every command, relative to the run's environment."),
        key("inherit",     List(&Text(Rule::Inherited), 1),              "Variables that steps inherit from the server's or worker's environment, in addition to the few that all steps inherit; `AWS_*` means all names with this prefix."),
        key("defaults",    Form::Record(&DEFAULTS),                      "Defaults for every step; a step's own keys override them."),
        key("timeout",     TIMEOUT,                                      "The time after which a run is cancelled; `always` steps still run."),
        key("max_parallel", Integer(1, 100_000),                         "The most steps and items of one run that workers may have at once."),
        key("concurrency", Form::Record(&CONCURRENCY),                   "A limit on the live runs of a group."),
        key("environment", Form::Record(&ENVIRONMENT),                   "The environment of a run: a separate worktree or a directory; by default the folder where the run is started."),
        key("secrets",     Table(Rule::Variable, &Form::Record(&sandbox::SECRET)),
                                                                         "The sources of secrets, by name; a secret without source is a variable of the worker's environment."),
        key("sandbox",     Form::Record(&sandbox::SANDBOX),              "The bounds of every command and agent: files, network, memory, processors and processes; a step's own keys count more."),
        key("services",    Table(Rule::Id, &Form::Record(&services::SERVICE)),
                                                                         "Processes that run beside the steps, such as a database or a web server."),
        key("outputs",     Table(Rule::Identifier, &Any),                "The outputs of a run, templates over its inputs and its steps: all that a parent run and callers see of it."),
        key("handlers",    Form::Record(&HANDLERS),                      "Steps that run at the end of a run, chosen by how it went."),
        required("steps",  List(&Form::Record(&STEP), 1),                "The steps; each needs the one before it unless it has `needs`."),
        key("on",          List(&Form::Record(&TRIGGER), 1),             "The rules that start runs; `sprag rule apply` makes them take effect."),
    ],
};

#[rustfmt::skip]
pub(crate) static STEP: Record = Record {
    what: "a step",
    keys: &[
        required("id",      Text(Rule::Id),                              "The step's id, unique in the pipeline."),
        key("description",  Text(Rule::Filled),                          "The purpose of the step, for people."),
        key("run",          Either(&[Text(Rule::Filled), List(&ARGUMENT, 1)]),
                                                                         "A command: text for a shell, or a list of a program and its arguments."),
        key("call",         Either(&[Text(Rule::Name), Form::Record(&CALL)]),
                                                                         "A handler that the embedding program registered."),
        key("agent",        Form::Record(&AGENT),                        "A turn of a coding agent."),
        key("task",    Form::Record(&TASK),                       "Work that an agent or a person claims."),
        key("gate",    Form::Record(&GATE),                       "A question to a person."),
        key("wait",    Either(&[TIMEOUT, Form::Record(&WAIT)]),   "A wait for a time or a signal."),
        key("steps",        List(&Form::Record(&STEP), 1),               "Steps that run inside this one: once, for each item of a fan-out, or in each round."),
        key("pipeline", Either(&[Text(Rule::Filled), Form::Record(&CHILD)]),
                                                                         "A child run: the path of its pipeline file, and its inputs."),
        key("land",         Either(&[Text(Rule::Filled), Form::Record(&LAND)]),
                                                                         "Lands the work of the run's worktree on a branch."),
        key("end",          Either(&[Form::Word(ENDS), Form::Record(&END)]),
                                                                         "Ends the run here: steps that have not started are skipped."),
        key("needs",        Either(&[Text(Rule::Id), List(&Text(Rule::Id), 0), Form::Record(&NEEDS)]),
                                                                         "The steps that must finish first; by default the previous step; `[]` for none; or some of several steps."),
        key("when",         Either(&[Boolean, Text(Rule::Filled), Form::Record(&WHEN)]),
                                                                         "An expression; the step is skipped if it is false."),
        key("matrix",  Table(Rule::Identifier, &Either(&[Text(Rule::Filled), List(&Any, 1)])),
                                                                         "One step for each combination of these values, each axis a list or a template; `include` adds to them, `exclude` leaves some out."),
        key("foreach", Either(&[Text(Rule::Filled), List(&Any, 0)]),
                                                                         "One step for each item of a list, or of a template's value."),
        key("max_parallel", Integer(1, 100_000),                  "The most items of a fan-out that run at once."),
        key("fail_fast", Boolean,                                 "Whether a failing item stops its siblings."),
        key("timeout",      TIMEOUT,                                     "The time limit of one attempt."),
        key("retry",        Form::Record(&RETRY),                        "The attempts of a failing step and the delays between them."),
        key("repeat",       Form::Record(&REPEAT),                       "Runs the step again after a success, until a condition holds."),
        key("check",   Either(&[Form::Record(&CHECK), List(&Form::Record(&CHECK), 1)]),
                                                                         "Conditions that must hold after the work for the step to succeed."),
        key("on_fail",      Either(&[Form::Word(&[word("fail"), word("continue")]), Form::Record(&REWORK)]),
                                                                         "The consequence of failure after the last attempt."),
        key("cache",        Form::Record(&CACHE),                        "Files that the step keeps between runs."),
        key("outputs", Table(Rule::Identifier, &OUTPUT_FORM),     "The step's outputs: files, or its standard output."),
        key("env",          ENV,                                         "Environment variables, added to those of the pipeline."),
        key("dir",          Text(Rule::Filled),                          "The working directory, relative to the run's environment."),
        key("shell",        SHELL,                                       "The shell that runs the command text: its name, or a program and its arguments."),
        key("secrets", List(&Text(Rule::Variable), 1),            "Secrets that the step gets as variables; they are masked in its logs."),
        key("queue",        Text(Rule::Name),                            "The queue in which the step waits for a worker."),
        key("labels",       List(&Text(Rule::Name), 1),                  "Labels that a worker must have to claim the step; all are required."),
        key("priority",     PRIORITY,                                    "Steps with a higher priority are claimed first; 0 by default."),
        key("always",       Boolean,                                     "Runs even after a failure or a cancel, once its needs have finished."),
        key("at_most_once", Boolean,                                     "Is not restarted automatically when its worker is lost."),
        key("sandbox",      Either(&[Form::Word(&[word("none")]), Form::Record(&sandbox::SANDBOX)]),
                                                                         "The bounds of the step's processes, or `none`; a key that is missing here is that of the pipeline."),
        key("environment",  Form::Word(&[word("own")]),                  "`own`: a separate environment for this step, and for each item of a fan-out."),
    ],
};

/// The steps that run when all others have settled.
#[rustfmt::skip]
pub(crate) static HANDLERS: Record = Record {
    what: "`handlers`",
    keys: &[
        key("success", List(&Form::Record(&STEP), 1), "Steps that run if nothing has failed."),
        key("failure", List(&Form::Record(&STEP), 1), "Steps that run after a failure."),
        key("cancel",  List(&Form::Record(&STEP), 1), "Steps that run after a cancel."),
        key("finally", List(&Form::Record(&STEP), 1), "Steps that run in any case, after the others."),
    ],
};

/// The keys that select a step's kind; each step has exactly one.
pub(crate) const KINDS: &[&str] =
    &["run", "call", "agent", "task", "gate", "wait", "pipeline", "steps", "land", "end"];

/// An argument of a program, or a list of arguments.
static ARGUMENT: Form = Either(&[Text(Rule::Any), Form::Record(&EACH)]);

/// A list of which each item is an argument.
#[rustfmt::skip]
pub(crate) static EACH: Record = Record {
    what: "an argument",
    keys: &[required("each", Text(Rule::Filled), "A template; each item of its list is an argument.")],
};

const ENV: Form = Table(Rule::Variable, &Scalar);
const TIMEOUT: Form = Duration(1);
const PRIORITY: Form = Integer(-1000, 1000);
const SHELL: Form = Either(&[
    Form::Word(&[word("sh"), word("bash"), word("dash"), word("zsh"), word("ksh")]),
    List(&Text(Rule::Filled), 1),
]);

/// Defaults for every step.
#[rustfmt::skip]
pub(crate) static DEFAULTS: Record = Record {
    what: "`defaults`",
    keys: &[
        key("timeout",  TIMEOUT,              "The time limit of one attempt."),
        key("retry",    Form::Record(&RETRY), "The attempts of a failing step; a step's own `retry` overrides it key by key."),
        key("dir",      Text(Rule::Filled),   "The working directory."),
        key("shell",    SHELL,                "The shell that runs command texts."),
        key("queue",    Text(Rule::Name),     "The queue in which steps wait for a worker."),
        key("labels",   List(&Text(Rule::Name), 1), "Labels that a worker must have to claim a step; a step's own `labels` replace them."),
        key("priority", PRIORITY,             "Steps with a higher priority are claimed first."),
    ],
};

/// The attempts of a step and the delays between them.
#[rustfmt::skip]
pub(crate) static RETRY: Record = Record {
    what: "`retry`",
    keys: &[
        key("attempts",   Integer(1, 1000),                 "The most attempts in all; 1 by default."),
        key("backoff",    Form::Word(&[word("fixed"), word("linear"), word("exponential")]),
                                                            "The growth of the delay: constant, by one delay each time, or doubled."),
        key("delay",      Duration(0),                      "The first delay; none by default."),
        key("max_delay",  TIMEOUT,                          "The longest delay."),
        key("jitter",     Integer(0, 100),                  "The random part of each delay, in percent."),
        key("from",       Form::Word(&[word("before"), word("here")]), "The files with which a retry starts in a worktree: `before`, as they were before the step, or `here`, as the last attempt left them."),
        key("exit_codes", List(&Integer(1, 255), 1),        "The exit codes that are retried; all by default."),
    ],
};

/// The rounds of a step that runs again after a success: exactly one of `until` and `while`.
#[rustfmt::skip]
pub(crate) static REPEAT: Record = Record {
    what: "`repeat`",
    keys: &[
        key("until",    Text(Rule::Filled), "An expression; the rounds end when it is true."),
        key("while",    Text(Rule::Filled), "An expression; the rounds end when it is false."),
        required("max", Integer(1, 1000),   "The most rounds; the step fails if the condition asks for more."),
        key("delay",    Duration(0),        "The delay between two rounds; none by default."),
    ],
};

/// A return to an earlier step after a failure.
#[rustfmt::skip]
pub(crate) static REWORK: Record = Record {
    what: "`on_fail`",
    keys: &[
        required("rework", Text(Rule::Id),   "The earlier step to run again, together with all steps that depend on it."),
        key("max",         Integer(1, 1000), "The most times; 1 by default."),
        key("then",        Either(&[Form::Word(&[word("fail"), word("continue")]), Form::Record(&THEN)]),
                                             "The consequence when that is used up: the run fails, the step counts as done, or a person decides."),
    ],
};

/// The question after the last rework.
#[rustfmt::skip]
pub(crate) static THEN: Record = Record {
    what: "`then`",
    keys: &[required("gate", Form::Record(&GATE), "A question; an approval lets the step count as done.")],
};

/// A handler and its arguments.
#[rustfmt::skip]
pub(crate) static CALL: Record = Record {
    what: "`call`",
    keys: &[
        required("handler", Text(Rule::Name), "The name under which the handler is registered."),
        key("with",         Any,              "The handler's arguments, as JSON."),
    ],
};

/// Work for an agent or a person to claim.
#[rustfmt::skip]
pub(crate) static TASK: Record = Record {
    what: "`task`",
    keys: &[
        required("prompt", Text(Rule::Filled), "The work to do."),
        key("queue",       Text(Rule::Name),   "The queue in which it waits."),
        key("with",        Any,                "Further data for the agent or person that claims it, as JSON."),
    ],
};

/// A question to a person.
#[rustfmt::skip]
pub(crate) static GATE: Record = Record {
    what: "`gate`",
    keys: &[
        required("ask", Text(Rule::Filled),           "The question."),
        key("choices",  List(&CHOICE_FORM, 1),        "The possible answers, each a text or `{ TEXT: { to: STEP } }`: an approval means the first and a rejection the last, unless it names one; `[yes, no]` by default."),
        key("timeout",  TIMEOUT,                      "The longest wait for an answer."),
        key("fields",   Table(Rule::Identifier, &INPUT_FORM),
                                                      "Typed values that an answer gives: outputs of the step."),
        key("default",  Text(Rule::Filled),           "The choice that counts if there is no answer in time; without it the step fails then."),
        key("answer_by", List(&Text(Rule::Filled), 1), "The names of the tokens and users who may answer; everyone by default."),
        key("not_by",   Form::Word(&[word("starter")]), "`starter`: the one who started the run, and its steps, may not answer."),
    ],
};

/// A wait: exactly one of `for`, `until` and `signal`.
#[rustfmt::skip]
pub(crate) static WAIT: Record = Record {
    what: "`wait`",
    keys: &[
        key("for",     TIMEOUT,            "The duration."),
        key("until",   Text(Rule::Filled), "A time such as 2030-01-31T08:00:00Z."),
        key("signal",  Text(Rule::Name),   "The name of a signal."),
        key("timeout", TIMEOUT,            "The longest wait for the signal."),
    ],
};

/// The environment of a run: exactly one of `worktree` and `directory`.
#[rustfmt::skip]
pub(crate) static ENVIRONMENT: Record = Record {
    what: "`environment`",
    keys: &[
        key("worktree",  Form::Record(&WORKTREE),        "A separate git worktree of the repository in which the run is started."),
        key("directory", Text(Rule::Filled),             "A folder, relative to where the run is started; created if it does not exist, never removed."),
        key("include",   List(&Text(Rule::Filled), 1),   "Ignored files that the run needs; they are copied from the main checkout."),
        key("setup",     Either(&[Text(Rule::Filled), Form::Record(&SETUP)]),
                                                         "A command that runs once in a new worktree, and again when one of its `files` has changed."),
        key("ports",     List(&Text(Rule::Variable), 1), "Ports reserved for the run, as variables SPRAG_PORT_NAME."),
        key("env",       ENV,                            "Environment variables for every command."),
    ],
};

/// A git worktree.
#[rustfmt::skip]
pub(crate) static WORKTREE: Record = Record {
    what: "`worktree`",
    keys: &[
        key("base",       Text(Rule::Filled),           "The branch, tag or commit that it starts from; HEAD by default."),
        key("branch",     Text(Rule::Filled),           "The branch that is created for it; `sprag/` and the run's name by default."),
        key("keep",       Form::Word(&[word("never"), word("on_failure"), word("always")]),
                                                        "Whether the worktree is kept after the run; `never` by default. Uncommitted changes are always saved."),
        key("dirty",      Form::Word(&[word("ignore"), word("refuse"), word("include")]),
                                                        "Uncommitted changes of the checkout in which the run is started: `ignore` starts without them, `refuse` does not start, `include` starts with them; `ignore` by default."),
        key("submodules", Boolean,                      "Whether submodules are checked out too."),
        key("sparse",     List(&Text(Rule::Filled), 1), "The folders to check out; all by default."),
        key("hooks",      Boolean,                      "Whether git commands of Sprag run the repository's hooks; `true` by default."),
        key("remote",     Text(Rule::Filled),           "A remote to which the state is pushed after each step, so that another host can continue the run."),
    ],
};

/// The command that prepares a new worktree.
#[rustfmt::skip]
pub(crate) static SETUP: Record = Record {
    what: "`setup`",
    keys: &[
        required("run", Text(Rule::Filled),           "The command."),
        key("files",    List(&Text(Rule::Filled), 1), "The command runs again when one of these files has changed."),
        key("caches",   List(&Text(Rule::Filled), 1), "Ignored paths that the command creates and that a reused worktree keeps."),
        key("timeout",  TIMEOUT,                      "The time limit; 30 minutes by default."),
    ],
};

/// A landing of the run's work on a branch.
#[rustfmt::skip]
pub(crate) static LAND: Record = Record {
    what: "`land`",
    keys: &[
        required("into", Text(Rule::Filled),  "The branch to land on."),
        key("strategy",  Form::Word(&[word("rebase"), word("merge"), word("squash")]),
                                              "The way commits are added; `rebase` by default."),
        key("verify",    Either(&[Text(Rule::Filled), List(&Text(Rule::Any), 1)]),
                                              "A command that must succeed on the result before the branch moves."),
        key("message",   Text(Rule::Filled),  "The message of the commits that it creates."),
        key("push",      Either(&[Text(Rule::Name), Form::Record(&PUSH)]),
                                              "A remote to push to: the work is put on top of the remote's branch, pushed without force, and only then landed locally."),
    ],
};

/// Pushing the landed work to a remote.
#[rustfmt::skip]
pub(crate) static PUSH: Record = Record {
    what: "`push`",
    keys: &[
        required("remote", Text(Rule::Name), "The remote."),
        key("required",    Boolean,          "Whether the landing requires a successful push; otherwise a failed push is a warning."),
    ],
};

/// A child run.
#[rustfmt::skip]
pub(crate) static CHILD: Record = Record {
    what: "`pipeline`",
    keys: &[
        key("file",      Text(Rule::Filled),            "The path of the pipeline file, relative to this one."),
        key("name",      Text(Rule::Name),              "The name of another pipeline in this file."),
        key("files",     List(&Text(Rule::Filled), 1),  "The files that `file` may be, if it is a template."),
        key("inputs",    Table(Rule::Identifier, &Any), "The inputs of the child run."),
    ],
};

/// A condition that must hold after the work: exactly one of `run`, `file` and `output`.
#[rustfmt::skip]
pub(crate) static CHECK: Record = Record {
    what: "`check`",
    keys: &[
        key("run",       Either(&[Text(Rule::Filled), List(&Text(Rule::Any), 1)]), "A command that must succeed."),
        key("file",      Text(Rule::Filled),     "A file that must exist."),
        key("not_empty", Boolean,                "Whether the file must not be empty."),
        key("output",    Text(Rule::Identifier), "An output that must match a JSON schema."),
        key("schema",    Any,                    "The JSON schema of the output."),
        key("warn",      Boolean,                "Whether a failure is only a warning of the step."),
    ],
};

static OUTPUT_FORM: Form = Either(&[Text(Rule::Filled), Form::Record(&OUTPUT)]);

const FORMATS: Form = Form::Word(&[word("text"), word("json")]);

/// An output of a step: exactly one of `file` and `stdout`.
#[rustfmt::skip]
pub(crate) static OUTPUT: Record = Record {
    what: "an output",
    keys: &[
        key("file",   Text(Rule::Filled), "A file that the step writes."),
        key("as",     FORMATS,            "The format of the file's content; by default the file itself is stored."),
        key("stdout", FORMATS,            "The format of the standard output."),
    ],
};

/// A limit shared by several runs.
#[rustfmt::skip]
pub(crate) static CONCURRENCY: Record = Record {
    what: "`concurrency`",
    keys: &[
        required("group",  Text(Rule::Filled), "The group's name; runs with the same group share the limit."),
        key("limit",       Integer(1, 100_000), "The most live runs; 1 by default."),
        key("on_conflict", Form::Word(&[word("queue"), word("reject"), word("cancel_older")]),
                                               "The treatment of a run that finds the group full."),
    ],
};

static INPUT_FORM: Form = Either(&[Form::Word(TYPES), Form::Record(&INPUT)]);

static CHOICE_FORM: Form = Either(&[Text(Rule::Filled), Table(Rule::Filled, &Form::Record(&CHOICE))]);

/// The consequence of a choice.
#[rustfmt::skip]
pub(crate) static CHOICE: Record = Record {
    what: "a choice",
    keys: &[required("to", Text(Rule::Id), "The later step at which the run continues; the targets of other choices are skipped.")],
};

/// The types of inputs.
const TYPES: &[Word] =
    &[word("string"), word("integer"), word("number"), word("boolean"), word("list"), word("object")];

/// The declaration of an input.
#[rustfmt::skip]
pub(crate) static INPUT: Record = Record {
    what: "an input",
    keys: &[
        key("type",        Form::Word(TYPES), "The type of its values; `string` by default."),
        key("required",    Boolean,           "Whether every run must set it."),
        key("default",     Any,               "The value if a run does not set it."),
        key("enum",        List(&Any, 1),     "The allowed values."),
        key("pattern",     Text(Rule::Filled), "A regular expression that the whole text must fit."),
        key("min",         Any,               "The smallest number, or the least characters, items or entries."),
        key("max",         Any,               "The largest number, or the most characters, items or entries."),
        key("secret",      Boolean,           "Whether its value is kept encrypted and shown as `***`; only variables and commands can use it."),
        key("description", Text(Rule::Any),   "The purpose of the input."),
    ],
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    const FILES: [&str; 2] =
        [include_str!("../tests/data/every_key.yaml"), include_str!("../tests/data/every_other_key.yaml")];

    /// Returns everything that a run takes from a file, as text.
    fn outcome(file: &Value) -> Option<String> {
        let pipeline = crate::parse_beside_child("p.yaml", &file.to_string()).ok()?.pipeline;
        let plan = pipeline.plan(&BTreeMap::from([("issue".to_owned(), json!(7))])).ok()?;
        let inputs = pipeline.inputs.iter().map(|input| {
            format!(
                "{} {:?} {} {:?} {:?} {:?} {:?} {:?} {}",
                input.name,
                input.kind,
                input.required,
                input.default,
                input.allowed,
                input.description,
                input.pattern,
                input.bounds,
                input.secret
            )
        });
        let complete = BTreeMap::from([("issue".to_owned(), json!(7)), ("mode".to_owned(), json!("quick"))]);
        let own = pipeline.run_labels(&complete).ok()?;
        let described: Vec<_> = pipeline.steps.iter().map(|step| &step.description).collect();
        let for_people = format!(
            "{:?} {described:?} {:?} {:?} {:?}",
            pipeline.description, own.name, own.labels, pipeline.triggers
        );
        let inputs = inputs.collect::<Vec<_>>().join("\n");
        Some(format!("{} {for_people} {inputs}", serde_json::to_string(&plan).ok()?))
    }

    /// Returns the file without each of its keys, one at a time.
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
    fn p18_every_supported_key_has_an_effect() {
        for text in FILES {
            let mut report = crate::diagnostic::Report::new(crate::source::Source::new("f", text));
            let file = crate::yaml::read(&mut report).unwrap().json();
            let whole = outcome(&file).unwrap();
            let all = without_each_key(&file).into_iter();
            let in_vain = all.filter(|(_, less)| outcome(less).as_ref() == Some(&whole)).map(|(key, _)| key);
            assert_eq!(in_vain.collect::<Vec<_>>(), [""; 0], "these make no difference");
        }
    }

    #[test]
    fn p18_every_other_key_is_refused_with_its_place() {
        for (text, place) in [
            ("steps: [{id: a, run: x}]\nlater: 1\n", (2, 1)),
            ("steps:\n  - id: a\n    run: x\n    later: 1\n", (4, 5)),
            ("on:\n  - id: r\n    schedule: { every: 1h }\n    later: 1\nsteps: [{id: a, run: x}]\n", (4, 5)),
        ] {
            let wrong = crate::parse("p.yaml", text).map(|_| ()).unwrap_err();
            let reported = wrong.iter().any(|d| {
                (d.line, d.column) == (Some(place.0), Some(place.1))
                    && d.message.contains("has no key `later`")
            });
            assert!(reported, "{wrong}");
        }
    }
}
