//! Who may do what: tokens, their scopes, and how a request shows one.
//!
//! A token is 256 random bits, shown once; the store keeps its SHA-256. Without tokens only callers of this
//! machine are let in, and only where the server was told so.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sprag_store::{Id, Store, TokenRow};
use utoipa::ToSchema;

use crate::app::App;
use crate::problem::Problem;

/// How tokens begin, so that they are known for what they are wherever they turn up.
const PREFIX: &str = "sprag_";
/// How long a token is believed without asking the store: so long a removed one may still be used.
const BELIEVED_MS: i64 = 1_000;
/// How many tokens are remembered between requests.
const REMEMBERED: usize = 1_024;

/// What a token lets its bearer do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at everything.
    Read,
    /// Start, end and change runs, answer their questions.
    Run,
    /// Claim work and report it.
    Work,
    /// Everything, tokens and hooks included.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 4] = [Scope::Read, Scope::Run, Scope::Work, Scope::Admin];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Run => "run",
            Scope::Work => "work",
            Scope::Admin => "admin",
        }
    }

    /// The scope of this word.
    pub fn parse(word: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == word)
    }

    /// Whether having this one is enough for `wanted`.
    fn covers(self, wanted: Scope) -> bool {
        self == wanted || self == Scope::Admin || wanted == Scope::Read
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whoever sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The token, if one was shown.
    pub token: Option<Id>,
    /// What it may do.
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// Whether it may do this.
    pub fn may(&self, wanted: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.covers(wanted))
    }
}

/// A new token: what its bearer shows, and what the store keeps.
pub fn new_token(store: &Store, name: &str, scopes: &[Scope], expires_ms: Option<i64>) -> (String, TokenRow) {
    let mut bits = [0u8; 32];
    fill_random(&mut bits);
    let secret = format!("{PREFIX}{}", hex(&bits));
    let words: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    let row = TokenRow {
        id: store.new_id(),
        name: name.into(),
        hash: hash(&secret).into(),
        scopes: words.join(",").into(),
        created_ms: store.now().wall_ms,
        expires_ms,
    };
    (secret, row)
}

/// Fills with what nobody can guess.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // Interrupted by a signal at most; the kernel's source is there from early on.
        if let Ok(count) =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
        {
            filled += count;
        }
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// Tokens by their hashes, each with the moment at which it was last looked up.
type KnownTokens = BTreeMap<String, (i64, Arc<TokenRow>)>;

/// Lets callers in.
pub(crate) struct Access {
    /// A request without a token is refused.
    required: bool,
    known: Mutex<KnownTokens>,
}

impl Access {
    pub(crate) fn new(required: bool) -> Self {
        Access { required, known: Mutex::default() }
    }

    /// Who sent this; a problem if they are not to be let in at all.
    pub(crate) async fn caller(&self, app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
        let Some(shown) = bearer(headers)? else {
            return match self.required {
                true => Err(unauthorized("this server wants a token")),
                false => Ok(Caller { token: None, scopes: Scope::ALL.to_vec() }),
            };
        };
        let token =
            self.token(app, hash(&shown)).await?.ok_or_else(|| unauthorized("the token is not known"))?;
        if token.expires_ms.is_some_and(|at| at <= app.store().now().wall_ms) {
            return Err(unauthorized("the token has expired"));
        }
        let scopes = token.scopes.split(',').filter_map(Scope::parse).collect();
        Ok(Caller { token: Some(token.id), scopes })
    }

    async fn token(&self, app: &App, hash: String) -> Result<Option<Arc<TokenRow>>, Problem> {
        let now_ms = app.store().now().steady_ms;
        if let Some((at_ms, token)) = self.known().get(&hash)
            && now_ms - at_ms < BELIEVED_MS
        {
            return Ok(Some(Arc::clone(token)));
        }
        let wanted = hash.clone();
        let found = app.read(move |db| db.token_by_hash(&wanted)).await?.map(Arc::new);
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        // Only what is there is remembered: guesses must not fill the memory.
        match &found {
            Some(token) => known.insert(hash, (now_ms, Arc::clone(token))),
            None => known.remove(&hash),
        };
        Ok(found)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, KnownTokens> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
            Ok(Some(token.trim().to_owned()))
        }
        _ => Err(unauthorized("the authorization header holds no bearer token")),
    }
}

fn unauthorized(message: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
        .next("send `authorization: Bearer TOKEN`; make one with `sprag token new NAME`")
}

/// One of these a request needs at least, whatever its endpoint asks for beyond that.
pub(crate) fn least(method: &Method) -> &'static [Scope] {
    match *method {
        Method::GET | Method::HEAD => &[Scope::Read],
        _ => &[Scope::Run, Scope::Work],
    }
}

/// That a caller lacks a scope.
pub(crate) fn forbidden(wanted: Scope) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", format!("the token does not have the scope `{wanted}`"))
        .next(format!("use a token with it: sprag token new NAME --scope {wanted}"))
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident = $scope:ident),+ $(,)?) => {$(
        $(#[$doc])*
        pub struct $name(pub Caller);

        impl FromRequestParts<App> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
                match parts.extensions.get::<Caller>() {
                    Some(caller) if caller.may(Scope::$scope) => Ok($name(caller.clone())),
                    _ => Err(forbidden(Scope::$scope)),
                }
            }
        }
    )+};
}

guards! {
    /// Whoever may look.
    MayRead = Read,
    /// Whoever may start and change runs.
    MayRun = Run,
    /// Whoever may claim work and report it.
    MayWork = Work,
    /// Whoever may do everything.
    MayAdmin = Admin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_cover_what_they_say() {
        let may = |scopes: &[Scope], wanted| Caller { token: None, scopes: scopes.to_vec() }.may(wanted);
        for wanted in Scope::ALL {
            assert!(may(&[Scope::Admin], wanted));
            assert_eq!(may(&[Scope::Read], wanted), wanted == Scope::Read);
            assert_eq!(may(&[Scope::Run], wanted), matches!(wanted, Scope::Run | Scope::Read));
            assert_eq!(may(&[Scope::Work], wanted), matches!(wanted, Scope::Work | Scope::Read));
            assert!(!may(&[], wanted));
            assert_eq!(Scope::parse(wanted.as_str()), Some(wanted));
        }
    }

    #[test]
    fn only_a_bearer_token_is_taken() {
        let shown = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().expect("a header"));
            bearer(&headers)
        };
        assert_eq!(shown("Bearer abc"), Ok(Some("abc".into())));
        assert_eq!(shown("bearer  abc "), Ok(Some("abc".into())));
        for wrong in ["Basic abc", "Bearer ", "abc", ""] {
            assert!(shown(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), Ok(None));
    }
}
