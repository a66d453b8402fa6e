//! The people who may answer a question: the names that its gate lists, without the starter of its run if the gate says
//! so.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::mutant;

/// The rule about who may answer a question. By default everyone may.
///
/// Authors are written as the journal has them, `KIND:NAME`. A name without a kind means the token and the local user of
/// that name; agents choose their names themselves, so that no bare name means one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answerers {
    /// The names; empty for everyone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_by: Vec<String>,
    /// The author who may not answer, even if its name is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_by: Option<NotBy>,
}

/// An author who may not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotBy {
    /// The starter of the run, and the run's own steps.
    Starter,
}

impl Answerers {
    /// Returns the rule that lets no one answer, for a rule that cannot be read.
    pub fn no_one() -> Answerers {
        Answerers { answer_by: vec![String::new()], not_by: Some(NotBy::Starter) }
    }

    /// Whether everyone may answer.
    pub fn is_everyone(&self) -> bool {
        *self == Answerers::default()
    }

    /// Whether the author `by` may answer a question of a run that `starter` has started.
    pub fn allow(&self, by: Option<&str>, starter: Option<&str>) -> bool {
        if self.not_by == Some(NotBy::Starter) && !mutant!(StarterMayAnswer) {
            let is_starter = starter.is_some() && by.map(principal) == starter.map(principal);
            if is_starter || by.is_some_and(|by| by.starts_with(STEP)) {
                return false;
            }
        }
        self.answer_by.is_empty() || by.is_some_and(|by| self.answer_by.iter().any(|name| means(name, by)))
    }
}

/// The prefix of the authors that are steps.
const STEP: &str = "step:";

/// Returns the one that an author stands for. The local users of a data directory, and the token in it, are its owner.
fn principal(by: &str) -> &str {
    if by.starts_with("user:") || by == "token:local" { "user:" } else { by }
}

/// Whether a listed name means an author.
fn means(name: &str, by: &str) -> bool {
    let of_kind = |kind: &str| by.strip_prefix(kind).is_some_and(|of| of == name && !of.is_empty());
    name == by && !by.is_empty() || of_kind("token:") || of_kind("user:")
}

/// Shows the rule in words, such as `ada or bo, not the starter of the run`.
impl fmt::Display for Answerers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = if self.answer_by.is_empty() { "anyone".to_owned() } else { self.answer_by.join(" or ") };
        f.write_str(&names)?;
        match self.not_by {
            Some(NotBy::Starter) => f.write_str(", not the starter of the run"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i02_the_listed_may_answer_and_the_starter_may_not() {
        let listed = Answerers { answer_by: vec!["ada".into(), "token:bo".into()], not_by: None };
        for (by, may) in [
            (Some("token:ada"), true),
            (Some("user:ada"), true),
            (Some("agent:ada"), false),
            (Some("rule:ada"), false),
            (Some("token:bo"), true),
            (Some("user:bo"), false),
            (Some("token:cy"), false),
            (None, false),
        ] {
            assert_eq!(listed.allow(by, Some("token:x")), may, "{by:?}");
        }
        let other = Answerers { not_by: Some(NotBy::Starter), ..Answerers::default() };
        for (by, starter, may) in [
            ("token:ci", "token:ci", false),
            ("token:ada", "token:ci", true),
            ("user:ada", "user:bo", false),
            ("token:local", "user:ada", false),
            ("token:ada", "user:ada", true),
            ("anyone:here", "anyone:here", false),
            ("step:0ajk4jy7ea0w/deploy", "token:ci", false),
        ] {
            assert_eq!(other.allow(Some(by), Some(starter)), may, "{by} {starter}");
        }
        let both = Answerers { answer_by: vec!["ci".into()], not_by: Some(NotBy::Starter) };
        assert_eq!(both.to_string(), "ci, not the starter of the run");
        assert!(!Answerers::no_one().allow(Some("token:"), None));
        assert!(
            !both.allow(Some("token:ci"), Some("token:ci")) && both.allow(Some("token:ci"), Some("rule:r"))
        );
    }
}
