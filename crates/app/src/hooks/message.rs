//! The messages of a hook: entries of the journal in the form that its receiver understands.

use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;
use sprag_store::{HookRow, Id};

use crate::error::Error;
use crate::secret::{base64, fill_random, from_base64, hex};
use crate::view::RunView;

/// The largest template, in bytes.
const LONGEST_TEMPLATE: usize = 16 << 10;
/// The prefix of a secret of standard-webhooks.
const STANDARD_SECRET: &str = "whsec_";

/// The format of a hook's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum HookFormat {
    /// `{"hook": …, "events": […], "runs": {…}}`, with several events in one message.
    #[default]
    Json,
    /// `{"text": …}` for the incoming webhooks of Slack, Mattermost and others. Without a filter, only events of runs.
    Slack,
    /// The format and the headers of standard-webhooks, with one event in each message.
    Standard,
    /// The text of a template, with one event in each message.
    Template,
}

/// The form of a hook's messages, and the way to their receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HookDelivery {
    /// The format of the messages.
    pub format: HookFormat,
    /// The template of the format `template`; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The command that reads the messages from its stdin; absent if they are sent to a URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl HookDelivery {
    /// Refuses a template that is missing, not needed or not valid.
    pub(super) fn check(&self) -> Result<(), Error> {
        match (&self.template, self.format) {
            (None, HookFormat::Template) => {
                Err(Error::invalid("template: the format `template` needs one")
                    .next("add the template's text"))
            }
            (Some(_), HookFormat::Json | HookFormat::Slack | HookFormat::Standard) => {
                Err(Error::invalid("template: only the format `template` has one"))
            }
            (Some(text), HookFormat::Template) if text.len() > LONGEST_TEMPLATE => {
                Err(Error::invalid(format!("template: it has more than {LONGEST_TEMPLATE} bytes")))
            }
            (Some(text), HookFormat::Template) => {
                let event = test_event(0, "");
                let run = sample_run();
                let sample = HookEvent { seq: 0, json: &event, run: Some(&run), failures: Vec::new() };
                rendered(text, 0, &sample).map(drop).map_err(|error| {
                    Error::invalid(format!("template: {error}"))
                        .next("it can use event, run, failures and hook")
                })
            }
            (None, _) => Ok(()),
        }
    }
}

/// An entry that a hook is to receive.
#[derive(Debug)]
pub struct HookEvent<'e> {
    /// The entry's number in the journal.
    pub seq: u64,
    /// The entry, as JSON.
    pub json: &'e [u8],
    /// The entry's run, if it has one that still exists.
    pub run: Option<&'e RunView>,
    /// The failures of the run in one line each, if the entry says that it failed.
    pub failures: Vec<String>,
}

impl HookEvent<'_> {
    fn value(&self) -> Value {
        serde_json::from_slice(self.json).unwrap_or_default()
    }
}

/// A message to the receiver of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookMessage {
    /// The number of the last entry in the message.
    pub seq: u64,
    /// The body.
    pub body: Vec<u8>,
    /// The content type of the body.
    pub content_type: &'static str,
    /// The way in which it is signed.
    pub signing: Signing,
}

/// The way in which a message is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signing {
    /// `sprag-signature`: `v1=` and the HMAC-SHA256 of the time, a dot and the body, in hexadecimal.
    Sprag,
    /// The headers of standard-webhooks.
    Standard,
}

