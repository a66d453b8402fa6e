//! Requests from outside that reach a rule.
//!
//! ```text
//!   raw bytes ─▶ signature ─▶ body as data ─▶ key ─▶ commit ─▶ answer
//! ```
//!
//! The body is data: conditions and inputs read it, and nothing evaluates it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use sprag_lifecycle::RuleStatus;
use sprag_pipeline::{TriggerSource, Webhook, WebhookKind};
use sprag_store::{Author, NewDelivery, Receipt, Row, acting_as};

use super::LoadedRule;
use super::signature::{Unverified, sign, verify};
use crate::App;
use crate::error::{Error, ErrorKind};
use crate::secret::hex;

/// The headers that conditions and inputs can use. Others may hold secrets.
const SHOWN: [&str; 10] = [
    "content-type",
    "user-agent",
    "x-github-event",
    "x-github-delivery",
    "x-gitlab-event",
    "x-gitlab-event-uuid",
    "x-slack-retry-num",
    "webhook-id",
    "webhook-timestamp",
    "x-request-id",
];
/// The most bytes of a header that conditions and inputs can use.
const HEADER_BYTES: usize = 1_000;
/// The most bytes of a key that is stored as it is; the hash stands for a longer one.
const KEY_BYTES: usize = 200;

/// The most levels of lists and objects in a body. JSON with more than 128 cannot be read, and the event adds some.
const DEEPEST: usize = 100;
/// The message about a body with more levels.
const TOO_DEEP: &str = "the body has more than 100 levels of lists and objects";

/// The endpoint of a rule, as a server needs it to read a request.
pub struct Endpoint {
    rule: LoadedRule,
    webhook: Webhook,
    /// The values of the rule's secrets in this process.
    secrets: Vec<String>,
}

/// The effect of a request that was signed by its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// The event is on disk.
    Event(Receipt),
    /// The next look at the repository of the rule is due. Nothing else is stored.
    Look,
    /// Slack asks whether this is the right server: the answer repeats its word. Nothing is stored.
    Challenge(String),
}

/// A request whose signature was checked.
enum Checked {
    Event(NewDelivery),
    Challenge(String),
}

/// The reason why a request was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The signature is missing, wrong or too old.
    Unsigned(&'static str),
    /// The body is not what its type says.
    Malformed(String),
    /// The type of the body is none that this program reads.
    UnknownType(String),
    /// The store or the rule cannot take it now.
    Error(Error),
}

/// An event that a person gives to a rule instead of a sender.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GivenEvent {
    /// The body, as data.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub body: Value,
    /// Headers that rules see, by their names.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl GivenEvent {
    /// Returns the names that conditions and inputs can use. A schedule takes no such events.
    pub(super) fn names_for(&self, rule: &LoadedRule, id: &str) -> Result<Value, Error> {
        if rule.schedule().is_some() {
            let message = format!("rule {} has a schedule, and takes no events", rule.row.name);
            return Err(Error::invalid(message).next("leave out the event"));
        }
        for name in self.headers.keys() {
            shown_header(name)?;
        }
        if is_too_deep(&self.body, DEEPEST) {
            return Err(Error::invalid(TOO_DEEP));
        }
        if !matches!(rule.trigger.source, TriggerSource::Webhook(_)) {
            // The end of a run and the move of a ref have no body: the event itself is given.
            let event = self.body.is_object().then(|| json!({ "event": self.body }));
            return event.ok_or_else(|| Error::invalid("an event must be a JSON object"));
        }
        let header = |name: &str| {
            let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        Ok(event_names(&self.body, header, id))
    }
}

/// Returns the name of a header that conditions and inputs can use.
fn shown_header(name: &str) -> Result<&'static str, Error> {
    let found = SHOWN.into_iter().find(|shown| shown.eq_ignore_ascii_case(name));
    found.ok_or_else(|| {
        Error::invalid(format!("rules do not see a header {name:?}"))
            .next(format!("give one of {}", SHOWN.join(", ")))
    })
}

