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

/// The scripts of each page, as `dist/preloads.txt` lists them: the form of its path, and the value of a `Link` header.
static PRELOADS: LazyLock<Vec<(Vec<String>, String)>> = LazyLock::new(|| {
    let listed = Dist::get("preloads.txt").map(|file| file.data.into_owned()).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let form = words.next()?.split('/').map(str::to_owned).collect();
        let links: Vec<String> = words.map(|name| format!("</{name}>; rel=modulepreload")).collect();
        Some((form, links.join(", ")))
    };
    String::from_utf8_lossy(&listed).lines().filter_map(line).collect()
});

/// Returns the `Link` header with which the page at `path` loads its scripts while the first one is still being read; none
/// for a path that is no page.
pub fn preloads(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |form: &[String]| {
        form.len() == parts.len() && form.iter().zip(&parts).all(|(form, part)| form == "*" || form == part)
    };
    PRELOADS.iter().find(|(form, _)| fits(form)).map(|(_, links)| links.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_scripts_that_it_needs() {
        for (path, script) in
            [("/", "Now"), ("/runs", "Runs"), ("/runs/abc", "Run"), ("/runs/abc/steps/x", "Log")]
        {
            let links = preloads(path).unwrap_or_default();
            assert!(links.contains(&format!("</assets/{script}-")), "{path}: {links}");
            let named = links.split(['<', '>']).filter(|part| part.starts_with("/assets/"));
            for name in named {
                assert!(file(&name[1..]).is_some(), "{path} names {name}");
            }
        }
        assert_eq!((preloads("/nowhere"), preloads("/runs/a/b")), (None, None));
    }
}
