//! Wake-ups: the hub notifies subscribers when what they wait for may have happened, in this process and in others.
//!
//! ```text
//!   commit ──▶ Hub ──▶ subscriptions of this process
//!               └────▶ bell/TOPIC~WHO, whichever exist: the topic's number is written
//!                          └── one pipe per process ──▶ its subscriptions to that topic
//! ```
//!
//! Each process has one named pipe; a bell is another name (a hard link) of it. A bell that no process reads belongs
//! to a killed process, and the process that finds it removes it. (Watching files instead would not work: a user may
//! have only some hundred watches.)
//!
//! A wake-up is a hint, and nothing relies on it: every wait has a deadline, after which the caller checks again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use sprag_lifecycle::RunId;
use tokio::sync::Notify;

use crate::clock::{Clock, System};
use crate::rows::Id;
use crate::runtime::Runtime;
use crate::sqlite::make_private_folder;

/// A topic of wake-ups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Any change.
    Journal,
    /// An execution to claim in a queue, for any worker that serves it.
    Queue(Arc<str>),
    /// An execution to claim that is reserved to this worker, whatever its queue.
    Reserved(Id),
    /// A change to this run.
    Run(RunId),
    /// An execution that this worker holds and that is to stop.
    Worker(Id),
}

impl Topic {
    /// Returns the prefix of this topic's bells. Queue names come from outside, so all but plain characters are
    /// encoded.
    fn bells(&self) -> String {
        match self {
            Topic::Journal => "journal~".to_owned(),
            Topic::Run(run) => format!("run-{run}~"),
            Topic::Worker(worker) => format!("worker-{worker}~"),
            Topic::Reserved(worker) => format!("reserved-{worker}~"),
            Topic::Queue(queue) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                let name: String = queue
                    .bytes()
                    .map(
                        |byte| {
                            if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }
                        },
                    )
                    .collect();
                format!("queue-{name}~")
            }
        }
    }
}

impl Topic {
    /// Returns the number that is written to a pipe for the topic. Two topics with the same number only cause
    /// needless wake-ups.
    pub(crate) fn number(&self) -> u64 {
        crate::clock::fnv(&self.bells())
    }
}

/// The origin of the wake-ups that a subscriber needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This process and others.
    Everywhere,
    /// This process; others only while a subscriber here listens to the whole journal. It needs no bell, which
    /// matters where there are many short waits.
    Here,
}

/// The meeting point of a process's subscribers and its notifications.
#[derive(Debug)]
pub(crate) struct Hub {
    bells: Option<Bells>,
    inner: Mutex<Inner>,
    listener: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// The folder of bells, and this process's pipe in it.
#[derive(Debug)]
struct Bells {
    folder: PathBuf,
    pipe: PathBuf,
    /// The suffix of this process's bells, after their topic.
    who: String,
    hung: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Topic, Vec<Weak<Notify>>>,
    /// The existing bells, as of the folder's last change.
    names: BTreeSet<String>,
    folder_changed: Option<(i64, i64)>,
}

impl Hub {
    /// Creates a hub for this process alone.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Hub { bells: None, inner: Mutex::default(), listener: Mutex::default() })
    }

    /// Creates a hub that also exchanges notifications with other processes, through files in `folder`.
    pub(crate) fn shared(folder: &Path) -> std::io::Result<Arc<Self>> {
        make_private_folder(folder)?;
        take_down_the_dead(folder)?;
        let hung = AtomicU64::new(0);
        // In another pid namespace a process may have the same pid: the time of opening tells them apart.
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let nth = OPENED.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}-{:x}-{nth}", std::process::id(), System.boot_ms());
        let pipe = folder.join(&name);
        let ear = make_pipe(folder, &name)?;
        let bells = Bells { folder: folder.to_owned(), pipe, who: format!("{name}-"), hung };
        let hub = Arc::new(Hub { bells: Some(bells), inner: Mutex::default(), listener: Mutex::default() });
        let listener = Arc::downgrade(&hub);
        let thread =
            std::thread::Builder::new().name("sprag-bell".into()).spawn(move || listen(ear, &listener))?;
        *hub.listener.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(thread);
        Ok(hub)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Subscribes to these topics from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, topics: Vec<Topic>, reach: Reach) -> Subscription {
        let notify = Arc::new(Notify::new());
        let mut hung = Vec::new();
        if let (Some(bells), Reach::Everywhere) = (&self.bells, reach) {
            for topic in &topics {
                match bells.hang(topic) {
                    Ok(bell) => hung.push(bell),
                    // Without a bell no other process can wake it: the wait then ends at its deadline.
                    Err(error) => {
                        tracing::warn!(?topic, %error, "cannot create a pipe for wake-ups: polling only")
                    }
                }
            }
        }
        let mut inner = self.inner();
        for topic in topics {
            inner.waiting.entry(topic).or_default().push(Arc::downgrade(&notify));
        }
        drop(inner);
        Subscription { notify, hung, runtime: Runtime::default() }
    }

    /// Notifies all subscribers of these topics.
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
            let others = inner.names.range(begin.clone()..).take_while(|name| name.starts_with(&begin));
            // The subscribers of this process were notified already.
            for name in others.filter(|name| !name[begin.len()..].starts_with(&bells.who)) {
                ring(&bells.folder.join(name), topic);
            }
        }
    }

    /// Notifies the subscribers of the topics with these numbers, and no others.
    pub(crate) fn hear_exactly(&self, numbers: &BTreeSet<u64>) {
        let inner = self.inner();
        for (_, waiting) in inner.waiting.iter().filter(|(topic, _)| numbers.contains(&topic.number())) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
        }
    }

    /// Notifies all subscribers, because anything may have happened.
    pub(crate) fn wake_all(&self) {
        let inner = self.inner();
        inner.waiting.values().flatten().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
    }

    /// Notifies the subscribers of the topic with this number, after another process rang a bell.
    fn heard(&self, number: u64) {
        let inner = self.inner();
        // The journal's number also wakes the subscribers that have no bell of their own.
        let any = number == Topic::Journal.number();
        for (_, waiting) in inner.waiting.iter().filter(|(topic, _)| any || topic.number() == number) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let Some(bells) = &self.bells else { return };
        // Any number wakes the listener, which finds that the hub is gone.
        ring(&bells.pipe, &Topic::Journal);
        let _ = std::fs::remove_file(&bells.pipe);
        let listener = self.listener.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(listener) = listener
            && listener.thread().id() != std::thread::current().id()
        {
            let _ = listener.join();
        }
    }
}

