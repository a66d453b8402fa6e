//! The accounts of an execution: which one has a place for it, and for which one it waits.
//!
//! ```text
//!   the step's own account ──held──▶ the first fallback with a place ──none──▶ wait: for a place, else for a hold's end
//! ```
//!
//! The choice is made when the execution is scheduled, and stored in its row. So an attempt has one agent, and a fallback
//! takes over between two processes, never inside one.

use sprag_lifecycle::{ExecutionEvent, PlanAccount, StepNo, mutant};

use super::HeldRun;
use crate::accounts::{AccountBusy, busy};
use crate::error::Result;
use crate::ops::{account_of, lapse_hold, out_of_account};
use crate::rows::{AccountRow, ExecutionRow, Id, TimerRow, account_id};

/// An account that an execution takes or waits for.
struct Candidate {
    id: Id,
    /// Why it has no place; absent if it has one.
    busy: Option<AccountBusy>,
}

impl HeldRun<'_, '_> {
    /// Whether an account of the step has a place for the execution, which it then takes. An execution without an account
    /// needs none.
    pub(super) fn takes_account(&mut self, row: &ExecutionRow) -> Result<bool> {
        let planned = self.planned_account(row.id.step)?;
        let (Some(before), Some(planned)) = (row.account, planned) else { return Ok(true) };
        let Candidate { id, busy } = self.candidate(&planned)?;
        if id != before {
            self.session.note::<ExecutionRow>(row.id, |row| row.account = Some(id))?;
        }
        match busy {
            Some(AccountBusy::Held) if !self.ignores_holds => return self.wait_for_hold(row, &planned),
            Some(AccountBusy::Full | AccountBusy::Probing) => return Ok(false),
            Some(AccountBusy::Held) | None => {}
        }
        lapse_hold(self.session, id)?;
        let now_ms = self.session.now().steady_ms;
        let generation = self.session.get::<AccountRow>(id)?.map_or(0, |account| account.generation);
        self.session.note::<ExecutionRow>(row.id, |row| {
            row.account_generation = generation;
            if row.limited_since_ms > 0 {
                row.limited_ms += now_ms - row.limited_since_ms;
                row.limited_since_ms = 0;
            }
        })?;
        Ok(true)
    }

    /// Returns the account that an execution takes or waits for: the step's own, unless it is held; else the first fallback
    /// with a place; else one without a hold, which has a place soon; else the one whose hold ends first.
    fn candidate(&mut self, planned: &PlanAccount) -> Result<Candidate> {
        let now = self.session.now();
        let mut full: Option<Candidate> = None;
        let mut held: Option<(i64, Id)> = None;
        for (at, (name, max_parallel)) in planned.candidates().enumerate() {
            let id = account_id(name);
            let account = if at == 0 { self.session.get::<AccountRow>(id)? } else { None };
            let account = match account {
                Some(account) => account,
                None => account_of(self.session, name, max_parallel)?,
            };
            let out = out_of_account(self.session, id)?;
            match busy(&account, &out, now) {
                None => return Ok(Candidate { id, busy: None }),
                // A fallback is for limits: a step whose own account has no place just now waits for one.
                Some(why @ (AccountBusy::Full | AccountBusy::Probing)) if at == 0 => {
                    return Ok(Candidate { id, busy: Some(why) });
                }
                Some(why @ (AccountBusy::Full | AccountBusy::Probing)) => {
                    full.get_or_insert(Candidate { id, busy: Some(why) });
                }
                Some(AccountBusy::Held) => {
                    let until_ms = account.until_ms.unwrap_or(i64::MAX);
                    if held.is_none_or(|(earliest_ms, _)| until_ms < earliest_ms) {
                        held = Some((until_ms, id));
                    }
                    if mutant!(FallbackForgotten) {
                        break;
                    }
                }
            }
        }
        let held = held.map_or_else(|| account_id(&planned.name), |(_, id)| id);
        Ok(full.unwrap_or(Candidate { id: held, busy: Some(AccountBusy::Held) }))
    }

    /// Lets an execution wait for a hold of its account to end. After the longest wait that its plan allows, the step fails.
    fn wait_for_hold(&mut self, row: &ExecutionRow, planned: &PlanAccount) -> Result<bool> {
        let Some(longest_ms) = planned.longest_wait_ms else { return Ok(false) };
        let now_ms = self.session.now().steady_ms;
        let since_ms = if row.limited_since_ms > 0 { row.limited_since_ms } else { now_ms };
        let left_ms = i64::try_from(longest_ms).unwrap_or(i64::MAX).saturating_sub(row.limited_ms);
        let due_ms = since_ms.saturating_add(left_ms);
        if due_ms > now_ms {
            if row.limited_since_ms == 0 {
                self.session.note::<ExecutionRow>(row.id, |row| row.limited_since_ms = since_ms)?;
            }
            self.session.set_timer(TimerRow { due_ms, execution: row.id });
            return Ok(false);
        }
        let message = match planned.fallbacks.len() {
            0 => format!("account {} was held for longer than the step waits", planned.name),
            _ => {
                let names: Vec<&str> = planned.candidates().map(|(name, _)| name).collect();
                format!("the accounts {} were held for longer than the step waits", names.join(", "))
            }
        };
        let result = serde_json::json!({ "reason": "limit", "message": message }).to_string();
        self.session.note::<ExecutionRow>(row.id, |row| row.result = Some(result.into()))?;
        self.executor_event(row.id, ExecutionEvent::SchedulingFailed)?;
        Ok(false)
    }

    /// Returns the account that the plan gives a step.
    fn planned_account(&mut self, step: StepNo) -> Result<Option<PlanAccount>> {
        let node = self.step_row(step)?.node();
        Ok(self.plan.step(node).account.clone())
    }
}
