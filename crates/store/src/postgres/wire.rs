//! One connection: statements are prepared once, and any number of them may be in flight.
//!
//! Round trips are the cost of PostgreSQL, so there is one way to ask: a list of statements, sent together and
//! answered together. The callers are not futures. They wait here, on whatever thread they run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row as Columns, Statement};

use super::cells::{Cell, Table};
use super::fault::Fault;
use crate::clock::{Clock, System};

/// The longest wait for an answer. The server's own limits are shorter, so that after this time the connection must be
/// dead.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A parameter of a statement.
pub(super) type Param<'a> = Box<dyn ToSql + Sync + 'a>;

/// One statement and its parameters.
pub(super) struct Ask<'a> {
    pub(super) sql: &'a str,
    pub(super) params: Vec<Param<'a>>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(sql: &'a str, cells: impl IntoIterator<Item = Cell<'a>>) -> Self {
        Ask { sql, params: cells.into_iter().map(|cell| Box::new(cell) as Param<'a>).collect() }
    }

    /// Returns a statement over `unnest`, with one parameter for each column.
    pub(super) fn over(sql: &'a str, table: Table<'a>) -> Self {
        let columns = table.into_columns();
        Ask { sql, params: columns.into_iter().map(|column| Box::new(column) as Param<'a>).collect() }
    }

    pub(super) fn plain(sql: &'a str) -> Self {
        Ask { sql, params: Vec::new() }
    }
}

/// The thread that drives the connection while its user waits.
pub(super) enum Driver {
    /// The waiting thread itself, so that no other thread has to be woken.
    Here(Arc<tokio::runtime::Runtime>),
    /// A thread of its own, because the user may be part of any program's runtime.
    Elsewhere,
}

/// The future of a statement's answer.
type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<Columns>, tokio_postgres::Error>> + 'a>>;

/// A connection.
pub(super) struct Wire {
    client: Client,
    statements: RefCell<HashMap<String, Statement>>,
    driver: Driver,
}

impl Wire {
    pub(super) fn new(client: Client, driver: Driver) -> Self {
        Wire { client, statements: RefCell::default(), driver }
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Sends all statements at once. Returns the rows of each statement, or the first fault.
    pub(super) fn ask(&self, asks: &[Ask<'_>]) -> Result<Vec<Vec<Columns>>, Fault> {
        let mut statements = Vec::with_capacity(asks.len());
        for ask in asks {
            statements.push(self.prepared(ask.sql)?);
        }
        let answers = asks.iter().zip(&statements).map(|(ask, statement)| {
            let params: Vec<&(dyn ToSql + Sync)> = ask.params.iter().map(|param| &**param).collect();
            Box::pin(async move { self.client.query(statement, &params).await }) as Answer<'_>
        });
        let answers = self.driver.wait(Together::new(answers.collect()))?;
        answers.into_iter().map(|answer| answer.map_err(Fault::from)).collect()
    }

    /// Sends a script and ignores its answers.
    pub(super) fn script(&self, sql: &str) -> Result<(), Fault> {
        Ok(self.driver.wait(self.client.batch_execute(sql))??)
    }

    fn prepared(&self, sql: &str) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.driver.wait(self.client.prepare(sql))??;
        self.statements.borrow_mut().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Driver {
    /// Waits for an answer.
    pub(super) fn wait<F: Future>(&self, answer: F) -> Result<F::Output, Fault> {
        match self {
            Driver::Here(runtime) => runtime
                .block_on(async { tokio::time::timeout(LONGEST_WAIT, answer).await })
                .map_err(|_| Fault::Silent),
            Driver::Elsewhere => park_on(answer),
        }
    }
}

/// A waker for a thread that waits for an answer.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on this thread. The thread may belong to a runtime, so this function uses nothing of a runtime.
fn park_on<F: Future>(future: F) -> Result<F::Output, Fault> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let until_ms = System.boot_ms() + LONGEST_WAIT.as_millis() as i64;
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Ok(done);
        }
        let left_ms = until_ms - System.boot_ms();
        if left_ms <= 0 {
            return Err(Fault::Silent);
        }
        std::thread::park_timeout(Duration::from_millis(left_ms as u64));
    }
}

/// Several futures that are polled together. They are first polled in order, so that their statements are sent in
/// order.
struct Together<'a, T> {
    waiting: Vec<Option<Pin<Box<dyn Future<Output = T> + 'a>>>>,
    done: Vec<Option<T>>,
    /// The first future that is not done. PostgreSQL answers in order.
    first: usize,
    begun: bool,
}

impl<'a, T> Together<'a, T> {
    fn new(all: Vec<Pin<Box<dyn Future<Output = T> + 'a>>>) -> Self {
        let done = all.iter().map(|_| None).collect();
        Together { waiting: all.into_iter().map(Some).collect(), done, first: 0, begun: false }
    }
}

impl<T: Unpin> Future for Together<'_, T> {
    type Output = Vec<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        let this = self.get_mut();
        let begin = !std::mem::replace(&mut this.begun, true);
        for at in this.first..this.waiting.len() {
            let Some(future) = &mut this.waiting[at] else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(done) => {
                    this.done[at] = Some(done);
                    this.waiting[at] = None;
                }
                // The futures behind it are answered later, but all of them must be sent.
                Poll::Pending if begin => {}
                Poll::Pending => break,
            }
        }
        while this.first < this.waiting.len() && this.waiting[this.first].is_none() {
            this.first += 1;
        }
        if this.first == this.waiting.len() {
            Poll::Ready(this.done.drain(..).flatten().collect())
        } else {
            Poll::Pending
        }
    }
}
