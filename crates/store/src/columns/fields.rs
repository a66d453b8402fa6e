//! Fields: the columns of each type that a row's field can have, and how it is written to them and read back.

use std::borrow::Cow;
use std::sync::Arc;

use sprag_lifecycle::{
    AccountStatus, Actor, EnforcementStatus, EnvironmentStatus, ExecutionId, ExecutionStatus, GateStatus,
    Items, Needs, RuleStatus, RunId, RunStatus, StepStatus, Tally, TaskNeed, ThreadStatus, Word,
    WorkerStatus,
};

use super::{Kind, Reader, Value};
use crate::error::Result;
use crate::ops::Lease;
use crate::rows::{GateKind, Id, ItemList, Position};
use crate::words::{Sentence, intern};

/// A type of fields, with its columns.
pub(crate) trait Field: Sized {
    /// The kinds of its columns.
    const KINDS: &'static [Kind];

    /// Gives its values to `out`, in order.
    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>));
    /// Reads its columns.
    fn read(from: &mut Reader<'_>) -> Result<Self>;
}

/// The way in which a field is stored.
pub(crate) trait Codec<T> {
    /// The kinds of the columns.
    const KINDS: &'static [Kind];

    /// Gives the field's values to `out`, in order.
    fn write<'f>(field: &'f T, out: &mut dyn FnMut(Value<'f>));
    /// Reads the columns.
    fn read(from: &mut Reader<'_>) -> Result<T>;
}

/// The codec of a type that says itself how it is stored.
pub(crate) struct Plain;

impl<T: Field> Codec<T> for Plain {
    const KINDS: &'static [Kind] = T::KINDS;

    fn write<'f>(field: &'f T, out: &mut dyn FnMut(Value<'f>)) {
        field.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<T> {
        T::read(from)
    }
}

/// The codec of a number that may be absent and is stored as 0 then, so that an index can contain it.
pub(crate) struct AbsentIsZero;

impl Codec<Option<Id>> for AbsentIsZero {
    const KINDS: &'static [Kind] = &[Kind::INT];

    fn write<'f>(field: &'f Option<Id>, out: &mut dyn FnMut(Value<'f>)) {
        out(Value::Int(Some(field.unwrap_or(0))));
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<Id>> {
        Ok(Some(from.int()?).filter(|id| *id != 0))
    }
}

/// The codec of a text that must be JSON. A reader would take a broken one for an empty one.
pub(crate) struct Json;

impl Codec<Arc<str>> for Json {
    const KINDS: &'static [Kind] = &[Kind::TEXT];

    fn write<'f>(field: &'f Arc<str>, out: &mut dyn FnMut(Value<'f>)) {
        field.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Arc<str>> {
        let text = <Arc<str>>::read(from)?;
        checked(&text, from)?;
        Ok(text)
    }
}

impl Codec<Option<Arc<str>>> for Json {
    const KINDS: &'static [Kind] = <Option<Arc<str>> as Field>::KINDS;

    fn write<'f>(field: &'f Option<Arc<str>>, out: &mut dyn FnMut(Value<'f>)) {
        field.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<Arc<str>>> {
        let text = <Option<Arc<str>>>::read(from)?;
        text.iter().try_for_each(|text| checked(text, from))?;
        Ok(text)
    }
}

/// Refuses a text that is not JSON, in the column that was just read.
fn checked(text: &str, from: &mut Reader<'_>) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map(drop)
        .map_err(|error| from.bad_last(format!("it is no JSON: {error}")))
}

/// The codec of a gate's text: the object of a question, which must be JSON, or the name of a signal.
pub(crate) struct Question;

impl Codec<Arc<str>> for Question {
    const KINDS: &'static [Kind] = &[Kind::TEXT];

    fn write<'f>(field: &'f Arc<str>, out: &mut dyn FnMut(Value<'f>)) {
        field.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Arc<str>> {
        let text = <Arc<str>>::read(from)?;
        if text.starts_with('{') {
            checked(&text, from)?;
        }
        Ok(text)
    }
}

/// The codec of a position whose run is stored as 0 if there is none.
pub(crate) struct RunOrZero;

impl Codec<Position> for RunOrZero {
    const KINDS: &'static [Kind] =
        &[Kind::INT, Kind::INT.or_null(), Kind::INT.or_null(), Kind::INT.or_null()];

    fn write<'f>(field: &'f Position, out: &mut dyn FnMut(Value<'f>)) {
        let Position { run, step, attempt, id } = field;
        out(run.map_or(0, RunId::to_i64).into());
        step.write(out);
        attempt.write(out);
        id.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Position> {
        let run = Some(from.int()?).filter(|run| *run != 0).map(RunId::from_i64);
        Ok(Position { run, step: Field::read(from)?, attempt: Field::read(from)?, id: Field::read(from)? })
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Field for $number {
            const KINDS: &'static [Kind] = &[Kind::INT];

            fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
                out((*self).into());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                let number = from.int()?;
                Self::try_from(number).map_err(|_| does_not_fit(from, number))
            }
        }

        impl Field for Option<$number> {
            const KINDS: &'static [Kind] = &[Kind::INT.or_null()];

            fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
                out((*self).into());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                let Some(number) = from.opt_int()? else { return Ok(None) };
                <$number>::try_from(number).map(Some).map_err(|_| does_not_fit(from, number))
            }
        }

        impl From<$number> for Value<'_> {
            fn from(number: $number) -> Self {
                Value::Int(Some(i64::try_from(number).unwrap_or(i64::MAX)))
            }
        }

        impl From<Option<$number>> for Value<'_> {
            fn from(number: Option<$number>) -> Self {
                Value::Int(number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
            }
        }
    )+};
}
numbers!(i64, i32, u32, u64, usize);

/// Returns the error of a number that its field cannot have: no Sprag has written it.
#[cold]
fn does_not_fit(from: &mut Reader<'_>, number: i64) -> crate::error::Error {
    from.bad_last(format!("{number} is out of range"))
}

impl Field for bool {
    const KINDS: &'static [Kind] = &[Kind::BOOL];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(Value::Bool(*self));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.bool()
    }
}

impl Field for Arc<str> {
    const KINDS: &'static [Kind] = &[Kind::TEXT];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out((&**self).into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.text().map(Into::into)
    }
}

impl Field for Option<Arc<str>> {
    const KINDS: &'static [Kind] = &[Kind::TEXT.or_null()];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.as_deref().into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        Ok(from.opt_text()?.map(Into::into))
    }
}

impl Field for String {
    const KINDS: &'static [Kind] = &[Kind::TEXT];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.as_str().into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.text().map(Into::into)
    }
}

