//! Pipeline files: what is loaded, what is refused, and how it is told.

mod children;
mod corpus;
mod diagnostics;
mod examples;
mod hostile;
mod robust;
