//! Pipeline files: accepted files, refused files, and their diagnostics.

mod children;
mod corpus;
mod declared;
mod diagnostics;
mod examples;
mod hostile;
mod json_schema;
mod robust;