impl Field for Vec<u8> {
    const KINDS: &'static [Kind] = &[Kind::BYTES];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(Value::Bytes(Cow::Borrowed(self)));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.bytes().map(Into::into)
    }
}

/// One of the journal's words. They are few and live as long as the program.
impl Field for &'static str {
    const KINDS: &'static [Kind] = &[Kind::TEXT];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out((*self).into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.text().map(|text| intern(text.to_owned()))
    }
}

macro_rules! words {
    ($($word:ty),+) => {$(
        impl Field for $word {
            const KINDS: &'static [Kind] = &[Kind::TEXT];

            fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
                out(self.as_str().into());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                let text = from.text()?;
                <$word>::parse(text).ok_or_else(|| from.unknown_last(text))
            }
        }
    )+};
}
words!(
    RunStatus,
    StepStatus,
    ExecutionStatus,
    EnvironmentStatus,
    ThreadStatus,
    GateStatus,
    WorkerStatus,
    EnforcementStatus,
    AccountStatus,
    RuleStatus,
    GateKind,
    Actor
);

impl Field for RunId {
    const KINDS: &'static [Kind] = &[Kind::INT];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.to_i64().into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.int().map(RunId::from_i64)
    }
}

impl Field for Option<RunId> {
    const KINDS: &'static [Kind] = &[Kind::INT.or_null()];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.map(RunId::to_i64).into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        Ok(from.opt_int()?.map(RunId::from_i64))
    }
}

