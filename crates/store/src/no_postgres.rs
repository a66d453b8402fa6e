//! Stands for `postgres` in a program that is built without that feature: a type that has no value, so that the rest of
//! the store is written once.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::clock::Now;
use crate::error::Result;
use crate::evaluator::SpecEvaluator;
use crate::job::Job;
use crate::service::Observer;
use crate::wake::Hub;

/// A PostgreSQL store, which does not exist.
pub(crate) enum Postgres {}

impl Postgres {
    pub(crate) fn set_evaluator(&self, _: Arc<dyn SpecEvaluator>) {
        match *self {}
    }

    pub(crate) fn evaluator(&self) -> Arc<dyn SpecEvaluator> {
        match *self {}
    }

    pub(crate) fn observe(&self, _: Arc<dyn Observer>) {
        match *self {}
    }

    pub(crate) async fn submit(&self, _: Box<dyn Job>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn read<T>(&self, _: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        match *self {}
    }

    pub(crate) fn health(&self) -> Result<String> {
        match *self {}
    }

    pub(crate) fn now(&self) -> Now {
        match *self {}
    }

    pub(crate) fn random(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn path(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        match *self {}
    }
}
