//! The keys of a sandbox, and those of the sources of secrets.

use super::{key, word};
use crate::form::Form::{self, Boolean, Duration, Integer, List, Positive, Text};
use crate::form::{Record, Rule};

/// The bounds of a step's processes.
#[rustfmt::skip]
pub(crate) static SANDBOX: Record = Record {
    what: "`sandbox`",
    keys: &[
        key("write",     List(&Text(Rule::WritablePath), 0), "The paths that steps may write: `worktree`, absolute paths, and paths below the home folder as `~/…`; `[worktree]` by default."),
        key("read",      List(&Text(Rule::SandboxPath), 1),  "Further paths that steps may read, absolute or as `~/…`: tools and settings outside of the folders of the system."),
        key("network",   Form::Word(&[word("none"), word("loopback"), word("all")]),
                                                             "`none`, `loopback` for addresses that only the step itself reaches, or `all` for the network of the machine; `none` by default."),
        key("memory",    Text(Rule::Size),                   "The most memory of all processes of a step together, such as 512MiB; a step that uses more is killed."),
        key("cpu",       Positive(1024.0),                   "The processors that a step may use, such as 2 or 0.5."),
        key("processes", Integer(1, 1_000_000),              "The most processes and threads of a step at once."),
        key("required",  Boolean,                            "Whether a step fails where this cannot be enforced; `false` runs it with a warning. `true` by default."),
    ],
};

/// The source of a secret: exactly one of `run`, `file`, `credential` and `env`.
#[rustfmt::skip]
pub(crate) static SECRET: Record = Record {
    what: "a secret",
    keys: &[
        key("run",        Text(Rule::Filled),      "A command of the worker whose standard output is the secret, such as `pass show db`."),
        key("timeout",    Duration(1),             "The time limit of the command; 30 seconds by default."),
        key("file",       Text(Rule::SandboxPath), "A file of the worker's machine, absolute or as `~/…`."),
        key("credential", Text(Rule::Name),        "The name of a credential that systemd passes to the worker's service."),
        key("env",        Text(Rule::Variable),    "A variable of the worker's environment with another name."),
    ],
};
