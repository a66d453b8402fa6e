//! Reading the packed journal in PostgreSQL.

use std::sync::LazyLock;

use sprag_lifecycle::RunId;

use super::cells::Cell;
use super::tx::Tx;
use super::wire::Ask;
use crate::backend::Table;
use crate::columns::Declared;
use crate::error::Result;
use crate::journal::{EntryRow, PackRow, Page};
use crate::rows::{JournalEntry, RunRow};

static PACKS: LazyLock<String> = LazyLock::new(|| packs_sql(""));
static PACKS_OF_RUN: LazyLock<String> = LazyLock::new(|| packs_sql("AND run = $4"));

/// Returns the statement that reads the packs with the first `$3` entries after `$1` and up to `$2`. A pack is read if
/// the packs before it have fewer.
fn packs_sql(condition: &str) -> String {
    let names = &PackRow::statements().names;
    format!(
        "SELECT {names} FROM (SELECT {names}, sum(last_seq - greatest(first_seq - 1, $1)) \
         OVER (ORDER BY last_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
         FROM journal_packs WHERE last_seq > $1 AND first_seq <= $2 {condition} ORDER BY last_seq LIMIT $3) AS found \
         WHERE coalesce(before, 0) < $3 ORDER BY last_seq"
    )
}

impl Tx<'_> {
    /// Returns the entries after one, of one run or of all, in order.
    pub(super) fn read_journal(
        &mut self,
        since: u64,
        run: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<JournalEntry>> {
        let page = match run {
            None => Page { after: since, to: u64::MAX, limit },
            Some(id) => match Table::<RunRow>::load(self, id)? {
                None => return Ok(Vec::new()),
                Some(row) => Page::of_run(&row, since, limit),
            },
        };
        let mut cells: Vec<Cell<'_>> = vec![page.after.into(), page.to.into(), limit.into()];
        cells.extend(run.map(|run| Cell::from(run.to_i64())));
        let sql = if run.is_some() { &PACKS_OF_RUN } else { &PACKS };
        self.send_packs()?;
        let found = self.ask(vec![Ask::new(sql, cells)], "reading")?.remove(0);
        let mut entries: Vec<EntryRow> = Vec::new();
        for row in &found {
            page.take(&PackRow::read(row)?, &mut entries)?;
        }
        if !self.shared.sentences.has_all(&entries) {
            let all = self.ask(vec![Ask::plain(&super::sentences::ALL)], "reading")?;
            self.shared.sentences.learn_rows(&all[0])?;
        }
        self.shared.sentences.tell(entries)
    }

    /// Sends the entries of the jobs so far, so that a statement of this transaction can read them.
    fn send_packs(&mut self) -> Result<()> {
        if !self.state.has_entries() {
            return Ok(());
        }
        self.ask(Vec::new(), "writing")?;
        let packs = self.state.journal_asks(&self.shared.sentences, self.now.steady_ms);
        let sent = self.wire.ask(&packs);
        drop(packs);
        if let Err(fault) = sent {
            let told = fault.told(&self.shared.address, "writing");
            self.fault = Some(fault);
            return Err(told);
        }
        self.state.journal_sent(&self.shared.sentences);
        Ok(())
    }
}
