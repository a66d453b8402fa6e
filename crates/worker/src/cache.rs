//! Files that steps keep between runs (`cache`), in the data directory.
//!
//! ```text
//!   cache/entries/HASH.json    the files of one key, with their contents' hashes; its time is that of the last use
//!   cache/files/HASH           a content, named by its SHA-256
//!   cache/new/PID-NUMBER       a content that is being written
//!   cache/lock                 shared by saves and restores, exclusive for an eviction
//! ```
//!
//! Everything is written aside and renamed, so any number of workers may save at once: the first entry of a key stays,
//! and a content that exists is used. A cache never fails a step: what goes wrong is a remark in its log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sprag_process::make_private_folder;

/// The most bytes of all contents together, unless `SPRAG_CACHE_BYTES` says otherwise.
const MAX_BYTES: u64 = 5 << 30;
/// The most files and folders of one entry.
const MAX_FILES: usize = 200_000;
/// The largest list of an entry's files, in bytes.
const MAX_ENTRY_BYTES: u64 = 128 << 20;
/// The longest wait for an eviction by another process.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// The cache in a data directory.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

/// The files of one key.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The key, for people.
    key: String,
    /// The files by their paths, relative to the step's folder.
    files: BTreeMap<PathBuf, Kept>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kept {
    Folder,
    Link(PathBuf),
    File { hash: String, size: u64, mode: u32 },
}

impl Cache {
    /// Returns the cache of a data directory.
    pub(crate) fn of(data: &Path) -> Cache {
        let bytes = std::env::var("SPRAG_CACHE_BYTES").ok().and_then(|text| text.parse().ok());
        Cache { folder: data.join("cache"), max_bytes: bytes.unwrap_or(MAX_BYTES) }
    }

    /// Writes the files of a key into the folder `to`, except below paths that exist there. Returns the number of files that
    /// it writes; none if the key has no entry.
    pub(crate) fn restore(&self, key: &str, paths: &[String], to: &Path) -> io::Result<Option<usize>> {
        let place = self.entry(key, paths);
        if !place.exists() {
            return Ok(None);
        }
        let _shared = self.lock_shared()?;
        let Some(entry) = self.read(&place)? else { return Ok(None) };
        let present: Vec<&String> =
            paths.iter().filter(|path| to.join(path).symlink_metadata().is_ok()).collect();
        let mut count = 0;
        for (path, kept) in &entry.files {
            if !is_inside(path) {
                return Err(invalid(format!("the entry names {}", path.display())));
            }
            // Files that are there are those of a person, or of an earlier step.
            if present.iter().any(|present| path.starts_with(present)) {
                continue;
            }
            self.write_back(&to.join(path), kept)?;
            count += 1;
        }
        // The time of the last use decides what an eviction removes first.
        File::options().append(true).open(&place)?.set_modified(now())?;
        Ok(Some(count))
    }

    /// Keeps the files at `paths` below the folder `from` under a key that has no entry yet. Returns their number; none if
    /// there is nothing to keep, or if another worker was first.
    pub(crate) fn save(&self, key: &str, paths: &[String], from: &Path) -> io::Result<Option<usize>> {
        for folder in ["entries", "files", "new"] {
            make_private_folder(&self.folder.join(folder))?;
        }
        let place = self.entry(key, paths);
        let shared = self.lock_shared()?;
        if place.exists() {
            return Ok(None);
        }
        let mut found = Found { cache: self, files: BTreeMap::new(), bytes: 0 };
        for path in paths {
            found.add(from, Path::new(path))?;
        }
        if found.files.is_empty() {
            return Ok(None);
        }
        let count = found.files.len();
        let entry = Entry { key: key.to_owned(), files: found.files };
        let (mut file, aside) = self.new_file()?;
        file.write_all(serde_json::to_string(&entry)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, &place)?;
        drop(shared);
        self.evict()?;
        Ok(Some(count))
    }

    fn entry(&self, key: &str, paths: &[String]) -> PathBuf {
        let mut hash = Sha256::new();
        for text in [key].into_iter().chain(paths.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        self.folder.join("entries").join(format!("{}.json", hex(hash)))
    }

    fn read(&self, place: &Path) -> io::Result<Option<Entry>> {
        let file = match sprag_process::open_regular(place) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(MAX_ENTRY_BYTES).read_to_string(&mut text)?;
        Ok(Some(serde_json::from_str(&text)?))
    }

    /// Writes one file, folder or link to its place. A file is written aside and renamed.
    fn write_back(&self, to: &Path, kept: &Kept) -> io::Result<()> {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        match kept {
            Kept::Folder => fs::create_dir_all(to),
            Kept::Link(target) => match symlink(target, to) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            },
            Kept::File { hash, mode, .. } => {
                let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let aside = to.with_file_name(format!(".{name}.{}.sprag", number()));
                let from = sprag_process::open_regular(&self.folder.join("files").join(hash))?;
                let written = copy(from, &File::create(&aside)?).and_then(|(found, _)| {
                    if found != *hash {
                        return Err(invalid(format!("the content of {} is damaged", to.display())));
                    }
                    fs::set_permissions(&aside, fs::Permissions::from_mode(*mode & 0o777))?;
                    fs::rename(&aside, to)
                });
                written.inspect_err(|_| drop(fs::remove_file(&aside)))
            }
        }
    }