impl Bells {
    /// Creates a bell for a topic: another name of this process's pipe.
    fn hang(&self, topic: &Topic) -> std::io::Result<Bell> {
        let nth = self.hung.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{}{}{nth}", topic.bells(), self.who));
        std::fs::hard_link(&self.pipe, &path)?;
        Ok(Bell(path))
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
        // A folder's time is coarse: one that changed just now may change again without showing it.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        self.folder_changed = changed.filter(|(seconds, _)| *seconds < now.tv_sec - 1);
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        self.names = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    }
}

/// The prefix of pipes that have no reader yet: other processes do not remove them.
const UNFINISHED: &str = "new";

/// Creates this process's pipe and opens it for reading; then gives it its final name.
fn make_pipe(folder: &Path, name: &str) -> std::io::Result<File> {
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let _ = std::fs::remove_file(&unfinished);
    rustix::fs::mkfifoat(CWD, &unfinished, Mode::from_raw_mode(0o600))?;
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    // Also open for writing, so that reading never reaches the end.
    let ear = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(&unfinished)?;
    std::fs::rename(&unfinished, folder.join(name))?;
    Ok(ear)
}

/// Rings a bell. Removes it if no process reads it.
fn ring(path: &Path, topic: &Topic) {
    if let Some(mut pipe) = open_bell(path) {
        // A full pipe already contains enough wake-ups.
        let _ = pipe.write(&topic.number().to_ne_bytes());
    }
}

/// Opens a bell that a process reads. Removes it if none does.
fn open_bell(path: &Path) -> Option<File> {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    match OpenOptions::new().write(true).custom_flags(nonblocking).open(path) {
        Ok(pipe) => Some(pipe),
        Err(error) => {
            if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) {
                let _ = std::fs::remove_file(path);
            }
            None
        }
    }
}

/// Removes the bells of processes that were killed.
fn take_down_the_dead(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            drop(open_bell(&entry.path()));
        }
    }
    Ok(())
}

/// Listens until the hub is gone.
fn listen(mut ear: File, hub: &Weak<Hub>) {
    /// The interval at which the listener checks whether the hub still exists.
    const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut buffer = [0u8; 4096];
    loop {
        let mut polled = [rustix::event::PollFd::new(&ear, rustix::event::PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&LOOK));
        let Some(hub) = hub.upgrade() else { return };
        if !matches!(ready, Ok(1..)) {
            continue;
        }
        // Eight bytes are written, and so read, atomically.
        let Ok(length) = ear.read(&mut buffer) else { continue };
        let numbers: BTreeSet<u64> = buffer[..length]
            .chunks_exact(8)
            .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        numbers.iter().for_each(|number| hub.heard(*number));
    }
}

/// A bell of this process; it is removed with its subscription.
#[derive(Debug)]
struct Bell(PathBuf);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A subscription to some topics. Dropping it ends the wait.
#[derive(Debug)]
pub struct Subscription {
    notify: Arc<Notify>,
    #[expect(dead_code, reason = "the bells hang for as long as the subscription lives")]
    hung: Vec<Bell>,
    runtime: Runtime,
}

impl Subscription {
    /// Creates a subscription to the notifications of a simulated machine.
    pub(crate) fn simulated(notify: Arc<Notify>, runtime: Runtime) -> Self {
        Subscription { notify, hung: Vec::new(), runtime }
    }

    /// Returns when something may have happened, or after `limit`. A wake-up between two waits is not lost.
    pub async fn wait(&self, limit: Duration) {
        self.runtime.within(limit, self.notify.notified()).await;
    }
}

/// Checks that bells can be created here: a folder that cannot be written to is an error immediately.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    make_private_folder(folder)?;
    let path = folder.join(format!("probe.{}", std::process::id()));
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)
}
