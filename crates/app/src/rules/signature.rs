//! The signatures of requests from outside: checked over the raw bytes, in constant time, with each secret of the rule.
//!
//! | kind | headers | signed |
//! |---|---|---|
//! | `github` | `x-hub-signature-256: sha256=HEX` | the body |
//! | `gitlab` | `x-gitlab-token: SECRET` | nothing: the secret itself |
//! | `stripe` | `stripe-signature: t=TIME,v1=HEX` | the time, a dot, the body |
//! | `slack` | `x-slack-request-timestamp`, `x-slack-signature: v0=HEX` | `v0:`, the time, a colon, the body |
//! | `standard` | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,BASE64` | the id, a dot, the time, a dot, the body |
//! | `generic` | `x-signature-256: sha256=HEX` | the body |

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use sprag_pipeline::WebhookKind;

use crate::secret::{base64, from_base64, hex};

/// The largest difference between a signed time and the present, in seconds.
const TOLERANCE_S: u64 = 300;
/// The reason for refusing a signature that no secret of the rule makes.
const WRONG: &str = "its signature is not that of any secret";

/// A request as it came.
pub(super) struct Unverified<'r> {
    /// Returns a header by its name in lower case.
    pub(super) header: &'r dyn Fn(&str) -> Option<String>,
    /// The bytes of the body.
    pub(super) body: &'r [u8],
    /// The present time, in seconds since 1970.
    pub(super) now_s: i64,
}

/// Checks the signature of a request. Returns the sender's id of it, if the signature covers one. The error is the
/// reason for a refusal.
pub(super) fn verify(
    kind: WebhookKind,
    secrets: &[String],
    request: &Unverified<'_>,
) -> Result<Option<String>, &'static str> {
    let (header, body) = (request.header, request.body);
    let keys = || secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect::<Vec<_>>();
    match kind {
        WebhookKind::Github => {
            let sent = header("x-hub-signature-256").ok_or("it has no x-hub-signature-256")?;
            let sent = sent.strip_prefix("sha256=").ok_or("its signature does not start with sha256=")?;
            check(&keys(), &[from_hex(sent)], &[body]).map(|()| None)
        }
        WebhookKind::Generic => {
            let sent = header("x-signature-256").ok_or("it has no x-signature-256")?;
            let sent = sent.strip_prefix("sha256=").unwrap_or(&sent);
            check(&keys(), &[from_hex(sent)], &[body]).map(|()| None)
        }
        WebhookKind::Gitlab => {
            let sent = header("x-gitlab-token").ok_or("it has no x-gitlab-token")?;
            // The HMACs of equal tokens are equal, and comparing them takes the same time for every token.
            let sent = mac(b"token", &[sent.as_bytes()]).finalize().into_bytes();
            let fits = secrets
                .iter()
                .filter(|secret| mac(b"token", &[secret.as_bytes()]).verify_slice(&sent).is_ok());
            if fits.count() > 0 { Ok(None) } else { Err("its token is not any secret of the rule") }
        }
        WebhookKind::Stripe => {
            let sent = header("stripe-signature").ok_or("it has no stripe-signature")?;
            let parts: Vec<_> = sent.split(',').filter_map(|part| part.trim().split_once('=')).collect();
            let time = parts.iter().find(|(name, _)| *name == "t").map(|(_, time)| *time);
            let time = fresh(time.ok_or("its signature has no time")?, request.now_s)?;
            let sent: Vec<_> =
                parts.iter().filter(|(name, _)| *name == "v1").map(|(_, sent)| from_hex(sent)).collect();
            check(&keys(), &sent, &[time.as_bytes(), b".", body]).map(|()| None)
        }
        WebhookKind::Slack => {
            let time = header("x-slack-request-timestamp").ok_or("it has no x-slack-request-timestamp")?;
            let time = fresh(&time, request.now_s)?;
            let sent = header("x-slack-signature").ok_or("it has no x-slack-signature")?;
            let sent = sent.strip_prefix("v0=").ok_or("its signature does not start with v0=")?;
            check(&keys(), &[from_hex(sent)], &[b"v0:", time.as_bytes(), b":", body]).map(|()| None)
        }
        WebhookKind::Standard => {
            let id = header("webhook-id").ok_or("it has no webhook-id")?;
            let time = header("webhook-timestamp").ok_or("it has no webhook-timestamp")?;
            let time = fresh(&time, request.now_s)?;
            let sent = header("webhook-signature").ok_or("it has no webhook-signature")?;
            let keys: Vec<_> = secrets.iter().map(|secret| standard_key(secret)).collect();
            let sent: Vec<_> = sent
                .split(' ')
                .filter_map(|one| one.strip_prefix("v1,"))
                .map(|one| from_base64(one).unwrap_or_default())
                .collect();
            check(&keys, &sent, &[id.as_bytes(), b".", time.as_bytes(), b".", body]).map(|()| Some(id))
        }
    }
}

