//! The machine on which a store is used: how its programs wait, what they do at the same time, and the way of
//! their writes to the store. In production that is the runtime and nothing in between; a simulation puts a
//! [`Machine`] there, and then runs the very code that ships.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::error::{Error, Result};
use crate::rows::JournalEntry;
use crate::seams::{Clock, System};
use crate::session::Session;
use crate::wake::Topic;

/// Something that goes on by itself.
pub type Task<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What becomes of a write on its way to the store.
#[derive(Debug, Clone)]
pub enum Fate {
    /// It arrives.
    Arrives,
    /// It arrives, and cannot be written: nothing of it stays.
    Fails(Error),
    /// It never arrives, and this is what its caller is told.
    Lost(Error),
}

/// What a write came to, before its caller hears of it.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// The transitions that were applied.
    pub entries: Vec<JournalEntry>,
    /// Who may want to know.
    pub topics: BTreeSet<Topic>,
    /// Why nothing was written.
    pub error: Option<Error>,
}

/// What stands in the place of a machine in a simulation.
pub trait Machine: Send + Sync + 'static {
    /// Milliseconds since the machine started.
    fn boot_ms(&self) -> i64;
    /// Lets a while pass.
    fn pause(&self, for_a_while: Duration) -> Task;
    /// Does something at the same time as everything else.
    fn spawn(&self, task: Task);
    /// Hears of changes to these from now on.
    fn listen(&self, topics: &[Topic]) -> Arc<Notify>;
    /// The way of a write to the store; `what` names the operation.
    fn send(&self, what: &'static str) -> Task<Fate>;
    /// The way of the answer: what the caller is told in its place, if anything.
    fn answer(&self, what: &'static str, written: Written) -> Task<Option<Error>>;
}

/// The machine that a program is on: the real one, unless it is simulated.
#[derive(Clone, Default)]
pub struct Surroundings(pub(crate) Option<Arc<dyn Machine>>);

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "simulated" } else { "real" })
    }
}

impl Surroundings {
    /// Milliseconds since the machine started, sleep included.
    pub fn boot_ms(&self) -> u64 {
        let boot_ms = self.0.as_ref().map_or_else(|| System.boot_ms(), |machine| machine.boot_ms());
        boot_ms.max(0) as u64
    }

    /// Lets a while pass.
    pub async fn pause(&self, for_a_while: Duration) {
        match &self.0 {
            Some(machine) => machine.pause(for_a_while).await,
            None => drop(tokio::time::timeout(for_a_while, std::future::pending::<()>()).await),
        }
    }

    /// What `work` comes to, if that is soon enough.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.pause(limit) => None,
        }
    }

    /// Does something at the same time as everything else. What it comes to is told, unless it panics.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (told, hears) = oneshot::channel();
        let task = async move {
            let _ = told.send(work.await);
        };
        match &self.0 {
            Some(machine) => machine.spawn(Box::pin(task)),
            None => drop(tokio::spawn(task)),
        }
        hears
    }
}

/// Writes through a simulated machine. The write itself is one moment: nothing else happens meanwhile.
pub(crate) async fn write<T, F, C>(machine: &dyn Machine, mut operation: F, commit: C) -> Result<T>
where
    F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
    T: Send + 'static,
    C: AsyncFnOnce(Noting<T>) -> Result<T>,
{
    let what = std::any::type_name::<F>();
    let fate = machine.send(what).await;
    let fails = match fate {
        Fate::Arrives => None,
        Fate::Fails(error) => Some(error),
        Fate::Lost(error) => return Err(error),
    };
    let written = Arc::new(Mutex::new(Written::default()));
    let noted = Arc::clone(&written);
    let noting: Noting<T> = Box::new(move |session| {
        let answer = operation(session)?;
        let told = Written { entries: session.entries().to_vec(), topics: session.topics(), error: None };
        *noted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = told;
        fails.clone().map_or(Ok(answer), Err)
    });
    let done = block_on(commit(noting));
    let mut written = std::mem::take(&mut *written.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    if let Err(error) = &done {
        written = Written { error: Some(error.clone()), ..Written::default() };
    }
    match machine.answer(what, written).await {
        Some(error) => Err(error),
        None => done,
    }
}

/// An operation that also notes what it did.
pub(crate) type Noting<T> = Box<dyn FnMut(&mut Session<'_>) -> Result<T> + Send>;

struct Parked(std::thread::Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this very thread: a simulation has no other to go on with.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}
