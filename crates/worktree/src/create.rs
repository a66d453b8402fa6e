//! Creation of a worktree.
//!
//! ```text
//!   unlocked   take owner lock, build the entry in staging, build the folder and rename it to its path
//!   locked     no HEAD uses the branch; update-ref; rename(staging → worktrees/ID)
//!   unlocked   checkout, hooks, submodules, included files
//! ```
//!
//! A crash at any point blocks no other process: the next one that needs the branch or the path reclaims it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    branch::{self, BranchPolicy},
    entry,
    error::{Attempt, Error, Kind},
    fault,
    git::{Cancel, with_prefix},
    include,
    lock::{create_folder, current_process},
    mark::{Mark, Shared, State},
    metrics::{COUNTERS, count},
    name::{check_branch, new_id},
    owner::OwnerLock,
    recover::Blocking,
    trash,
    worktrees::{Worktree, Worktrees},
};

/// The branch of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Branch {
    /// A new branch, created at the base.
    New(String),
    /// An existing branch; the base is ignored.
    Existing(String),
    /// No branch: HEAD is at the base.
    Detached,
}

/// The options of a new worktree.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The run that it is for.
    pub run: String,
    /// The folder, directly inside the data directory. It must not exist, so use a new name each time.
    pub path: PathBuf,
    /// The branch.
    pub branch: Branch,
    /// The revision to start from.
    pub base: String,
    /// Whether submodules are checked out too.
    pub submodules: bool,
    /// The folders to which its files are limited; empty means all.
    pub sparse: Vec<String>,
    /// Whether Sprag's git commands run the repository's hooks for it.
    pub hooks: bool,
    /// The ignored files to copy from the main checkout, besides those in its `.worktreeinclude`.
    pub include: Vec<String>,
    /// The environment variables that identify the processes of its run; [`Worktree::environment`] contains
    /// them.
    pub markers: Vec<(String, String)>,
    /// Whether a worktree may be taken from the pool.
    pub use_pool: bool,
    /// The preferred setup of a pooled worktree.
    pub setup_key: Option<String>,
    /// The key of its caches: runs with the same key share them.
    pub cache_key: Option<String>,
}

impl CreateOptions {
    /// Creates options for a new branch from a base, with defaults for the rest.
    pub fn new(run: &str, path: impl Into<PathBuf>, branch: &str, base: &str) -> Self {
        CreateOptions {
            run: run.to_owned(),
            path: path.into(),
            branch: Branch::New(branch.to_owned()),
            base: base.to_owned(),
            submodules: false,
            sparse: Vec::new(),
            hooks: true,
            include: Vec::new(),
            markers: Vec::new(),
            use_pool: false,
            setup_key: None,
            cache_key: None,
        }
    }
}

impl Worktrees {
    /// Creates a worktree, or takes one from the pool. A failure leaves nothing behind.
    pub fn create(&self, options: &CreateOptions, cancel: &Cancel) -> Result<Worktree, Error> {
        if !options.hooks && self.repository.runs_hooks() {
            let without = Worktrees { repository: self.repository.without_hooks(), ..self.clone() };
            return without.create(options, cancel);
        }
        let created = self.try_create(options, cancel).or_else(|kind| {
            // Resources of a dead run are reclaimed; those of a live run are reported.
            let blocking = match &kind {
                Kind::BranchExists { branch } | Kind::BranchInUse { branch, .. } => {
                    Blocking::Branch(branch.clone())
                }
                Kind::StaleGitLock { .. } => match &options.branch {
                    Branch::New(branch) | Branch::Existing(branch) => Blocking::Branch(branch.clone()),
                    Branch::Detached => return Err(kind),
                },
                Kind::PathExists { path } => Blocking::Path(path.clone()),
                _ => return Err(kind),
            };
            if self.reclaim_blocking(&blocking) {
                self.try_create(options, cancel)
            } else {
                Err(self.name_checkout(kind))
            }
        });
        match &created {
            Ok(worktree) => {
                count(&COUNTERS.creates);
                COUNTERS.pool_hits.fetch_add(u64::from(worktree.from_pool), Ordering::Relaxed);
                tracing::info!(run = options.run, path = %worktree.path().display(), "worktree created");
            }
            Err(kind) => {
                count(&COUNTERS.create_failures);
                tracing::warn!(run = options.run, path = %options.path.display(), %kind, "could not create a worktree");
            }
        }
        created.attempt(|| format!("create the worktree {} of run {}", options.path.display(), options.run))
    }