    /// Adds a content, and returns its hash and its size.
    fn add_content(&self, from: &Path) -> io::Result<(String, u64)> {
        let (file, aside) = self.new_file()?;
        let copied = sprag_process::open_regular(from).and_then(|from| copy(from, &file));
        let (hash, size) = copied.inspect_err(|_| drop(fs::remove_file(&aside)))?;
        fs::rename(&aside, self.folder.join("files").join(&hash))?;
        Ok((hash, size))
    }

    fn new_file(&self) -> io::Result<(File, PathBuf)> {
        let path = self.folder.join("new").join(number());
        Ok((File::options().write(true).create_new(true).open(&path)?, path))
    }

    fn lock_shared(&self) -> io::Result<File> {
        let file = self.lock_file()?;
        for _ in 0..LOCK_DEADLINE.as_millis() / BETWEEN_TRIES.as_millis() {
            if file.try_lock_shared().is_ok() {
                return Ok(file);
            }
            std::thread::park_timeout(BETWEEN_TRIES);
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "another process clears the cache"))
    }

    fn lock_file(&self) -> io::Result<File> {
        make_private_folder(&self.folder)?;
        File::options().create(true).append(true).open(self.folder.join("lock"))
    }

    /// Removes the entries that were not used for the longest time until the contents fit, and contents of no entry. If
    /// another process uses the cache, a later save does it.
    fn evict(&self) -> io::Result<()> {
        let lock = self.lock_file()?;
        if lock.try_lock().is_err() {
            return Ok(());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.folder.join("entries"))? {
            let entry = entry?;
            entries.push((entry.metadata()?.modified()?, entry.path()));
        }
        // The newest first: those that fit stay.
        entries.sort();
        entries.reverse();
        let (mut bytes, mut used) = (0, BTreeSet::new());
        for (_, place) in &entries {
            let contents: Vec<(String, u64)> = match self.read(place) {
                Ok(Some(entry)) => entry.files.into_values().filter_map(content_of).collect(),
                _ => Vec::new(),
            };
            let fresh = contents.iter().filter(|(hash, _)| !used.contains(hash));
            let more: u64 = fresh.map(|(_, size)| size).sum();
            if contents.is_empty() || bytes + more > self.max_bytes {
                fs::remove_file(place)?;
                continue;
            }
            bytes += more;
            used.extend(contents.into_iter().map(|(hash, _)| hash));
        }
        for folder in ["files", "new"] {
            for file in fs::read_dir(self.folder.join(folder))? {
                let file = file?;
                if folder == "new" || !used.contains(file.file_name().to_string_lossy().as_ref()) {
                    fs::remove_file(file.path())?;
                }
            }
        }
        Ok(())
    }
}

fn content_of(kept: Kept) -> Option<(String, u64)> {
    match kept {
        Kept::File { hash, size, .. } => Some((hash, size)),
        Kept::Folder | Kept::Link(_) => None,
    }
}

/// The files that are being kept.
struct Found<'c> {
    cache: &'c Cache,
    files: BTreeMap<PathBuf, Kept>,
    bytes: u64,
}

impl Found<'_> {
    /// Adds a file, or a folder with everything in it. A path that does not exist is left out.
    fn add(&mut self, from: &Path, path: &Path) -> io::Result<()> {
        if !is_inside(path) {
            return Err(invalid(format!("{} is not inside the step's folder", path.display())));
        }
        let mut todo = vec![path.to_owned()];
        while let Some(path) = todo.pop() {
            let whole = from.join(&path);
            let about = match fs::symlink_metadata(&whole) {
                Ok(about) => about,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let kept = if about.is_symlink() {
                Kept::Link(fs::read_link(&whole)?)
            } else if about.is_dir() {
                for inner in fs::read_dir(&whole)? {
                    todo.push(path.join(inner?.file_name()));
                }
                Kept::Folder
            } else if about.is_file() {
                self.bytes += about.len();
                if self.bytes > self.cache.max_bytes {
                    return Err(invalid(format!("its files have more than {} bytes", self.cache.max_bytes)));
                }
                let (hash, size) = self.cache.add_content(&whole)?;
                Kept::File { hash, size, mode: about.permissions().mode() }
            } else {
                continue;
            };
            self.files.insert(path, kept);
            if self.files.len() > MAX_FILES {
                return Err(invalid(format!("it has more than {MAX_FILES} files")));
            }
        }
        Ok(())
    }
}

