//! `sprag events`: the journal.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag::Events;
use sprag_lifecycle::{Plan, RunId, StepNo};
use sprag_store::{JournalEntry, RunRow, StepRow, Store, Table, step_name};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::{Context, find_run};
use crate::exit::{Exit, Failure};
use crate::show::{entry_json, line, local, note_of, plain};

pub(crate) async fn events(
    context: &Context,
    run: Option<&str>,
    since: u64,
    follow: bool,
) -> Result<Exit, Failure> {
    let store = context.store()?;
    let only = run.map(|run| find_run(&store, Some(run))).transpose()?.map(|known| known.id());
    let mut names = Names::new(&store);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut events = Events::new(&store, only, since);
    loop {
        let entries = events.ready()?;
        for entry in &entries {
            names.show(context, entry)?;
        }
        if entries.is_empty() && !follow {
            return Ok(Exit::Ok);
        }
        if entries.is_empty() {
            tokio::select! {
                () = events.wait(std::time::Duration::from_secs(2)) => {}
                _ = interrupt.recv() => return Ok(Exit::Ok),
            }
        }
    }
}

/// The steps' ids by run, read once each.
pub(crate) struct Names<'s> {
    store: &'s Store,
    plans: BTreeMap<RunId, Option<Arc<Plan>>>,
}

impl<'s> Names<'s> {
    pub(crate) fn new(store: &'s Store) -> Self {
        Names { store, plans: BTreeMap::new() }
    }

    fn plan(&mut self, run: RunId) -> Result<Option<Arc<Plan>>, Failure> {
        if let Some(plan) = self.plans.get(&run) {
            return Ok(plan.clone());
        }
        let plan = self.store.read(|db| match Table::<RunRow>::load(db, run)? {
            Some(row) => db.plan(row.plan),
            None => Ok(None),
        })?;
        self.plans.insert(run, plan.clone());
        Ok(plan)
    }

    pub(crate) fn json(&mut self, entry: &JournalEntry) -> Result<serde_json::Value, Failure> {
        let plan = entry.place.run.map(|run| self.plan(run)).transpose()?.flatten();
        let name = |no: StepNo| {
            let plan = plan.as_ref()?;
            let id = plan.steps.get(no as usize).map(|step| step.id.clone());
            id.or_else(|| {
                let run = entry.place.run?;
                let row = self.store.read(|db| Table::<StepRow>::load(db, (run, no)));
                row.ok().flatten().map(|row| step_name(plan, &row))
            })
        };
        Ok(entry_json(entry, name))
    }

    fn show(&mut self, context: &Context, entry: &JournalEntry) -> Result<(), Failure> {
        let told = self.json(entry)?;
        if context.json {
            line(&told.to_string());
            return Ok(());
        }
        let style = context.style;
        let about: Vec<String> = note_of(entry)
            .into_iter()
            .flat_map(|note| note.into_iter().map(|(_, value)| plain(value.as_str().unwrap_or_default())))
            .collect();
        line(&format!(
            "{:>6} {}  {:<21} {} → {}  {}",
            entry.seq,
            style.dim(&local(entry.at_ms)),
            entry.event,
            entry.from.unwrap_or("·"),
            style.status(entry.to, 0),
            style.dim([told["id"].as_str().unwrap_or_default(), &about.join(": ")].join(" ").trim_end()),
        ));
        Ok(())
    }
}
