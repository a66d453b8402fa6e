//! Random secrets.

/// Fills a buffer with random bytes of the kernel.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // A signal may interrupt it; it does not fail otherwise once the machine has started.
        if let Ok(count) =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
        {
            filled += count;
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns 256 random bits as hexadecimal digits.
pub(crate) fn random_hex() -> String {
    let mut bits = [0u8; 32];
    fill_random(&mut bits);
    hex(&bits)
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes bytes in base64, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let at = |nth: usize| u32::from(part.get(nth).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for nth in 0..4 {
            let is_padding = nth > part.len();
            let letter = BASE64[(bits >> (18 - 6 * nth) & 63) as usize];
            text.push(if is_padding { '=' } else { char::from(letter) });
        }
    }
    text
}

/// Reads bytes in base64, with or without padding; none if the text is not base64.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = BASE64.iter().position(|one| *one == letter)? as u32;
        (bits, count) = (bits << 6 | value, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 255) as u8);
        }
    }
    Some(bytes)
}
