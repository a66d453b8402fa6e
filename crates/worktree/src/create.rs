//! Making a worktree.
//!
//! ```text
//!   unlocked   owner lock, entry built in staging, folder built aside and put at its path
//!   locked     no HEAD uses the branch; update-ref; rename(staging → worktrees/ID)
//!   unlocked   checkout, hooks, submodules, included files
//! ```
//!
//! Killed anywhere, it leaves nothing that blocks another: whoever wants the branch or the path takes it back.

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
    git::{Cancel, joined},
    include,
    lock::{make_folder, me},
    mark::{Mark, Shared, State},
    metrics::{COUNTERS, count},
    name::{check_branch, new_id},
    owner::OwnerLock,
    recover::Way,
    trash,
    worktrees::{Worktree, Worktrees},
};

/// Which branch a worktree is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Branch {
    /// One that is made for it, at its base.
    New(String),
    /// One that exists; the base is not looked at.
    Existing(String),
    /// None: HEAD is at the base.
    Detached,
}

/// What to make.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// The run it is for.
    pub run: String,
    /// Its folder, directly inside the data directory. A leftover is never reused: take a new name each time.
    pub path: PathBuf,
    /// Its branch.
    pub branch: Branch,
    /// The revision it begins with.
    pub base: String,
    /// Whether submodules are checked out too.
    pub submodules: bool,
    /// Folders to which its files are limited; all if there are none.
    pub sparse: Vec<String>,
    /// Ignored files that are copied from the main checkout, besides those of its `.worktreeinclude`.
    pub include: Vec<String>,
    /// Environment variables by which the processes of its run are known; [`Worktree::environment`] holds them.
    pub markers: Vec<(String, String)>,
    /// Whether a ready worktree may be taken from the pool.
    pub use_pool: bool,
    /// A pooled worktree with this setup is preferred.
    pub setup_key: Option<String>,
}

impl CreateOptions {
    /// A new branch from a base, and nothing special.
    pub fn new(run: &str, path: impl Into<PathBuf>, branch: &str, base: &str) -> Self {
        CreateOptions {
            run: run.to_owned(),
            path: path.into(),
            branch: Branch::New(branch.to_owned()),
            base: base.to_owned(),
            submodules: false,
            sparse: Vec::new(),
            include: Vec::new(),
            markers: Vec::new(),
            use_pool: false,
            setup_key: None,
        }
    }
}

impl Worktrees {
    /// Makes a worktree, or takes one from the pool. When it fails, nothing of it is left.
    pub fn create(&self, options: &CreateOptions, cancel: &Cancel) -> Result<Worktree, Error> {
        let made = self.try_create(options, cancel).or_else(|kind| {
            // A dead run may be in the way; a live one is told of.
            let way = match &kind {
                Kind::BranchExists { branch } | Kind::BranchInUse { branch, .. } => {
                    Way::Branch(branch.clone())
                }
                Kind::StaleGitLock { .. } => match &options.branch {
                    Branch::New(branch) | Branch::Existing(branch) => Way::Branch(branch.clone()),
                    Branch::Detached => return Err(kind),
                },
                Kind::PathExists { path } => Way::Path(path.clone()),
                _ => return Err(kind),
            };
            match self.clear_the_way(&way) {
                true => self.try_create(options, cancel),
                false => Err(self.name_holder(kind)),
            }
        });
        match &made {
            Ok(worktree) => {
                count(&COUNTERS.creates);
                COUNTERS.pool_hits.fetch_add(u64::from(worktree.from_pool), Ordering::Relaxed);
                tracing::info!(run = options.run, path = %worktree.path().display(), "worktree made");
            }
            Err(kind) => {
                count(&COUNTERS.create_failures);
                tracing::warn!(run = options.run, path = %options.path.display(), %kind, "worktree not made");
            }
        }
        made.attempt(|| format!("create the worktree {} of run {}", options.path.display(), options.run))
    }

    /// Whoever works on a branch that exists is more to the point than that it exists.
    fn name_holder(&self, kind: Kind) -> Kind {
        match &kind {
            Kind::BranchExists { branch } => match entry::holder_of(&self.repository, branch) {
                Ok(Some(checkout)) => in_use(branch, checkout),
                _ => kind,
            },
            _ => kind,
        }
    }

    fn try_create(&self, options: &CreateOptions, cancel: &Cancel) -> Result<Worktree, Kind> {
        let path = self.place(&options.path)?;
        let base = self.base(options)?;
        let pooled = if options.use_pool && !options.submodules { self.take_pooled(options)? } else { None };
        let worktree = match pooled {
            Some((mark, owner)) => self.switch_pooled(mark, owner, options, (&path, &base), cancel)?,
            None => self.build(options, (&path, &base), cancel)?,
        };
        self.finish(worktree, options, cancel)
    }