/// A request that a sender would make: `sprag delivery send` posts it.
#[derive(Debug, Clone)]
pub struct SignedRequest {
    /// The path at a server.
    pub path: String,
    /// The headers, with the signature.
    pub headers: Vec<(&'static str, String)>,
    /// The bytes of the body.
    pub body: Vec<u8>,
}

impl Endpoint {
    /// Returns the most bytes of a body.
    pub fn max_body(&self) -> usize {
        self.webhook.max_body
    }
}

impl App {
    /// Returns the endpoint of a rule. A rule without one is not found. A secret that this process does not have makes
    /// the endpoint unavailable here, and never open.
    pub fn endpoint(&self, name: &str) -> Result<Endpoint, Error> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no webhook {name:?}"));
        let row = self.store.queries().rule_called(name)?.ok_or_else(missing)?;
        let (status, reason) = (row.status(), row.reason.clone());
        if status == RuleStatus::Retired {
            return Err(missing());
        }
        let unavailable =
            |why: String| Error::new(ErrorKind::Unavailable, format!("webhook {name} cannot be used: {why}"));
        let rule = self.loaded_rule(row).map_err(unavailable)?;
        let webhook = rule.webhook().cloned().ok_or_else(missing)?;
        if status == RuleStatus::Broken {
            return Err(unavailable(reason.as_deref().unwrap_or("its rule is broken").to_owned()));
        }
        let secrets: Result<_, String> = webhook.secrets.iter().map(|variable| secret(variable)).collect();
        let secrets = secrets.map_err(|why| {
            // Only the servers know their variables: `rule ls` and `explain` learn it from the count.
            self.count_refused(name, &why);
            unavailable(why)
        })?;
        Ok(Endpoint { rule, webhook, secrets })
    }

    /// Counts a request whose body is longer than the rule allows.
    pub fn refuse_too_large(&self, endpoint: &Endpoint) {
        let why = format!("the body is longer than {} bytes", endpoint.max_body());
        self.count_refused(&endpoint.rule.row.name, &why);
    }

    /// Takes a request: checks its signature and stores it. When this returns an event, the event is on disk.
    pub async fn take_request(
        &self,
        endpoint: &Endpoint,
        header: impl Fn(&str) -> Option<String>,
        body: &[u8],
    ) -> Result<Taken, NotTaken> {
        let checked = self.checked(endpoint, &header, body).inspect_err(|why| match why {
            NotTaken::Unsigned(why) => self.count_refused(&endpoint.rule.row.name, why),
            NotTaken::Malformed(why) | NotTaken::UnknownType(why) => {
                self.count_refused(&endpoint.rule.row.name, why);
            }
            NotTaken::Error(_) => {}
        });
        let event = match checked? {
            Checked::Event(event) => event,
            Checked::Challenge(word) => return Ok(Taken::Challenge(word)),
        };
        if matches!(endpoint.rule.trigger.source, TriggerSource::Git(_)) {
            // A hint: the refs of the repository are the truth.
            let looked = self.store.executor().look_now(endpoint.rule.row.id).await;
            return looked.map(|_| Taken::Look).map_err(|error| NotTaken::Error(error.into()));
        }
        // The journal names the rule as the author, and not the user whose server this is.
        let author = Author::rule(&endpoint.rule.row.name);
        let stored = acting_as(author, self.store.person().receive_event(endpoint.rule.row.id, event)).await;
        stored.map(Taken::Event).map_err(|error| NotTaken::Error(error.into()))
    }

