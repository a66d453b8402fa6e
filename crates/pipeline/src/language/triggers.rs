//! The keys of rules that start runs.

use super::{TIMEOUT, key, required, word};
use crate::form::Form::{self, Any, Boolean, Either, Integer, List, Scalar, Table, Text};
use crate::form::{Record, Rule};

/// A rule that starts runs: exactly one source of events.
#[rustfmt::skip]
pub(crate) static TRIGGER: Record = Record {
    what: "a rule",
    keys: &[
        required("id",  Text(Rule::Id),                 "The rule's id, unique in the pipeline."),
        key("schedule", Either(&[Form::Record(&SCHEDULE), List(&Form::Record(&SCHEDULE), 1)]),
                                                        "The times at which runs start; a list means all of them."),
        key("run",      Form::Record(&ENDED_RUN),       "The ends of other runs."),
        key("git",      Form::Record(&GIT),             "The moves of git refs."),
        key("when",     Text(Rule::Filled),             "An expression over the event; no run starts if it is false."),
        key("inputs",   Table(Rule::Identifier, &Any),  "The inputs of the run, templates over the event."),
        key("missed",   Form::Record(&MISSED),          "The treatment of ticks while no process watched."),
        key("overlap",  Form::Word(&[word("skip"), word("queue"), word("cancel_older"), word("allow")]),
                                                        "The treatment of an earlier run of this rule that has not ended; `skip` by default."),
        key("webhook",  Form::Record(&WEBHOOK),         "Signed requests from outside, at `/in/PIPELINE/RULE` of a server."),
        key("debounce", Form::Record(&DEBOUNCE),        "A window in which several events become one run, with the last of them."),
        key("rate",     Form::Record(&RATE),            "A limit on the runs of the rule in a time."),
    ],
};

/// Times at which runs start: exactly one of `cron`, `every` and `at`.
#[rustfmt::skip]
pub(crate) static SCHEDULE: Record = Record {
    what: "`schedule`",
    keys: &[
        key("cron",   Text(Rule::Filled),            "Five fields: minute, hour, day of the month, month, day of the week."),
        key("every",  TIMEOUT,                       "A duration of at least a second; ticks are its multiples since 1970."),
        key("at",     Either(&[Text(Rule::Filled), List(&Text(Rule::Filled), 1)]),
                                                     "A time such as 2030-01-31T08:00:00Z, or a list of times."),
        key("zone",   Text(Rule::Filled),            "The time zone of `cron` and `except`; UTC by default."),
        key("except", List(&Text(Rule::Filled), 1),  "Days such as 2030-12-24 on which it does not fire."),
        key("jitter", TIMEOUT,                       "The longest delay of a tick; the same on every server."),
    ],
};

/// Signed requests from outside.
#[rustfmt::skip]
pub(crate) static WEBHOOK: Record = Record {
    what: "`webhook`",
    keys: &[
        required("kind",    Form::Word(&[word("github"), word("gitlab"), word("stripe"), word("slack"), word("standard"), word("generic")]),
                                                            "The sender, which decides how requests are signed; `generic` is an HMAC-SHA256 of the body in `x-signature-256`."),
        required("secrets", List(&Text(Rule::Variable), 1), "Variables of the server that hold secrets; a request signed with any of them is taken."),
        key("key",          Text(Rule::Filled),             "A template over the event: requests with the same key are taken once; the body's hash by default."),
        key("max_body",     Integer(1, 5 << 20),            "The most bytes of a body; 1048576 by default."),
    ],
};

/// A window in which several events become one run.
#[rustfmt::skip]
pub(crate) static DEBOUNCE: Record = Record {
    what: "`debounce`",
    keys: &[
        required("for", TIMEOUT,            "The time without a further event after which the run starts."),
        key("at_most",  TIMEOUT,            "The longest time after the first event; ten times `for` by default."),
        key("key",      Text(Rule::Filled), "A template over the event: each value has its own window; one for all by default."),
    ],
};

/// A limit on the runs of a rule in a time.
#[rustfmt::skip]
pub(crate) static RATE: Record = Record {
    what: "`rate`",
    keys: &[
        required("limit", Integer(1, 1_000_000), "The most runs in the time."),
        required("per",   TIMEOUT,               "The time."),
        key("over",       Form::Word(&[word("hold"), word("skip")]), "Whether an event beyond the limit waits or is skipped; `hold` by default."),
    ],
};

/// The ends of other runs.
#[rustfmt::skip]
pub(crate) static ENDED_RUN: Record = Record {
    what: "`run` of a rule",
    keys: &[
        required("pipeline", Either(&[Text(Rule::Filled), List(&Text(Rule::Filled), 1)]),
                                                       "The name of the run's pipeline, a pattern such as `build-*`, or a list of both."),
        key("ended",  List(&Form::Word(&[word("completed"), word("failed"), word("cancelled")]), 1),
                                                       "The statuses with which the run has to end; any by default."),
        key("labels", Table(Rule::Name, &Scalar),      "Labels that the run has to have."),
    ],
};

/// The moves of git refs.
#[rustfmt::skip]
pub(crate) static GIT: Record = Record {
    what: "`git`",
    keys: &[
        required("refs",   Either(&[Text(Rule::Filled), List(&Text(Rule::Filled), 1)]),
                                               "Full names of refs, or patterns such as `refs/heads/release-*`; `**` also fits slashes."),
        key("repository",  Text(Rule::Filled), "A path, the name of a remote, or an address; the repository of the rule's folder by default."),
        key("every",       TIMEOUT,            "The pause between two looks, at least a second; 1m by default."),
        key("paths",       Either(&[Text(Rule::Filled), List(&Text(Rule::Filled), 1)]),
                                               "Patterns such as `src/**`: a move that changes none of these paths is skipped."),
        key("told_by",     Form::Word(&[word("github"), word("gitlab"), word("standard"), word("generic")]),
                                               "The sender of signed requests, at `/in/PIPELINE/RULE` of a server, that make the next look due at once."),
        key("secrets",     List(&Text(Rule::Variable), 1), "Variables of the server that hold the secrets of these requests."),
        key("created",     Boolean,            "Whether a ref that appears later starts a run too; otherwise its first sight only records it."),
    ],
};

/// Ticks while no process watched.
#[rustfmt::skip]
pub(crate) static MISSED: Record = Record {
    what: "`missed`",
    keys: &[
        key("run",    Form::Word(&[word("none"), word("latest"), word("all")]),
                                "The missed ticks that start a run: none, the latest one, or all (at most 100, oldest first); `latest` by default."),
        key("within", TIMEOUT,  "The age beyond which a missed tick starts nothing; 1d by default."),
    ],
};
