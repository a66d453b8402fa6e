//! Webhooks: their rows and settings. A server sends them.

mod address;

use std::net::IpAddr;

use http::Uri;
use serde::{Deserialize, Serialize};
use sprag_lifecycle::{
    Account, Enforcement, Environment, Execution, Gate, Lifecycle, Run, RunId, Step, Thread, TriggerRule,
    Word, WorkerPresence,
};
use sprag_store::{Delivery, HookRow, Id};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::secret::random_hex;
use crate::text::{nearest, rfc3339};

pub use address::{check_hook_address, resolve_hook_host};

/// The most hooks that there may be: a server has a task for each.
const MOST: usize = 200;
/// The allowed lengths of a secret, in bytes.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// The entries that a hook receives. A missing part selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HookFilter {
    /// Only entries of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only entries of these kinds of entities, such as `run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
    /// Only these events, such as `run.succeeded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
}

impl HookFilter {
    /// Returns whether the filter allows an event on this kind of thing.
    pub fn allows(&self, entity: &str, event: &str) -> bool {
        let among = |all: &[String], one: &str| all.is_empty() || all.iter().any(|word| word == one);
        among(&self.entities, entity) && among(&self.events, event)
    }

    /// Returns the run whose entries alone are sent, if there is one.
    pub fn run(&self) -> Option<RunId> {
        self.run.as_deref().and_then(|run| run.parse().ok())
    }
}

/// A request to add a hook.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewHook {
    /// The URL for the POST requests, starting with `http://`.
    #[cfg_attr(feature = "openapi", schema(example = "http://127.0.0.1:9000/sprag"))]
    pub url: String,
    /// The key that signs the messages; generated if it is left out.
    pub secret: Option<String>,
    /// The entries that it receives.
    #[serde(default)]
    pub filter: HookFilter,
    /// The entry after which it starts; the latest one if it is left out.
    #[cfg_attr(feature = "openapi", schema(maximum = 9223372036854775807i64))]
    pub since: Option<u64>,
}

/// A hook without its secret.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HookView {
    /// Its number.
    pub id: String,
    /// The URL to which messages are sent.
    pub url: String,
    /// The entries that it receives.
    pub filter: HookFilter,
    /// The number of the last entry that it received, or that its filter left out.
    pub cursor: u64,
    /// The number of failed deliveries in a row.
    pub failures: u32,
    /// The reason why it is parked; absent while it is active.
    pub parked: Option<String>,
    /// The last failure.
    pub error: Option<String>,
    /// The time when it was added.
    pub created_at: String,
}

