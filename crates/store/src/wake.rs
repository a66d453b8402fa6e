//! Wake-ups: who waits for something is told when it may have come, in this process and in others.
//!
//! ```text
//!   commit ──▶ Hub ──▶ subscriptions of this process
//!               └────▶ bell/TOPIC~WHO, whichever exist: the topic's number is written
//!                          └── one pipe per process ──▶ its subscriptions to that topic
//! ```
//!
//! Each process has one named pipe; a bell is a further name of it. A bell that nobody reads belongs to a
//! process that was killed: whoever finds it takes it down. (Watching files instead would not do: a user
//! may have no more than some hundred watches.)
//!
//! A wake-up is a hint. Nobody relies on it: every wait has a deadline, after which one looks again.

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

use crate::machine::Surroundings;
use crate::rows::Id;
use crate::seams::{Clock, System};

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

impl Topic {
    /// What is written to a pipe for it. Two topics with one number only wake each other in vain.
    pub(crate) fn number(&self) -> u64 {
        crate::seams::fnv(&self.bells())
    }
}

/// From where a wake-up is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From this process and from others.
    Everywhere,
    /// From this process; from others only while something here listens to the whole journal. It costs no
    /// bell, which counts where there are many short waits.
    Here,
}

/// Where a process's waiting and telling meet.
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
    /// How this process's bells go on after their topic.
    who: String,
    hung: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<Topic, Vec<Weak<Notify>>>,
    /// Bells that exist, as of the folder's last change.
    names: BTreeSet<String>,
    folder_changed: Option<(i64, i64)>,
}

impl Hub {
    /// A hub for this process alone.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Hub { bells: None, inner: Mutex::default(), listener: Mutex::default() })
    }

    /// A hub that also hears and tells other processes, through files in `folder`.
    pub(crate) fn shared(folder: &Path) -> std::io::Result<Arc<Self>> {
        std::fs::create_dir_all(folder)?;
        take_down_the_dead(folder)?;
        let hung = AtomicU64::new(0);
        // Another process may have this number in a pid namespace of its own: the moment tells them apart.
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

    /// Waits for these topics from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, topics: Vec<Topic>, reach: Reach) -> Subscription {
        let notify = Arc::new(Notify::new());
        let mut hung = Vec::new();
        if let (Some(bells), Reach::Everywhere) = (&self.bells, reach) {
            for topic in &topics {
                match bells.hang(topic) {
                    Ok(bell) => hung.push(bell),
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
        Subscription { notify, hung, surroundings: Surroundings::default() }
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
            let others = inner.names.range(begin.clone()..).take_while(|name| name.starts_with(&begin));
            // Those of this process have been told already.
            for name in others.filter(|name| !name[begin.len()..].starts_with(&bells.who)) {
                ring(&bells.folder.join(name), topic);
            }
        }
    }

    /// Somebody told of the topics with these numbers, and of no others.
    pub(crate) fn hear_exactly(&self, numbers: &BTreeSet<u64>) {
        let inner = self.inner();
        for (_, waiting) in inner.waiting.iter().filter(|(topic, _)| numbers.contains(&topic.number())) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
        }
    }

    /// Anything may have happened.
    pub(crate) fn wake_all(&self) {
        let inner = self.inner();
        inner.waiting.values().flatten().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
    }

    /// Somebody rang for the topic with this number.
    fn heard(&self, number: u64) {
        let inner = self.inner();
        // "Something happened" may be what anybody here waits for without a bell of its own.
        let any = number == Topic::Journal.number();
        for (_, waiting) in inner.waiting.iter().filter(|(topic, _)| any || topic.number() == number) {
            waiting.iter().filter_map(Weak::upgrade).for_each(|notify| notify.notify_one());
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let Some(bells) = &self.bells else { return };
        // Any number wakes the listener, which finds that nobody needs it.
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
    /// Hangs a bell for a topic: a further name of this process's pipe.
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

/// How pipes begin that are not listened to yet: nobody takes them down.
const UNFINISHED: &str = "new";

/// Makes this process's pipe and listens to it; it gets its name when that is done.
fn make_pipe(folder: &Path, name: &str) -> std::io::Result<File> {
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let _ = std::fs::remove_file(&unfinished);
    rustix::fs::mkfifoat(CWD, &unfinished, Mode::from_raw_mode(0o600))?;
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    // Open for writing too, so that it never comes to an end.
    let ear = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(&unfinished)?;
    std::fs::rename(&unfinished, folder.join(name))?;
    Ok(ear)
}

/// Rings a bell; one that nobody listens to is taken down.
fn ring(path: &Path, topic: &Topic) {
    if let Some(mut pipe) = open_bell(path) {
        // A pipe that is full has been rung often enough.
        let _ = pipe.write(&topic.number().to_ne_bytes());
    }
}

/// A bell that somebody listens to.
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
    /// How often the listener looks whether anybody still needs it.
    const LOOK: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut buffer = [0u8; 4096];
    loop {
        let mut polled = [rustix::event::PollFd::new(&ear, rustix::event::PollFlags::IN)];
        let ready = rustix::event::poll(&mut polled, Some(&LOOK));
        let Some(hub) = hub.upgrade() else { return };
        if !matches!(ready, Ok(1..)) {
            continue;
        }
        // Eight bytes are written, and so read, as one.
        let Ok(length) = ear.read(&mut buffer) else { continue };
        let numbers: BTreeSet<u64> = buffer[..length]
            .chunks_exact(8)
            .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        numbers.iter().for_each(|number| hub.heard(*number));
    }
}

/// A hung bell; it is taken down with its subscription.
#[derive(Debug)]
struct Bell(PathBuf);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits for some topics. Dropping it ends the wait.
#[derive(Debug)]
pub struct Subscription {
    notify: Arc<Notify>,
    #[expect(dead_code, reason = "the bells hang for as long as the subscription lives")]
    hung: Vec<Bell>,
    surroundings: Surroundings,
}

impl Subscription {
    /// Hears what a simulated machine hears.
    pub(crate) fn simulated(notify: Arc<Notify>, surroundings: Surroundings) -> Self {
        Subscription { notify, hung: Vec::new(), surroundings }
    }

    /// Returns when something may have come, or after `limit`; a wake-up between two waits is not lost.
    pub async fn wait(&self, limit: Duration) {
        self.surroundings.within(limit, self.notify.notified()).await;
    }
}

/// Whether a bell can be made here at all: a folder that cannot be written to is an error at once.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("probe.{}", std::process::id()));
    File::create(&path)?;
    std::fs::remove_file(&path)
}
