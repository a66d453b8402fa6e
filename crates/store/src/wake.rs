//! Wake-ups: who waits for something is told when it may have come, in this process and in others.
//!
//! ```text
//!   commit ──▶ Hub ──▶ subscriptions of this process
//!               └────▶ bell/TOPIC~WHO, whichever exist: one byte written
//!                          └── inotify ──▶ the one subscription that hung that bell
//! ```
//!
//! A bell belongs to one subscription, which holds a lock on it for as long as it lives; bells of dead
//! processes are taken down by whoever opens the store next.
//!
//! A wake-up is a hint. Nobody relies on it: every wait has a deadline, after which one looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// How bells of this topic begin. Queue names come from outside: anything but plain characters is encoded.
    fn bells(&self) -> String {
        match self {
            Topic::Journal => "journal~".to_owned(),
            Topic::Run(run) => format!("run-{run}~"),
            Topic::Worker(worker) => format!("worker-{worker}~"),
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
                format!("queue-{name}.{pin}~")
            }
        }
    }
}

/// Where a process's waiting and telling meet.
#[derive(Debug)]
pub(crate) struct Hub {
    bells: Option<Bells>,
    inner: Mutex<Inner>,
}

/// The folder of bells, and this process's ear on its own.
#[derive(Debug)]
struct Bells {
    folder: PathBuf,
    ear: OwnedFd,
    hung: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Topic, Vec<Weak<Notify>>>,
    /// Which subscription hung the bell with this watch number.
    heard: BTreeMap<i32, Weak<Notify>>,
    /// Bells that exist, as of the folder's last change.
    names: BTreeSet<String>,
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
        take_down_the_dead(folder)?;
        let ear = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        let bells = Bells { folder: folder.to_owned(), ear, hung: AtomicU64::new(0) };
        let hub = Arc::new(Hub { bells: Some(bells), inner: Mutex::default() });
        let ear = rustix::io::fcntl_dupfd_cloexec(&hub.bells.as_ref().expect("just made").ear, 0)?;
        let listener = Arc::downgrade(&hub);
        std::thread::Builder::new().name("sprag-bell".into()).spawn(move || listen(&ear, &listener))?;
        Ok(hub)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for these topics from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, topics: Vec<Topic>) -> Subscription {
        let notify = Arc::new(Notify::new());
        let mut hung = Vec::new();
        if let Some(bells) = &self.bells {
            for topic in &topics {
                match bells.hang(topic) {
                    Ok((watch, bell)) => {
                        self.inner().heard.insert(watch, Arc::downgrade(&notify));
                        hung.push(bell);
                    }
                    // Without a bell nobody elsewhere rings: the wait then ends at its deadline.
                    Err(error) => tracing::warn!(?topic, %error, "cannot hang a bell"),
                }
            }
        }
        let mut inner = self.inner();
        for topic in topics {
            inner.waiting.entry(topic).or_default().push(Arc::downgrade(&notify));
        }
        drop(inner);
        Subscription { notify, hung }
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
        let Some(bells) = &self.bells else { return };
        inner.look_at(&bells.folder);
        for topic in topics {
            let begin = topic.bells();
            for name in inner.names.range(begin.clone()..).take_while(|name| name.starts_with(&begin)) {
                ring(&bells.folder.join(name));
            }
        }
    }

    /// Somebody rang the bell with this watch number.
    fn heard(&self, watch: i32) {
        let mut inner = self.inner();
        match inner.heard.get(&watch).and_then(Weak::upgrade) {
            Some(notify) => notify.notify_one(),
            None => {
                inner.heard.remove(&watch);
            }
        }
    }
}

impl Bells {
    /// Hangs a bell of one's own for a topic, and listens to it.
    fn hang(&self, topic: &Topic) -> std::io::Result<(i32, Bell)> {
        let nth = self.hung.fetch_add(1, Ordering::Relaxed);
        // Another process may have this number elsewhere: in its own pid namespace. The address tells them apart.
        let who = format!("{}-{:x}-{nth}", std::process::id(), std::ptr::from_ref(self).addr());
        let path = self.folder.join(format!("{}{who}", topic.bells()));
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        file.lock()?;
        let watch = inotify::add_watch(&self.ear, &path, inotify::WatchFlags::MODIFY)?;
        Ok((watch, Bell { path, _held: file }))
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
        self.names = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    }
}

/// A bell is a file to which a byte is written; its content means nothing, so it is kept short.
fn ring(path: &Path) {
    if let Ok(mut file) = OpenOptions::new().write(true).open(path) {
        let _ = file.write_all(b".");
    }
}

/// Removes the bells whose subscription was killed: nobody holds their lock.
fn take_down_the_dead(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten() {
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Listens until the hub is gone.
fn listen(ear: &OwnedFd, hub: &Weak<Hub>) {
    /// How often the listener looks whether anybody still needs it.
    const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 4096];
    loop {
        let mut polled = [rustix::event::PollFd::new(ear, rustix::event::PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&LOOK));
        let Some(hub) = hub.upgrade() else { return };
        if !matches!(ready, Ok(1..)) {
            continue;
        }
        let mut watches = BTreeSet::new();
        let mut events = inotify::Reader::new(ear, &mut buffer);
        // One read's worth: more is read in the next round.
        loop {
            match events.next() {
                Ok(event) => watches.insert(event.wd()),
                Err(_) => return,
            };
            if events.is_buffer_empty() {
                break;
            }
        }
        watches.iter().for_each(|watch| hub.heard(*watch));
    }
}

/// A hung bell; it is taken down with its subscription.
#[derive(Debug)]
struct Bell {
    path: PathBuf,
    /// Locked: a bell whose lock is free belongs to nobody.
    _held: File,
}

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits for some topics. Dropping it ends the wait.
#[derive(Debug)]
pub struct Subscription {
    notify: Arc<Notify>,
    #[expect(dead_code, reason = "the bells hang for as long as the subscription lives")]
    hung: Vec<Bell>,
}

impl Subscription {
    /// Returns when something may have come, or after `limit`; a wake-up between two waits is not lost.
    pub async fn wait(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.notify.notified()).await;
    }
}

/// Whether a bell can be made here at all: a folder that cannot be written to is an error at once.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("probe.{}", std::process::id()));
    File::create(&path)?;
    std::fs::remove_file(&path)
}