impl HookView {
    /// Returns the view of a row.
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

/// The parts of a hook's URL.
#[derive(Debug, Clone)]
pub struct HookTarget {
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// The host and the port, as the URL writes them.
    pub authority: String,
    /// The host's name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path and the query.
    pub path: String,
}

impl HookTarget {
    /// Reads a URL; otherwise says why it cannot be used.
    pub fn parse(url: &str) -> Result<HookTarget, Error> {
        let uri: Uri =
            url.parse().map_err(|error| Error::invalid(format!("{url:?} is not a URL: {error}")))?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(Error::invalid(format!("{url:?} does not start with http:// or https://"))),
        };
        let authority = uri.authority().ok_or_else(|| Error::invalid("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(Error::invalid("a URL must not contain a password, because it is shown in lists"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(Error::invalid("it names no host"));
        }
        let default_port = if is_encrypted { 443 } else { 80 };
        Ok(HookTarget {
            is_encrypted,
            authority: authority.as_str().to_owned(),
            host,
            port: authority.port_u16().unwrap_or(default_port),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Returns whether the URL names this machine itself.
    pub fn is_on_this_machine(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost") || self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// Returns the host's address, if the URL holds one instead of a name.
    fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl App {
    /// Returns all hooks.
    pub fn hooks(&self) -> Result<Vec<HookRow>, Error> {
        Ok(self.store.queries().hooks()?)
    }

    /// Returns the hook with this number; an error if there is none.
    pub fn hook(&self, id: Id) -> Result<HookRow, Error> {
        self.hooks()?.into_iter().find(|hook| hook.id == id).ok_or_else(|| no_hook(id))
    }

    /// Adds a hook. Returns its row and its secret, which is not shown again.
    ///
    /// An address that no hook may be sent to is refused here. Names are resolved, and their addresses checked,
    /// whenever the hook is sent.
    pub async fn add_hook(&self, new: NewHook, allow_private: bool) -> Result<(HookRow, String), Error> {
        let wrong = |message: String| Error::invalid(message);
        let target = HookTarget::parse(&new.url)
            .map_err(|error| wrong(format!("url: {error}")).next("write it like https://HOST/PATH"))?;
        if let Some(ip) = target.ip() {
            check_hook_address(ip, allow_private).map_err(|why| wrong(format!("url: {why}")))?;
        }
        if let Some(run) = &new.filter.run {
            run.parse::<RunId>().map_err(|error| wrong(format!("filter.run: {error}")))?;
        }
        check_words("entity", "filter.entities", &new.filter.entities, &entities(), |_| entities())?;
        check_words("event", "filter.events", &new.filter.events, &events_of(""), |wrong| {
            events_of(wrong.split('.').next().unwrap_or_default())
        })?;
        if let Some(since) = new.since {
            crate::events::check_seq(since).map_err(|error| wrong(format!("since: {error}")))?;
        }
        let secret = new.secret.unwrap_or_else(random_hex);
        if !SECRET_LENGTHS.contains(&secret.len()) {
            return Err(wrong("secret: must be 16 to 256 bytes".into()));
        }
        if self.hooks()?.len() >= MOST {
            return Err(Error::new(ErrorKind::Refused, format!("there are {MOST} hooks already")));
        }
        let filter = serde_json::to_string(&new.filter).unwrap_or_default();
        let (id, url, made_ms) = (self.new_id(), new.url.into(), self.now().wall_ms);
        let row = HookRow::new(id, url, secret.as_str().into(), filter.into(), made_ms);
        self.store.service().add_hook(row, new.since).await?;
        Ok((self.hook(id)?, secret))
    }

    /// Removes a hook.
    pub async fn remove_hook(&self, id: Id) -> Result<(), Error> {
        if self.store.service().remove_hook(id).await? { Ok(()) } else { Err(no_hook(id)) }
    }

    /// Has a parked hook tried again, from where it was.
    pub async fn retry_hook(&self, id: Id) -> Result<(), Error> {
        if self.store.service().retry_hook(id).await? { Ok(()) } else { Err(no_hook(id)) }
    }

    /// Takes or renews the lease on delivering a hook. Returns whether `holder` has it.
    pub async fn take_hook(&self, id: Id, holder: Id, lease_ms: i64) -> Result<bool, Error> {
        Ok(self.store.service().take_hook(id, holder, lease_ms).await?)
    }

    /// Gives the lease on delivering a hook back.
    pub async fn leave_hook(&self, id: Id, holder: Id) -> Result<(), Error> {
        self.store.service().leave_hook(id, holder).await?;
        Ok(())
    }

    /// Records how a delivery went. Returns false if another server has the hook, or its cursor has moved.
    pub async fn hook_delivered(
        &self,
        id: Id,
        holder: Id,
        cursor: u64,
        how: Delivery,
    ) -> Result<bool, Error> {
        Ok(self.store.service().hook_told(id, holder, cursor, how).await?)
    }
}

/// Refuses a word of a filter that no journal entry has: the hook would never be sent. The error lists the words that
/// `alike` returns for the wrong one.
fn check_words(
    what: &str,
    field: &str,
    given: &[String],
    known: &[&'static str],
    alike: impl Fn(&str) -> Vec<&'static str>,
) -> Result<(), Error> {
    let Some(wrong) = given.iter().find(|word| !known.contains(&word.as_str())) else { return Ok(()) };
    let error = Error::invalid(format!("{field}: there is no {what} {wrong:?}"));
    let alike = alike(wrong);
    Err(match nearest(wrong, alike.iter().copied()) {
        Some(near) => error.next(format!("did you mean {near:?}?")),
        None => error.next(format!("use one of: {}", alike.join(", "))),
    })
}

/// Returns the names of the entities that journal entries are about.
fn entities() -> Vec<&'static str> {
    vec![
        Run::NAME,
        Step::NAME,
        Execution::NAME,
        Environment::NAME,
        Thread::NAME,
        Account::NAME,
        Gate::NAME,
        WorkerPresence::NAME,
        TriggerRule::NAME,
        Enforcement::NAME,
    ]
}

/// The events that create an entity. No table has them, because they lead from no status.
const CREATIONS: [&str; 11] = [
    "run.created",
    "step.added",
    "step.inherited",
    "execution.requested",
    "execution.inherited",
    "environment.created",
    "thread.created",
    "account.created",
    "gate.opened",
    "rule.created",
    "enforcement.created",
];

/// Returns the events that journal entries of an entity tell of; those of all entities if there is no such entity.
fn events_of(entity: &str) -> Vec<&'static str> {
    fn of<L: Lifecycle>() -> Vec<&'static str> {
        let made = CREATIONS.iter().copied().filter(|event| event.split('.').next() == Some(L::NAME));
        made.chain(L::Event::ALL.iter().map(|event| event.as_str())).collect()
    }
    match entity {
        Run::NAME => of::<Run>(),
        Step::NAME => of::<Step>(),
        Execution::NAME => of::<Execution>(),
        Environment::NAME => of::<Environment>(),
        Thread::NAME => of::<Thread>(),
        Account::NAME => of::<Account>(),
        Gate::NAME => of::<Gate>(),
        WorkerPresence::NAME => of::<WorkerPresence>(),
        TriggerRule::NAME => of::<TriggerRule>(),
        Enforcement::NAME => of::<Enforcement>(),
        _ => entities().into_iter().flat_map(events_of).collect(),
    }
}

fn no_hook(id: Id) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no hook {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_is_taken() {
        let there = HookTarget::parse("http://127.0.0.1:9000/a?b=c").expect("a target");
        assert_eq!((there.host.as_str(), there.port, there.path.as_str()), ("127.0.0.1", 9000, "/a?b=c"));
        assert_eq!(HookTarget::parse("http://[::1]/").expect("a target").host, "::1");
        for wrong in ["ftp://a/", "/a", "a", "http://", "http://u:p@a/", "http:///a", "\0"] {
            assert!(HookTarget::parse(wrong).is_err(), "{wrong}");
        }
    }
}
