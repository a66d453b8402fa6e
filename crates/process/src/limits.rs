//! The limits of a tree: memory, processor time and processes, by cgroups of version 2 or 1.
//!
//! ```text
//!   version 2   …/delegated/sprag-NAME   memory.max  cpu.max  pids.max                  one folder for all
//!   version 1   /memory/…/sprag-NAME   memory.limit_in_bytes                            one folder per controller
//!               /cpu/…/sprag-NAME   cpu.cfs_quota_us
//!               /pids/…/sprag-NAME   pids.max
//! ```
//!
//! In version 2 a cgroup with processes has no children with controllers, so the folder is made below the nearest
//! cgroup above this process that allows it. Some machines have both versions, each with some of the controllers.

use std::{
    fs::{self, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{Cgroup, is_of_a_gone_process},
    clock, identity, sys,
    table::Stat,
};

/// The prefix of the names of our cgroups.
const PREFIX: &str = "sprag-limit-";
/// The period over which processor time is counted, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// The processes of bubblewrap itself, which count as the command's.
const OWN_PROCESSES: u64 = 2;
/// A program that limits the processes of a user namespace, where no cgroup does.
const PRLIMIT: &str = "/usr/bin/prlimit";

/// The limits of all processes of a command together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// The most memory in bytes, with files in memory and caches; absent for no limit.
    pub memory_bytes: Option<u64>,
    /// The processor time, in percent of one processor; absent for no limit.
    pub cpu_percent: Option<u32>,
    /// The most processes and threads at once; absent for no limit.
    pub processes: Option<u32>,
}

impl Limits {
    /// Returns whether there is no limit at all.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns the words before a command that limit it where no cgroup does. The kernel counts the processes of each
    /// user namespace apart, except for those of root.
    pub(crate) fn by_rlimit(&self) -> Vec<String> {
        match self.processes {
            Some(most) if rlimit_counts() => {
                vec![
                    PRLIMIT.to_owned(),
                    format!("--nproc={}", u64::from(most) + OWN_PROCESSES),
                    "--".to_owned(),
                ]
            }
            _ => Vec::new(),
        }
    }

    fn controllers(&self) -> Vec<Controller> {
        let all = [
            (Controller::Memory, self.memory_bytes.is_some()),
            (Controller::Cpu, self.cpu_percent.is_some()),
            (Controller::Pids, self.processes.is_some()),
        ];
        all.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(controller, _)| controller).collect()
    }
}

fn rlimit_counts() -> bool {
    !geteuid().is_root() && Path::new(PRLIMIT).exists()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "pids",
        }
    }

    /// Returns the key of a pipeline that sets it.
    fn key(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "processes",
        }
    }
}

