//! Wake-ups: who waits for something is told when it may have come, in this process and in others.
//!
//! ```text
//!   commit ──▶ Hub ──▶ subscriptions of this process
//!               └────▶ bell/TOPIC, if that file exists: one byte written
//!                          └── inotify ──▶ the Hub of every process that made the file
//! ```
//!
//! A wake-up is a hint. Nobody relies on it: every wait has a deadline, after which one looks again.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::inotify;
use sprag_lifecycle::RunId;
use tokio::sync::Notify;

use crate::rows::Id;

/// What one can wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Anything at all.
    Journal,
    /// Something to claim in a queue, for anyone (0) or for one worker alone.
    Queue(Arc<str>, Id),
    /// A change to this run.
    Run(RunId),
    /// Something that this worker holds is to end.
    Worker(Id),
}

impl Topic {
    /// The bell's file name. Queue names come from outside: anything but plain characters is encoded.
    fn file_name(&self) -> String {
        match self {
            Topic::Journal => "journal".to_owned(),
            Topic::Run(run) => format!("run-{run}"),
            Topic::Worker(worker) => format!("worker-{worker}"),
            Topic::Queue(queue, pin) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                let name: String = queue
                    .bytes()
                    .map(
                        |byte| {
                            if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }
                        },
                    )
                    .collect();
                format!("queue-{name}.{pin}")
            }
        }
    }
}

/// Where a process's waiting and telling meet.
#[derive(Debug)]
pub(crate) struct Hub {
    bells: Option<PathBuf>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Topic, Vec<Weak<Notify>>>,
    /// Bell files that exist, as of the folder's last change.
    files: BTreeSet<String>,
    folder_changed: Option<(i64, i64)>,
}

impl Hub {
    /// A hub for this process alone.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Hub { bells: None, inner: Mutex::default() })
    }

    /// A hub that also hears and tells other processes, through files in `folder`.
    pub(crate) fn shared(folder: &Path) -> std::io::Result<Arc<Self>> {
        std::fs::create_dir_all(folder)?;
        let hub = Arc::new(Hub { bells: Some(folder.to_owned()), inner: Mutex::default() });
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, folder, inotify::WatchFlags::MODIFY)?;
        let listener = Arc::downgrade(&hub);
        std::thread::Builder::new().name("sprag-bell".into()).spawn(move || listen(&fd, &listener))?;
        Ok(hub)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for these topics from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, topics: Vec<Topic>) -> Subscription {
        let notify = Arc::new(Notify::new());
        let mut files = Vec::new();
        for topic in &topics {
            if let Some(folder) = &self.bells {
                let path = folder.join(topic.file_name());
                // Without the file nobody elsewhere rings: the wait then ends at its deadline.
                match OpenOptions::new().create(true).append(true).open(&path) {
                    Ok(_) => files.push(path),
                    Err(error) => tracing::warn!(path = %path.display(), %error, "cannot make a bell"),
                }
            }
        }
        let mut inner = self.inner();
        for topic in topics {
            inner.waiting.entry(topic).or_default().push(Arc::downgrade(&notify));
        }
        drop(inner);
        Subscription { notify, files }
    }

    /// Tells everybody who waits for one of these.
    pub(crate) fn tell(&self, topics: &BTreeSet<Topic>) {
        let mut inner = self.inner();
        for topic in topics {
            if let Some(waiting) = inner.waiting.get_mut(topic) {
                waiting.retain(|notify| match notify.upgrade() {
                    Some(notify) => {
                        notify.notify_one();
                        true
                    }
                    None => false,
                });
                if waiting.is_empty() {
                    inner.waiting.remove(topic);
                }
            }
        }
        let Some(folder) = &self.bells else { return };
        inner.look_at(folder);
        for topic in topics {
            let name = topic.file_name();
            if inner.files.contains(&name) {
                ring(&folder.join(name));
            }
        }
    }

    /// Another process, or this one, rang the bell of this name.
    fn heard(&self, name: &str) {
        let inner = self.inner();
        for (_, waiting) in inner.waiting.iter().filter(|(topic, _)| topic.file_name() == name) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
        }
    }
}

impl Inner {
    /// Lists the bells again if the folder has changed.
    fn look_at(&mut self, folder: &Path) {
        let Ok(stat) = rustix::fs::stat(folder) else { return };
        let changed = Some((stat.st_mtime, stat.st_mtime_nsec as i64));
        if changed == self.folder_changed {
            return;
        }
        self.folder_changed = changed;
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        self.files = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    }
}

/// A bell is a file to which a byte is written; its content means nothing, so it is kept short.
fn ring(path: &Path) {
    if let Ok(mut file) = OpenOptions::new().write(true).open(path) {
        let _ = file.write_all(b".");
    }
}

/// Listens until the hub is gone.
fn listen(fd: &OwnedFd, hub: &Weak<Hub>) {
    /// How often the listener looks whether anybody still needs it.
    const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 4096];
    loop {
        let mut polled = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&LOOK));
        let Some(hub) = hub.upgrade() else { return };
        if !matches!(ready, Ok(1..)) {
            continue;
        }
        let mut names = BTreeSet::new();
        let mut events = inotify::Reader::new(fd, &mut buffer);
        // One read's worth: more is read in the next round.
        loop {
            match events.next() {
                Ok(event) => {
                    names.extend(event.file_name().and_then(|name| name.to_str().ok()).map(str::to_owned));
                }
                Err(_) => return,
            }
            if events.is_buffer_empty() {
                break;
            }
        }
        names.iter().for_each(|name| hub.heard(name));
    }
}

/// Waits for some topics. Dropping it ends the wait.
#[derive(Debug)]
pub struct Subscription {
    notify: Arc<Notify>,
    files: Vec<PathBuf>,
}

impl Subscription {
    /// Returns when something may have come, or after `limit`; a wake-up between two waits is not lost.
    pub async fn wait(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.notify.notified()).await;
    }

    /// Wakes whoever waits here.
    pub fn wake(&self) {
        self.notify.notify_one();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A run's and a worker's bells have their listeners and then never again; others' stay.
        for path in self.files.iter().filter(|path| is_passing(path)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_passing(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("run-")
        || name.starts_with("worker-")
        || (name.starts_with("queue-") && !name.ends_with(".0"))
}

/// Whether a bell can be made here at all: a folder that cannot be written to is an error at once.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("probe.{}", std::process::id()));
    File::create(&path)?;
    std::fs::remove_file(&path)
}
