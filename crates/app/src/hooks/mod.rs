//! Webhooks: their rows and settings. A server sends them.
//!
//! ```text
//!   HookRow.filter ─▶ HookSettings ─┬─ filter    which entries it receives
//!                                   └─ delivery  how they are told: a format, or a command
//! ```

mod address;
mod filter;
mod message;
mod presence;

use std::net::IpAddr;

use http::Uri;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_store::{Delivery, HookRow, Id};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::secret::random_hex;
use crate::text::rfc3339;

pub use address::{check_hook_address, resolve_hook_host};
pub use filter::HookFilter;
pub use message::{
    HookDelivery, HookEvent, HookFormat, HookMessage, Signing, messages, sample_run, test_event,
};
pub use presence::DeliveryPresence;

/// The most hooks that there may be: a server has a task for each.
const MOST: usize = 200;
/// The allowed lengths of a secret, in bytes.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;

/// A request to add a hook.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewHook {
    /// The URL for the POST requests, starting with `http://`.
    #[cfg_attr(feature = "openapi", schema(example = "http://127.0.0.1:9000/sprag"))]
    pub url: String,
    /// The format of the messages: `json` if it is left out.
    #[serde(default)]
    pub format: HookFormat,
    /// The text of each message, for the format `template`.
    pub template: Option<String>,
    /// The command that receives the messages on its stdin, instead of a URL. Only people on the server's machine can
    /// set it.
    #[serde(skip)]
    pub command: Option<String>,
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
    /// The URL to which messages are sent; `run:COMMAND` for a command.
    pub url: String,
    /// The form of its messages.
    pub delivery: HookDelivery,
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
        // Settings that cannot be read stop the delivery, whose error says so.
        let HookSettings { filter, delivery } = HookSettings::of(hook).unwrap_or_default();
        HookView {
            id: hook.id.to_string(),
            url: hook.url.to_string(),
            delivery,
            filter,
            cursor: hook.cursor,
            failures: hook.failures,
            parked: hook.parked.as_deref().map(str::to_owned),
            error: hook.error.as_deref().map(str::to_owned),
            created_at: rfc3339(hook.created_ms),
        }
    }
}

/// The settings of a hook, as its row stores them: the parts of the filter, and `delivery` beside them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookSettings {
    /// The entries that it receives.
    pub filter: HookFilter,
    /// The form of its messages.
    pub delivery: HookDelivery,
}

impl HookSettings {
    /// Reads the settings of a hook.
    pub fn of(hook: &HookRow) -> Result<HookSettings, Error> {
        let wrong = |error: serde_json::Error| {
            Error::failed(format!("the settings of hook {} cannot be read: {error}", hook.id))
        };
        let mut stored: serde_json::Map<String, Value> = serde_json::from_str(&hook.filter).map_err(wrong)?;
        let delivery = stored.remove("delivery").map(serde_json::from_value).transpose().map_err(wrong)?;
        let filter = serde_json::from_value(Value::Object(stored)).map_err(wrong)?;
        Ok(HookSettings { filter, delivery: delivery.unwrap_or_default() })
    }

    fn text(&self) -> String {
        let mut stored = serde_json::json!(self.filter);
        if self.delivery != HookDelivery::default() {
            stored["delivery"] = serde_json::json!(self.delivery);
        }
        stored.to_string()
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
        let url = match &new.command {
            Some(command) if command.trim().is_empty() => return Err(wrong("the command is empty".into())),
            Some(command) => format!("run:{command}"),
            None => {
                let target = HookTarget::parse(&new.url).map_err(|error| {
                    wrong(format!("url: {error}")).next("write it like https://HOST/PATH")
                })?;
                if let Some(ip) = target.ip() {
                    check_hook_address(ip, allow_private).map_err(|why| wrong(format!("url: {why}")))?;
                }
                new.url.clone()
            }
        };
        let delivery = HookDelivery { format: new.format, template: new.template, command: new.command };
        delivery.check()?;
        let mut filter = new.filter;
        filter.check()?;
        if delivery.format == HookFormat::Slack && filter.is_open() {
            // A chat is for people: the steps of every run would be too much.
            filter.entities = vec!["run".into()];
        }
        if let Some(since) = new.since {
            crate::events::check_seq(since).map_err(|error| wrong(format!("since: {error}")))?;
        }
        let random = || match delivery.format {
            HookFormat::Standard => message::random_standard_secret(),
            _ => random_hex(),
        };
        let secret = new.secret.unwrap_or_else(random);
        if !SECRET_LENGTHS.contains(&secret.len()) {
            return Err(wrong("secret: must be 16 to 256 bytes".into()));
        }
        if self.hooks()?.len() >= MOST {
            return Err(Error::new(ErrorKind::Refused, format!("there are {MOST} hooks already")));
        }
        let settings = HookSettings { filter, delivery }.text();
        let (id, made_ms) = (self.new_id(), self.now().wall_ms);
        let row = HookRow::new(id, url.into(), secret.as_str().into(), settings.into(), made_ms);
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
