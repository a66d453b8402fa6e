//! Notifications from other processes: one connection that listens, and reconnects when it was lost.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::AsyncMessage;

use super::Shared;
use super::open::connect;
use crate::runtime::Runtime;
use crate::wake::Topic;

/// The longest message in bytes. PostgreSQL accepts no message longer than 8,000 bytes.
const MESSAGE_BOUND: usize = 7_900;
/// The message that replaces one that would be too long.
const ANYTHING: &str = "*";
/// The longest pause between two tries of a listener that cannot connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The statement that notifies other processes of a commit. Each schema has its own channel.
pub(super) const NOTIFY: &str = "SELECT pg_notify('sprag_' || current_schema(), $1)";

/// Returns the message for these topics: their numbers.
pub(super) fn message(topics: &BTreeSet<Topic>) -> String {
    let mut message = String::new();
    for topic in topics {
        let _ = write!(message, "{:016x} ", topic.number());
    }
    if message.len() > MESSAGE_BOUND { ANYTHING.to_owned() } else { message }
}

/// Listens until the store is dropped.
pub(super) async fn listen(shared: Weak<Shared>) {
    let mut pause = Duration::from_millis(50);
    while let Some(address) = shared.upgrade().map(|shared| shared.address.clone()) {
        if let Ok((client, mut connection)) = connect(&address).await {
            let asked = async {
                // The channel's name is the schema's, which PostgreSQL itself quotes.
                let sql = "DO $$ BEGIN EXECUTE format('LISTEN %I', 'sprag_' || current_schema()); END $$";
                client.batch_execute(sql).await
            };
            let mut asked = std::pin::pin!(asked);
            let mut listens = false;
            loop {
                let heard = std::future::poll_fn(|context| connection.poll_message(context));
                tokio::select! {
                    heard = heard => match heard {
                        Some(Ok(AsyncMessage::Notification(told))) => {
                            let Some(shared) = shared.upgrade() else { return };
                            if told.process_id() != shared.writer.load(Ordering::Relaxed) {
                                hear(&shared, told.payload());
                            }
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => break,
                    },
                    done = &mut asked, if !listens => {
                        if done.is_err() {
                            break;
                        }
                        listens = true;
                        pause = Duration::from_millis(50);
                        // Notifications before this moment did not arrive here, so all waiters look again.
                        let Some(shared) = shared.upgrade() else { return };
                        shared.hub.wake_all();
                    }
                }
            }
        }
        // No notification arrives when the server is back.
        Runtime::default().pause(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn hear(shared: &Arc<Shared>, message: &str) {
    if message == ANYTHING {
        return shared.hub.wake_all();
    }
    let numbers = message.split_ascii_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok());
    shared.hub.hear_exactly(&numbers.collect());
}
