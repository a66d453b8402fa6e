//! Takes over the loose objects of a sandboxed step without a git process.
//!
//! ```text
//!   own/objects/XX/REST ─▶ inflate ─▶ SHA-1 of the content ─▶ a copy at objects/YY/REST, by the name of the content
//! ```
//!
//! It handles the plain case only: a few loose objects in a repository with SHA-1. In all other cases, also with an object
//! that is damaged, the caller runs git, which also reports the error in its own words. Objects are copied and not linked,
//! because a process outside of the sandbox may have a descriptor of the step's file.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use flate2::bufread::ZlibDecoder;
use sha1::{Digest, Sha1};

use crate::{clock, entry::names, loose, prune::StagedObjects, read, repository::Repository};

/// The most objects and bytes that are taken over here. Git is faster for more, and bounds its time.
const MAX_OBJECTS: usize = 2_000;
const MAX_BYTES: u64 = 32 << 20;
/// The most bytes of all contents: a small object can have a large one.
const MAX_CONTENT_BYTES: u64 = 256 << 20;
/// The longest header of an object: its kind and its size.
const MAX_HEADER: usize = 32;
/// The most tries to write an object while prunes remove its folder.
const MAX_TRIES: u32 = 100;
/// The mode of git's own objects.
const MODE: u32 = 0o444;

/// Copies all loose objects into the repository, or into the staging folder. Returns false if the caller must run git
/// instead.
pub(crate) fn take_loose(repository: &Repository, objects: &Path, staged: Option<&StagedObjects>) -> bool {
    let is_sha1 = repository.null_oid().len() == 40;
    is_sha1 && loose::is_plain(repository) && copy_all(repository, objects, staged).unwrap_or(false)
}

fn copy_all(repository: &Repository, objects: &Path, staged: Option<&StagedObjects>) -> io::Result<bool> {
    let into = match staged {
        Some(staged) => staged.folder().to_owned(),
        None => repository.common_dir().join("objects"),
    };
    let mut left = (MAX_OBJECTS, MAX_BYTES, MAX_CONTENT_BYTES);
    for folder in list(objects)? {
        let within = list(&objects.join(&folder))?;
        if folder.len() != 2 {
            // Packs, and anything unusual.
            if within.is_empty() {
                continue;
            }
            return Ok(false);
        }
        // Files that a killed git was writing have other names.
        for file in within.iter().filter(|name| is_hex(&format!("{folder}{name}"))) {
            let path = objects.join(&folder).join(file);
            let size = fs::symlink_metadata(&path)?.len();
            let (Some(count), Some(bytes)) = (left.0.checked_sub(1), left.1.checked_sub(size)) else {
                return Ok(false);
            };
            let packed = read::bytes(&path)?;
            let Some((name, content)) = name_of(&packed, left.2) else { return Ok(false) };
            left = (count, bytes, left.2 - content);
            write(&into, &name, &packed)?;
        }
    }
    Ok(true)
}

fn list(folder: &Path) -> io::Result<Vec<String>> {
    let found = names(folder).map_err(io::Error::other)?;
    Ok(found.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn is_hex(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Returns the name of a loose object, computed from its content, and the size of the content. Returns `None` if it is no
/// object, or its content is larger than `most`.
fn name_of(packed: &[u8], most: u64) -> Option<(String, u64)> {
    let mut inflated = ZlibDecoder::new(packed);
    let mut hash = Sha1::new();
    let mut buffer = [0; 16 << 10];
    let mut header = Vec::new();
    let mut total = 0;
    loop {
        let count = inflated.read(&mut buffer).ok()?;
        if count == 0 {
            break;
        }
        total += count as u64;
        if total > most {
            return None;
        }
        hash.update(&buffer[..count]);
        if header.len() < MAX_HEADER {
            header.extend(&buffer[..count.min(MAX_HEADER - header.len())]);
        }
    }
    let end = header.iter().position(|&byte| byte == 0)?;
    let (kind, size) = std::str::from_utf8(&header[..end]).ok()?.split_once(' ')?;
    let is_whole = ["blob", "tree", "commit", "tag"].contains(&kind)
        && size.parse() == Ok(total - end as u64 - 1)
        && inflated.total_in() == packed.len() as u64;
    let name = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    is_whole.then_some((name, total))
}

/// Writes an object as git does: beside its place, then renamed. One that exists gets a new time, which keeps it from
/// prunes of old objects.
fn write(objects: &Path, name: &str, packed: &[u8]) -> io::Result<()> {
    let (folder, rest) = name.split_at(2);
    let folder = objects.join(folder);
    let mut written = Ok(());
    for _ in 0..MAX_TRIES {
        let beside = folder.join(format!("tmp_obj_{}", clock::random_hex()));
        written =
            write_beside(&folder, &beside, packed).and_then(|()| fs::rename(&beside, folder.join(rest)));
        match &written {
            // A prune has removed the empty folder, or the new file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => {
                let _ = fs::remove_file(&beside);
                break;
            }
            Ok(()) => break,
        }
    }
    written
}

fn write_beside(folder: &Path, beside: &Path, packed: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    OpenOptions::new().write(true).create_new(true).mode(MODE).open(beside)?.write_all(packed)
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::ZlibEncoder};

    use super::*;

    fn deflate(content: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn s19_an_object_is_named_by_its_content_and_a_damaged_one_is_refused() {
        let whole = deflate(b"blob 6\0hello\n");
        let named = name_of(&whole, 1000).expect("an object");
        assert_eq!(named, ("ce013625030ba8dba906f756967f9e9ca394464a".to_owned(), 13));
        assert_eq!(name_of(&whole, 12), None, "larger than allowed");
        for damaged in [
            deflate(b"blob 7\0hello\n"),
            deflate(b"blob 6\0hello\nx"),
            deflate(b"thing 6\0hello\n"),
            deflate(b"blob"),
            [&whole[..], b"x"].concat(),
            whole[..whole.len() - 6].to_vec(),
            b"blob 6\0hello\n".to_vec(),
        ] {
            assert_eq!(name_of(&damaged, 1000), None, "{damaged:?}");
        }
    }
}
