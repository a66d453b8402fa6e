//! Settings of queues: held, limited.

use sprag_store::{QueueRow, Store};

use crate::complaint::{Complaint, Kind};

/// How long a queue's name may be.
const LONGEST: usize = 255;
/// How much is handed over at once when a queue has places again; the rest comes with the next sweep.
const AT_ONCE: usize = 256;

/// Changes a queue's settings in one transaction, then hands over what has a place now.
pub async fn change_queue(
    store: &Store,
    name: &str,
    change: impl Fn(&mut QueueRow) + Send + 'static,
) -> Result<(), Complaint> {
    if name.is_empty() || name.len() > LONGEST || name.contains([',', '\0']) {
        return Err(Complaint::new(Kind::Wrong, format!("{name:?} cannot be a queue's name")));
    }
    let wanted = name.to_owned();
    store
        .write(move |session| {
            let found = session.db().queue(&wanted)?;
            let mut queue =
                found.unwrap_or_else(|| QueueRow { name: wanted.as_str().into(), limit: None, held: false });
            change(&mut queue);
            sprag_store::ops::set_queue(session, &queue)
        })
        .await?;
    store.executor().fill_queue(name.into(), AT_ONCE).await?;
    Ok(())
}
