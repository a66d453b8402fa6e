//! Accounts: logins of coding agents that runs share, their limits, and the holds on them.

use std::time::Duration;

use serde::Serialize;
use sprag_lifecycle::{AccountStatus, Word};
use sprag_store::{AccountBusy, AccountState, AccountWait, NewHold, Now, Row};

use crate::App;
use crate::error::{Error, ErrorKind, Hint};
use crate::text::{local, plain, rfc3339};

/// The longest name of an account, in characters.
const LONGEST_NAME: usize = 128;
/// The longest hold: about ten years.
const LONGEST_HOLD: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The longest reason, in characters.
const LONGEST_REASON: usize = 200;
/// The most executions that are handed over at once when an account is free again; the next sweep hands over the rest.
const AT_ONCE: usize = 256;

/// An account.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountView {
    /// Its name.
    pub name: String,
    /// `free`, `held`, or `probing`: one step tries the account after a hold.
    pub status: &'static str,
    /// The number of steps that may use it at once, as the run that used it last says; absent before the first one.
    pub max_parallel: Option<u32>,
    /// The number of steps that use it.
    pub running: usize,
    /// The number of steps that wait for it.
    pub waiting: usize,
    /// The reason of the hold; absent if it is free.
    pub reason: Option<String>,
    /// The run that reported the usage limit; absent if it is free, or if a person holds it.
    pub run: Option<String>,
    /// The time since which it is held.
    pub held_since: Option<String>,
    /// The end of the hold; absent if it is free, or if only a person ends the hold.
    pub held_until: Option<String>,
    /// The end of the hold (wall clock).
    #[serde(skip)]
    pub held_until_ms: Option<i64>,
}

impl AccountView {
    fn of(state: &AccountState, now: Now) -> Self {
        let row = &state.row;
        // A hold whose time has passed is over, although no step has tried the account yet.
        let status = match row.status() {
            AccountStatus::Held if !row.is_held(now) => AccountStatus::Probing,
            status => status,
        };
        let held = status == AccountStatus::Held;
        AccountView {
            name: plain(&row.name),
            status: status.as_str(),
            max_parallel: (row.maximum > 0).then_some(row.maximum),
            running: state.out,
            waiting: state.waiting,
            reason: row.reason.as_deref().filter(|_| held).map(plain),
            run: row.run.filter(|_| held).map(|run| run.to_string()),
            held_since: row.held_since_ms.filter(|_| held).map(rfc3339),
            held_until: row.until_wall_ms.filter(|_| held).map(rfc3339),
            held_until_ms: row.until_wall_ms.filter(|_| held),
        }
    }
}

/// Describes what a step waits for whose account has no place.
pub(crate) fn account_text(wait: &AccountWait) -> String {
    let row = &wait.account;
    let name = plain(&row.name);
    match wait.why {
        AccountBusy::Full => format!("a place of account {name}, of which {} are in use", row.maximum),
        AccountBusy::Probing => {
            format!("account {name}, which another step tries first after its hold")
        }
        AccountBusy::Held => {
            let until = row.until_wall_ms.map(|until_ms| format!(" until {}", local(until_ms)));
            let reason = row.reason.as_deref().map(plain);
            let why = match (row.run, reason) {
                (Some(run), _) => format!("usage limit reported by run {run}"),
                (None, Some(reason)) => format!("held by a person: {reason}"),
                (None, None) => "held by a person".to_owned(),
            };
            format!("account {name}{} ({why})", until.unwrap_or_default())
        }
    }
}

impl App {
    /// Returns the accounts that runs or persons have named, by name.
    pub fn accounts(&self) -> Result<Vec<AccountView>, Error> {
        let now = self.now();
        Ok(self.store.queries().accounts()?.iter().map(|state| AccountView::of(state, now)).collect())
    }

    /// Returns an account.
    pub fn account(&self, name: &str) -> Result<AccountView, Error> {
        let known = self.accounts()?;
        let names: Vec<String> = known.iter().map(|account| account.name.clone()).collect();
        known.into_iter().find(|account| account.name == name).ok_or_else(|| {
            let known = if names.is_empty() { "none is known".into() } else { names.join(", ") };
            let error = Error::new(ErrorKind::NotFound, format!("there is no account {name:?}"));
            Error { hint: Some(Box::new(Hint::Text(format!("accounts: {known}")))), ..error }
        })
    }

    /// Holds an account for this long, or until a person releases it. A hold that exists is replaced.
    pub async fn hold_account(
        &self,
        name: &str,
        time: Option<Duration>,
        reason: Option<&str>,
    ) -> Result<AccountView, Error> {
        let is_name = !name.is_empty()
            && name.chars().count() <= LONGEST_NAME
            && !name.chars().any(|letter| letter.is_control() || letter == '/');
        if !is_name {
            let why = format!("must be 1 to {LONGEST_NAME} characters, without control characters and `/`");
            return Err(Error::field("account", why));
        }
        if time.is_some_and(|time| time.is_zero() || time > LONGEST_HOLD) {
            return Err(Error::field("for", "must be more than 0 and at most 10 years"));
        }
        if reason.is_some_and(|reason| reason.chars().count() > LONGEST_REASON) {
            return Err(Error::field("reason", format!("must be at most {LONGEST_REASON} characters")));
        }
        let now_ms = self.now().wall_ms;
        let until_ms = time.map(|time| now_ms.saturating_add(time.as_millis() as i64));
        let new = NewHold { account: name.into(), until_ms, reason: reason.map(Into::into) };
        self.store.person().hold_account(new).await?.require_applied()?;
        self.account(name)
    }

    /// Ends the hold of an account, then hands over what has a place now.
    pub async fn release_account(&self, name: &str) -> Result<AccountView, Error> {
        let found = self.account(name)?;
        if found.status == AccountStatus::Free.as_str() {
            return Err(Error::new(ErrorKind::Refused, format!("account {name} is not held")));
        }
        self.store.person().release_account(name.into()).await?.require_applied()?;
        for queue in self.store.queries().crowded_queues(self.now().steady_ms)? {
            self.store.executor().fill_queue(queue, AT_ONCE).await?;
        }
        self.account(name)
    }
}
