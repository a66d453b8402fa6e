//! The record of a landing that changes its worktree: the commit that holds all the work.
//!
//! A rebase checks out its base first. If it is killed there, HEAD is at a commit that the target contains, and the
//! next landing would take the work for landed. So the record is written before the rebase. While it exists, it says
//! which commit to land, whatever HEAD says.

use std::{fs, path::PathBuf};

use crate::{
    checkpoint::forget_unfinished, entry::write_head, error::Kind, git::Cancel, mark::write_atomic, read,
    worktrees::Worktree,
};

/// The name of the record in the worktree's entry.
const RECORD: &str = "sprag-landing";

impl Worktree {
    /// Records the commit that holds all the work, before the landing changes HEAD or any file.
    pub(super) fn record_landing(&self, commit: &str) -> Result<(), Kind> {
        write_atomic(&self.landing_record(), format!("{commit}\n").as_bytes())
    }

    /// Removes the record, because HEAD holds all the work again.
    pub(crate) fn forget_landing(&self) {
        let _ = fs::remove_file(self.landing_record());
    }

    /// Returns HEAD and files to the recorded commit if a landing was killed in this worktree.
    pub(crate) fn settle_landing(&self) -> Result<(), Kind> {
        let record = self.landing_record();
        let failed = |source| Kind::Io { doing: "read", path: record.clone(), source };
        let Some(text) = read::text_if_there(&record).map_err(failed)? else { return Ok(()) };
        let commit = text.trim();
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "it names no commit")));
        }
        let entry = self.entry();
        forget_unfinished(&entry);
        // The branch moves to the commit with the reset.
        write_head(&entry, self.mark.branch.as_deref(), commit)?;
        self.reset_to(commit, &Cancel::default())?;
        self.remove_merge_files()?;
        tracing::info!(run = self.mark.run, path = %self.path().display(), commit, "undid an interrupted landing");
        self.forget_landing();
        Ok(())
    }

    /// Removes the files that a killed git has left beside those that it merged. The next commit would contain them.
    fn remove_merge_files(&self) -> Result<(), Kind> {
        let others = self.git("ls-files").args(["--others", "-z", "--", ":(top,glob).merge_file_??????"]);
        for name in others.run()?.fields() {
            let path = self.path().join(name);
            fs::remove_file(&path).map_err(|source| Kind::Io { doing: "remove", path, source })?;
        }
        Ok(())
    }

    fn landing_record(&self) -> PathBuf {
        self.entry().join(RECORD)
    }
}
