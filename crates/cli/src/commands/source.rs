//! The source of the objects that a command is about: the store of the data directory, or a server (`--server URL`).
//!
//! Commands print the values that programs see, so that their output is the same from both.

use serde::de::DeserializeOwned;
use serde_json::Value;
use sprag_app::App;

use super::server::AtRemote;
use crate::args::AtServer;
use crate::context::Context;
use crate::exit::Failure;

/// The store or the server that has the objects of a command.
pub(super) enum Source<'c> {
    /// The store of the data directory.
    Store(App),
    /// A server.
    Server(AtRemote<'c>),
}

impl<'c> Source<'c> {
    /// Opens the server that the command line names, or else the store.
    pub(super) fn open(context: &'c Context, at: &AtServer) -> Result<Self, Failure> {
        Ok(match AtRemote::open(context, at)? {
            Some(remote) => Source::Server(remote),
            None => Source::Store(context.app()?),
        })
    }

    /// Returns the option that commands need which are named to the user.
    pub(super) fn at(&self) -> String {
        match self {
            Source::Store(_) => String::new(),
            Source::Server(remote) => remote.at(),
        }
    }
}

/// Parses a part of a server's answer.
pub(super) fn parsed<T: DeserializeOwned>(told: Value) -> Result<T, Failure> {
    serde_json::from_value(told)
        .map_err(|error| Failure::error(format!("the server's answer cannot be read: {error}")))
}

/// Returns the elements of a list in a value.
pub(super) fn elements(told: &Value) -> &[Value] {
    told.as_array().map_or(&[], Vec::as_slice)
}
