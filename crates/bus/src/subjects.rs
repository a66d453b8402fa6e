//! What things are called on the broker.

use sprag_lifecycle::RunId;
use sprag_store::Id;

/// Names under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

impl Subjects {
    /// Names under this prefix.
    pub fn new(prefix: &str) -> Self {
        Subjects { prefix: prefix.to_owned() }
    }

    /// The stream of hand-offs: each is taken from it by one worker.
    pub fn work_stream(&self) -> String {
        format!("{}-work", self.prefix)
    }

    /// The stream that anybody may follow.
    pub fn events_stream(&self) -> String {
        format!("{}-events", self.prefix)
    }

    /// All hand-offs.
    pub fn all_work(&self) -> String {
        format!("{}.work.*", self.prefix)
    }

    /// What the stream of events holds: events, and messages to one worker each.
    pub fn all_events(&self) -> [String; 2] {
        [format!("{}.events.>", self.prefix), format!("{}.worker.*", self.prefix)]
    }

    /// Hand-offs of a queue.
    pub fn work(&self, queue: &str) -> String {
        format!("{}.work.{}", self.prefix, word(queue))
    }

    /// What is for one worker alone.
    pub fn worker(&self, worker: Id) -> String {
        format!("{}.worker.{worker}", self.prefix)
    }

    /// An event on a kind of thing: `execution.completed` and `completed` are one on an execution.
    pub fn event(&self, run: Option<RunId>, entity: &str, event: &str) -> String {
        let event = event.strip_prefix(entity).and_then(|rest| rest.strip_prefix('.')).unwrap_or(event);
        let run = run.map_or_else(|| "-".to_owned(), |run| run.to_string());
        format!("{}.events.{run}.{entity}.{event}", self.prefix)
    }

    /// The consumer that the workers of a queue share.
    pub fn consumer(&self, queue: &str) -> String {
        format!("queue-{}", word(queue))
    }
}

/// A queue's name as one word of a subject: anything but plain characters is encoded.
fn word(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_whatever_a_queue_is_called() {
        let subjects = Subjects::new("sprag");
        assert_eq!(subjects.work("default"), "sprag.work.default");
        assert_eq!(subjects.work("a.b> *%ü"), "sprag.work.a%2eb%3e%20%2a%25%c3%bc");
        assert_ne!(subjects.work("a.b"), subjects.work("a%2eb"));
        assert_eq!(subjects.consumer("gpu/1"), "queue-gpu%2f1");
    }

    #[test]
    fn an_events_kind_is_told_once() {
        let subjects = Subjects::new("x");
        let run: RunId = "0123456789ab".parse().expect("a run");
        let of = |entity, event| subjects.event(Some(run), entity, event);
        assert_eq!(of("execution", "execution.completed"), "x.events.0123456789ab.execution.completed");
        assert_eq!(of("run", "cancel.requested"), "x.events.0123456789ab.run.cancel.requested");
        assert_eq!(subjects.event(None, "worker", "worker.registered"), "x.events.-.worker.registered");
    }
}
