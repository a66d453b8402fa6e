//! Webhooks: who is told of what happens, by a signed POST.
//!
//! ```text
//!   journal ──▶ one task per hook: from its own cursor, in order, at least once
//!                 │ lease on the hook's row: of several servers one delivers it
//!                 └─▶ POST ─▶ 2xx: the cursor moves on; else later, longer each time, and parked in the end
//! ```
//!
//! A hook that does not answer delays nobody: it has a task, a cursor and a backoff of its own.

mod deliver;
mod post;

use serde::{Deserialize, Serialize};
use sprag::text::rfc3339;
use sprag::{Complaint, ComplaintKind, RunId};
use sprag_store::{HookRow, Store};
use utoipa::ToSchema;

use crate::access::{fill_random, hex};
use crate::feed::Told;

pub(crate) use deliver::deliver;

/// How many hooks there may be: each has a task.
const MOST: usize = 200;
/// How long a secret may be.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// Which entries a hook wants; what is left out is not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HookFilter {
    /// Only this run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only those on these kinds of things, such as `run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
    /// Only these events, such as `run.succeeded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
}

impl HookFilter {
    fn wants(&self, told: &Told) -> bool {
        let among = |all: &[String], one: &str| all.is_empty() || all.iter().any(|word| word == one);
        among(&self.entities, told.entity) && among(&self.events, told.event)
    }

    fn run(&self) -> Option<RunId> {
        self.run.as_deref().and_then(|run| run.parse().ok())
    }
}

/// A hook to be made.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHook {
    /// Where to POST, beginning with `http://`.
    #[schema(example = "http://127.0.0.1:9000/sprag")]
    pub url: String,
    /// What the messages are signed with; drawn if it is left out.
    pub secret: Option<String>,
    /// Which entries it wants.
    #[serde(default)]
    pub filter: HookFilter,
    /// After which entry to begin; from now on if it is left out.
    #[schema(maximum = 9223372036854775807i64)]
    pub since: Option<u64>,
}

/// A hook without its secret.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct HookView {
    /// Its number.
    pub id: String,
    /// Where it is told.
    pub url: String,
    /// Which entries it wants.
    pub filter: HookFilter,
    /// The last entry that it has been told of, or that it did not want.
    pub cursor: u64,
    /// How often in a row it could not be told.
    pub failures: u32,
    /// Why nobody tries any more.
    pub parked: Option<String>,
    /// What went wrong last.
    pub error: Option<String>,
    /// When it was made.
    pub created_at: String,
}

impl HookView {
    /// A hook.
    pub fn of(hook: &HookRow) -> Self {
        HookView {
            id: hook.id.to_string(),
            url: hook.url.to_string(),
            filter: serde_json::from_str(&hook.filter).unwrap_or_default(),
            cursor: hook.cursor,
            failures: hook.failures,
            parked: hook.parked.as_deref().map(str::to_owned),
            error: hook.error.as_deref().map(str::to_owned),
            created_at: rfc3339(hook.created_ms),
        }
    }
}

/// Keeps a hook; the row, and its secret, which is not shown again.
pub async fn add_hook(store: &Store, new: NewHook) -> Result<(HookRow, String), Complaint> {
    let wrong = |message: String| Complaint::new(ComplaintKind::Wrong, message);
    post::target(&new.url)
        .map_err(|error| wrong(format!("url: {error}")).next("write it like http://HOST:PORT/PATH"))?;
    if let Some(run) = &new.filter.run {
        run.parse::<RunId>().map_err(|error| wrong(format!("filter.run: {error}")))?;
    }
    if let Some(since) = new.since {
        crate::stream::known_number(since).map_err(|error| wrong(format!("since: {error}")))?;
    }
    let secret = new.secret.unwrap_or_else(|| {
        let mut bits = [0u8; 32];
        fill_random(&mut bits);
        hex(&bits)
    });
    if !SECRET_LENGTHS.contains(&secret.len()) {
        return Err(wrong("secret: between 16 and 256 bytes".into()));
    }
    if store.read(|db| db.hooks())?.len() >= MOST {
        return Err(Complaint::new(ComplaintKind::Refused, format!("there are {MOST} hooks already")));
    }
    let filter = serde_json::to_string(&new.filter).unwrap_or_default();
    let (id, url, made_ms) = (store.new_id(), new.url.into(), store.now().wall_ms);
    let row = HookRow::new(id, url, secret.as_str().into(), filter.into(), made_ms);
    store.service().add_hook(row, new.since).await?;
    let kept = store.read(|db| db.hooks())?.into_iter().find(|hook| hook.id == id);
    kept.map(|row| (row, secret)).ok_or_else(|| Complaint::failed("the hook was removed at once"))
}
