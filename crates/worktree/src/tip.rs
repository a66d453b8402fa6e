//! Reads a branch's tip from git's files, because running git takes longer than everything else before a
//! checkout.
//!
//! It handles unambiguous names only; git resolves all other revisions.

use std::path::Path;

use crate::read;

/// Returns the commit at the tip of the branch `revision`; `None` if the name may mean something else.
pub(crate) fn of_branch(common: &Path, revision: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    let plain = revision.chars().all(is_plain)
        && !revision.split('/').any(|part| part.is_empty() || part.starts_with('.'))
        && !revision.contains("..")
        && !revision.ends_with(".lock");
    // A name of hexadecimal digits may be a commit. Refs in a reftable are not files.
    let could_be_oid = revision.len() >= 4 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain || could_be_oid || common.join("reftable").exists() {
        return None;
    }
    // Git prefers these to a branch.
    let others = [revision.to_owned(), format!("refs/{revision}"), format!("refs/tags/{revision}")];
    if others.iter().any(|other| common.join(other).symlink_metadata().is_ok()) {
        return None;
    }
    let name = format!("refs/heads/{revision}");
    // Packing writes the packed ref before it removes the file, so read the file first.
    let loose = read::text(common.join(&name)).ok();
    let packed = read::text(common.join("packed-refs")).unwrap_or_default();
    let entry = |wanted: &str| {
        packed.lines().find_map(|line| line.split_once(' ').filter(|(_, name)| *name == wanted))
    };
    if others[1..].iter().any(|other| entry(other).is_some()) {
        return None;
    }
    let tip = match &loose {
        Some(text) => text.trim_end(),
        None => entry(&name)?.0,
    };
    let whole = matches!(tip.len(), 40 | 64) && tip.bytes().all(|byte| byte.is_ascii_hexdigit());
    whole.then(|| tip.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("refs/heads/feature")).unwrap();
        fs::create_dir_all(folder.path().join("refs/tags")).unwrap();
        fs::write(folder.path().join("refs/heads/main"), format!("{ONE}\n")).unwrap();
        fs::write(folder.path().join("refs/heads/feature/x"), format!("{TWO}\n")).unwrap();
        let packed =
            format!("# pack-refs\n{TWO} refs/heads/main\n{TWO} refs/heads/old\n{ONE} refs/tags/v1\n");
        fs::write(folder.path().join("packed-refs"), packed).unwrap();
        folder
    }

    #[test]
    fn a_loose_ref_overrides_a_packed_one() {
        let folder = repository();
        assert_eq!(of_branch(folder.path(), "main").as_deref(), Some(ONE));
        assert_eq!(of_branch(folder.path(), "feature/x").as_deref(), Some(TWO));
        assert_eq!(of_branch(folder.path(), "old").as_deref(), Some(TWO));
    }

    #[test]
    fn ambiguous_names_are_left_to_git() {
        let folder = repository();
        fs::write(folder.path().join("refs/heads/v1"), format!("{TWO}\n")).unwrap();
        fs::write(folder.path().join("refs/heads/HEAD"), format!("{TWO}\n")).unwrap();
        fs::write(folder.path().join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(folder.path().join("refs/heads/other"), "ref: refs/heads/main\n").unwrap();
        fs::write(folder.path().join("refs/heads/beef"), format!("{TWO}\n")).unwrap();
        for doubtful in ["v1", "HEAD", "other", "beef", "main~1", "../main", "feature", "absent", "-x", ""] {
            assert_eq!(of_branch(folder.path(), doubtful), None, "{doubtful}");
        }
    }
}
