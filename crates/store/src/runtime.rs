//! The machine on which a store is used: waiting, concurrent tasks, and the transport of writes to the store. In
//! production that is the runtime, with nothing in between. A simulation supplies a [`SimulatedRuntime`], and then runs the
//! same code that ships.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, System};
use crate::error::{Error, Result};
use crate::rows::JournalEntry;
use crate::session::Session;
use crate::wake::Topic;

/// A task that runs by itself.
pub type Task<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The fate of a write on its way to the store.
#[derive(Debug, Clone)]
pub enum Fate {
    /// The write arrives.
    Arrives,
    /// The write arrives and fails: nothing of it stays.
    Fails(Error),
    /// The write never arrives, and its caller gets this error.
    Lost(Error),
}

/// The result of a write, before its caller gets it.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// The transitions that were applied.
    pub entries: Vec<JournalEntry>,
    /// The topics whose subscribers to notify.
    pub topics: BTreeSet<Topic>,
    /// The reason why nothing was written; absent after success.
    pub error: Option<Error>,
}

/// The machine of a simulation.
pub trait SimulatedRuntime: Send + Sync + 'static {
    /// Returns the milliseconds since the machine started.
    fn boot_ms(&self) -> i64;
    /// Waits for a while.
    fn pause(&self, for_a_while: Duration) -> Task;
    /// Runs a task concurrently with all others.
    fn spawn(&self, task: Task);
    /// Subscribes to changes of these topics from now on.
    fn listen(&self, topics: &[Topic]) -> Arc<Notify>;
    /// Transports a write to the store; `what` names the operation.
    fn send(&self, what: &'static str) -> Task<Fate>;
    /// Transports the answer. Returns the error that the caller gets instead of it, if any.
    fn answer(&self, what: &'static str, written: Written) -> Task<Option<Error>>;
}

/// The machine on which a program runs: the real one, unless it is simulated.
#[derive(Clone, Default)]
pub struct Runtime(pub(crate) Option<Arc<dyn SimulatedRuntime>>);

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "simulated" } else { "real" })
    }
}

impl Runtime {
    /// Returns the milliseconds since the machine started, sleep included.
    pub fn boot_ms(&self) -> u64 {
        let boot_ms = self.0.as_ref().map_or_else(|| System.boot_ms(), |machine| machine.boot_ms());
        boot_ms.max(0) as u64
    }

    /// Waits for a while.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one way to wait, and a simulation stands in for it"
    )]
    pub async fn pause(&self, for_a_while: Duration) {
        match &self.0 {
            Some(machine) => machine.pause(for_a_while).await,
            None => tokio::time::sleep(for_a_while).await,
        }
    }

    /// Returns the result of `work`, or `None` if it takes longer than `limit`.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.pause(limit) => None,
        }
    }

    /// Runs a task concurrently with all others. The returned receiver gets its result, unless it panics.
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

/// Writes through a simulated machine. The write itself is one moment: nothing else happens during it.
pub(crate) async fn write<T, F, C>(machine: &dyn SimulatedRuntime, mut operation: F, commit: C) -> Result<T>
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

/// An operation that also records what it did.
pub(crate) type Noting<T> = Box<dyn FnMut(&mut Session<'_>) -> Result<T> + Send>;

struct Parked(std::thread::Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on the current thread, because a simulation has no other one.
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
