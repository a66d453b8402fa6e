//! Events: every change of status, in the order of commits.

use serde::Serialize;
use sprag_app::view::EntryView;
use sprag_app::{App, Names, RunId};

use crate::Error;

/// A change of status that the store has committed. Its fields are those of `sprag events --json`.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// The position in the order of commits. Pass the last one that was handled to [`Engine::events`] to continue after
    /// it, even in another process.
    ///
    /// [`Engine::events`]: crate::Engine::events
    pub seq: u64,
    /// The time of the change: RFC 3339, UTC.
    pub at: String,
    /// The kind of thing that changed: `run`, `step`, `execution`, `gate`, `worker` and so on.
    pub entity: &'static str,
    /// The run that it belongs to, if it belongs to one.
    #[serde(serialize_with = "as_text")]
    pub run: Option<RunId>,
    /// The step that it belongs to, if it belongs to one.
    pub step: Option<String>,
    /// The name of the event, such as `run.succeeded`.
    pub event: &'static str,
    /// The status before; none if the thing is new.
    pub from: Option<&'static str>,
    /// The status now.
    pub to: &'static str,
    /// The reason, where one was given.
    pub reason: Option<String>,
}

fn as_text<S: serde::Serializer>(run: &Option<RunId>, serializer: S) -> Result<S::Ok, S::Error> {
    run.map(|run| run.to_string()).serialize(serializer)
}

impl Event {
    fn of(view: EntryView, run: Option<RunId>) -> Self {
        let EntryView { seq, at, entity, step, event, from, to, reason, .. } = view;
        Event { seq, at, entity, run, step, event, from, to, reason }
    }
}

/// A follower of the journal. It returns every event once, in order, including those that other processes commit.
///
/// ```
/// # use sprag::{Context, Engine, Pipeline};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let engine = Engine::in_memory().handler("greet", |_, (): ()| async { Ok("hello") }).start().await?;
/// let run = engine.new_run(&Pipeline::parse("steps: [{ id: a, call: greet }]")?).start().await?;
/// let mut events = run.events();
/// 'run: loop {
///     for event in events.next().await? {
///         println!("{} {:?} {}", event.seq, event.step, event.event);
///         if event.event == "run.succeeded" {
///             break 'run;
///         }
///     }
/// }
/// engine.shutdown().await?;
/// # Ok::<(), sprag::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Events {
    entries: sprag_app::Events,
    names: Names,
}

impl Events {
    pub(crate) fn new(app: &App, run: Option<RunId>, since: u64) -> Self {
        Events { entries: sprag_app::Events::new(app, run, since), names: Names::new(app) }
    }

    /// Returns the next events; waits until there are some.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        let entries = self.entries.next().await?;
        self.named(entries)
    }

    /// Returns the events that are already there, which may be none.
    pub fn ready(&mut self) -> Result<Vec<Event>, Error> {
        let entries = self.entries.ready()?;
        self.named(entries)
    }

    fn named(&mut self, entries: Vec<sprag_app::JournalEntry>) -> Result<Vec<Event>, Error> {
        let mut events = Vec::with_capacity(entries.len());
        for entry in entries {
            events.push(Event::of(self.names.view(&entry)?, entry.place.run));
        }
        Ok(events)
    }
}
