//! The context of every command: the data directory, the store in it or elsewhere, and the run that the user means.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

pub(crate) use sprag_app::RunWithPlan;
use sprag_app::{App, Files, Row};
use sprag_lifecycle::{RunId, Word};

use crate::args::Args;
use crate::exit::Failure;
use crate::settings::Settings;
use crate::show::Style;

pub(crate) struct Context {
    pub(crate) data: PathBuf,
    /// The database's URL, if the store is not in the data directory.
    store: Option<String>,
    /// A PEM file with the authorities to trust for `https://`; none for those of this machine.
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) json: bool,
    /// Whether the command may ask on the terminal: it has one, and the user has not said `--no-input`.
    pub(crate) interactive: bool,
    pub(crate) style: Style,
}

impl Context {
    pub(crate) fn new(args: &Args) -> Result<Self, Failure> {
        let settings = Settings::load()?;
        let from_environment = || std::env::var_os("SPRAG_DATA").filter(|data| !data.is_empty());
        let data = match args.data.clone().or_else(|| from_environment().map(PathBuf::from)) {
            Some(data) => data,
            None => match settings.data() {
                Some(data) => data,
                None => default_data()?,
            },
        };
        let data = std::path::absolute(&data)
            .map_err(|error| Failure::usage(format!("{}: {error}", data.display())))?;
        let store = args.store.clone().or_else(|| settings.text("store")).filter(|url| !url.is_empty());
        if let Some(url) = &store
            && !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
        {
            // The URL may contain a password, so the error does not repeat it.
            return Err(Failure::usage("--store (or SPRAG_STORE) is not the URL of a PostgreSQL database")
                .next("write it like postgres://USER@HOST/DATABASE; for a folder use --data DIR"));
        }
        Style::choose(settings.colour(args.color)?);
        let has_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let asks = !args.no_input && !args.json && settings.flag("input").unwrap_or(true);
        let interactive = has_terminal && asks;
        let authorities = args.tls_ca.clone().filter(|file| !file.as_os_str().is_empty());
        Ok(Context { data, store, authorities, json: args.json, interactive, style: Style::stdout() })
    }

    /// Returns the connections to servers, with the authorities that the user trusts.
    pub(crate) fn connector(&self) -> sprag_tls::Connector {
        sprag_tls::Connector::new(self.authorities.clone())
    }

    /// Creates the data directory, or closes it to other users and prints a message if it was open.
    pub(crate) fn make_private(&self) -> Result<(), Failure> {
        let closed = sprag_app::make_private(&self.data).map_err(|error| {
            Failure::error(format!("cannot use {}: {error}", self.data.display()))
                .next("choose another folder with --data DIR or SPRAG_DATA")
        })?;
        if let Some(closed) = closed {
            eprintln!("{closed}");
        }
        Ok(())
    }

    /// Opens the application: the store, and the data directory beside it.
    pub(crate) fn app(&self) -> Result<App, Failure> {
        // Logs and worktrees are on this machine, wherever the store is.
        self.make_private()?;
        if let Some(url) = &self.store {
            return App::open_postgres(url, &self.data).map_err(|error| Failure::error(error.to_string()));
        }
        App::open(&self.data).map_err(|error| {
            Failure::error(error.to_string()).next("choose another folder with --data DIR or SPRAG_DATA")
        })
    }

    /// Returns the location of the store for messages to the user.
    pub(crate) fn place(&self, app: &App) -> String {
        match (&self.store, app.store_path()) {
            (Some(_), Some(url)) => url.display().to_string(),
            _ => self.data.display().to_string(),
        }
    }

    pub(crate) fn files(&self) -> Files {
        Files::new(&self.data)
    }
}

/// Returns `$XDG_DATA_HOME/sprag`, or its usual location.
fn default_data() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("sprag")).ok_or_else(|| {
        Failure::usage("neither XDG_DATA_HOME nor HOME is set").next("name a folder with --data DIR")
    })
}

/// Returns the failure of a request about a run: one that says that the run has ended, if the store refuses the request
/// and the run has ended.
pub(crate) fn refused(app: &App, run: RunId, error: sprag_app::Error) -> Failure {
    let is_mistake = matches!(error.kind, sprag_app::ErrorKind::Invalid | sprag_app::ErrorKind::NotFound);
    match app.run(run) {
        Ok(Some(row)) if !is_mistake && row.status().is_terminal() => {
            Failure::ended(&run.to_string(), row.status().as_str(), "")
        }
        _ => error.into(),
    }
}

/// Returns the run that the user means: by id, by a part of an id, by the name of a board, or the newest.
pub(crate) fn find_run(app: &App, wanted: Option<&str>) -> Result<RunWithPlan, Failure> {
    Ok(sprag_app::find_run(app, wanted)?)
}

/// Returns the path of the program that supervises steps: this one.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    // An upgrade may have replaced the file since. The kernel still knows the running one.
    let running = Path::new("/proc/self/exe");
    match std::fs::read_link(running) {
        Ok(path) if path.exists() => Ok(path),
        _ => Ok(running.to_owned()),
    }
}
