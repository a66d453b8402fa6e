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
