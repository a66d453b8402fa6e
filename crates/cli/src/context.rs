//! What every command needs: the data directory, the store in it or elsewhere, and the run that the user means.

use std::path::{Path, PathBuf};

pub(crate) use sprag::Known;
use sprag_store::Store;
use sprag_worker::Files;

use crate::args::Args;
use crate::exit::Failure;
use crate::show::Style;

pub(crate) struct Context {
    pub(crate) data: PathBuf,
    /// The database's URL, if runs are not kept in the data directory.
    store: Option<String>,
    pub(crate) json: bool,
    pub(crate) style: Style,
}

impl Context {
    pub(crate) fn new(args: &Args) -> Result<Self, Failure> {
        let data = match &args.data {
            Some(data) => data.clone(),
            None => default_data()?,
        };
        let data = std::path::absolute(&data)
            .map_err(|error| Failure::usage(format!("{}: {error}", data.display())))?;
        let store = args.store.clone().filter(|url| !url.is_empty());
        if let Some(url) = &store
            && !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
        {
            // It may hold a password: it is not repeated.
            return Err(Failure::usage("--store (or SPRAG_STORE) is not the URL of a PostgreSQL database")
                .next("write it like postgres://USER@HOST/DATABASE; for a folder use --data DIR"));
        }
        Style::choose(args.color);
        Ok(Context { data, store, json: args.json, style: Style::stdout() })
    }

    pub(crate) fn store(&self) -> Result<Store, Failure> {
        if let Some(url) = &self.store {
            // Logs and worktrees lie on this machine, wherever runs are kept.
            std::fs::create_dir_all(&self.data).map_err(|error| {
                Failure::error(format!("cannot make {}: {error}", self.data.display()))
                    .next("choose another folder with --data DIR or SPRAG_DATA")
            })?;
            return sprag::open_postgres(url).map_err(|error| Failure::error(error.to_string()));
        }
        sprag::open(&self.data).map_err(|error| {
            Failure::error(error.to_string()).next("choose another folder with --data DIR or SPRAG_DATA")
        })
    }

    /// Where runs are kept, as people are told.
    pub(crate) fn place(&self, store: &Store) -> String {
        match (&self.store, store.path()) {
            (Some(_), Some(url)) => url.display().to_string(),
            _ => self.data.display().to_string(),
        }
    }

    pub(crate) fn files(&self) -> Files {
        Files::new(&self.data)
    }
}

/// `$XDG_DATA_HOME/sprag`, or where that usually is.
fn default_data() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("sprag")).ok_or_else(|| {
        Failure::usage("neither XDG_DATA_HOME nor HOME is set").next("name a folder with --data DIR")
    })
}

/// The run that the user means: by id, by the end of an id, or the newest.
pub(crate) fn find_run(store: &Store, wanted: Option<&str>) -> Result<Known, Failure> {
    Ok(sprag::find_run(store, wanted)?)
}

/// The program that supervises steps: this one.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    // The file may have been replaced by an upgrade since; the kernel still knows the one that runs.
    let running = Path::new("/proc/self/exe");
    match std::fs::read_link(running) {
        Ok(path) if path.exists() => Ok(path),
        _ => Ok(running.to_owned()),
    }
}