/// The cgroups that limit one tree.
#[derive(Debug, Default)]
pub(crate) struct LimitGroup {
    folders: Vec<PathBuf>,
    /// The folder of version 2 among them, which also contains the tree.
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl LimitGroup {
    /// Creates cgroups with these limits. Also returns the limits that cannot be enforced here, each with the reason.
    pub(crate) fn create(limits: &Limits) -> (LimitGroup, Vec<String>) {
        let mut group = LimitGroup::default();
        let name = own_name();
        let mut missing = Vec::new();
        let mut left = limits.controllers();
        if let Some((own, mount)) = unified_folder() {
            let (folder, got) = unified(&own, &mount, &name, &left);
            left.retain(|controller| !got.contains(controller));
            for controller in got {
                let Some(folder) = &folder else { break };
                group.set(folder, controller, limits, true, &mut missing);
            }
            group.unified = folder;
        }
        for controller in left {
            let made = match controller_folder(controller) {
                Some(own) => {
                    let folder = own.join(&name);
                    fs::create_dir(&folder)
                        .map(|()| folder)
                        .map_err(|error| format!("cannot make a cgroup in {}: {error}", own.display()))
                }
                None => Err("no cgroup of this machine has this controller for this user".to_owned()),
            };
            match made {
                Ok(folder) => group.set(&folder, controller, limits, false, &mut missing),
                Err(_) if controller == Controller::Pids && rlimit_counts() => {}
                Err(why) => missing.push(format!("{}: {why}", controller.key())),
            }
        }
        (group, missing)
    }

    /// Writes the limit of a controller, and notes the folder.
    fn set(
        &mut self,
        folder: &Path,
        controller: Controller,
        limits: &Limits,
        is_unified: bool,
        missing: &mut Vec<String>,
    ) {
        let write = |file: &str, value: String| -> Result<(), String> {
            fs::write(folder.join(file), value)
                .map_err(|error| format!("{}: cannot write {file}: {error}", controller.key()))
        };
        if !self.folders.iter().any(|known| known == folder) {
            self.folders.push(folder.to_owned());
        }
        let done = match (controller, is_unified) {
            (Controller::Memory, true) => {
                self.memory = Some(folder.join("memory.events"));
                // Without swap accounting the first file is missing, and the limit holds for memory alone.
                let _ = write("memory.swap.max", "0".to_owned());
                let _ = write("memory.oom.group", "1".to_owned());
                write("memory.max", limits.memory_bytes.unwrap_or(u64::MAX).to_string())
            }
            (Controller::Memory, false) => {
                self.memory = Some(folder.join("memory.oom_control"));
                let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
                let limited = write("memory.limit_in_bytes", bytes.clone());
                // The file is missing without swap accounting.
                let _ = write("memory.memsw.limit_in_bytes", bytes);
                limited
            }
            (Controller::Cpu, true) => write("cpu.max", format!("{} {CPU_PERIOD_US}", quota_us(limits))),
            (Controller::Cpu, false) => write("cpu.cfs_period_us", CPU_PERIOD_US.to_string())
                .and_then(|()| write("cpu.cfs_quota_us", quota_us(limits).to_string())),
            (Controller::Pids, _) => {
                self.pids = Some(folder.join("pids.events"));
                write(
                    "pids.max",
                    (u64::from(limits.processes.unwrap_or(u32::MAX)) + OWN_PROCESSES).to_string(),
                )
            }
        };
        missing.extend(done.err());
    }

    /// Opens the files to which a process writes `0` to enter the cgroups of version 1.
    pub(crate) fn procs_files(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |folder: &PathBuf| OpenOptions::new().write(true).open(folder.join("cgroup.procs"));
        let separate = self.folders.iter().filter(|folder| self.unified.as_ref() != Some(folder));
        separate.map(|folder| open(folder).map(Into::into)).collect()
    }

    /// Returns the cgroup of version 2 that contains the tree, if there is one.
    pub(crate) fn tree(&self) -> Option<Cgroup> {
        self.unified.as_deref().and_then(Cgroup::at)
    }

    /// Returns the number of processes that the kernel has killed because of the limit on memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        self.memory.as_deref().map_or(0, |file| counter(file, "oom_kill"))
    }

    /// Returns how often the limit on processes was reached.
    pub(crate) fn refused_processes(&self) -> u64 {
        self.pids.as_deref().map_or(0, |file| counter(file, "max"))
    }

    /// Returns whether the limit on memory is watched.
    pub(crate) fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Removes the cgroups, once the kernel has noticed that they are empty.
    pub(crate) fn remove(self, deadline: Duration) {
        let deadline_ms = clock::now_ms().saturating_add(deadline.as_millis() as u64);
        for folder in &self.folders {
            while let Err(error) = fs::remove_dir(folder) {
                if error.kind() != io::ErrorKind::ResourceBusy || clock::now_ms() >= deadline_ms {
                    break;
                }
                sys::pause(1);
            }
        }
    }
}

fn quota_us(limits: &Limits) -> u64 {
    // The kernel refuses less than a millisecond.
    (u64::from(limits.cpu_percent.unwrap_or(100)) * CPU_PERIOD_US / 100).max(1_000)
}

/// Returns the limits that cannot be enforced on this machine, each with the reason.
pub fn missing_limits() -> Vec<String> {
    let limits = Limits { memory_bytes: Some(1 << 30), cpu_percent: Some(100), processes: Some(100) };
    let (group, missing) = LimitGroup::create(&limits);
    group.remove(Duration::ZERO);
    missing
}

