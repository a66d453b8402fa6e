//! Settings of queues: held, limited.

use sprag_store::QueueRow;

use crate::App;
use crate::error::Error;

/// The longest name of a queue, in bytes.
const LONGEST: usize = 255;
/// The most executions that are dispatched at once when a queue has places again; the next sweep dispatches the rest.
const AT_ONCE: usize = 256;

impl App {
    /// Changes a queue's settings in one transaction, then dispatches what has a place now.
    pub async fn change_queue(
        &self,
        name: &str,
        change: impl Fn(&mut QueueRow) + Send + 'static,
    ) -> Result<(), Error> {
        if name.is_empty() || name.len() > LONGEST || name.contains([',', '\0']) {
            return Err(Error::invalid(format!("{name:?} is not a valid name of a queue")));
        }
        self.store.executor().change_queue(name.into(), change).await?;
        self.store.executor().fill_queue(name.into(), AT_ONCE).await?;
        Ok(())
    }
}
