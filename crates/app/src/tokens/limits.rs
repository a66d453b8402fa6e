//! The limits of a token: the pipelines, labels, queues and hosts beyond which its scopes do not reach.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sprag_store::TokenRow;

use super::Scope;
use crate::error::Error;

/// The most patterns of one kind.
const MOST_PATTERNS: usize = 64;
/// The longest pattern, in characters.
const LONGEST_PATTERN: usize = 128;

/// The limits of a token. An empty list means no limit. In patterns, `*` stands for any characters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TokenLimits {
    /// Only runs of pipelines, and boards, whose names match one of these patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pipelines: Vec<String>,
    /// Only queues whose names match one of these patterns, and runs whose steps wait in no other queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Only runs that have all of these labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Only workers and environments on hosts whose names match one of these patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl TokenLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == TokenLimits::default()
    }

    /// Whether runs of a pipeline with this name are within the limits on names.
    pub fn allow_pipeline(&self, name: &str) -> bool {
        allows(&self.pipelines, name)
    }

    /// Whether a queue is within the limits.
    pub fn allow_queue(&self, name: &str) -> bool {
        allows(&self.queues, name)
    }

    /// Whether a host is within the limits. A pattern may name the machine's part of the host (`build-7#0a1b2c3d`) or
    /// leave it out.
    pub fn allow_host(&self, host: &str) -> bool {
        let reported = sprag_process::reported_host_name(host);
        let name = reported.split('#').next().unwrap_or_default();
        allows(&self.hosts, reported) || allows(&self.hosts, name)
    }

    /// Whether a run with these labels is within the limits on labels.
    pub fn allow_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Refuses limits that are malformed, or that a token with these scopes could not keep.
    pub(super) fn check(&self, scopes: &[Scope]) -> Result<(), Error> {
        let lists = [("pipeline", &self.pipelines), ("queue", &self.queues), ("host", &self.hosts)];
        for (kind, patterns) in lists {
            let fits = |text: &String| {
                (1..=LONGEST_PATTERN).contains(&text.chars().count()) && !text.chars().any(char::is_control)
            };
            if patterns.len() > MOST_PATTERNS || !patterns.iter().all(fits) {
                return Err(Error::invalid(format!(
                    "a token has at most {MOST_PATTERNS} {kind} patterns of 1 to {LONGEST_PATTERN} characters"
                )));
            }
        }
        crate::RunLabels { name: None, labels: self.labels.clone() }.check()?;
        if self.is_empty() {
            return Ok(());
        }
        if scopes.contains(&Scope::Admin) {
            return Err(Error::invalid("a token with the scope `admin` cannot be limited")
                .next("use the scopes `run`, `work` and `read`"));
        }
        if scopes.contains(&Scope::Work) && !(self.pipelines.is_empty() && self.labels.is_empty()) {
            return Err(Error::invalid(
                "a queue holds the steps of all pipelines, so a token with the scope `work` cannot be limited to \
                 pipelines or labels",
            )
            .next("limit it to queues and hosts, and give those pipelines a queue of their own"));
        }
        Ok(())
    }
}

/// Shows the limits as `pipeline=deploy-* queue=q label=team=a host=h`; nothing if there are none.
impl fmt::Display for TokenLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let lists = [("pipeline", &self.pipelines), ("queue", &self.queues), ("host", &self.hosts)];
        for (kind, patterns) in lists {
            parts.extend(patterns.iter().map(|pattern| format!("{kind}={pattern}")));
        }
        parts.extend(self.labels.iter().map(|(key, value)| format!("label={key}={value}")));
        f.write_str(&parts.join(" "))
    }
}

/// Whether a list of patterns is empty, or one of them matches.
fn allows(patterns: &[String], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, text))
}

/// Whether a pattern matches the whole text. `*` matches any characters, also none; every other character itself.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    false
}

/// The content of a token: its scopes and limits, as one text of its row.
///
/// A token without limits has the plain words of its scopes. Any other token has JSON, in which a program that knows no
/// limits finds no scope: it refuses such a token rather than ignoring its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The scopes.
    pub scopes: Vec<Scope>,
    /// The limits.
    #[serde(default, skip_serializing_if = "TokenLimits::is_empty")]
    pub limits: TokenLimits,
    /// The hash of the first secret of a token that was rotated. Workers keep the numbers that they got with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl Grant {
    /// Returns the content of a token. A text that cannot be read grants nothing.
    pub fn of(row: &TokenRow) -> Grant {
        if row.scopes.starts_with('{') {
            return serde_json::from_str(&row.scopes).unwrap_or_default();
        }
        let scopes = row.scopes.split(',').filter_map(Scope::parse).collect();
        Grant { scopes, ..Grant::default() }
    }

    /// Returns the text that the row stores.
    pub(super) fn text(&self) -> String {
        if self.limits.is_empty() && self.identity.is_none() {
            let words: Vec<&str> = self.scopes.iter().map(|scope| scope.as_str()).collect();
            return words.join(",");
        }
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Shows the scopes and the limits, as `run,work; queue=q`.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.scopes.iter().map(|scope| scope.as_str()).collect();
        f.write_str(&words.join(","))?;
        if self.limits.is_empty() { Ok(()) } else { write!(f, "; {}", self.limits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scopes: &str) -> TokenRow {
        TokenRow {
            id: 1,
            name: "t".into(),
            hash: "h".into(),
            scopes: scopes.into(),
            created_ms: 0,
            expires_ms: None,
        }
    }

    #[test]
    fn a_pattern_matches_the_whole_text() {
        for (pattern, text, fits) in [
            ("deploy-*", "deploy-prod", true),
            ("deploy-*", "deploy-", true),
            ("deploy-*", "xdeploy-prod", false),
            ("deploy", "deploy", true),
            ("deploy", "deploy-prod", false),
            ("*", "", true),
            ("*-prod", "deploy-prod", true),
            ("*-prod", "deploy-prod-2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
            ("d.ploy", "deploy", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn e04_a_program_that_knows_no_limits_finds_no_scope() {
        let limits = TokenLimits { pipelines: vec!["deploy-*".into()], ..TokenLimits::default() };
        let grant = Grant { scopes: vec![Scope::Read, Scope::Run], limits, identity: None };
        let stored = row(&grant.text());
        assert_eq!(Grant::of(&stored), grant);
        assert!(stored.scopes.split(',').filter_map(Scope::parse).next().is_none(), "{}", stored.scopes);
        let plain = Grant { scopes: vec![Scope::Run, Scope::Work], ..Grant::default() };
        assert_eq!(plain.text(), "run,work");
        assert_eq!(Grant::of(&row("run,work")), plain);
        for unknown in
            [r#"{"scopes":["run"],"limits":{"folders":["/"]}}"#, r#"{"scopes":["run"],"x":1}"#, "{"]
        {
            assert_eq!(Grant::of(&row(unknown)), Grant::default(), "{unknown}");
        }
    }

    #[test]
    fn a_host_is_matched_with_or_without_its_machine() {
        let limits = TokenLimits { hosts: vec!["build-*".into()], ..TokenLimits::default() };
        assert!(limits.allow_host("build-7#0a1b2c3d@gpu") && limits.allow_host("build-7"));
        assert!(!limits.allow_host("web-1#0a1b2c3d@build-7"));
        let exact = TokenLimits { hosts: vec!["build-7#0a1b2c3d".into()], ..TokenLimits::default() };
        assert!(exact.allow_host("build-7#0a1b2c3d@gpu") && !exact.allow_host("build-7#ffffffff@gpu"));
    }
}
