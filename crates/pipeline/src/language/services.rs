//! The keys of `services`.

use super::{ARGUMENT, ENV, SHELL, key, required, sandbox, word};
use crate::form::Form::{self, Duration, Either, Integer, List, Scalar, Text};
use crate::form::{Record, Rule};

const COMMAND: Form = Either(&[Text(Rule::Filled), List(&ARGUMENT, 1)]);

/// A process that runs beside the steps of a run.
#[rustfmt::skip]
pub(crate) static SERVICE: Record = Record {
    what: "a service",
    keys: &[
        required("run",    COMMAND,                             "The command, which stays in the foreground: text for a shell, or a list of a program and its arguments."),
        key("description", Text(Rule::Filled),                  "The purpose of the service, for people."),
        key("ready",       Form::Record(&READY),                "The test that it must pass before steps start; by default it is ready as soon as it has started."),
        key("ports",       List(&Text(Rule::Identifier), 1),    "Names of ports that are reserved for the run: variables SPRAG_PORT_NAME of its services and steps."),
        key("restart",     Either(&[Integer(0, 1000), Form::Record(&RESTART)]),
                                                                "The number of times that it is started again when it ends or does not become ready; 0 by default."),
        key("on_fail",     Form::Word(&[word("fail"), word("continue")]),
                                                                "The consequence when it is not started again: the run fails, or the steps continue without it."),
        key("env",         ENV,                                 "Environment variables, added to those of the pipeline."),
        key("dir",         Text(Rule::Filled),                  "The working directory, relative to the run's environment."),
        key("shell",       SHELL,                               "The shell that runs the command text: its name, or a program and its arguments."),
        key("secrets",     List(&Text(Rule::Variable), 1),      "Secrets that the service gets as variables; they are masked in its logs."),
        key("sandbox",     Either(&[Form::Word(&[word("none")]), Form::Record(&sandbox::SANDBOX)]),
                                                                "The bounds of its processes, or `none`; a key that is missing here is that of the pipeline."),
    ],
};

/// The test of a service: exactly one of `run`, `port` and `log`.
#[rustfmt::skip]
pub(crate) static READY: Record = Record {
    what: "`ready`",
    keys: &[
        key("run",     COMMAND,            "A command that is repeated until it succeeds."),
        key("port",    Scalar,             "The name of a port of the service, or a number: it must accept connections on this machine."),
        key("log",     Text(Rule::Filled), "A regular expression that must fit a line of the service's output."),
        key("timeout", Duration(1),        "The longest wait; 1 minute by default. After it the service has failed."),
    ],
};

/// The restarts of a service.
#[rustfmt::skip]
pub(crate) static RESTART: Record = Record {
    what: "`restart`",
    keys: &[
        required("max", Integer(0, 1000), "The most restarts."),
        key("delay",    Duration(0),      "The delay before each restart; none by default."),
    ],
};
