//! The keys of `cache`.

use super::required;
use crate::form::Form::{List, Text};
use crate::form::{Record, Rule};

/// Files that a step keeps between runs.
#[rustfmt::skip]
pub(crate) static CACHE: Record = Record {
    what: "`cache`",
    keys: &[
        required("key",   Text(Rule::Filled),           "The key, a template: runs with the same key share the files. A key keeps the files of the first step that succeeds with it."),
        required("paths", List(&Text(Rule::Filled), 1), "Files and folders, relative to the step's folder."),
    ],
};
