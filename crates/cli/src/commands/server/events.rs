//! `sprag events --server`: the journal of a server.

use std::collections::VecDeque;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::stream::{Following, News};
use super::{AtRemote, LIMIT, escaped};
use crate::commands::events;
use crate::exit::{Exit, Failure};
use crate::show::end_line;

/// The number of journal entries in one request.
const PAGE: usize = 1000;

impl AtRemote<'_> {
    pub(super) async fn events(
        &self,
        run: Option<&str>,
        since: u64,
        follow: bool,
        tail: Option<usize>,
    ) -> Result<Exit, Failure> {
        let run = match run {
            Some(run) => Some(self.run(Some(run)).await?),
            None => None,
        };
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut journal = Journal { run, after: since };
        let mut held = tail.map(|most| (VecDeque::new(), most));
        loop {
            let entries = journal.next(self).await?;
            let is_all = entries.len() < PAGE;
            match &mut held {
                Some((last, most)) => {
                    last.extend(entries);
                    last.drain(..last.len().saturating_sub(*most));
                }
                None => entries.iter().for_each(|entry| self.show_entry(entry)),
            }
            if !is_all {
                continue;
            }
            let (last, _) = held.take().unwrap_or_default();
            last.iter().for_each(|entry| self.show_entry(entry));
            if !follow {
                return Ok(Exit::Ok);
            }
            break;
        }
        let mut following = Following::new(&self.client);
        following.journal(journal.run.as_deref(), Some(journal.after));
        loop {
            let news = tokio::select! {
                news = following.next(LIMIT) => news?,
                _ = interrupt.recv() => {
                    end_line();
                    return Ok(Exit::Ok);
                }
            };
            for one in news {
                if let News::Entry(entry) = one {
                    self.show_entry(&entry);
                }
            }
        }
    }

    fn show_entry(&self, entry: &Value) {
        events::print(self.context, entry);
    }
}

/// The journal of a server, or of one run, read from a position on.
pub(super) struct Journal {
    /// The run; absent for all entries.
    pub(super) run: Option<String>,
    /// The number of the last entry that was read.
    pub(super) after: u64,
}

impl Journal {
    /// Returns the next entries, at most [`PAGE`]; empty if there are none yet.
    pub(super) async fn next(&mut self, remote: &AtRemote<'_>) -> Result<Vec<Value>, Failure> {
        let run = self.run.as_deref().map(|run| format!("&run={}", escaped(run))).unwrap_or_default();
        let part = remote.get(&format!("/v1/journal?limit={PAGE}&after={}{run}", self.after)).await?;
        let entries = part["entries"].as_array().cloned().unwrap_or_default();
        self.after = part["next_after"].as_u64().unwrap_or(self.after).max(self.after);
        Ok(entries)
    }
}
