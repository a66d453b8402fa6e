//! The budget of an agent step: a failure when it is used up, or a question to a person.
//!
//! ```text
//!   used up ──fail──▶ the step fails
//!           └─ask───▶ a gate of the run; the execution is parked ──allow──▶ the same budget again, in the same session
//!                                                                └─deny───▶ the step fails
//! ```

use std::time::Duration;

use serde_json::json;
use sprag_store::{Ending, PermissionAsk, PermissionState};

use super::process::Bounds;
use super::{AgentStep, Progress};
use crate::command::failed;
use crate::records::Records;
use crate::slots::Ended;

impl AgentStep<'_> {
    /// Returns the bounds of the next process, or the step's ending if its budget is used up.
    pub(super) async fn within_budget(
        &self,
        progress: &mut Progress,
        records: Option<&dyn Records>,
    ) -> Result<Bounds, Ended> {
        loop {
            let bounds = Bounds {
                stall: Duration::from_millis(self.agent.stall_ms),
                budget: self.agent.budget,
                granted: progress.granted,
                tool_calls: progress.tool_calls,
                usage: progress.usage,
            };
            let Some(why) = bounds.is_used_up() else { return Ok(bounds) };
            let used_up = |more: &str| {
                let message = format!("the budget of the step is used up: {why}{more}");
                failed(&json!({ "reason": "budget", "message": message }), false)
            };
            let Some(records) = records.filter(|_| self.agent.budget.asks) else { return Err(used_up("")) };
            match records.ask_permission(self.work.assignment.lease, self.question(progress, &why)).await {
                Ok(PermissionState::Answered { approved: true, .. }) => {
                    progress.granted += 1;
                    if progress.is_own {
                        self.store(&self.stored(progress));
                    }
                }
                Ok(PermissionState::Answered { comment, .. }) => {
                    let comment = comment.map(|comment| format!(": {comment}")).unwrap_or_default();
                    return Err(used_up(&format!("; a person denied more{comment}")));
                }
                Ok(PermissionState::Open) => return Err(Ended::Report(Ending::Parked)),
                Ok(PermissionState::Expired) => {
                    let facts = json!({
                        "reason": "budget",
                        "message": format!("the budget of the step is used up: {why}; there was no answer in time"),
                        "remedy": "resume the run: the question is asked again",
                    });
                    return Err(Ended::Report(Ending::Blocked { result: Some(facts.to_string().into()) }));
                }
                Ok(PermissionState::NotHeld) => return Err(Ended::Lost),
                Err(error) => {
                    let message = format!("the question about the budget was not asked: {error}");
                    return Err(failed(&json!({ "reason": "budget", "message": message }), true));
                }
            }
        }
    }

    fn question(&self, progress: &Progress, why: &str) -> PermissionAsk {
        let agent = &self.resolved.settings.name;
        let number = progress.granted + 1;
        PermissionAsk {
            // One question for each time that the budget is used up.
            key: format!("budget {number}"),
            request: format!("budget {number}"),
            ask: format!("The budget of {agent} is used up: {why}. Continue with the same budget again?"),
            details: json!({
                "agent": agent,
                "budget": self.agent.budget,
                "tool_calls": progress.tool_calls,
                "tokens": progress.usage.total_tokens(),
                "cost_usd": progress.usage.cost_usd,
            }),
            timeout_ms: self.agent.answer_within_ms,
        }
    }
}
