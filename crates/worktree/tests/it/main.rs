//! Worktrees with real git, real processes and real kills. The numbers are those of the claims that a test
//! proves.

mod alike;
mod common;
mod crash;
mod disk;
mod helper;
mod hostile;
mod land;
mod land_beside;
mod land_crash;
mod lock;
mod names;
mod pool;
mod prune;
mod races;
mod remove;
mod repositories;
mod sandboxes;
mod state;
mod tools;
