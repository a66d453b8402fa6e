//! Worktrees with real git, real processes and real kills. Numbers are those of the statements they prove.

mod alike;
mod common;
mod crash;
mod disk;
mod helper;
mod land;
mod lock;
mod names;
mod pool;
mod races;
mod remove;
mod repositories;
mod state;
mod tools;