/// Returns the headers with which a sender of this kind signs a body.
pub(super) fn sign(
    kind: WebhookKind,
    secret: &str,
    id: &str,
    now_s: i64,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let time = now_s.to_string();
    let signed = |parts: &[&[u8]]| hex(&mac(secret.as_bytes(), parts).finalize().into_bytes());
    match kind {
        WebhookKind::Github => vec![
            ("x-github-delivery", id.to_owned()),
            ("x-hub-signature-256", format!("sha256={}", signed(&[body]))),
        ],
        WebhookKind::Generic => vec![("x-signature-256", format!("sha256={}", signed(&[body])))],
        WebhookKind::Gitlab => {
            vec![("x-gitlab-event-uuid", id.to_owned()), ("x-gitlab-token", secret.to_owned())]
        }
        WebhookKind::Stripe => {
            let sent = signed(&[time.as_bytes(), b".", body]);
            vec![("stripe-signature", format!("t={time},v1={sent}"))]
        }
        WebhookKind::Slack => {
            let sent = signed(&[b"v0:", time.as_bytes(), b":", body]);
            vec![("x-slack-request-timestamp", time), ("x-slack-signature", format!("v0={sent}"))]
        }
        WebhookKind::Standard => {
            let parts: [&[u8]; 5] = [id.as_bytes(), b".", time.as_bytes(), b".", body];
            let sent = base64(&mac(&standard_key(secret), &parts).finalize().into_bytes());
            vec![
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", time),
                ("webhook-signature", format!("v1,{sent}")),
            ]
        }
    }
}

/// Returns the key of a secret of standard-webhooks: the bytes after `whsec_`, which are written in base64.
fn standard_key(secret: &str) -> Vec<u8> {
    let encoded = secret.strip_prefix("whsec_").and_then(from_base64);
    encoded.unwrap_or_else(|| secret.as_bytes().to_vec())
}

/// Returns a signed time, if it is near the present.
fn fresh(time: &str, now_s: i64) -> Result<String, &'static str> {
    let sent: i64 = time.parse().map_err(|_| "its time is not a number of seconds")?;
    if sent.abs_diff(now_s) > TOLERANCE_S {
        return Err("its time is more than five minutes off");
    }
    Ok(time.to_owned())
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// Checks whether any key makes any of the signatures. All are compared, so the time does not tell which one fits.
fn check(keys: &[Vec<u8>], sent: &[Vec<u8>], parts: &[&[u8]]) -> Result<(), &'static str> {
    let pairs = keys.iter().flat_map(|key| sent.iter().map(move |sent| (key, sent)));
    let fits = pairs.filter(|(key, sent)| mac(key, parts).verify_slice(sent).is_ok()).count();
    if fits > 0 { Ok(()) } else { Err(WRONG) }
}

