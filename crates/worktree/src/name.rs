//! Names: of branches as git allows them, and of our own refs, entries and files.

use crate::{clock, error::Kind, repository::Repository};

/// How much of a run's name is repeated in an entry's id.
const LONGEST_PART: usize = 40;

/// A name that is unique for good and fit for a file and a ref, whatever the run is called.
pub(crate) fn new_id(run: &str) -> String {
    let run: String = ref_component(run).chars().take(LONGEST_PART).collect();
    format!("{ID_PREFIX}{run}-{}", clock::random_hex())
}

/// What all our entries' names begin with.
pub(crate) const ID_PREFIX: &str = "sprag-";

/// One part of a ref or a file's name, different for different texts.
pub(crate) fn ref_component(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut name: String = text.chars().map(|c| if safe(c) { c } else { '-' }).take(100).collect();
    if name != text || name.is_empty() || name.starts_with('-') {
        name = format!("x{name}-{:016x}", fnv1a(text.as_bytes()));
    }
    name
}

/// FNV-1a: the same in every version of this program.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Refuses what git would refuse, and what git would take for something else.
pub(crate) fn check_branch(repository: &Repository, name: &str) -> Result<(), Kind> {
    let refuse = |reason: &str| Err(Kind::BadBranchName { name: name.to_owned(), reason: reason.to_owned() });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.starts_with('-') {
        return refuse("it begins with `-`, like an option");
    }
    if name == "@" || name == "HEAD" {
        return refuse("git reads it as the current commit");
    }
    if name.contains("@{") {
        return refuse("git reads it as an entry of a reflog");
    }
    if name.split('/').any(|part| part.ends_with(".lock")) {
        return refuse("a part of it ends in `.lock`, like git's lock files");
    }
    let output = repository.git("check-ref-format").args(["--branch", name]).output()?;
    if output.status.success() && output.line() == name {
        Ok(())
    } else {
        refuse(
            "git does not allow it: no blanks, no `..`, `~`, `^`, `:`, `?`, `*`, `[`, `\\`, no part that begins with `.`",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_ref_is_safe_and_keeps_different_texts_apart() {
        assert_eq!(ref_component("k3x9"), "k3x9");
        let hostile = ["a/b", "a.b", "a b", "", "-x", ".lock", "a\nb", "ä", "..", "x.lock"];
        let parts: std::collections::HashSet<String> =
            hostile.iter().map(|text| ref_component(text)).collect();
        assert_eq!(parts.len(), hostile.len());
        for part in parts {
            assert!(part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'), "{part}");
        }
    }
}