impl HookMessage {
    /// Returns the headers that identify and sign the message, sent at this time (in seconds since 1970).
    pub fn headers(&self, hook: &HookRow, at_s: i64) -> Vec<(&'static str, String)> {
        let at = at_s.to_string();
        match self.signing {
            Signing::Sprag => {
                let signature = hmac(hook.secret.as_bytes(), &[at.as_bytes(), b".", &self.body]);
                vec![
                    ("sprag-event-id", self.seq.to_string()),
                    ("sprag-signature", format!("v1={}", hex(&signature))),
                    ("sprag-timestamp", at),
                ]
            }
            Signing::Standard => {
                let id = format!("{}-{}", hook.id, self.seq);
                let key = hook.secret.strip_prefix(STANDARD_SECRET).and_then(from_base64);
                let key = key.unwrap_or_else(|| hook.secret.as_bytes().to_vec());
                let signed = [id.as_bytes(), b".", at.as_bytes(), b".", &self.body];
                let signature = format!("v1,{}", base64(&hmac(&key, &signed)));
                vec![("webhook-id", id), ("webhook-timestamp", at), ("webhook-signature", signature)]
            }
        }
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// Returns a random secret in the form of standard-webhooks.
pub(super) fn random_standard_secret() -> String {
    let mut bytes = [0u8; 24];
    fill_random(&mut bytes);
    format!("{STANDARD_SECRET}{}", base64(&bytes))
}

/// Returns the messages that tell of these entries, in order. The format `json` has them all in one.
pub fn messages(
    hook: Id,
    delivery: &HookDelivery,
    events: &[HookEvent<'_>],
) -> Result<Vec<HookMessage>, Error> {
    let json = |seq: u64, body: Vec<u8>, signing: Signing| HookMessage {
        seq,
        body,
        content_type: "application/json",
        signing,
    };
    match delivery.format {
        HookFormat::Json => {
            let last = events.last().map(|event| event.seq);
            Ok(last.map(|seq| json(seq, all_of(hook, events), Signing::Sprag)).into_iter().collect())
        }
        HookFormat::Slack => {
            let one = |event: &HookEvent<'_>| {
                json(event.seq, json!({ "text": chat_text(event) }).to_string().into_bytes(), Signing::Sprag)
            };
            Ok(events.iter().map(one).collect())
        }
        HookFormat::Standard => {
            let one = |event: &HookEvent<'_>| {
                let entry = event.value();
                let body = json!({
                    "type": entry["event"], "timestamp": entry["at"],
                    "data": { "hook": hook.to_string(), "event": entry, "run": event.run },
                });
                json(event.seq, body.to_string().into_bytes(), Signing::Standard)
            };
            Ok(events.iter().map(one).collect())
        }
        HookFormat::Template => {
            let template = delivery.template.as_deref().unwrap_or_default();
            let one = |event: &HookEvent<'_>| {
                let text = rendered(template, hook, event).map_err(Error::failed)?;
                let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
                let content_type = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
                Ok(HookMessage {
                    seq: event.seq,
                    body: text.into_bytes(),
                    content_type,
                    signing: Signing::Sprag,
                })
            };
            events.iter().map(one).collect()
        }
    }
}

/// Returns `{"hook": …, "events": […], "runs": {…}}`.
fn all_of(hook: Id, events: &[HookEvent<'_>]) -> Vec<u8> {
    let mut body = format!("{{\"hook\":\"{hook}\",\"events\":[").into_bytes();
    for (nth, event) in events.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend_from_slice(event.json);
    }
    let runs: BTreeMap<&str, Value> = events
        .iter()
        .filter_map(|event| event.run)
        .map(|run| {
            (run.id.as_str(), json!({ "pipeline": run.pipeline, "name": run.name, "labels": run.labels }))
        })
        .collect();
    body.extend_from_slice(format!("],\"runs\":{}}}", json!(runs)).as_bytes());
    body
}

/// Returns the text of a template about an entry.
fn rendered(template: &str, hook: Id, event: &HookEvent<'_>) -> Result<String, String> {
    let context = json!({
        "event": event.value(), "run": event.run, "failures": event.failures, "hook": hook.to_string(),
    });
    sprag_pipeline::render_text(template, &context)
}

/// Returns an entry in a line for people in a chat, with the failures of its run below.
fn chat_text(event: &HookEvent<'_>) -> String {
    let entry = event.value();
    let word = |key: &str| entry[key].as_str().unwrap_or_default();
    let sign = match word("to") {
        "completed" | "done" => "✓",
        "failed" => "✗",
        "cancelled" => "■",
        _ => "·",
    };
    let mut text = match (event.run, word("entity")) {
        (Some(run), "run") => {
            let name = run.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            format!("{sign} *{}*{name} {}: {}", run.pipeline, run.id, word("to"))
        }
        (Some(run), _) => format!("{sign} *{}* {}: {}", run.pipeline, word("id"), word("event")),
        (None, _) => format!("{sign} {} {}", word("event"), word("id")),
    };
    for failure in &event.failures {
        text += &format!("\n> {failure}");
    }
    // Slack reads these as the start of a link or an entity.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace("\n&gt; ", "\n> ")
}

