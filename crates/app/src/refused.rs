//! Refused events of all runs, as they happen. Each run keeps its last few; they have no place in the journal, which
//! contains transitions alone.

use std::time::Duration;

use sprag_store::{Store, Subscription, Topic};

use crate::App;
use crate::error::Error;
use crate::explain::{RefusedView, refused_view};
use crate::known::Names;

/// The longest time until a follower reads again. A refusal changes nothing, so it wakes no reader by itself.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
/// The most refused events that are read at once.
const PAGE: usize = 256;
/// The most refused events that are searched for the newest ones.
const MOST: usize = 4_096;

impl App {
    /// Returns the newest refused events of all runs, at most `limit`, newest first.
    pub fn refusals(&self, limit: usize) -> Result<Vec<RefusedView>, Error> {
        let last = self.store.queries().last_refusal()?;
        let found = self.store.queries().refusals_after(last - MOST as i64, MOST)?;
        let mut names = Names::new(self);
        let newest = found.iter().rev().take(limit);
        newest.map(|(_, refusal)| Ok(refused_view(refusal, names.step_of(&refusal.place)?))).collect()
    }
}

/// A follower of refused events, including those of other processes. It is a hint, not a record: events that are
/// refused faster than they are read may be missed.
pub struct RefusedEvents {
    store: Store,
    names: Names,
    after: i64,
    wake: Subscription,
}

impl RefusedEvents {
    /// Follows the events that are refused from now on.
    pub fn new(app: &App) -> Result<RefusedEvents, Error> {
        // Subscribed before the position is read, so that no event is missed in between.
        let wake = app.store.subscribe(vec![Topic::Journal]);
        let after = app.store.queries().last_refusal()?;
        Ok(RefusedEvents { store: app.store.clone(), names: Names::new(app), after, wake })
    }

    /// Returns what was refused since the last call, which may be nothing.
    pub fn ready(&mut self) -> Result<Vec<RefusedView>, Error> {
        let found = self.store.queries().refusals_after(self.after, PAGE)?;
        self.after = found.last().map_or(self.after, |(id, _)| *id);
        let views = found.iter();
        views.map(|(_, refusal)| Ok(refused_view(refusal, self.names.step_of(&refusal.place)?))).collect()
    }

    /// Waits for the next commit, or for a second.
    pub async fn wait(&self) {
        self.wake.wait(LOOK_ANYWAY).await;
    }
}
