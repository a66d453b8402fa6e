//! `sprag watch --server` without a run: all live runs of a server.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::follow::time_of;
use super::stream::Following;
use super::{AtRemote, LIMIT};
use crate::commands::watch::{Drawn, LiveRun, redraw};
use crate::exit::{Exit, Failure};
use crate::show::{end_line, line};

/// The most runs that are shown at once.
const MOST: usize = 200;
/// The time between two redraws, and the least time between two requests.
const TICK: Duration = Duration::from_millis(250);
/// The number of ticks after which the runs are read although the journal has not grown.
const MOST_TICKS: u32 = 40;

impl AtRemote<'_> {
    /// Shows all live runs until Ctrl-C. The server's journal says when to look; one request reads them all.
    pub(super) async fn watch_all(&self) -> Result<Exit, Failure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let in_place = !self.context.json && std::io::stdout().is_terminal();
        let mut following = Following::new(&self.client);
        following.journal(None, None);
        let mut ticks = tokio::time::interval(TICK);
        let (mut drawn, mut live, mut shown) = (Drawn::new(), Vec::new(), BTreeMap::new());
        let (mut has_changed, mut unread) = (true, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                news = following.next(LIMIT) => {
                    has_changed |= !news?.is_empty();
                    continue;
                }
                _ = interrupt.recv() => {
                    end_line();
                    return Ok(Exit::Ok);
                }
                _ = terminate.recv() => return Ok(Exit::Ok),
            }
            unread += 1;
            if std::mem::take(&mut has_changed) || unread >= MOST_TICKS {
                unread = 0;
                live = self.live_runs().await?;
                if !in_place {
                    self.changes(&live, &mut shown).await?;
                }
            }
            if in_place {
                drawn = redraw(self.context.style, &live, &drawn, jiff::Timestamp::now().as_millisecond());
            }
        }
    }

    async fn live_runs(&self) -> Result<Vec<LiveRun>, Failure> {
        let path = format!("/v1/runs?limit={MOST}&status=queued,running,failing,cancelling");
        let mut listed = self.get(&path).await?;
        let runs = listed["runs"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let live = |mut view: Value| {
            let progress = view.as_object_mut().and_then(|view| view.remove("progress")).unwrap_or_default();
            let count = |key: &str| progress[key].as_u64().and_then(|n| n.try_into().ok()).unwrap_or(0);
            let since = time_of(&view["started_at"]).or_else(|| time_of(&view["created_at"]));
            let (settled, total) = (count("settled"), count("total"));
            LiveRun { view, settled, total, since_ms: since.unwrap_or_default() }
        };
        Ok(runs.into_iter().map(live).collect())
    }

    /// Prints a line for each run that has changed since the last look, and for each that has ended.
    async fn changes(&self, live: &[LiveRun], shown: &mut BTreeMap<String, String>) -> Result<(), Failure> {
        for run in live {
            let text = run.text(self.context);
            if shown.get(&run.id()) != Some(&text) {
                line(&text);
                shown.insert(run.id(), text);
            }
        }
        let ended: Vec<String> =
            shown.keys().filter(|id| live.iter().all(|run| run.id() != **id)).cloned().collect();
        for id in ended {
            shown.remove(&id);
            let Ok(detail) = self.detail(&id).await else { continue };
            line(&LiveRun::ended_text(self.context, &detail));
        }
        Ok(())
    }
}
