//! Secret inputs of runs: encrypted in the store, with a key in the data directory.
//!
//! A value is sealed with AES-256-GCM. Its nonce is derived from the key, the input's name and the value, so that the
//! same value of the same input is sealed to the same text: a repeated request can be compared with the first one. The
//! text shows whether two values are equal, and their length, and nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use serde_json::Value;
use sprag_process::{open_regular, read_regular, replace_private};

/// The beginning of a sealed value. No plain value of a secret input has it: all of them are sealed.
const PREFIX: &str = "sprag-sealed:1:";
/// The name of the key's file in the data directory.
const KEY_FILE: &str = "secret-inputs.key";
const KEY_BYTES: usize = 32;
/// The text that stands for a sealed value wherever people and programs see it.
const SHOWN: &str = "***";

/// The key of a data directory.
struct Key {
    cipher: LessSafeKey,
    nonces: hmac::Key,
}

/// Returns the path of the key in a data directory.
fn key_path(data: &Path) -> PathBuf {
    data.join(KEY_FILE)
}

impl Key {
    /// Reads the key of a data directory; `create` makes it if there is none.
    fn of(data: &Path, create: bool) -> Result<Key, String> {
        let path = key_path(data);
        let wrong =
            |error: &dyn std::fmt::Display| format!("the key of secret inputs, {}: {error}", path.display());
        let bytes = match read_regular(&path, KEY_BYTES as u64 + 1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
                make(&path).map_err(|error| wrong(&error))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(
                    &"it does not exist here; copy it from the data directory in which the run was started",
                ));
            }
            read => read.map_err(|error| wrong(&error))?,
        };
        let cipher =
            UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong(&"it does not have 32 bytes"))?;
        let context = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), b"nonces of secret inputs");
        Ok(Key {
            cipher: LessSafeKey::new(cipher),
            nonces: hmac::Key::new(hmac::HMAC_SHA256, context.as_ref()),
        })
    }

    fn seal(&self, name: &str, value: &str) -> Option<String> {
        let mut signed = name.as_bytes().to_vec();
        signed.push(0);
        signed.extend(value.as_bytes());
        let tag = hmac::sign(&self.nonces, &signed);
        let nonce: [u8; NONCE_LEN] = tag.as_ref().get(..NONCE_LEN)?.try_into().ok()?;
        let mut sealed = value.as_bytes().to_vec();
        let aad = Aad::from(name.as_bytes());
        self.cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed).ok()?;
        Some(format!("{PREFIX}{}{}", hex(&nonce), hex(&sealed)))
    }

    fn open(&self, name: &str, sealed: &str) -> Option<String> {
        let bytes = from_hex(sealed.strip_prefix(PREFIX)?)?;
        let (nonce, rest) = bytes.split_at_checked(NONCE_LEN)?;
        let mut rest = rest.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = self.cipher.open_in_place(nonce, Aad::from(name.as_bytes()), &mut rest).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }
}

/// Makes the key. If another process makes it at the same time, the first one counts.
fn make(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; KEY_BYTES];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| io::Error::other("the machine has no random numbers"))?;
    let own = path.with_extension(format!("{}.new", std::process::id()));
    replace_private(&own, &bytes)?;
    // Without the key, the runs that are on disk already could not be continued.
    open_regular(&own)?.sync_all()?;
    // Unlike a rename, a link does not replace the key of another process.
    let linked = std::fs::hard_link(&own, path);
    let _ = std::fs::remove_file(&own);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read_regular(path, KEY_BYTES as u64 + 1),
    }
}

/// Seals the values of these inputs with the key of the data directory. Values that are sealed already stay.
pub fn seal_inputs(
    data: &Path,
    secret: &[String],
    inputs: &mut BTreeMap<String, Value>,
) -> Result<(), String> {
    let mut key = None;
    for name in secret {
        let Some(Value::String(value)) = inputs.get_mut(name) else { continue };
        if value.starts_with(PREFIX) {
            continue;
        }
        if key.is_none() {
            key = Some(Key::of(data, true)?);
        }
        let Some(key) = &key else { continue };
        *value = key.seal(name, value).ok_or_else(|| format!("the input {name} cannot be encrypted"))?;
    }
    Ok(())
}

/// Opens the values of these inputs, and returns them. The error names the input and never its value.
pub fn open_inputs(data: &Path, secret: &[String], inputs: &mut Value) -> Result<Vec<String>, String> {
    let mut opened = Vec::new();
    let mut key = None;
    for name in secret {
        let Some(Value::String(value)) = inputs.get_mut(name) else { continue };
        if value.starts_with(PREFIX) {
            if key.is_none() {
                key = Some(Key::of(data, false)?);
            }
            let Some(key) = &key else { continue };
            *value = key.open(name, value).ok_or_else(|| {
                format!(
                    "the secret input {name} was encrypted with another key than {}",
                    key_path(data).display()
                )
            })?;
        }
        opened.push(value.clone());
    }
    Ok(opened)
}

/// Replaces sealed values by `***`, wherever they are in a value.
pub fn hide_sealed(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with(PREFIX) => *text = SHOWN.to_owned(),
        Value::Array(items) => items.iter_mut().for_each(hide_sealed),
        Value::Object(entries) => entries.values_mut().for_each(hide_sealed),
        _ => {}
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16);
    digits.len().is_multiple_of(2).then_some(())?;
    digits.chunks(2).map(|pair| Some((value(pair[0])? << 4 | value(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s19_a_secret_input_is_sealed_opened_and_hidden() {
        let data = std::env::temp_dir().join(format!("sprag-sealed-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let secret = ["token".to_owned()];
        let plain =
            || BTreeMap::from([("token".to_owned(), json!("s3cret")), ("other".to_owned(), json!("s3cret"))]);
        let (mut first, mut second) = (plain(), plain());
        seal_inputs(&data, &secret, &mut first).unwrap();
        seal_inputs(&data, &secret, &mut second).unwrap();
        assert_eq!(first, second, "a repeated request compares as equal");
        assert_eq!(first["other"], "s3cret");
        let sealed = first["token"].clone();
        assert!(!sealed.to_string().contains("s3cret"), "{sealed}");
        seal_inputs(&data, &secret, &mut first).unwrap();
        assert_eq!(first["token"], sealed, "a fork does not seal twice");

        let mut opened = json!(first);
        assert_eq!(open_inputs(&data, &secret, &mut opened).unwrap(), ["s3cret"]);
        assert_eq!(opened["token"], "s3cret");
        let mut swapped = json!({ "pin": sealed });
        let why = open_inputs(&data, &["pin".to_owned()], &mut swapped).unwrap_err();
        assert!(why.contains("pin") && why.contains("another key"), "{why}");
        let mut shown = json!({ "list": [first] });
        hide_sealed(&mut shown);
        assert_eq!(shown["list"][0]["token"], "***");

        std::fs::remove_file(key_path(&data)).unwrap();
        let why = open_inputs(&data, &secret, &mut json!({ "token": sealed })).unwrap_err();
        assert!(why.contains("does not exist here"), "{why}");
        std::fs::remove_dir_all(&data).unwrap();
    }
}