/// Returns an entry that never was in a journal, for a test message.
pub fn test_event(wall_ms: i64, hook: &str) -> Vec<u8> {
    let at = crate::text::rfc3339(wall_ms);
    let entry = json!({
        "seq": 0, "at": at, "entity": "run", "id": sample_run().id, "run": sample_run().id, "step": null,
        "event": "hook.test", "from": "running", "to": "completed", "actor": "person", "by": format!("hook:{hook}"),
    });
    entry.to_string().into_bytes()
}

/// Returns the run of a test message.
pub fn sample_run() -> RunView {
    RunView {
        id: "000000000000".into(),
        pipeline: "test".into(),
        name: Some("a test message".into()),
        labels: BTreeMap::new(),
        status: "completed",
        waiting_for: None,
        questions: None,
        progress: None,
        parent: None,
        created_at: String::new(),
        started_at: None,
        ended_at: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(format: HookFormat, template: Option<&str>) -> HookMessage {
        let delivery = HookDelivery { format, template: template.map(str::to_owned), command: None };
        let (json, run) = (test_event(0, "7"), sample_run());
        let failures = vec!["a <b> failed: exit code 3".to_owned()];
        let event = HookEvent { seq: 5, json: &json, run: Some(&run), failures };
        messages(7, &delivery, &[event]).expect("messages").remove(0)
    }

    #[test]
    fn each_format_has_its_body() {
        let of = |format, template| String::from_utf8(one(format, template).body).expect("text");
        let all: Value = serde_json::from_str(&of(HookFormat::Json, None)).expect("JSON");
        assert_eq!((&all["hook"], &all["runs"]["000000000000"]["pipeline"]), (&"7".into(), &"test".into()));
        assert_eq!(all["events"][0]["event"], "hook.test");
        let chat: Value = serde_json::from_str(&of(HookFormat::Slack, None)).expect("JSON");
        let wanted = "✓ *test* (a test message) 000000000000: completed\n> a &lt;b&gt; failed: exit code 3";
        assert_eq!(chat["text"], wanted);
        let standard: Value = serde_json::from_str(&of(HookFormat::Standard, None)).expect("JSON");
        assert_eq!(
            (&standard["type"], &standard["data"]["run"]["pipeline"]),
            (&"hook.test".into(), &"test".into())
        );
        let text = of(HookFormat::Template, Some("{{ run.pipeline }} is {{ event.to }}"));
        assert_eq!(text, "test is completed");
    }

    #[test]
    fn a_standard_message_is_signed_as_the_specification_says() {
        // The example of https://github.com/standard-webhooks/standard-webhooks: secret, id, time and body.
        let mut hook =
            HookRow::new(0, "".into(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into(), "{}".into(), 0);
        hook.id = 1;
        let body = br#"{"test": 2432232314}"#.to_vec();
        let message = HookMessage { seq: 2, body, content_type: "", signing: Signing::Standard };
        let headers = message.headers(&hook, 1_614_265_330);
        assert_eq!(headers[0], ("webhook-id", "1-2".to_owned()));
        assert_eq!(headers[1].1, "1614265330");
        let key = from_base64("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
        let signed = [b"msg_p5jXN8AQM9LWM0D4loKWxJek", &b".1614265330."[..], &message.body];
        assert_eq!(base64(&hmac(&key, &signed)), "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert!(headers[2].1.starts_with("v1,"), "{headers:?}");
    }

    #[test]
    fn a_template_that_cannot_be_rendered_is_refused() {
        let delivery = |template: Option<&str>, format| {
            HookDelivery { format, template: template.map(str::to_owned), command: None }.check()
        };
        assert!(delivery(Some("{{ run.pipeline }}"), HookFormat::Template).is_ok());
        for wrong in [None, Some("{{ nosuch.name }}"), Some("{{ run."), Some("{% for x in y %}")] {
            assert!(delivery(wrong, HookFormat::Template).is_err(), "{wrong:?}");
        }
        assert!(delivery(Some("x"), HookFormat::Slack).is_err());
    }

    #[test]
    fn a_signature_is_a_plain_hmac() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 'a secret of sixteen'
        let hook = HookRow::new(1, "".into(), "a secret of sixteen".into(), "{}".into(), 0);
        let message = HookMessage { seq: 3, body: b"{}".to_vec(), content_type: "", signing: Signing::Sprag };
        let wanted = "v1=9e0f98fb6d96af0b7ebef51d30bd6c877daee8bce9b06dccbaa91614ae5b1e5b";
        assert_eq!(message.headers(&hook, 1_700_000_000)[1], ("sprag-signature", wanted.to_owned()));
    }
}
