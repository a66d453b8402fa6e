//! The declarations: each row's columns, once for SQLite, PostgreSQL and the tests.
//!
//! A field's column has the field's name, unless brackets say otherwise; a field of several columns names them all. The
//! field's type decides the columns' kinds (`fields.rs`), unless `as` names another codec.

use std::sync::LazyLock;

use super::fields::{AbsentIsZero, Codec, Json, Plain, Question, RunOrZero};
use super::{Column, Declared, Reader, Section, Statements, Value};
use crate::backend::QueueRow;
use crate::boards::{BoardRow, NoteRow};
use crate::error::Result;
use crate::journal::PackRow;
use crate::rows::{
    AccountRow, DeliveryRow, EnforcementRow, EnvironmentRow, ExecutionRow, GateRow, OutboxRow, Refusal,
    RuleRow, RunRow, StepRow, ThreadRow, TimerRow, WorkerRow,
};
use crate::service::{ActRow, HookRow, TokenRow};
use crate::words::Sentence;

/// A sentence of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentenceRow {
    pub(crate) id: i64,
    pub(crate) sentence: Sentence,
}

macro_rules! rows {
    ($($row:ident is $entity:literal in $table:literal $(with $actor:literal)? {
        key { $($key:ident $(as $key_codec:ident)? $([$($key_column:literal),+])?),* }
        changes { $($change:ident $(as $change_codec:ident)? $([$($change_column:literal),+])?),* $(,)? }
        fixed { $($fixed:ident $(as $fixed_codec:ident)? $([$($fixed_column:literal),+])?),* $(,)? }
    })+) => {
        $(impl Declared for $row {
            const ENTITY: &'static str = $entity;
            const TABLE: &'static str = $table;
            $(const ACTOR: Option<&'static str> = Some($actor);)?

            fn columns() -> Vec<Column> {
                let mut all = Columns(Vec::new());
                $(all.add::<codec!($($key_codec)?), $row, _>(
                    Section::Key, names!($key $($($key_column),+)?), |row| &row.$key);)*
                $(all.add::<codec!($($change_codec)?), $row, _>(
                    Section::Changes, names!($change $($($change_column),+)?), |row| &row.$change);)*
                $(all.add::<codec!($($fixed_codec)?), $row, _>(
                    Section::Fixed, names!($fixed $($($fixed_column),+)?), |row| &row.$fixed);)*
                all.0
            }

            fn statements() -> &'static Statements {
                static STATEMENTS: LazyLock<Statements> = LazyLock::new(Statements::of::<$row>);
                &STATEMENTS
            }

            fn write<'r>(&'r self, section: Section, out: &mut dyn FnMut(Value<'r>)) {
                match section {
                    Section::Key => { $(<codec!($($key_codec)?)>::write(&self.$key, out);)* }
                    Section::Changes => { $(<codec!($($change_codec)?)>::write(&self.$change, out);)* }
                    Section::Fixed => { $(<codec!($($fixed_codec)?)>::write(&self.$fixed, out);)* }
                }
            }

            fn read_fields(from: &mut Reader<'_>) -> Result<Self> {
                Ok($row {
                    $($key: <codec!($($key_codec)?)>::read(from)?,)*
                    $($change: <codec!($($change_codec)?)>::read(from)?,)*
                    $($fixed: <codec!($($fixed_codec)?)>::read(from)?,)*
                })
            }
        })+

        /// Returns each declared table: the kind of row, the table, PostgreSQL's column for the actor, the statements.
        pub(super) fn tables() -> Vec<super::Table> {
            vec![$(super::Table {
                entity: $row::ENTITY,
                name: $row::TABLE,
                actor: $row::ACTOR,
                statements: $row::statements(),
            }),+]
        }
    };
}

macro_rules! names {
    ($field:ident) => {
        &[stringify!($field)]
    };
    ($field:ident $($column:literal),+) => {
        &[$($column),+]
    };
}

macro_rules! codec {
    () => {
        Plain
    };
    ($codec:ident) => {
        $codec
    };
}

/// The columns of a declaration that were added so far.
struct Columns(Vec<Column>);