    /// Replaces "exists" by "in use" if the branch is checked out, which is more useful.
    fn name_checkout(&self, kind: Kind) -> Kind {
        match &kind {
            Kind::BranchExists { branch } => match entry::checkout_of(&self.repository, branch) {
                Ok(Some(checkout)) => branch_in_use(branch, checkout),
                _ => kind,
            },
            _ => kind,
        }
    }

    fn try_create(&self, options: &CreateOptions, cancel: &Cancel) -> Result<Worktree, Kind> {
        let path = self.target_path(&options.path)?;
        let base = self.base(options)?;
        let pooled = if options.use_pool && !options.submodules { self.take_pooled(options)? } else { None };
        let worktree = match pooled {
            Some((mark, owner)) => self.switch_pooled(mark, owner, options, (&path, &base), cancel)?,
            None => self.build(options, (&path, &base), cancel)?,
        };
        self.finish(worktree, options, cancel)
    }

    /// Fills the worktree with its files and runs everything that may take long. Removes the worktree on
    /// failure.
    fn finish(
        &self,
        mut worktree: Worktree,
        options: &CreateOptions,
        cancel: &Cancel,
    ) -> Result<Worktree, Kind> {
        let finished = (|| {
            fault::point("published");
            if worktree.from_pool {
                worktree.switch_to_head(cancel)?;
                if worktree.has_foreign_caches {
                    worktree.remove_all_but_its_commit(cancel)?;
                }
            } else {
                worktree.check_out(cancel)?;
            }
            fault::point("checked-out");
            if options.submodules {
                worktree.check_out_submodules(&options.run, self.settings.lock_deadline, cancel)?;
            }
            worktree.run_post_checkout_hook(cancel)?;
            if let Some(main) = self.repository.main_checkout() {
                include::copy(main, worktree.path(), &options.include, cancel)?;
            }
            fault::point("filled");
            worktree.mark.state = State::Ready;
            worktree.mark.write(&worktree.entry())
        })();
        fault::point("ready");
        match finished {
            Ok(()) => {
                worktree.warnings = self.stale_git_locks();
                Ok(worktree)
            }
            Err(kind) => {
                let path = worktree.path().to_owned();
                let removed = self.salvage_and_remove(
                    worktree.mark,
                    worktree.owner,
                    BranchPolicy::DeleteIfMerged,
                    cancel,
                );
                if let Err(error) = removed {
                    tracing::warn!(run = options.run, path = %path.display(), %error, "could not roll back a worktree; recovery removes it");
                }
                Err(kind)
            }
        }
    }

