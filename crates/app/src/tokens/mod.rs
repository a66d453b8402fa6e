//! Access tokens: their scopes, their limits, and how they are replaced.
//!
//! A token is 256 random bits that are shown once; the store keeps their SHA-256. A rotated token has two rows of one
//! name: the old one expires when the overlap ends.

mod limits;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sprag_store::{Id, TokenRow};

pub use limits::{Grant, TokenLimits};

use crate::App;
use crate::error::{Error, ErrorKind};
use crate::secret::{hex, random_hex};
use crate::text::rfc3339;

/// The prefix of all tokens, so that people and scanners recognise them.
const PREFIX: &str = "sprag_";
/// The longest name, in characters.
const LONGEST_NAME: usize = 100;

/// The time for which the old secret of a rotated token stays valid, unless the caller says otherwise.
pub const OVERLAP: Duration = Duration::from_secs(600);
/// The longest time for which the old secret of a rotated token stays valid.
const LONGEST_OVERLAP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The name of the token in the server's data directory. No token of the store has it.
pub const LOCAL_TOKEN: &str = "local";

/// A permission of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at everything within the limits.
    Read,
    /// Start, end and change runs, answer their questions.
    Run,
    /// Claim work and report it; look at the runs whose steps are held.
    Work,
    /// Everything, tokens and hooks included.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 4] = [Scope::Read, Scope::Run, Scope::Work, Scope::Admin];

    /// Returns its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Run => "run",
            Scope::Work => "work",
            Scope::Admin => "admin",
        }
    }

    /// Returns the scope of this word.
    pub fn parse(word: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == word)
    }

    /// Returns whether this scope is enough for `wanted`.
    pub fn covers(self, wanted: Scope) -> bool {
        self == wanted || self == Scope::Admin || wanted == Scope::Read
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token without its secret.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenView {
    /// Its number.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its scopes.
    pub scopes: Vec<String>,
    /// Its limits; absent if it has none.
    #[serde(skip_serializing_if = "TokenLimits::is_empty")]
    pub limits: TokenLimits,
    /// The time of its creation.
    pub created_at: String,
    /// The time when it expires; absent if it never does.
    pub expires_at: Option<String>,
}

impl TokenView {
    /// Returns the view of a row.
    pub fn of(token: &TokenRow) -> Self {
        let Grant { scopes, limits, .. } = Grant::of(token);
        TokenView {
            id: token.id.to_string(),
            name: token.name.to_string(),
            scopes: scopes.iter().map(ToString::to_string).collect(),
            limits,
            created_at: rfc3339(token.created_ms),
            expires_at: token.expires_ms.map(rfc3339),
        }
    }
}

/// Draws the secret of a token.
pub fn draw_token() -> String {
    format!("{PREFIX}{}", random_hex())
}

/// Returns the hash of a token's secret, as the store keeps it.
pub fn token_hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// Returns a span in milliseconds.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 2)
}

impl App {
    /// Adds a token. Returns its row and its secret, which is not shown again.
    pub async fn add_token(
        &self,
        name: &str,
        scopes: &[Scope],
        limits: TokenLimits,
        expires_in: Option<Duration>,
    ) -> Result<(TokenRow, String), Error> {
        if name.is_empty() || name.chars().count() > LONGEST_NAME || scopes.is_empty() {
            let message = format!("a token needs a name of at most {LONGEST_NAME} characters, and a scope");
            return Err(Error::invalid(message));
        }
        if name == LOCAL_TOKEN {
            let message = format!("{LOCAL_TOKEN:?} is the name of the server's own token");
            return Err(Error::new(ErrorKind::Refused, message).next("choose another name"));
        }
        limits.check(scopes)?;
        let grant = Grant { scopes: scopes.to_vec(), limits, identity: None };
        let now_ms = self.now().wall_ms;
        let (row, secret) = self.drawn(name, &grant, expires_in.map(|span| now_ms + millis(span)));
        if self.store.service().add_token(row.clone(), grant.to_string()).await? {
            Ok((row, secret))
        } else {
            let message = format!("there is a token {name:?} already");
            Err(Error::new(ErrorKind::Refused, message).next("choose another name, or remove that one first"))
        }
    }

    /// Gives a token a new secret. The old one stays valid for `overlap`, so that its users can change over one by one.
    /// Scopes, limits and the time of expiry stay the same, and workers keep their numbers. Returns the new row and its
    /// secret, which is not shown again.
    pub async fn rotate_token(&self, token: &str, overlap: Duration) -> Result<(TokenRow, String), Error> {
        if overlap > LONGEST_OVERLAP {
            return Err(Error::invalid("the overlap of two secrets is at most 30 days"));
        }
        let tokens = self.tokens()?;
        let now_ms = self.now().wall_ms;
        let is_meant = |row: &&TokenRow| &*row.name == token || row.id.to_string() == token;
        // The newest secret: earlier ones expire by themselves.
        let Some(old) = tokens.iter().rev().find(is_meant) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no token {token:?}")));
        };
        if old.expires_ms.is_some_and(|at| at <= now_ms) {
            let message = format!("the token {:?} has expired", old.name);
            return Err(Error::new(ErrorKind::Refused, message).next("remove it, and create a new one"));
        }
        let mut grant = Grant::of(old);
        grant.identity.get_or_insert_with(|| old.hash.to_string());
        let (row, secret) = self.drawn(&old.name, &grant, old.expires_ms);
        let until_ms = now_ms + millis(overlap);
        if self.store.service().rotate_token(old.id, row.clone(), until_ms).await? {
            Ok((row, secret))
        } else {
            let message = format!("the token {:?} was removed or rotated at the same moment", old.name);
            Err(Error::new(ErrorKind::Refused, message).next("list them: sprag token ls"))
        }
    }

    /// Draws a secret, and returns the row that keeps its hash.
    fn drawn(&self, name: &str, grant: &Grant, expires_ms: Option<i64>) -> (TokenRow, String) {
        let secret = draw_token();
        let row = TokenRow {
            id: self.new_id(),
            name: name.into(),
            hash: token_hash(&secret).into(),
            scopes: grant.text().into(),
            created_ms: self.now().wall_ms,
            expires_ms,
        };
        (row, secret)
    }

    /// Returns all tokens of the store.
    pub fn tokens(&self) -> Result<Vec<TokenRow>, Error> {
        Ok(self.store.queries().tokens()?)
    }

    /// Returns the token whose secret has this hash, if there is one.
    pub fn token_by_hash(&self, hash: &str) -> Result<Option<TokenRow>, Error> {
        Ok(self.store.queries().token_by_hash(hash)?)
    }

    /// Removes a token: requests that show it are refused from then on.
    pub async fn remove_token(&self, id: Id) -> Result<(), Error> {
        if self.store.service().remove_token(id).await? {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::NotFound, format!("there is no token {id}")))
        }
    }
}