impl Columns {
    /// Adds a field's columns. The field only tells its type.
    fn add<C: Codec<T>, R, T>(&mut self, section: Section, names: &[&'static str], _: fn(&R) -> &T) {
        assert_eq!(names.len(), C::KINDS.len(), "{names:?}: one name for each column");
        self.0.extend(names.iter().zip(C::KINDS).map(|(name, kind)| Column { name, kind: *kind, section }));
    }
}

rows! {
    RunRow is "run" in "runs" {
        key { id }
        changes {
            status, version, epoch, open, tally ["unsettled", "broken"], reworking, pin as AbsentIsZero, reason,
            steps, last_seq, started_ms, ended_ms,
        }
        fixed {
            plan, pipeline, priority, group ["grp"], idempotency_key, inputs as Json, context as Json,
            parent ["parent_run", "parent_step"], root, first_seq, created_ms,
        }
    }
    StepRow is "step" in "steps" {
        key { run, no }
        changes {
            status, version, attempt, round, tries, losses, reworks, needs ["open_needs", "broken_needs"],
            skipped_by_when, rework_pending, feedback, work, items, started_ms, ended_ms, repeats, last_round,
        }
        fixed { item_of, item }
    }
    ExecutionRow is "execution" in "executions" with "actor" {
        key { id ["run", "step", "attempt"] }
        changes {
            status, version, fence, pin as AbsentIsZero, cancel_requested, published_ms, owner, lease_until_ms,
            nonce, retriable, blocked, result as Json, started_ms, ended_ms, not_before_ms, account_generation,
            limited_since_ms, limited_ms, thread as AbsentIsZero, account as AbsentIsZero,
        }
        fixed { epoch, queue, priority, created_ms }
    }
    EnvironmentRow is "environment" in "environments" {
        key { id }
        changes {
            status, version, path, cleanup_requested, provision_attempt, destroy_attempt, owner, reason,
            details as Json, host,
        }
        fixed { run, scope, managed, created_ms }
    }
    ThreadRow is "thread" in "threads" {
        key { id }
        changes {
            status, version, environment, holder ["holder_run", "holder_step", "holder_attempt", "holder_fence"],
            stop_requested, archived, deleted, turn, turn_open, runtime,
        }
        fixed {}
    }
    GateRow is "gate" in "gates" {
        key { id }
        changes { status, version, answer as Json, timeout_at_ms }
        fixed { run, step, attempt, kind, question as Question, until_ms, opened_ms }
    }
    WorkerRow is "worker" in "workers" {
        key { id }
        changes { status, version, queues, heartbeat_until_ms }
        fixed { name, process, slots, created_ms, labels }
    }
    AccountRow is "account" in "accounts" {
        key { id }
        changes {
            status, version, maximum, generation, until_ms, until_wall_ms, held_since_ms, reason, run, strikes,
        }
        fixed { name }
    }
    RuleRow is "rule" in "rules" {
        key { id }
        changes {
            status, version, generation, definition as Json, hash, source, next_ms, next_key, cursor ["seen"],
            watched as Json, run, reason, missed, rate_ms, changed_ms,
        }
        fixed { name, created_ms }
    }
    DeliveryRow is "event" in "deliveries" {
        key { id }
        changes {}
        fixed { rule, key, kind, body as Json, chain as Json, received_ms }
    }
    EnforcementRow is "enforcement" in "enforcements" {
        key { id }
        changes { status, version, run, reason, due_ms, first_ms, window ["win"] }
        fixed { rule, event, generation, created_ms }
    }
    SentenceRow is "sentence" in "sentences" {
        key { id }
        changes {}
        fixed { sentence ["entity", "event", "was", "became", "actor"] }
    }
    PackRow is "journal pack" in "journal_packs" {
        key { last_seq }
        changes {}
        fixed { first_seq, run, body }
    }
    OutboxRow is "effect" in "outbox" {
        key { id }
        changes { attempts, not_before_ms, error }
        fixed { kind, run, payload as Json }
    }
    TimerRow is "timer" in "timers" {
        key { due_ms, execution ["run", "step", "attempt"] }
        changes {}
        fixed {}
    }
    Refusal is "refusal" in "refusals" {
        key { place as RunOrZero ["run", "step", "attempt", "number"], at_ms }
        changes {}
        fixed { entity, event, actor, reason, detail }
    }
    QueueRow is "queue" in "queues" {
        key { name }
        changes { limit ["maximum"], held }
        fixed {}
    }
    BoardRow is "board" in "boards" {
        key { run }
        changes { goal, plan, open }
        fixed { name, queue, created_ms }
    }
    NoteRow is "note" in "notes" {
        key { id }
        changes {}
        fixed { run, author, tag, text, at_ms }
    }
    TokenRow is "token" in "tokens" {
        key { id }
        changes { expires_ms }
        fixed { name, hash, scopes, created_ms }
    }
    ActRow is "act" in "acts" {
        key { id }
        changes {}
        fixed { at_ms, by, act, subject }
    }
    HookRow is "hook" in "hooks" {
        key { id }
        changes {
            cursor ["seq"], failures, next_try_ms, parked, error, holder, lease_until_ms,
        }
        fixed { url, secret, filter as Json, created_ms }
    }
}
