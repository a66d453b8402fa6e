//! Threads: the conversations that agent steps have with their agents.

use sprag_app::{MOST_EVENTS, RunId, ThreadView, TranscriptPage};

use crate::{Error, Run};

/// The thread of an agent step. [`Run::thread`] makes one.
#[derive(Clone)]
pub struct Thread {
    run: Run,
    name: String,
}

impl Run {
    /// Returns the thread of an agent step of this run.
    pub fn thread(&self, step: &str) -> Thread {
        Thread { run: self.clone(), name: format!("{}/{step}", self.id()) }
    }
}

impl Thread {
    /// Returns its name: `RUN/STEP`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its agent, its status and the number of its turns.
    pub fn view(&self) -> Result<ThreadView, Error> {
        Ok(self.run.app().thread(&self.name)?)
    }

    /// Sends a message to the agent of a step whose run has ended. The returned run ends when the agent has answered; then
    /// the step's run can be resumed.
    pub async fn send(&self, message: &str) -> Result<Run, Error> {
        let app = self.run.app();
        let start = app.talk(&self.name, message).await?;
        Ok(Run::new(app.clone(), app.start_run(start).await?.run.id))
    }

    /// Returns the events of its agent after a position, the oldest first; 0 is the beginning. A page has at most 1,000
    /// events and about 1 MiB.
    pub fn transcript(&self, after: u64) -> Result<TranscriptPage, Error> {
        let app = self.run.app();
        Ok(app.transcript(&self.name)?.read(app, after, MOST_EVENTS)?)
    }

    /// Stops an agent that answers a message. Returns the run of the message.
    pub async fn stop(&self) -> Result<RunId, Error> {
        Ok(self.run.app().stop_thread(&self.name).await?)
    }

    /// Archives it: it takes no further messages.
    pub async fn archive(&self) -> Result<(), Error> {
        Ok(self.run.app().archive_thread(&self.name).await?)
    }

    /// Removes it: an agent that answers a message in it is stopped, and it takes no further ones.
    pub async fn remove(&self) -> Result<(), Error> {
        Ok(self.run.app().remove_thread(&self.name).await.map(drop)?)
    }
}