    /// Checks the signature of a request, and returns the event that it brings.
    fn checked(
        &self,
        endpoint: &Endpoint,
        header: &dyn Fn(&str) -> Option<String>,
        body: &[u8],
    ) -> Result<Checked, NotTaken> {
        let webhook = &endpoint.webhook;
        let request = Unverified { header, body, now_s: self.now().wall_ms / 1_000 };
        let id = verify(webhook.kind, &endpoint.secrets, &request).map_err(NotTaken::Unsigned)?;
        let parsed = parsed(header("content-type").as_deref().unwrap_or_default(), body)?;
        if is_too_deep(&parsed, DEEPEST) {
            return Err(NotTaken::Malformed(TOO_DEEP.to_owned()));
        }
        if webhook.kind == WebhookKind::Slack
            && parsed["type"] == "url_verification"
            && let Some(word) = parsed["challenge"].as_str()
        {
            return Ok(Checked::Challenge(word.to_owned()));
        }
        let hash = hex(&Sha256::digest(body));
        let names = event_names(&parsed, header, id.as_deref().unwrap_or(&hash));
        // A sender's id counts only if it is signed: any other could be changed to have a recorded body taken again.
        let own = webhook.key.as_ref().and_then(|key| endpoint.rule.trigger.text(key, &names).ok());
        let key = match (own, id) {
            (Some(key), _) => format!("key {}", bounded(key)),
            (None, Some(id)) => format!("id {}", bounded(id)),
            (None, None) => format!("body {hash}"),
        };
        Ok(Checked::Event(NewDelivery {
            id: self.new_id(),
            enforcement: self.new_id(),
            key: key.into(),
            kind: "webhook",
            body: names.to_string().into(),
            chain: "[]".into(),
        }))
    }

    /// Returns a request with this body as the sender of a rule's webhook would sign it, with the first secret that
    /// this process has.
    pub fn signed_request(
        &self,
        name: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
    ) -> Result<SignedRequest, Error> {
        let rule = self.load_rule(name)?;
        let Some(webhook) = rule.webhook() else {
            let error = Error::invalid(format!("rule {} takes no requests", rule.row.name));
            return Err(error.next("fire it by hand"));
        };
        let found = webhook.secrets.iter().find_map(|variable| secret(variable).ok());
        let found = found.ok_or_else(|| {
            Error::invalid(format!("none of the secrets of rule {} is set here", rule.row.name))
                .next(format!("set {}", webhook.secrets.join(" or ")))
        })?;
        let mut all = vec![("content-type", "application/json".to_owned())];
        all.extend(sign(webhook.kind, &found, &self.new_id().to_string(), self.now().wall_ms / 1_000, &body));
        for (name, value) in headers {
            let shown = shown_header(name)?;
            all.retain(|(other, _)| *other != shown);
            all.push((shown, value.clone()));
        }
        Ok(SignedRequest { path: format!("/in/{}", rule.row.name), headers: all, body })
    }
}

/// Returns the value of a secret in this process; the error names its variable.
fn secret(variable: &str) -> Result<String, String> {
    let value = sprag_process::variable(variable).and_then(|value| value.into_string().ok());
    // Git, its hooks and its filters do not need it.
    sprag_process::withhold([variable]);
    let value = value.filter(|value| !value.is_empty());
    value.ok_or_else(|| format!("this server has no variable {variable}"))
}

/// Returns the names that conditions and inputs can use for a request.
pub(super) fn event_names(body: &Value, header: impl Fn(&str) -> Option<String>, id: &str) -> Value {
    let shown = SHOWN.iter().filter_map(|name| {
        let value = header(name).filter(|value| value.len() <= HEADER_BYTES)?;
        Some(((*name).to_owned(), Value::String(value)))
    });
    json!({ "event": { "body": body, "headers": shown.collect::<Map<_, _>>(), "id": id } })
}

/// Returns a key that every database can store: its hash if it is long or has characters that are not text.
pub(super) fn bounded(key: String) -> String {
    if key.len() <= KEY_BYTES && !key.chars().any(char::is_control) {
        return key;
    }
    format!("sha256 {}", hex(&Sha256::digest(&key)))
}