    /// Returns the canonical path of a folder directly inside the data directory, and not one of Sprag's own.
    fn target_path(&self, path: &Path) -> Result<PathBuf, Kind> {
        let outside = || Kind::PathOutside { path: path.to_owned(), root: self.root.clone() };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(outside)?;
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => self.root.clone(),
            Some(parent) if parent.is_relative() => return Err(outside()),
            Some(parent) => fs::canonicalize(parent).map_err(|_| outside())?,
            None => return Err(outside()),
        };
        if parent != self.root || name.starts_with('.') || path.ends_with("..") {
            return Err(outside());
        }
        Ok(self.root.join(name))
    }

    fn base(&self, options: &CreateOptions) -> Result<String, Kind> {
        match &options.branch {
            Branch::New(branch) => {
                check_branch(branch)?;
                self.repository.commit(&options.base)
            }
            Branch::Existing(branch) => {
                check_branch(branch)?;
                let tip = self.repository.read_ref(&format!("refs/heads/{branch}"))?;
                tip.ok_or_else(|| Kind::NoSuchBranch { branch: branch.clone() })
            }
            Branch::Detached => self.repository.commit(&options.base),
        }
    }

    pub(crate) fn new_mark(&self, id: String, options: &CreateOptions, path: &Path, base: &str) -> Mark {
        Mark {
            id,
            run: options.run.clone(),
            process: current_process(),
            state: State::Making,
            path: path.to_owned(),
            root: self.root.clone(),
            root_identity: self.root_identity,
            branch: branch_name(&options.branch).map(str::to_owned),
            base: base.to_owned(),
            setup_key: None,
            cache_key: options.cache_key.clone(),
            has_caches: false,
            sparse: options.sparse.clone(),
            without_hooks: !options.hooks,
            markers: options.markers.clone(),
            created_unix_ms: crate::clock::unix_ms(),
            reason: None,
            prepared: false,
            shared: Shared::now(self.repository.common_dir()),
        }
    }

    /// Builds entry and folder.
    fn build(
        &self,
        options: &CreateOptions,
        (path, base): (&Path, &str),
        cancel: &Cancel,
    ) -> Result<Worktree, Kind> {
        let id = new_id(&options.run);
        let lock_path = self.repository.owner_lock_path(&id);
        create_folder(&self.repository.sprag_dir().join("owners"))?;
        let owner = OwnerLock::take(&lock_path)?
            .ok_or_else(|| Kind::InUse { path: lock_path, holder: "another process".to_owned() })?;
        fault::point("owner-locked");
        let mark = self.new_mark(id, options, path, base);
        let staged = self.staging().join(&mark.id);
        let built = self.stage(&staged, &mark).and_then(|()| {
            fault::point("staged");
            create_folder_with_link(
                &self.root,
                path,
                &self.repository.entries_dir().join(&mark.id),
                &mark.id,
            )?;
            fault::point("folder-made");
            self.publish(&staged, &mark, &options.branch, cancel)
        });
        match built {
            Ok(()) => Ok(self.worktree(mark, owner)),
            Err(kind) => {
                let _ = trash::delete(&staged);
                remove_folder_of(&mark);
                owner.discard();
                Err(kind)
            }
        }
    }

    fn stage(&self, staged: &Path, mark: &Mark) -> Result<(), Kind> {
        create_folder(staged)?;
        fault::point("staging-made");
        // The mark comes first, so that recovery knows the purpose of the folder.
        mark.write(staged)?;
        fault::point("mark-written");
        entry::write_links(staged, &mark.path)?;
        entry::write_head(staged, mark.branch.as_deref(), &mark.base)?;
        // Prevents `git worktree prune` from removing it while its disk is not mounted.
        let locked = staged.join("locked");
        fs::write(&locked, format!("sprag run {}\n", mark.run)).map_err(Kind::io("write", &locked))
    }

    /// Registers the worktree. Only this part runs under the lock.
    fn publish(&self, staged: &Path, mark: &Mark, branch: &Branch, cancel: &Cancel) -> Result<(), Kind> {
        let place = self.repository.entries_dir().join(&mark.id);
        let _held =
            self.repository.acquire_unless_cancelled(&mark.run, self.settings.lock_deadline, Some(cancel))?;
        self.claim_branch(mark, branch)?;
        fault::point("branch-made");
        entry::move_into_place(staged, &place).inspect_err(|_| self.release_branch(mark, branch))
    }

    /// Creates the branch, or checks that no checkout has it. The caller holds the lock.
    pub(crate) fn claim_branch(&self, mark: &Mark, branch: &Branch) -> Result<(), Kind> {
        match branch {
            // A branch that does not exist is checked out nowhere, except in a repository without commits.
            Branch::New(name)
                if entry::main_has(&self.repository, name)
                    && self.repository.read_ref(&format!("refs/heads/{name}"))?.is_none() =>
            {
                let git_dir = self.repository.common_dir().to_owned();
                let path = self.repository.main_checkout().unwrap_or(&git_dir).to_owned();
                Err(branch_in_use(name, entry::Checkout { path, git_dir, mark: None }))
            }
            Branch::New(name) => branch::create(&self.repository, name, mark),
            Branch::Existing(name) => match entry::checkout_of(&self.repository, name)? {
                Some(checkout) => Err(branch_in_use(name, checkout)),
                None => Ok(()),
            },
            Branch::Detached => Ok(()),
        }
    }

    pub(crate) fn release_branch(&self, mark: &Mark, branch: &Branch) {
        if let Branch::New(name) = branch {
            let _ = branch::release(&self.repository, Some(name), &mark.id, BranchPolicy::DeleteIfMerged);
        }
    }

    /// Returns warnings about lock files at which git will fail later, although creating a worktree does not
    /// need them.
    fn stale_git_locks(&self) -> Vec<String> {
        ["packed-refs.lock", "config.lock", "HEAD.lock", "shallow.lock"]
            .into_iter()
            .map(|name| self.repository.common_dir().join(name))
            .filter(|path| path.exists())
            .map(|path| Kind::StaleGitLock { path })
            .map(|kind| format!("{kind} ({})", kind.remedy().unwrap_or_default()))
            .collect()
    }
}

