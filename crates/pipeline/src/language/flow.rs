//! The keys that decide whether and when a step runs, and those that end a run.

use super::{key, required, word};
use crate::form::Form::{self, Boolean, Either, Integer, List, Text};
use crate::form::{Record, Rule, Word};

pub(super) const ENDS: &[Word] = &[word("completed"), word("failed")];

/// The end of a run.
#[rustfmt::skip]
pub(crate) static END: Record = Record {
    what: "`end`",
    keys: &[
        required("status", Form::Word(ENDS),   "Whether the run has succeeded."),
        key("message",     Text(Rule::Filled), "The reason, for people: an output of the step, or its failure."),
    ],
};

/// Needs of which some are enough: `any`, or `at_least` with `of`.
#[rustfmt::skip]
pub(crate) static NEEDS: Record = Record {
    what: "`needs`",
    keys: &[
        key("any",      List(&Text(Rule::Id), 1), "One of these steps must be done."),
        key("at_least", Integer(1, 10_000),       "The number of steps that must be done."),
        key("of",       List(&Text(Rule::Id), 1), "The steps that `at_least` counts."),
    ],
};

/// A condition, and the consequence if it is false.
#[rustfmt::skip]
pub(crate) static WHEN: Record = Record {
    what: "`when`",
    keys: &[
        required("if", Either(&[Boolean, Text(Rule::Filled)]), "The expression."),
        key("else",    Form::Word(&[word("skip"), word("skip_rest")]),
                                           "`skip` skips only this step, `skip_rest` also all steps that need it, directly or through others."),
    ],
};
