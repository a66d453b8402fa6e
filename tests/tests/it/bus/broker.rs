//! Helpers of the tests with a broker: workers that use it, pipelines that change hands, and a view of its streams.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt;
use serde_json::Value;
use sprag_tests::{Answer, SOON, Sandbox, Signal, Started, until, within};
use tokio::runtime::Runtime;

/// Writes a pipeline whose steps append their names to `out-N`, in turn from the queues `a` and `b`.
pub fn alternating(sandbox: &Sandbox, nth: usize, steps: usize) -> PathBuf {
    let out = sandbox.path(&format!("out-{nth}"));
    let steps: String = (0..steps)
        .map(|step| {
            let queue = ["a", "b"][step % 2];
            format!("  - id: s{step}\n    queue: {queue}\n    run: echo s{step} >> '{}'\n", out.display())
        })
        .collect();
    sandbox.yaml(&format!("alternating-{nth}"), &format!("name: alternating\nsteps:\n{steps}"))
}

/// Starts a worker with a broker, and waits until it serves.
pub fn serves(sandbox: &Sandbox, bus: &str, args: &[&str]) -> Started {
    let worker = sandbox.start(["worker", "--bus", bus, "--lease", "5s"].iter().chain(args));
    until("the worker serves", || worker.stderr().contains("serves"));
    worker
}

/// Drains a worker, and returns its figures of the broker.
pub fn counts(worker: Started) -> BTreeMap<String, u64> {
    worker.signal(Signal::TERM);
    let Answer { stderr, .. } = worker.finish().expect(0);
    counted(&stderr)
}

/// Parses `bus: 1 published, 2 received, …`.
pub fn counted(stderr: &str) -> BTreeMap<String, u64> {
    let line = stderr.lines().find_map(|line| line.strip_prefix("bus: ")).expect("its counts");
    let parts = line.split(", ").map(|part| part.split_once(' ').expect("a count"));
    parts.map(|(count, of)| (of.replace(' ', "_"), count.parse().expect("a number"))).collect()
}

/// Returns how often a log says that the broker is out of reach.
pub fn complaints(stderr: &str) -> usize {
    stderr.matches("the broker is out of reach").count()
}

/// Asserts that an action does not take long.
pub fn soon<T>(act: impl FnOnce() -> T) -> T {
    let begun = sprag_tests::now_ms();
    let done = act();
    assert!(sprag_tests::now_ms() - begun < SOON.as_millis() as u64, "it took too long");
    done
}

/// A client of the broker, beside the program's own.
pub struct Broker {
    runtime: Runtime,
    pub context: jetstream::Context,
    client: async_nats::Client,
}

impl Broker {
    pub fn of(url: &str) -> Self {
        Broker::connected(ConnectOptions::new(), url)
    }

    /// Returns a client with a name and a password.
    pub fn as_user((user, password): (&str, &str), url: &str) -> Self {
        Broker::connected(ConnectOptions::with_user_and_password(user.into(), password.into()), url)
    }

    fn connected(options: ConnectOptions, url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(options.connect(url)).expect("a broker");
        // The context has a task of its own.
        let context = runtime.block_on(async { jetstream::new(client.clone()) });
        Broker { runtime, context, client }
    }

