//! The built files belong to the sources, and are as small as they should be.

use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files below a folder that git knows or would know, in order.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a folder");
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().unwrap_or_default();
        if !entry.is_dir() {
            found.push(entry);
        } else if name != "node_modules" {
            files(&entry, found);
        }
    }
}

/// Returns the hash of all sources, their lock file and the description of the API.
fn hash_of_sources() -> String {
    let mut found = Vec::new();
    files(&folder().join("web"), &mut found);
    found.sort();
    let mut hash = Sha256::new();
    for path in found {
        let name = path.strip_prefix(folder()).expect("below").to_string_lossy().into_owned();
        let content = std::fs::read(&path).expect("a file");
        hash.update(format!("{name}\0{}\0", content.len()));
        hash.update(&content);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn e24_the_built_files_are_those_of_the_sources() {
    let stamp = folder().join("dist/built-from.txt");
    let hash = format!("{}\n", hash_of_sources());
    if std::env::var_os("SPRAG_GEN").is_some() {
        std::fs::write(&stamp, &hash).expect("written");
    }
    let built_from = std::fs::read_to_string(&stamp).expect("it is committed");
    assert!(
        built_from == hash,
        "crates/dashboard/dist is not built from crates/dashboard/web: run `cargo xtask ui`"
    );
}

#[test]
fn e24_the_page_is_small_and_has_no_inline_script() {
    let page = std::str::from_utf8(sprag_dashboard::file("index.html").expect("a page").bytes).expect("text");
    for part in page.split("<script").skip(1) {
        assert!(part.split('>').next().is_some_and(|tag| tag.contains("src=\"/assets/")), "{part}");
    }
    assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("http"), "{page}");
    let assets = std::fs::read_dir(folder().join("dist/assets")).expect("a folder");
    let (mut scripts, mut styles) = (0, 0);
    for name in assets.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")) {
        let file = sprag_dashboard::file(&format!("assets/{name}")).expect("an embedded file");
        let size = file.gzipped.unwrap_or(file.bytes).len();
        match name.rsplit('.').next() {
            Some("js") => scripts += size,
            Some("css") => styles += size,
            other => panic!("{other:?}"),
        }
        // What is compressed is the file.
        let mut text = Vec::new();
        if let Some(gzipped) = file.gzipped {
            flate2::read::GzDecoder::new(gzipped).read_to_end(&mut text).expect("gzip");
            assert_eq!(text, file.bytes);
        }
    }
    println!("scripts {scripts} bytes, styles {styles} bytes, compressed");
    assert!(scripts <= 250_000, "{scripts} bytes of compressed scripts");
    assert!(styles <= 25_000, "{styles} bytes of compressed styles");
}

#[test]
fn e24_the_lock_file_names_no_registry() {
    let lock = std::fs::read_to_string(folder().join("web/package-lock.json")).expect("a lock file");
    assert!(!lock.contains("\"resolved\"") && lock.contains("\"integrity\""));
}
