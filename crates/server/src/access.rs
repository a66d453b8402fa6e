//! Access control: tokens, their scopes, and how a request shows one.
//!
//! A token is 256 random bits, shown once; the store keeps its SHA-256. The token of the server's data directory has
//! no row in the store. Callers without a token are let in only if the server was started with `--auth none`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use sprag_app::tokens::{Grant, LOCAL_TOKEN, Scope, token_hash};
use sprag_app::{Author, Id, Reach, STEP_TOKEN_PREFIX, TokenRow};

use crate::problem::Problem;
use crate::session::{Sessions, cookie_in};
use crate::state::ServerState;

/// The time for which a token is trusted without asking the store. A removed token may still be used for this long.
const BELIEVED_MS: i64 = 1_000;
/// The number of tokens that are remembered between requests.
const REMEMBERED: usize = 1_024;

/// The sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The token's number; none if the caller showed no token.
    pub token: Option<Id>,
    /// The token's name; empty without one. Callers with different names share no hosts and no agents.
    pub name: Arc<str>,
    /// The token's SHA-256; empty without one.
    pub(crate) hash: Arc<str>,
    /// The hash of the token's first secret, from which the numbers of its workers are derived. It stays the same when
    /// the token is rotated.
    pub(crate) identity: Arc<str>,
    /// The scopes of the token: what the caller may do.
    pub scopes: Vec<Scope>,
    /// The objects on which the caller may use its scopes.
    pub(crate) reach: Reach,
    /// Whether the caller showed a session's cookie, which browsers send by themselves, instead of the token.
    pub(crate) by_cookie: bool,
    /// The token of a step, if the caller is the agent of one. It has no scope, and reaches the tools of its step alone.
    pub(crate) step: Option<Arc<str>>,
}

impl Caller {
    /// Returns a caller without a token, where the server asks for none.
    fn anyone() -> Caller {
        Caller {
            token: None,
            name: "".into(),
            hash: "".into(),
            identity: "".into(),
            scopes: Scope::ALL.to_vec(),
            reach: Reach::default(),
            by_cookie: false,
            step: None,
        }
    }

    /// Whether the caller is a program of the server's own user: it shows the token of the data directory, or the
    /// server asks for none.
    pub(crate) fn is_own(&self) -> bool {
        self.token.is_none() || *self.name == *LOCAL_TOKEN
    }

    /// Returns the name that agents of this caller are bound to; empty for programs of the server's own user, which
    /// share the store with it anyway.
    pub(crate) fn agent_scope(&self) -> Arc<str> {
        if self.is_own() { "".into() } else { Arc::clone(&self.name) }
    }

    /// Returns the caller as the author of what its request writes.
    pub(crate) fn author(&self) -> Author {
        match (&self.step, self.token) {
            (Some(_), _) => Author::agent(self.name.trim_end()),
            (None, Some(_)) => Author::token(&self.name),
            (None, None) => Author::anyone(),
        }
    }

    /// Whether the caller has a scope that covers `wanted`.
    pub fn may(&self, wanted: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.covers(wanted))
    }
}

/// Tokens by their hashes, each with the moment at which it was last looked up.
type KnownTokens = BTreeMap<String, (i64, Arc<TokenRow>)>;

/// The check of callers' tokens.
pub(crate) struct Access {
    /// Whether a request without a token is refused.
    required: bool,
    /// The token of the server's data directory, if it has one.
    local: Option<Caller>,
    known: Mutex<KnownTokens>,
    sessions: Sessions,
}

impl Access {
    pub(crate) fn new(required: bool, local: Option<&str>) -> Self {
        let shown = local.map(|secret| {
            let hash: Arc<str> = token_hash(secret).into();
            Caller {
                token: Some(sprag_worker::wire::worker_id(LOCAL_TOKEN, &hash)),
                name: LOCAL_TOKEN.into(),
                identity: Arc::clone(&hash),
                hash,
                scopes: Scope::ALL.to_vec(),
                reach: Reach::default(),
                by_cookie: false,
                step: None,
            }
        });
        Access { required, local: shown, known: Mutex::default(), sessions: Sessions::new(local) }
    }

    /// Whether a request without a token is refused.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// Returns the signer of browsers' sessions.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the sender of a request; a problem if it may not be let in at all.
    pub(crate) async fn caller(&self, app: &ServerState, headers: &HeaderMap) -> Result<Caller, Problem> {
        if let Some(shown) = bearer(headers)? {
            return self.by_token(app, &shown).await;
        }
        if !self.required {
            return Ok(Caller::anyone());
        }
        let Some(cookie) = cookie_in(headers) else {
            return Err(unauthorized("this server requires a token"));
        };
        let hash = self.sessions.hash_in(&cookie, app.core().now().wall_ms);
        let hash = hash.ok_or_else(|| unauthorized("the session has ended"))?;
        Ok(Caller { by_cookie: true, ..self.by_hash(app, hash).await? })
    }

    /// Returns the caller with a token; a problem if the token is not valid.
    pub(crate) async fn by_token(&self, app: &ServerState, token: &str) -> Result<Caller, Problem> {
        if token.starts_with(STEP_TOKEN_PREFIX) {
            return by_step_token(app, token).await;
        }
        self.by_hash(app, token_hash(token)).await
    }

