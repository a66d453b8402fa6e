//! Workers register, drain and leave.

use sprag_process::ProcessId;
use sprag_store::Backend;
use sprag_store::ops::{self, NewWorker};
use sprag_worker::wire;

use super::{MOST_HELD, RemoteWorker, check_lease};
use crate::error::{Error, ErrorKind};

/// The most workers of one token that are online at once.
const MOST_WORKERS: usize = 1_000;

impl RemoteWorker {
    /// Registers the worker, new or returning, on a host that is bound to the token it shows. `token` is the token's
    /// name; `is_own` tells that the caller is the server's own user, whose programs share the store with it anyway.
    pub async fn register(
        &self,
        mut new: NewWorker,
        token: &str,
        is_own: bool,
    ) -> Result<wire::Registered, Error> {
        check_lease(new.lease_ms)?;
        let texts = [("name", &new.name, 128), ("process", &new.process, 512)];
        let lists = [("queues", &new.queues, 4_096), ("labels", &new.labels, 4_096)];
        for (field, text, most) in texts.into_iter().chain(lists) {
            if text.len() > most {
                return Err(Error::field(field, format!("at most {most} bytes")));
            }
            if text.chars().any(char::is_control) {
                return Err(Error::field(field, "it holds control characters"));
            }
        }
        if new.slots == 0 || new.slots as usize > MOST_HELD {
            return Err(Error::field("slots", format!("between 1 and {MOST_HELD}")));
        }
        new.id = self.id;
        new.process = vouched(&new.process, token).into();
        let token = token.to_owned();
        let registered = self.app.store.write(move |session| {
            if !is_own && has_too_many(session.db(), &new, &token)? {
                return Ok(Err(too_many_workers()));
            }
            ops::register_worker(session, &new).map(Ok)
        });
        registered.await??;
        let key = self.app.blocking(|app| Ok::<_, Error>(app.store.read(|db| db.token_key())?)).await?;
        Ok(wire::Registered { applied: true, store: wire::store_name(&key) })
    }

    /// Stops the worker from taking more work. Returns whether this changed anything.
    pub async fn drain(&self) -> Result<wire::Done, Error> {
        // Ends a claim of this worker that still waits: it is to get no more work.
        drop(self.app.turns.start(self.id));
        Ok(wire::Done { applied: self.app.store.claims().drain(self.id).await?.is_applied() })
    }

    /// Removes the worker in good order; other workers get the work that it still held. Returns whether this changed
    /// anything.
    pub async fn leave(&self) -> Result<wire::Done, Error> {
        Ok(wire::Done { applied: self.app.store.claims().leave(self.id).await?.is_applied() })
    }
}

/// Whether a token has as many workers as it may have, and this would be one more.
fn has_too_many(db: &mut dyn Backend, new: &NewWorker, token: &str) -> sprag_store::Result<bool> {
    let vouched = sprag_process::vouched_host("", token);
    let workers = db.workers()?;
    let is_there = workers.iter().any(|row| row.id == new.id);
    let count = workers.iter().filter(|row| row.host().ends_with(&vouched)).count();
    Ok(!is_there && count >= MOST_WORKERS)
}

fn too_many_workers() -> Error {
    Error::new(
        ErrorKind::TooMany { retry_after_s: 60 },
        format!("this token has {MOST_WORKERS} workers, which is all that one may have"),
    )
}

/// Returns a worker's process, on a host that is bound to the token it shows. Whatever the worker says, it is on no
/// host of another token's workers, and not on the server's.
fn vouched(process: &str, token: &str) -> String {
    let vouched = |host: &str| sprag_process::vouched_host(host, token);
    match process.parse::<ProcessId>() {
        Ok(mut process) => {
            process.host = vouched(&process.host);
            process.to_string()
        }
        Err(_) => vouched(process.split('/').next().unwrap_or_default()),
    }
}
