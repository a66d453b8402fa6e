//! The one error of the library.

use std::fmt;

use sprag_app::{ErrorKind, Hint};

/// The error of a request to an engine: its kind, for programs, and a message, for people.
///
/// ```
/// use sprag::{ErrorKind, Pipeline};
///
/// let error = Pipeline::parse("steps: [{ id: a, rum: [date] }]").expect_err("there is no `rum`");
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(error.to_string().contains("rum"));
/// ```
#[derive(Debug, Clone)]
pub struct Error(sprag_app::Error);

impl Error {
    /// Returns the kind, which tells whose mistake it is and whether a retry makes sense.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns advice on what to do next, where there is some beyond the message.
    pub fn advice(&self) -> Option<&str> {
        match self.0.hint.as_deref() {
            Some(Hint::Text(text)) => Some(text),
            // Other advice names what interfaces have, and a program does not.
            _ => None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error(sprag_app::Error::invalid(message))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<sprag_app::Error> for Error {
    fn from(error: sprag_app::Error) -> Self {
        Error(error)
    }
}

impl From<sprag_app::Diagnostics> for Error {
    fn from(problems: sprag_app::Diagnostics) -> Self {
        Error(problems.into())
    }
}