/// Copies a content, and returns its hash and its size.
fn copy(mut from: File, mut to: &File) -> io::Result<(String, u64)> {
    let (mut hash, mut size) = (Sha256::new(), 0);
    let mut part = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut part)?;
        if read == 0 {
            return Ok((hex(hash), size));
        }
        hash.update(&part[..read]);
        to.write_all(&part[..read])?;
        size += read as u64;
    }
}

/// Returns a hash as text.
fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether a path stays inside the folder that it is relative to.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        && path.components().any(|part| matches!(part, Component::Normal(_)))
}

/// Returns a name that no other file of this process and of live processes has.
fn number() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of a file is compared with times of other files only"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn what_is_saved_is_restored_and_the_first_entry_stays() {
        let data = tempfile::tempdir().unwrap();
        let cache = Cache { folder: data.path().join("cache"), max_bytes: 1 << 20 };
        let (from, to) = (data.path().join("from"), data.path().join("to"));
        write(&from, "out/a", "one");
        write(&from, "out/deep/b", "two");
        fs::set_permissions(from.join("out/a"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("a", from.join("out/link")).unwrap();
        let paths = ["out".to_owned(), "missing".to_owned()];
        assert_eq!(cache.restore("k", &paths, &to).unwrap(), None);
        assert_eq!(cache.save("k", &paths, &from).unwrap(), Some(5));
        write(&from, "out/a", "changed");
        assert_eq!(cache.save("k", &paths, &from).unwrap(), None);
        assert_eq!(cache.restore("k", &paths, &to).unwrap(), Some(5));
        // What is there stays as it is.
        assert_eq!(cache.restore("k", &paths, &from).unwrap(), Some(0));
        assert_eq!(fs::read_to_string(from.join("out/a")).unwrap(), "changed");
        assert_eq!(fs::read_to_string(to.join("out/a")).unwrap(), "one");
        assert_eq!(fs::metadata(to.join("out/a")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_to_string(to.join("out/link")).unwrap(), "one");
        assert_eq!(cache.restore("other", &paths, &to).unwrap(), None);
        assert!(cache.save("x", &["../from".to_owned()], &to).is_err());
    }

    #[test]
    fn a_damaged_content_is_not_restored() {
        let data = tempfile::tempdir().unwrap();
        let cache = Cache { folder: data.path().join("cache"), max_bytes: 1 << 20 };
        write(data.path(), "from/a", "one");
        let paths = ["a".to_owned()];
        cache.save("k", &paths, &data.path().join("from")).unwrap();
        for file in fs::read_dir(data.path().join("cache/files")).unwrap() {
            fs::write(file.unwrap().path(), "two").unwrap();
        }
        let to = data.path().join("to");
        assert!(cache.restore("k", &paths, &to).is_err());
        assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    }

    #[test]
    fn the_least_recently_used_entries_are_evicted() {
        let data = tempfile::tempdir().unwrap();
        let cache = Cache { folder: data.path().join("cache"), max_bytes: 25 };
        let (from, paths) = (data.path().join("from"), ["a".to_owned()]);
        for (age, key) in [(3, "old"), (2, "used")] {
            write(&from, "a", &format!("{key:10}"));
            cache.save(key, &paths, &from).unwrap();
            let entry = File::options().append(true).open(cache.entry(key, &paths)).unwrap();
            entry.set_modified(now() - Duration::from_secs(age * 60)).unwrap();
        }
        assert_eq!(cache.restore("old", &paths, &data.path().join("to")).unwrap(), Some(1));
        write(&from, "a", "the newest");
        assert_eq!(cache.save("new", &paths, &from).unwrap(), Some(1));
        assert!(cache.restore("old", &paths, &data.path().join("to")).unwrap().is_some());
        assert_eq!(cache.restore("used", &paths, &data.path().join("to")).unwrap(), None);
        assert_eq!(fs::read_dir(data.path().join("cache/files")).unwrap().count(), 2);
        assert_eq!(fs::read_dir(data.path().join("cache/new")).unwrap().count(), 0);
    }

    #[test]
    fn many_writers_of_one_key_leave_one_whole_entry() {
        let data = tempfile::tempdir().unwrap();
        let cache = Cache { folder: data.path().join("cache"), max_bytes: 1 << 20 };
        let paths = ["a".to_owned(), "b".to_owned()];
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let (cache, paths, data) = (&cache, &paths, data.path());
                scope.spawn(move || {
                    let from = data.join(format!("from-{writer}"));
                    for name in ["a", "b"] {
                        write(&from, name, &writer.to_string());
                    }
                    for round in 0..20 {
                        cache.save(&format!("k{}", round % 3), paths, &from).unwrap();
                        let to = data.join(format!("to-{writer}-{round}"));
                        if cache.restore("k0", paths, &to).unwrap().is_some() {
                            let read = |name: &str| fs::read_to_string(to.join(name)).unwrap();
                            assert_eq!(read("a"), read("b"));
                        }
                    }
                });
            }
        });
    }
}
