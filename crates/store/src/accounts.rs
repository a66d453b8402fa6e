//! Whether an account has a place for one more execution.
//!
//! ```text
//!   free     fewer are out than the limit allows
//!   held     none, until its time has passed; then it counts as probing
//!   probing  one of the present generation, within the limit
//! ```
//!
//! Whether a hold is over is computed whenever a place is asked for. So a hold ends although every process was down at
//! its end, and although one of the clocks was wrong.

use std::collections::BTreeMap;

use sprag_lifecycle::{AccountStatus, ExecutionId, mutant};

use crate::backend::{Backend, Table};
use crate::clock::Now;
use crate::error::Result;
use crate::rows::{AccountRow, ExecutionRow};

/// The reason why an execution waits for its account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountWait {
    /// The account.
    pub account: AccountRow,
    /// The kind of wait.
    pub why: AccountBusy,
}

/// The kind of wait for an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountBusy {
    /// The account is held.
    Held,
    /// The hold's time has passed, and another execution tries the account first.
    Probing,
    /// As many executions as allowed use the account.
    Full,
}

/// The executions of an account that are out, with the generations in which they were handed over.
pub(crate) type OutOfAccount = BTreeMap<ExecutionId, u32>;

/// Returns why an account has no place for one more execution; `None` if it has one.
pub(crate) fn busy(account: &AccountRow, out: &OutOfAccount, now: Now) -> Option<AccountBusy> {
    let full = || {
        (out.len() >= account.maximum as usize && !mutant!(AccountLimitIgnored)).then_some(AccountBusy::Full)
    };
    let probed = |generation: u32| out.values().any(|of| *of == generation) && !mutant!(ProbeIsNoOne);
    match account.status {
        AccountStatus::Free => full(),
        AccountStatus::Held if !account.until_passed(now) => Some(AccountBusy::Held),
        // The hand-over reports that the hold has lapsed, which raises the generation: none is out in the new one.
        AccountStatus::Held => full(),
        AccountStatus::Probing if probed(account.generation) => Some(AccountBusy::Probing),
        AccountStatus::Probing => full(),
    }
}

/// Returns why a waiting execution is not handed over, if its account is the reason.
pub(crate) fn account_wait(
    db: &mut dyn Backend,
    row: &ExecutionRow,
    now: Now,
) -> Result<Option<AccountWait>> {
    let Some(id) = row.account else { return Ok(None) };
    let Some(account) = Table::<AccountRow>::load(db, id)? else { return Ok(None) };
    let out = db.out_of_account(id)?.into_iter().collect();
    Ok(busy(&account, &out, now).map(|why| AccountWait { account, why }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ha3_a_hold_ends_by_the_clock_that_is_first() {
        let mut account = AccountRow { maximum: 2, ..AccountRow::new("work") };
        account.status = AccountStatus::Held;
        (account.until_ms, account.until_wall_ms) = (Some(100), Some(5_000));
        let busy_at = |wall_ms, steady_ms| busy(&account, &OutOfAccount::new(), Now { wall_ms, steady_ms });
        assert_eq!(busy_at(4_999, 99), Some(AccountBusy::Held));
        assert_eq!(busy_at(5_000, 99), None, "the wall clock was set forward");
        assert_eq!(busy_at(0, 100), None, "the wall clock was set back");
        let endless = AccountRow { until_ms: None, until_wall_ms: None, ..account.clone() };
        let late = Now { wall_ms: i64::MAX, steady_ms: i64::MAX };
        assert_eq!(busy(&endless, &OutOfAccount::new(), late), Some(AccountBusy::Held), "a person ends it");
    }
}