/// Returns the bytes of hexadecimal digits; none if there is any other character.
fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.trim().as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<_>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers = Vec<(&'static str, String)>;

    fn verified(
        kind: WebhookKind,
        secrets: &[&str],
        headers: &Headers,
        body: &[u8],
        now_s: i64,
    ) -> Result<Option<String>, &'static str> {
        let header =
            |name: &str| headers.iter().find(|(one, _)| *one == name).map(|(_, value)| value.clone());
        let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        verify(kind, &secrets, &Unverified { header: &header, body, now_s })
    }

    /// A request that the sender's documentation shows, or that another program signed.
    struct Example {
        kind: WebhookKind,
        secret: &'static str,
        headers: Headers,
        body: &'static [u8],
        now_s: i64,
        id: Option<&'static str>,
    }

    fn examples() -> Vec<Example> {
        let text = |pairs: &[(&'static str, &str)]| {
            pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect::<Headers>()
        };
        vec![
            // The page "Validating webhook deliveries" of GitHub.
            Example {
                kind: WebhookKind::Github,
                secret: "It's a Secret to Everybody",
                headers: text(&[(
                    "x-hub-signature-256",
                    "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
                )]),
                body: b"Hello, World!",
                now_s: 0,
                id: None,
            },
            // GitLab sends the secret itself.
            Example {
                kind: WebhookKind::Gitlab,
                secret: "a token",
                headers: text(&[("x-gitlab-token", "a token")]),
                body: b"{}",
                now_s: 0,
                id: None,
            },
            // printf '1492774577.BODY' | openssl dgst -sha256 -hmac whsec_test_secret
            Example {
                kind: WebhookKind::Stripe,
                secret: "whsec_test_secret",
                headers: text(&[(
                    "stripe-signature",
                    "t=1492774577,v1=00,v1=c137b1b62277d523cf8fed4dfbd0170a9a5b8a380e00cc3711d4bf0652f2ce7a,v0=6f",
                )]),
                body: br#"{"id": "evt_test_webhook", "object": "event"}"#,
                now_s: 1_492_774_600,
                id: None,
            },
            // The page "Verifying requests from Slack".
            Example {
                kind: WebhookKind::Slack,
                secret: "8f742231b10e8888abcd99yyyzzz85a5",
                headers: text(&[
                    ("x-slack-request-timestamp", "1531420618"),
                    (
                        "x-slack-signature",
                        "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
                    ),
                ]),
                body: b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
                now_s: 1_531_420_618,
                id: None,
            },
            // The example of the reference implementations of standard-webhooks.
            Example {
                kind: WebhookKind::Standard,
                secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                headers: text(&[
                    ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                    ("webhook-timestamp", "1614265330"),
                    ("webhook-signature", "v1,bad v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
                ]),
                body: br#"{"test": 2432232314}"#,
                now_s: 1_614_265_400,
                id: Some("msg_p5jXN8AQM9LWM0D4loKWxJek"),
            },
            // The well-known example of HMAC-SHA256.
            Example {
                kind: WebhookKind::Generic,
                secret: "key",
                headers: text(&[(
                    "x-signature-256",
                    "sha256=f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8",
                )]),
                body: b"The quick brown fox jumps over the lazy dog",
                now_s: 0,
                id: None,
            },
        ]
    }

    #[test]
    fn r16_r17_documented_signatures_are_accepted_and_all_others_refused() {
        for Example { kind, secret, headers, body, now_s, id } in examples() {
            let id = id.map(str::to_owned);
            assert_eq!(verified(kind, &[secret], &headers, body, now_s), Ok(id.clone()), "{kind:?}");
            // R17: either of two secrets will do, and a removed one no longer does.
            assert_eq!(verified(kind, &["newer", secret], &headers, body, now_s), Ok(id), "{kind:?}");
            assert!(verified(kind, &["newer"], &headers, body, now_s).is_err(), "{kind:?}");
            assert!(verified(kind, &[], &headers, body, now_s).is_err(), "{kind:?} without a secret");
            for missing in 0..headers.len() {
                let mut fewer = headers.clone();
                let (name, _) = fewer.remove(missing);
                assert!(verified(kind, &[secret], &fewer, body, now_s).is_err(), "{kind:?} without {name}");
            }
            if kind == WebhookKind::Gitlab {
                continue;
            }
            // The bytes count: JSON that was written again is another body.
            let other = [body, b" "].concat();
            assert_eq!(verified(kind, &[secret], &headers, &other, now_s), Err(WRONG), "{kind:?}");
            let cut: Headers =
                headers.iter().map(|(name, value)| (*name, value.replace(['7', '1'], ""))).collect();
            assert!(verified(kind, &[secret], &cut, body, now_s).is_err(), "{kind:?}");
            let has_time = matches!(kind, WebhookKind::Stripe | WebhookKind::Slack | WebhookKind::Standard);
            for late in [-1_000, 1_000] {
                let told = verified(kind, &[secret], &headers, body, now_s + late);
                assert_eq!(told.is_err_and(|why| why.contains("five minutes")), has_time, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_request_that_sprag_signs_is_accepted() {
        for Example { kind, secret, body, .. } in examples() {
            let headers = sign(kind, secret, "an id", 1_700_000_000, body);
            let told = verified(kind, &[secret], &headers, body, 1_700_000_001);
            assert!(told.is_ok(), "{kind:?}: {told:?}");
        }
    }
}
