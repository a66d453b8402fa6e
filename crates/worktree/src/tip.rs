//! A branch's tip, read from git's files: asking git takes longer than all else before a checkout.
//!
//! Only where the answer is beyond doubt; whatever else a revision may mean is for git to say.

use std::fs;
use std::path::Path;

/// The commit at the tip of the branch that `revision` names, if it names nothing else.
pub(crate) fn of_branch(common: &Path, revision: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    let plain = revision.chars().all(is_plain)
        && !revision.split('/').any(|part| part.is_empty() || part.starts_with('.'))
        && !revision.contains("..")
        && !revision.ends_with(".lock");
    // What looks like a number could be a commit's; refs that are not files are git's own affair.
    let could_be_oid = revision.len() >= 4 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain || could_be_oid || common.join("reftable").exists() {
        return None;
    }
    // In git's order of precedence these come before a branch.
    let others = [revision.to_owned(), format!("refs/{revision}"), format!("refs/tags/{revision}")];
    if others.iter().any(|other| common.join(other).symlink_metadata().is_ok()) {
        return None;
    }
    let name = format!("refs/heads/{revision}");
    // A ref on its way into the packed ones is there before its file goes: so the file is looked at first.
    let loose = fs::read_to_string(common.join(&name)).ok();
    let packed = fs::read_to_string(common.join("packed-refs")).unwrap_or_default();
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
    fn a_file_stands_above_the_packed_refs() {
        let folder = repository();
        assert_eq!(of_branch(folder.path(), "main").as_deref(), Some(ONE));
        assert_eq!(of_branch(folder.path(), "feature/x").as_deref(), Some(TWO));
        assert_eq!(of_branch(folder.path(), "old").as_deref(), Some(TWO));
    }

    #[test]
    fn whatever_is_in_doubt_is_for_git() {
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