    /// Waits for something that the client does.
    pub fn block<T>(&self, work: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(SOON, work).await };
        self.runtime.block_on(bounded).expect("the broker answers")
    }

    /// Returns a stream, if it exists.
    pub fn stream(&self, name: &str) -> Option<stream::Stream> {
        self.block(self.context.get_stream(name)).ok()
    }

    /// Returns all messages of a subject in Sprag's streams, in order.
    pub fn all(&self, subject: &str) -> Vec<(String, Value)> {
        let name = if subject.starts_with("sprag.work.") { "sprag-work" } else { "sprag-events" };
        let Some(stream) = self.stream(name) else { return Vec::new() };
        self.block(async {
            let mut found = Vec::new();
            let last = stream.cached_info().state.last_sequence;
            for sequence in stream.cached_info().state.first_sequence.max(1)..=last {
                // One that was taken is not there any more.
                let Ok(message) = stream.get_raw_message(sequence).await else { continue };
                if matches(subject, &message.subject) {
                    let told = serde_json::from_slice(&message.payload).unwrap_or(Value::Null);
                    found.push((message.subject.to_string(), told));
                }
            }
            found
        })
    }

    /// Returns the events of a run.
    pub fn events(&self, run: &str) -> Vec<Value> {
        let all = self.all(&format!("sprag.events.{run}.>"));
        all.into_iter().map(|(_, told)| told).collect()
    }

    /// Returns whether something was published under a subject.
    pub fn has(&self, subject: &str) -> bool {
        self.stream("sprag-events").is_some_and(|stream| {
            self.block(async { stream.get_last_raw_message_by_subject(subject).await.is_ok() })
        })
    }

    /// Publishes as any client could, without an id.
    pub fn publish(&self, subject: &str, payload: Vec<u8>) {
        self.block(async {
            let sent = self.context.publish(subject.to_owned(), payload.into()).await.expect("published");
            sent.await.expect("confirmed");
        });
    }

    /// Creates the work stream and a queue's consumer before any other process, with a short wait for acknowledgements.
    pub fn impatient(&self, queue: &str, ack_wait: std::time::Duration) {
        use jetstream::consumer::{AckPolicy, pull};
        self.block(async {
            let config = stream::Config {
                name: "sprag-work".into(),
                subjects: vec!["sprag.work.*".into()],
                retention: stream::RetentionPolicy::WorkQueue,
                ..stream::Config::default()
            };
            let stream = self.context.create_stream(config).await.expect("a stream");
            let config = pull::Config {
                durable_name: Some(format!("queue-{queue}")),
                filter_subject: format!("sprag.work.{queue}"),
                ack_policy: AckPolicy::Explicit,
                ack_wait,
                ..pull::Config::default()
            };
            stream.create_consumer(config).await.expect("a consumer");
        });
    }

    /// Takes one hand-off from a queue as a worker would, and keeps it.
    pub fn hold(&self, queue: &str) -> jetstream::Message {
        self.block(async {
            let stream = self.context.get_stream("sprag-work").await.expect("a stream");
            let consumer: jetstream::consumer::PullConsumer =
                stream.get_consumer(&format!("queue-{queue}")).await.expect("a consumer");
            let mut pulled = consumer.batch().max_messages(1).expires(SOON).messages().await.expect("a pull");
            pulled.next().await.expect("a message").expect("a message")
        })
    }

    /// Returns whether a worker waits for a queue's hand-offs.
    pub fn pulls(&self, queue: &str) -> bool {
        let Some(stream) = self.stream("sprag-work") else { return false };
        let info = self.block(stream.consumer_info(format!("queue-{queue}")));
        info.is_ok_and(|info| info.num_waiting > 0)
    }

    /// Deletes both streams.
    pub fn delete_streams(&self) {
        for name in ["sprag-work", "sprag-events"] {
            let _ = self.block(self.context.delete_stream(name));
        }
    }

    /// Waits until the client is connected to a broker that was started again.
    pub fn until_back(&self) {
        let back = within(SOON, || {
            let asked = self.context.request("INFO", &());
            let told = self.block(async { tokio::time::timeout(SOON / 10, asked).await });
            let told: Value = told.ok()?.ok()?;
            told["error"].is_null().then_some(())
        });
        assert!(back.is_some(), "the broker is back; {:?}", self.client.connection_state());
    }
}

/// Returns whether a pattern with wildcards matches a subject.
fn matches(pattern: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, words.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (wanted, Some(word)) if wanted == word => {}
            _ => return false,
        }
    }
    words.next().is_none()
}
