//! `sprag wait --server`: waits for the end of a server's run.

use std::time::Duration;

use serde_json::{Value, json};

use super::stream::Following;
use super::{AtRemote, LOOK, outcome, status_of, word};
use crate::exit::{Exit, Failure};
use crate::show::line;

impl AtRemote<'_> {
    /// Waits for the end of a run, or until it waits for a person and for nothing else.
    pub(super) async fn wait(&self, run: Option<&str>, timeout: Option<Duration>) -> Result<Exit, Failure> {
        let run = self.run(run).await?;
        let ended: Result<(Exit, Value), Failure> = match timeout {
            None => self.end_of(&run).await,
            Some(limit) => match tokio::time::timeout(limit, self.end_of(&run)).await {
                Ok(ended) => ended,
                Err(_) => {
                    if self.context.json {
                        let status = self.detail(&run).await?["status"].clone();
                        line(&json!({ "type": "result", "run": run, "status": status }).to_string());
                    } else {
                        let limit = sprag_app::text::span(limit.as_millis().try_into().unwrap_or(i64::MAX));
                        eprintln!("run {run} has not ended in {limit}");
                    }
                    return Ok(Exit::TimedOut);
                }
            },
        };
        let (exit, told) = ended?;
        if exit == Exit::WaitsForPerson {
            return self.tell_questions(&run).await;
        }
        self.said(&json!({ "type": "result", "run": run, "status": told["status"] }), &status_of(&told))?;
        Ok(exit)
    }

    async fn end_of(&self, run: &str) -> Result<(Exit, Value), Failure> {
        let mut following = Following::new(&self.client);
        // Opened before the first look, so that no entry is missed in between.
        following.journal(Some(run), None);
        loop {
            let told = self.detail(run).await?;
            if let Some(exit) = outcome(&word(&told, "status")) {
                return Ok((exit, told));
            }
            if told["waiting_for"] == "person" && !self.questions_alone(run).await?.is_empty() {
                return Ok((Exit::WaitsForPerson, told));
            }
            following.next(LOOK).await?;
        }
    }
}
