//! Sessions of browsers: a cookie that stands for a token, so that no page ever holds the token itself.
//!
//! ```text
//!   token, or one-time code ── POST /v1/session ──▶ cookie: HASH.EXPIRY.SIGNATURE (HttpOnly, SameSite=Strict)
//! ```
//!
//! The cookie contains the hash by which the store knows the token, so a removed token ends its sessions. The signature's
//! key is derived from the token of the data directory: sessions outlive a restart, and the server keeps no table of
//! them. Browsers send cookies to every port of a host. The cookie's name therefore contains the port, and a request with
//! a cookie has to come from a page of this very server.

use std::sync::Mutex;

use axum::http::{HeaderMap, header};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use sprag_app::{fill_random, hex};

/// The time after which a browser has to sign in again.
pub(crate) const LASTS_S: i64 = 30 * 24 * 3600;
/// The time for which a one-time code is valid.
const CODE_LASTS_MS: i64 = 120_000;

/// The signer of sessions, and the one-time codes that start them.
pub(crate) struct Sessions {
    key: [u8; 32],
    /// The codes that have not been used yet, each with the end of its time.
    codes: Mutex<Vec<(String, i64)>>,
}

impl Sessions {
    /// Makes the signer of a server with this local token. Without one, sessions end with the process.
    pub(crate) fn new(local_token: Option<&str>) -> Self {
        let mut key = [0u8; 32];
        match local_token {
            Some(token) => key.copy_from_slice(&mac(token.as_bytes(), b"sprag browser session")),
            None => fill_random(&mut key),
        }
        Sessions { key, codes: Mutex::default() }
    }

    /// Returns the cookie's value for a token with this hash.
    pub(crate) fn issue(&self, hash: &str, now_ms: i64) -> String {
        let until = now_ms / 1000 + LASTS_S;
        format!("{hash}.{until}.{}", self.signature(hash, until))
    }

    /// Returns the hash of the token that a cookie stands for; none if the cookie is forged or too old.
    pub(crate) fn hash_in(&self, value: &str, now_ms: i64) -> Option<String> {
        let mut parts = value.split('.');
        let (hash, until, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let until: i64 = until.parse().ok()?;
        let is_genuine = parts.next().is_none() && same(signature, &self.signature(hash, until));
        (is_genuine && until > now_ms / 1000).then(|| hash.to_owned())
    }

    /// Makes a code that starts one session within two minutes.
    pub(crate) fn new_code(&self, now_ms: i64) -> String {
        let mut bits = [0u8; 32];
        fill_random(&mut bits);
        let code = hex(&bits);
        self.codes().push((code.clone(), now_ms + CODE_LASTS_MS));
        code
    }

    /// Uses up a code. Returns whether it was valid.
    pub(crate) fn use_code(&self, code: &str, now_ms: i64) -> bool {
        let mut codes = self.codes();
        codes.retain(|(_, until)| *until > now_ms);
        let before = codes.len();
        codes.retain(|(known, _)| !same(known, code));
        codes.len() < before
    }

    fn codes(&self) -> std::sync::MutexGuard<'_, Vec<(String, i64)>> {
        self.codes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn signature(&self, hash: &str, until: i64) -> String {
        hex(&mac(&self.key, format!("{hash}.{until}").as_bytes()))
    }
}

/// Returns the name of the cookie for the server that a request names: browsers do not tell ports apart.
pub(crate) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    match port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(port) => format!("sprag-{port}"),
        None => "sprag".to_owned(),
    }
}

/// Returns the session's cookie of a request.
pub(crate) fn cookie_in(headers: &HeaderMap) -> Option<String> {
    let name = cookie_name(headers);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

fn mac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// Compares two texts in a time that does not depend on where they differ.
fn same(a: &str, b: &str) -> bool {
    let differs = a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.len() == b.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e24_a_session_is_genuine_for_its_time_and_for_its_server() {
        let sessions = Sessions::new(Some("a token"));
        let cookie = sessions.issue("abc", 0);
        assert_eq!(sessions.hash_in(&cookie, 0).as_deref(), Some("abc"));
        assert_eq!(Sessions::new(Some("a token")).hash_in(&cookie, 0).as_deref(), Some("abc"));
        assert_eq!(sessions.hash_in(&cookie, LASTS_S * 1000), None);
        assert_eq!(Sessions::new(Some("another")).hash_in(&cookie, 0), None);
        for forged in
            [cookie.replace("abc", "abd"), cookie.replacen('2', "3", 1), format!("{cookie}.x"), "..".into()]
        {
            assert_eq!(sessions.hash_in(&forged, 0), None, "{forged}");
        }
    }

    #[test]
    fn e24_a_code_is_valid_once_and_for_two_minutes() {
        let sessions = Sessions::new(None);
        let code = sessions.new_code(0);
        assert!(!sessions.use_code("", 0) && !sessions.use_code(&code[1..], 0));
        assert!(sessions.use_code(&code, CODE_LASTS_MS - 1));
        assert!(!sessions.use_code(&code, 0));
        let late = sessions.new_code(0);
        assert!(!sessions.use_code(&late, CODE_LASTS_MS));
    }

    #[test]
    fn the_cookie_of_another_port_is_not_taken() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "127.0.0.1:7717".parse().expect("a header"));
        headers.insert(header::COOKIE, "a=b; sprag-7718=no; sprag-7717=yes".parse().expect("a header"));
        assert_eq!(cookie_in(&headers).as_deref(), Some("yes"));
        headers.insert(header::HOST, "sprag.example".parse().expect("a header"));
        assert_eq!((cookie_name(&headers), cookie_in(&headers)), ("sprag".to_owned(), None));
    }
}
