//! The dashboard's built files, embedded in the program, so that a build needs no Node.
//!
//! ```text
//!   web/ (Svelte, TypeScript) ── cargo xtask ui ──▶ dist/ (committed) ── rust-embed ──▶ the program
//! ```
//!
//! A test compares the hash of the sources in `dist/built-from.txt` with the sources themselves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::RustEmbed;
use sha2::{Digest, Sha256};

#[derive(RustEmbed)]
#[folder = "dist/"]
#[exclude = "built-from.txt"]
struct Dist;

/// The fewest bytes of a file that is worth compressing.
const WORTH_COMPRESSING: usize = 1_000;

/// A file of the dashboard.
#[derive(Debug)]
pub struct File {
    /// The media type.
    pub kind: &'static str,
    /// The content.
    pub bytes: &'static [u8],
    /// The content, compressed once when the first file is asked for; absent if it is too small for that.
    pub gzipped: Option<&'static [u8]>,
    /// The first half of the SHA-256 of the content, in hexadecimal digits.
    pub hash: String,
}

static FILES: LazyLock<BTreeMap<String, File>> = LazyLock::new(|| {
    let load = |name: Cow<'static, str>| {
        let bytes: &'static [u8] = Vec::leak(Dist::get(&name)?.data.into_owned());
        let gzipped = (bytes.len() >= WORTH_COMPRESSING).then(|| compressed(bytes)).flatten();
        let hash = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some((name.to_string(), File { kind: kind(&name), bytes, gzipped, hash }))
    };
    Dist::iter().filter_map(load).collect()
});

/// Returns the file with this name, such as `index.html`.
pub fn file(name: &str) -> Option<&'static File> {
    FILES.get(name)
}

/// Returns a word that differs between builds of the dashboard.
pub fn build() -> &'static str {
    file("index.html").map_or("none", |page| &page.hash)
}

fn compressed(bytes: &[u8]) -> Option<&'static [u8]> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).ok()?;
    Some(Vec::leak(gzip.finish().ok()?))
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" | "map" => "application/json",
        _ => "application/octet-stream",
    }
}