    /// Returns the server's own user, who passed a code that this server has made for its browser.
    pub(crate) fn by_code(&self, app: &ServerState, code: &str) -> Result<Caller, Problem> {
        let local = self.local.clone().filter(|_| self.sessions.use_code(code, app.core().now().steady_ms));
        local.ok_or_else(|| unauthorized("the code was used before, or is too old"))
    }

    /// Whether the token with this hash is not valid any more. A store that does not answer revokes no token.
    pub(crate) async fn is_revoked(&self, app: &ServerState, hash: &str) -> bool {
        let found = self.by_hash(app, hash.to_owned()).await;
        found.is_err_and(|problem| problem.status == StatusCode::UNAUTHORIZED.as_u16())
    }

    async fn by_hash(&self, app: &ServerState, hash: String) -> Result<Caller, Problem> {
        if let Some(local) = self.local.as_ref().filter(|local| *local.hash == *hash) {
            return Ok(local.clone());
        }
        let token = self.token(app, hash).await?.ok_or_else(|| unauthorized("the token is unknown"))?;
        if token.expires_ms.is_some_and(|at| at <= app.core().now().wall_ms) {
            return Err(unauthorized("the token has expired"));
        }
        let Grant { scopes, limits, identity } = Grant::of(&token);
        let (name, hash) = (Arc::clone(&token.name), Arc::clone(&token.hash));
        Ok(Caller {
            token: Some(token.id),
            reach: Reach::of_token(&name, &scopes, &limits),
            name,
            identity: identity.map_or_else(|| Arc::clone(&hash), Into::into),
            hash,
            scopes,
            by_cookie: false,
            step: None,
        })
    }

    async fn token(&self, app: &ServerState, hash: String) -> Result<Option<Arc<TokenRow>>, Problem> {
        let now_ms = app.core().now().steady_ms;
        if let Some((at_ms, token)) = self.known().get(&hash)
            && now_ms - at_ms < BELIEVED_MS
        {
            return Ok(Some(Arc::clone(token)));
        }
        let wanted = hash.clone();
        let found = app.blocking(move |app| Ok(app.core().token_by_hash(&wanted)?)).await?.map(Arc::new);
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        // Only tokens that exist are remembered: guesses must not fill the memory.
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

/// Returns the agent of a step, by the step's own token. Each of its tools checks whether the step is still running.
async fn by_step_token(app: &ServerState, token: &str) -> Result<Caller, Problem> {
    let shown = token.to_owned();
    let run = app.blocking(move |app| Ok(app.core().run_of_step_token(&shown)?)).await?;
    let run = run.ok_or_else(|| unauthorized("the token is unknown"))?;
    let hash: Arc<str> = token_hash(token).into();
    Ok(Caller {
        token: Some(sprag_worker::wire::worker_id(STEP_TOKEN_PREFIX, &hash)),
        // No access token has this name, because it ends in a space.
        name: "agent of a step ".into(),
        identity: Arc::clone(&hash),
        hash,
        scopes: Vec::new(),
        reach: Reach::of_step(run),
        by_cookie: false,
        step: Some(token.into()),
    })
}

fn bearer(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
            Ok(Some(token.trim().to_owned()))
        }
        _ => Err(unauthorized("the authorization header has no bearer token")),
    }
}

pub(crate) fn unauthorized(message: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
        .next(
            "send `authorization: Bearer TOKEN`; the server's own user has one in the file `token` of the data directory, \
             others get one with `sprag token new NAME`",
        )
}

/// Returns the scopes of which a request needs at least one, whatever its endpoint asks for beyond that.
pub(crate) fn least(method: &Method, path: &str) -> &'static [Scope] {
    match *method {
        Method::GET | Method::HEAD => &[Scope::Read],
        // Its tools read too.
        _ if path == crate::agents::PATH => &[Scope::Read],
        _ => &[Scope::Run, Scope::Work],
    }
}

/// Returns the problem for a caller that lacks a scope.
pub(crate) fn forbidden(wanted: Scope) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", format!("the token does not have the scope `{wanted}`"))
        .next(format!("use a token with it: sprag token new NAME --scope {wanted}"))
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident = $scope:ident),+ $(,)?) => {$(
        $(#[$doc])*
        pub struct $name(pub Caller);

        impl FromRequestParts<ServerState> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &ServerState) -> Result<Self, Problem> {
                match parts.extensions.get::<Caller>() {
                    Some(caller) if caller.may(Scope::$scope) => Ok($name(caller.clone())),
                    _ => Err(forbidden(Scope::$scope)),
                }
            }
        }
    )+};
}

guards! {
    /// A caller that may read.
    MayRead = Read,
    /// A caller that may start and change runs.
    MayRun = Run,
    /// A caller that may claim work and report it.
    MayWork = Work,
    /// A caller that may do everything.
    MayAdmin = Admin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_cover_what_they_say() {
        let caller = |scopes: &[Scope]| Caller { scopes: scopes.to_vec(), ..Caller::anyone() };
        let may = |scopes: &[Scope], wanted| caller(scopes).may(wanted);
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
