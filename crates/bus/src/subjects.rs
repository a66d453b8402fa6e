//! The names of streams, subjects and consumers on the broker.

use sprag_lifecycle::RunId;
use sprag_store::Id;

/// The broker names of one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

impl Subjects {
    /// Creates the names for this prefix.
    pub fn new(prefix: &str) -> Self {
        Subjects { prefix: prefix.to_owned() }
    }

    /// Returns the stream of handoffs. Each message goes to one worker.
    pub fn work_stream(&self) -> String {
        format!("{}-work", self.prefix)
    }

    /// Returns the stream of events, which any client may follow.
    pub fn events_stream(&self) -> String {
        format!("{}-events", self.prefix)
    }

    /// Returns the pattern that matches the handoffs of all queues.
    pub fn all_work(&self) -> String {
        format!("{}.work.*", self.prefix)
    }

    /// Returns the subjects of the events stream: events, and messages for single workers.
    pub fn all_events(&self) -> [String; 2] {
        [format!("{}.events.>", self.prefix), format!("{}.worker.*", self.prefix)]
    }

    /// Returns the subject of a queue's handoffs.
    pub fn work(&self, queue: &str) -> String {
        format!("{}.work.{}", self.prefix, token(queue))
    }

    /// Returns the subject of the messages for one worker.
    pub fn worker(&self, worker: Id) -> String {
        format!("{}.worker.{worker}", self.prefix)
    }

    /// Returns the subject of an event. A leading entity is removed: `execution.completed` on an execution is
    /// `completed`.
    pub fn event(&self, run: Option<RunId>, entity: &str, event: &str) -> String {
        let event = event.strip_prefix(entity).and_then(|rest| rest.strip_prefix('.')).unwrap_or(event);
        let run = run.map_or_else(|| "-".to_owned(), |run| run.to_string());
        format!("{}.events.{run}.{entity}.{event}", self.prefix)
    }

    /// Returns the consumer that all workers of a queue share.
    pub fn consumer(&self, queue: &str) -> String {
        format!("queue-{}", token(queue))
    }
}

/// Encodes a queue's name as one token of a subject: bytes outside `[A-Za-z0-9_-]` become `%` and two digits.
fn token(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_queue_name_becomes_one_token() {
        let subjects = Subjects::new("sprag");
        assert_eq!(subjects.work("default"), "sprag.work.default");
        assert_eq!(subjects.work("a.b> *%ü"), "sprag.work.a%2eb%3e%20%2a%25%c3%bc");
        assert_ne!(subjects.work("a.b"), subjects.work("a%2eb"));
        assert_eq!(subjects.consumer("gpu/1"), "queue-gpu%2f1");
    }

    #[test]
    fn a_subject_has_the_entity_once() {
        let subjects = Subjects::new("x");
        let run: RunId = "0123456789ab".parse().expect("a run");
        let of = |entity, event| subjects.event(Some(run), entity, event);
        assert_eq!(of("execution", "execution.completed"), "x.events.0123456789ab.execution.completed");
        assert_eq!(of("run", "cancel.requested"), "x.events.0123456789ab.run.cancel.requested");
        assert_eq!(subjects.event(None, "worker", "worker.registered"), "x.events.-.worker.registered");
    }
}
