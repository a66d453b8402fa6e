//! Names: validation of branch names, and names of Sprag's refs, entries and files.

use crate::{clock, error::Kind};

/// The most characters of a run's name in an entry's id.
const MAX_RUN_CHARS: usize = 40;

/// Creates a unique id that is valid as a file name and a ref, whatever the run's name is.
pub(crate) fn new_id(run: &str) -> String {
    let run: String = ref_component(run).chars().take(MAX_RUN_CHARS).collect();
    format!("{ID_PREFIX}{run}-{}", clock::random_hex())
}

/// The prefix of the names of Sprag's entries.
pub(crate) const ID_PREFIX: &str = "sprag-";

/// Converts a text to one component of a ref or a file name. Different texts give different names.
pub(crate) fn ref_component(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut name: String = text.chars().map(|c| if safe(c) { c } else { '-' }).take(100).collect();
    if name != text || name.is_empty() || name.starts_with('-') {
        name = format!("x{name}-{:016x}", fnv1a(text.as_bytes()));
    }
    name
}

/// Computes the FNV-1a hash, which is the same in every version of this program.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Refuses the names that `git check-ref-format --branch` refuses, without running it, and names that git would
/// interpret differently.
pub fn check_branch(name: &str) -> Result<(), Kind> {
    let forbidden = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.starts_with('-') {
        "it starts with `-`, like an option"
    } else if name == "@" || name == "HEAD" {
        "git reads it as the current commit"
    } else if name.contains("@{") {
        "git reads it as an entry of a reflog"
    } else if name.split('/').any(|part| part.ends_with(".lock")) {
        "a part of it ends in `.lock`, like git's lock files"
    } else if name.split('/').any(str::is_empty) {
        "a part of it is empty"
    } else if name.split('/').any(|part| part.starts_with('.')) || name.ends_with('.') {
        "a part of it starts with a dot, or it ends with one"
    } else if name.contains("..") {
        "git reads `..` as a range"
    } else if name.contains(forbidden) {
        "it contains a blank, a control character, or one of ~ ^ : ? * [ \\"
    } else {
        return Ok(());
    };
    Err(Kind::BadBranchName { name: name.to_owned(), reason: reason.to_owned() })
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

    #[test]
    fn branch_names_are_refused_as_git_refuses_them() {
        let mut names: Vec<String> =
            ["a", "a/b", "a-b", "a.b", "x@y", "ü", "a{", "@", "@a", "a@", "-", "-a", "HEAD"]
                .into_iter()
                .chain([
                    "a/HEAD", "", "/", "a/", "/a", "a//b", ".a", "a/.b", "a.", "a./b", "a..b", "a.lock",
                    "a.lock/b",
                ])
                .chain([
                    ".lock",
                    "lock",
                    "a.lockx",
                    "@{-1}",
                    "a@{1}",
                    "a}",
                    "a/-b",
                    "refs/heads/a",
                    "..",
                    "a\u{7f}",
                ])
                .map(str::to_owned)
                .collect();
        names.extend((1..128_u8).map(|byte| format!("a{}b", char::from(byte))));
        for name in names {
            let git =
                crate::git::Git::new(std::path::Path::new("/"), "check-ref-format").args(["--branch", &name]);
            // Git would create a branch of this name, and then read it as the current commit.
            let allows = name != "@" && git.output().expect("git").status.success();
            assert_eq!(check_branch(&name).is_ok(), allows, "{name:?}");
        }
    }
}