fn branch_in_use(branch: &str, checkout: entry::Checkout) -> Kind {
    let holder = match &checkout.mark {
        Some(mark) => format!("run {}", mark.run),
        None => "a user".to_owned(),
    };
    Kind::BranchInUse { branch: branch.to_owned(), holder, path: checkout.path }
}

pub(crate) fn branch_name(branch: &Branch) -> Option<&str> {
    match branch {
        Branch::New(name) | Branch::Existing(name) => Some(name),
        Branch::Detached => None,
    }
}

/// Creates a folder with its link into the repository, atomically, unless the path exists.
fn create_folder_with_link(root: &Path, path: &Path, entry: &Path, id: &str) -> Result<(), Kind> {
    let staged = root.join(".staging").join(id);
    create_folder(&staged)?;
    let put = || {
        let mut link = with_prefix("gitdir: ", entry);
        link.push("\n");
        let file = staged.join(".git");
        fs::write(&file, link.as_encoded_bytes()).map_err(Kind::io("write", &file))?;
        fault::point("folder-staged");
        rename_no_replace(&staged, path)
    };
    put().inspect_err(|_| {
        let _ = trash::delete(&staged);
    })
}

/// Renames a folder without replacing anything.
pub(crate) fn rename_no_replace(from: &Path, to: &Path) -> Result<(), Kind> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => {
            Err(Kind::PathExists { path: to.to_owned() })
        }
        // File systems without that flag: rename replaces only an empty folder.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => match fs::rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Err(Kind::PathExists { path: to.to_owned() })
            }
            other => other.map_err(Kind::io("create", to)),
        },
        Err(error) => Err(Kind::Io { doing: "create", path: to.to_owned(), source: error.into() }),
    }
}

/// Deletes a folder that contains only our link, and its staging folder.
pub(crate) fn remove_folder_of(mark: &Mark) {
    let _ = trash::delete(&mark.root.join(".staging").join(&mark.id));
    if folder_is_of(&mark.path, &mark.id) {
        let _ = trash::delete(&mark.path);
    }
}

/// Returns whether a folder's link leads to this entry.
pub(crate) fn folder_is_of(path: &Path, id: &str) -> bool {
    let link = crate::read::bytes(path.join(".git")).unwrap_or_default();
    link.strip_suffix(b"\n").unwrap_or(&link).ends_with(format!("/worktrees/{id}").as_bytes())
}