    /// The files, and all that may take long. What fails takes the worktree with it.
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
                let taken_back =
                    self.take_back(worktree.mark, worktree.owner, BranchPolicy::DeleteIfMerged, cancel);
                if let Err(error) = taken_back {
                    tracing::warn!(run = options.run, path = %path.display(), %error, "not rolled back yet");
                }
                Err(kind)
            }
        }
    }

    /// A folder directly inside the data directory, and not one of our own.
    fn place(&self, path: &Path) -> Result<PathBuf, Kind> {
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
            process: me(),
            state: State::Making,
            path: path.to_owned(),
            root: self.root.clone(),
            root_identity: self.root_identity,
            branch: branch_name(&options.branch).map(str::to_owned),
            base: base.to_owned(),
            setup_key: None,
            sparse: options.sparse.clone(),
            markers: options.markers.clone(),
            created_unix_ms: crate::clock::unix_ms(),
            reason: None,
            prepared: false,
            shared: Shared::now(self.repository.common_dir()),
        }
    }

    /// Entry and folder, from nothing.
    fn build(
        &self,
        options: &CreateOptions,
        (path, base): (&Path, &str),
        cancel: &Cancel,
    ) -> Result<Worktree, Kind> {
        let id = new_id(&options.run);
        let lock_path = self.repository.owner_lock_path(&id);
        make_folder(&self.repository.sprag_dir().join("owners"))?;
        let owner = OwnerLock::take(&lock_path)?
            .ok_or_else(|| Kind::InUse { path: lock_path, holder: "somebody".to_owned() })?;
        fault::point("owner-locked");
        let mark = self.new_mark(id, options, path, base);
        let staged = self.staging().join(&mark.id);
        let built = self.stage(&staged, &mark).and_then(|()| {
            fault::point("staged");
            put_folder(&self.root, path, &self.repository.entries_dir().join(&mark.id), &mark.id)?;
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
        make_folder(staged)?;
        fault::point("staging-made");
        // First the mark: whoever finds the folder knows what it was to become.
        mark.write(staged)?;
        fault::point("mark-written");
        entry::write_links(staged, &mark.path)?;
        entry::write_head(staged, mark.branch.as_deref(), &mark.base)?;
        // Nobody who prunes may take it for stale when its disk is not there for a while.
        let locked = staged.join("locked");
        fs::write(&locked, format!("sprag run {}\n", mark.run)).map_err(Kind::io("write", &locked))
    }

    /// The only part under the lock.
    fn publish(&self, staged: &Path, mark: &Mark, branch: &Branch, cancel: &Cancel) -> Result<(), Kind> {
        let place = self.repository.entries_dir().join(&mark.id);
        let _held = self.repository.hold_unless(&mark.run, self.settings.lock_deadline, Some(cancel))?;
        self.claim_branch(mark, branch)?;
        fault::point("branch-made");
        entry::put_in_place(staged, &place).inspect_err(|_| self.give_branch_back(mark, branch))
    }

    /// Under the lock: makes the branch, or sees that nobody has it.
    pub(crate) fn claim_branch(&self, mark: &Mark, branch: &Branch) -> Result<(), Kind> {
        match branch {
            // A branch that does not exist is checked out nowhere, except where nothing was committed yet.
            Branch::New(name)
                if entry::main_has(&self.repository, name)
                    && self.repository.read_ref(&format!("refs/heads/{name}"))?.is_none() =>
            {
                let path = self.repository.main_checkout().unwrap_or(self.repository.common_dir()).to_owned();
                Err(in_use(name, entry::Checkout { path, mark: None }))
            }
            Branch::New(name) => branch::make(&self.repository, name, mark),
            Branch::Existing(name) => match entry::holder_of(&self.repository, name)? {
                Some(checkout) => Err(in_use(name, checkout)),
                None => Ok(()),
            },
            Branch::Detached => Ok(()),
        }
    }

    pub(crate) fn give_branch_back(&self, mark: &Mark, branch: &Branch) {
        if let Branch::New(name) = branch {
            let _ = branch::release(&self.repository, Some(name), &mark.id, BranchPolicy::DeleteIfMerged);
        }
    }

    /// Lock files at which git will stop sooner or later, though making a worktree does not.
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

fn in_use(branch: &str, checkout: entry::Checkout) -> Kind {
    let holder = match &checkout.mark {
        Some(mark) => format!("run {}", mark.run),
        None => "somebody else".to_owned(),
    };
    Kind::BranchInUse { branch: branch.to_owned(), holder, path: checkout.path }
}

pub(crate) fn branch_name(branch: &Branch) -> Option<&str> {
    match branch {
        Branch::New(name) | Branch::Existing(name) => Some(name),
        Branch::Detached => None,
    }
}

/// A folder with its link into the repository appears at its path in one step, unless something is there.
fn put_folder(root: &Path, path: &Path, entry: &Path, id: &str) -> Result<(), Kind> {
    let aside = root.join(".staging").join(id);
    make_folder(&aside)?;
    let put = || {
        let mut link = joined("gitdir: ", entry);
        link.push("\n");
        let file = aside.join(".git");
        fs::write(&file, link.as_encoded_bytes()).map_err(Kind::io("write", &file))?;
        fault::point("folder-staged");
        move_to_free_place(&aside, path)
    };
    put().inspect_err(|_| {
        let _ = trash::delete(&aside);
    })
}

/// Renames, and never replaces.
pub(crate) fn move_to_free_place(from: &Path, to: &Path) -> Result<(), Kind> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => {
            Err(Kind::PathExists { path: to.to_owned() })
        }
        // File systems that cannot promise it: a folder only replaces an empty one, which is nobody's work.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => match fs::rename(from, to) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Err(Kind::PathExists { path: to.to_owned() })
            }
            other => other.map_err(Kind::io("make", to)),
        },
        Err(error) => Err(Kind::Io { doing: "make", path: to.to_owned(), source: error.into() }),
    }
}

/// Deletes a folder that holds nothing but our link; also what was built aside.
pub(crate) fn remove_folder_of(mark: &Mark) {
    let _ = trash::delete(&mark.root.join(".staging").join(&mark.id));
    if folder_is_of(&mark.path, &mark.id) {
        let _ = trash::delete(&mark.path);
    }
}

/// Whether a folder's link leads to this entry.
pub(crate) fn folder_is_of(path: &Path, id: &str) -> bool {
    let link = fs::read(path.join(".git")).unwrap_or_default();
    link.strip_suffix(b"\n").unwrap_or(&link).ends_with(format!("/worktrees/{id}").as_bytes())
}