/// Returns a counter of a file with lines `NAME NUMBER`; 0 if it has none.
fn counter(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

/// Removes the empty cgroups of killed supervisors, below those of this process.
pub(crate) fn remove_abandoned() {
    let Ok(namespace) = identity::pid_namespace() else { return };
    let unified = unified_folder().map(|(own, mount)| {
        own.ancestors()
            .take_while(|folder| folder.starts_with(&mount))
            .map(Path::to_owned)
            .collect::<Vec<_>>()
    });
    let single =
        [Controller::Memory, Controller::Cpu, Controller::Pids].into_iter().filter_map(controller_folder);
    for folder in unified.into_iter().flatten().chain(single) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if is_of_a_gone_process(&entry.file_name(), PREFIX, namespace) {
                // The namespace of its processes has ended with the supervisor.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Returns the name of this process's cgroups.
fn own_name() -> String {
    let start = Stat::own().map_or(0, |stat| stat.start_time);
    let namespace = identity::pid_namespace().unwrap_or_default();
    format!("{PREFIX}{namespace}-{}-{start}", std::process::id())
}

/// Makes a cgroup of version 2 with as many of these controllers as possible: below `own`, or below the nearest
/// cgroup above it.
fn unified(
    own: &Path,
    mount: &Path,
    name: &str,
    wanted: &[Controller],
) -> (Option<PathBuf>, Vec<Controller>) {
    for parent in own.ancestors().take_while(|folder| folder.starts_with(mount)) {
        let words = |file: &str| fs::read_to_string(parent.join(file)).unwrap_or_default();
        let has = |text: &str, controller: Controller| {
            text.split_whitespace().any(|word| word == controller.name())
        };
        let available = words("cgroup.controllers");
        let possible: Vec<Controller> =
            wanted.iter().copied().filter(|controller| has(&available, *controller)).collect();
        if possible.is_empty() {
            continue;
        }
        let enabled = words("cgroup.subtree_control");
        for controller in possible.iter().filter(|controller| !has(&enabled, **controller)) {
            // It fails if the cgroup has processes or is not delegated.
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{}", controller.name()));
        }
        let enabled = words("cgroup.subtree_control");
        let got: Vec<Controller> =
            possible.into_iter().filter(|controller| has(&enabled, *controller)).collect();
        let folder = parent.join(name);
        if !got.is_empty() && fs::create_dir(&folder).is_ok() {
            return (Some(folder), got);
        }
    }
    (None, Vec::new())
}

/// Returns this process's cgroup of version 2, and the place where the hierarchy is mounted.
fn unified_folder() -> Option<(PathBuf, PathBuf)> {
    find("cgroup2", "", "")
}

/// Returns this process's cgroup of version 1 for a controller.
fn controller_folder(controller: Controller) -> Option<PathBuf> {
    find("cgroup", controller.name(), controller.name()).map(|(own, _)| own)
}

/// Finds this process's cgroup in a hierarchy: of this kind of file system, mounted with this option, and named so in
/// the list of this process's cgroups.
fn find(kind: &str, option: &str, listed: &str) -> Option<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    locate(&mounts, &own, kind, option, listed)
}

fn locate(mounts: &str, own: &str, kind: &str, option: &str, listed: &str) -> Option<(PathBuf, PathBuf)> {
    // "36 25 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory"
    let (root, mount) = mounts.lines().find_map(|line| {
        let (place, of_system) = line.split_once(" - ")?;
        let mut of_system = of_system.split(' ');
        (of_system.next()? == kind).then_some(())?;
        let options = of_system.nth(1).unwrap_or_default();
        (option.is_empty() || options.split(',').any(|word| word == option)).then_some(())?;
        let mut fields = place.split(' ').skip(3);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    })?;
    // "4:memory:/user.slice" or "0::/user.slice"
    let own = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next()?;
        names.split(',').any(|name| name == listed).then(|| fields.next()).flatten()
    })?;
    // The mount may itself be a part of the hierarchy, as in a container.
    let below = Path::new(own).strip_prefix(&root).ok()?;
    Some((Path::new(&mount).join(below), PathBuf::from(mount)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                          36 25 0:30 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_cgroup_is_found_in_both_versions() {
        let own = "4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/user.slice/a.scope\n";
        let found = |kind, option| locate(HYBRID, own, kind, option, option).map(|(own, _)| own);
        assert_eq!(found("cgroup", "memory"), Some("/sys/fs/cgroup/memory/jobs/7".into()));
        assert_eq!(found("cgroup", "cpu"), Some("/sys/fs/cgroup/cpu,cpuacct/".into()));
        assert_eq!(found("cgroup", "pids"), None);
        assert_eq!(found("cgroup2", ""), Some("/sys/fs/cgroup/unified/user.slice/a.scope".into()));
    }

    #[test]
    fn version_2_uses_the_nearest_cgroup_that_allows_it() {
        let root = tempfile::tempdir().unwrap();
        let (top, own) = (root.path().join("user.service"), root.path().join("user.service/worker"));
        fs::create_dir_all(&own).unwrap();
        // The own cgroup has processes: no controller is on for its children.
        for (folder, enabled) in [(&own, ""), (&top, "cpu memory pids")] {
            fs::write(folder.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
            fs::write(folder.join("cgroup.subtree_control"), enabled).unwrap();
        }
        let (folder, got) = unified(&own, root.path(), "x", &[Controller::Memory, Controller::Pids]);
        assert_eq!(folder, Some(top.join("x")));
        assert_eq!(got, [Controller::Memory, Controller::Pids]);
    }

    #[test]
    fn counters_are_read_from_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        for text in
            ["low 0\nmax 12\noom 1\noom_kill 3\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nmax 12\n"]
        {
            fs::write(&file, text).unwrap();
            assert_eq!((counter(&file, "oom_kill"), counter(&file, "max")), (3, 12), "{text}");
        }
        assert_eq!(counter(&folder.path().join("none"), "max"), 0);
    }
}