/// Returns a body as data: JSON, the fields of a form, or text.
fn parsed(content_type: &str, body: &[u8]) -> Result<Value, NotTaken> {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = || {
        let text = std::str::from_utf8(body);
        text.map_err(|_| NotTaken::Malformed("the body is not text in UTF-8".to_owned()))
    };
    let json = |text: &str| {
        serde_json::from_str(text)
            .map_err(|error| NotTaken::Malformed(format!("the body is not JSON: {error}")))
    };
    match &*kind {
        "application/json" => json(text()?),
        kind if kind.starts_with("application/") && kind.ends_with("+json") => json(text()?),
        "application/x-www-form-urlencoded" => {
            let fields = form(text()?);
            match fields.get("payload").and_then(Value::as_str) {
                // GitHub and Slack can send their JSON as the one field of a form.
                Some(payload) if fields.len() == 1 => json(payload),
                _ => Ok(Value::Object(fields)),
            }
        }
        "" => {
            text().map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())))
        }
        kind if kind.starts_with("text/") => text().map(|text| Value::String(text.to_owned())),
        other => Err(NotTaken::UnknownType(format!("a body of type {other:?} cannot be read"))),
    }
}

/// Whether a value has more than this many levels of lists and objects.
fn is_too_deep(value: &Value, levels: usize) -> bool {
    match (value, levels.checked_sub(1)) {
        (Value::Array(items), Some(rest)) => items.iter().any(|item| is_too_deep(item, rest)),
        (Value::Object(fields), Some(rest)) => fields.values().any(|field| is_too_deep(field, rest)),
        (Value::Array(_) | Value::Object(_), None) => true,
        _ => false,
    }
}

/// Returns the fields of a form.
fn form(text: &str) -> Map<String, Value> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (decoded(name), Value::String(decoded(value)))).collect()
}

/// Decodes `+` and `%XX` of a form.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 3;
                continue;
            }
            (b'+', ..) => out.push(b' '),
            (byte, ..) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_bodies_are_data_whatever_their_type() {
        let told = |kind: &str, body: &str| parsed(kind, body.as_bytes()).expect("data");
        assert_eq!(told("application/json; charset=utf-8", r#"{"a": "{{ b }}"}"#), json!({ "a": "{{ b }}" }));
        assert_eq!(told("application/vnd.github+json", "[1]"), json!([1]));
        assert_eq!(told("text/plain", "[1]"), json!("[1]"));
        assert_eq!(told("", "[1]"), json!([1]));
        assert_eq!(told("", "["), json!("["));
        let form = "application/x-www-form-urlencoded";
        assert_eq!(told(form, "a=b+c%2Bd&e&%zz=%4"), json!({ "a": "b c+d", "e": "", "%zz": "%4" }));
        assert_eq!(told(form, "payload=%7B%22a%22%3A1%7D"), json!({ "a": 1 }));

        let refused = |kind: &str, body: &[u8]| parsed(kind, body).expect_err("refused");
        assert!(matches!(refused("application/json", b"{"), NotTaken::Malformed(_)));
        assert!(matches!(refused("text/plain", b"\xff"), NotTaken::Malformed(_)));
        assert!(matches!(refused("application/octet-stream", b"x"), NotTaken::UnknownType(_)));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let NotTaken::Malformed(why) = refused("application/json", deep.as_bytes()) else {
            panic!("malformed")
        };
        assert!(why.contains("recursion"), "{why}");
        let levels = |count: usize| {
            let text = format!("{}{}", "[".repeat(count), "]".repeat(count));
            is_too_deep(&serde_json::from_str(&text).expect("JSON"), DEEPEST)
        };
        assert!(!levels(100) && levels(101));
    }

    #[test]
    fn keys_are_short_text() {
        assert_eq!(bounded("refs/heads/main".to_owned()), "refs/heads/main");
        for odd in ["a\0b".to_owned(), "x".repeat(201)] {
            let key = bounded(odd);
            assert!(key.starts_with("sha256 ") && key.len() < KEY_BYTES, "{key}");
        }
    }
}
