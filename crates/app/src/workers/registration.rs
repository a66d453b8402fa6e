//! Workers register, drain and leave.

use sprag_process::ProcessId;
use sprag_store::{NewWorker, WorkerLimit};
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
        if is_own {
            self.app.store.claims().register(new).await?;
        } else {
            let host_suffix = sprag_process::vouched_host("", token);
            let limit = WorkerLimit { host_suffix, most: MOST_WORKERS };
            if !self.app.store.claims().register_within(new, limit).await? {
                return Err(too_many_workers());
            }
        }
        let key = self.app.blocking(|app| Ok::<_, Error>(app.store.queries().token_key()?)).await?;
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