/// A step of another run, or none: both columns are empty, or neither is.
impl Field for Option<(RunId, u32)> {
    const KINDS: &'static [Kind] = &[Kind::INT.or_null(), Kind::INT.or_null()];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.map(|(run, _)| run.to_i64()).into());
        out(self.map(|(_, step)| step).into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        match (Option::<RunId>::read(from)?, Option::<u32>::read(from)?) {
            (Some(run), Some(step)) => Ok(Some((run, step))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(from.bad_last("it is empty, and the run before it is not".into())),
            (None, Some(_)) => Err(from.bad_last("it is given, and the run before it is empty".into())),
        }
    }
}

/// The right to an execution, or none: all columns are empty, or none is.
impl Field for Option<Lease> {
    const KINDS: &'static [Kind] =
        &[Kind::INT.or_null(), Kind::INT.or_null(), Kind::INT.or_null(), Kind::INT.or_null()];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(self.map(|lease| lease.execution.run.to_i64()).into());
        out(self.map(|lease| lease.execution.step).into());
        out(self.map(|lease| lease.execution.attempt).into());
        out(self.map(|lease| lease.fence).into());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        let run = Option::<RunId>::read(from)?;
        let (step, attempt) = (Option::<u32>::read(from)?, Option::<u32>::read(from)?);
        match (run, step, attempt, Option::<u32>::read(from)?) {
            (Some(run), Some(step), Some(attempt), Some(fence)) => {
                Ok(Some(Lease { execution: ExecutionId { run, step, attempt }, fence }))
            }
            (None, None, None, None) => Ok(None),
            _ => Err(from.bad_last("some of the holder's columns are empty, and others are not".into())),
        }
    }
}

macro_rules! fields_together {
    ($(($($field:ident: $type:ident),+)),+) => {$(
        impl<$($type: Field),+> Field for ($($type,)+) {
            const KINDS: &'static [Kind] = &[];

            fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
                let ($($field,)+) = self;
                $($field.write(out);)+
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                Ok(($($type::read(from)?,)+))
            }
        }
    )+};
}
fields_together!((a: A, b: B), (a: A, b: B, c: C), (a: A, b: B, c: C, d: D));

macro_rules! parts {
    ($($whole:ident { $($part:ident: $kind:expr),+ $(,)? })+) => {$(
        impl Field for $whole {
            const KINDS: &'static [Kind] = &[$($kind),+];

            fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
                $(self.$part.write(out);)+
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                Ok($whole { $($part: Field::read(from)?),+ })
            }
        }
    )+};
}
parts! {
    Tally { unsettled: Kind::INT, broken: Kind::INT }
    Needs { open: Kind::INT, broken: Kind::INT }
    ExecutionId { run: Kind::INT, step: Kind::INT, attempt: Kind::INT }
    TaskNeed { item: Kind::INT, tolerant: Kind::BOOL }
    Position {
        run: Kind::INT.or_null(),
        step: Kind::INT.or_null(),
        attempt: Kind::INT.or_null(),
        id: Kind::INT.or_null(),
    }
}

impl Field for Sentence {
    const KINDS: &'static [Kind] = &[Kind::TEXT; 5];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        let Sentence { entity, event, from, to, actor } = self;
        for word in [entity, event, from.unwrap_or(""), to, actor.as_str()] {
            out(word.into());
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        let (entity, event, was, to) = Field::read(from)?;
        let was: &'static str = was;
        Ok(Sentence { entity, event, from: (!was.is_empty()).then_some(was), to, actor: Field::read(from)? })
    }
}

/// A fan-out's list: ten numbers in one text, since few steps have one.
impl Field for Option<ItemList> {
    const KINDS: &'static [Kind] = &[Kind::TEXT.or_null()];

    fn write<'f>(&'f self, out: &mut dyn FnMut(Value<'f>)) {
        out(Value::Text(self.map(|list| Cow::Owned(items_text(list)))));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        let Some(text) = from.opt_text()? else { return Ok(None) };
        match read_items(text) {
            Some(list) => Ok(Some(list)),
            None => Err(from.bad_last(format!("{text:?} is no fan-out's list"))),
        }
    }
}

/// Returns a fan-out's list in the format of its column.
fn items_text(list: ItemList) -> String {
    let ItemList { made_by, first, first_attempt, items } = list;
    let Items { total, created, settled, failed, cancelled, requeued, ending } = items;
    let ending = u8::from(ending);
    format!(
        "{made_by} {first} {total} {created} {settled} {failed} {cancelled} {requeued} {ending} {first_attempt}"
    )
}

fn read_items(text: &str) -> Option<ItemList> {
    let numbers: Vec<u32> = text.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [
        made_by,
        first,
        total,
        created,
        settled,
        failed,
        cancelled,
        requeued,
        ending @ (0 | 1),
        first_attempt,
    ] = numbers[..]
    else {
        return None;
    };
    let items = Items { total, created, settled, failed, cancelled, requeued, ending: ending == 1 };
    Some(ItemList { made_by, first, first_attempt, items })
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Value::Text(text.map(Cow::Borrowed))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Text(Some(Cow::Owned(text)))
    }
}

impl From<RunId> for Value<'_> {
    fn from(run: RunId) -> Self {
        run.to_i64().into()
    }
}
