//! The text that an attempt sends to its agent.

use sprag_pipeline::AgentSpec;

/// The facts that decide the wording.
pub(crate) struct Situation<'s> {
    /// Whether the step itself has worked in this session before.
    pub(crate) is_own_session: bool,
    /// Whether this attempt continues after a limit of the account.
    pub(crate) is_after_limit: bool,
    /// Another agent that has worked on the task last.
    pub(crate) after: Option<&'s str>,
    /// The failure of the last attempt, or of the step that sent this one back.
    pub(crate) feedback: Option<&'s str>,
}

/// Returns the prompt. It always contains the task: a session may have lost the message of the last attempt.
pub(crate) fn prompt(agent: &AgentSpec, situation: &Situation<'_>) -> String {
    let task = agent.prompt.trim_end();
    let mut text = match situation {
        Situation { after: Some(other), .. } => {
            format!(
                "Another agent ({other}) has worked on this task and was stopped by a usage limit. Look at the current state of the files, and finish the task:\n\n{task}"
            )
        }
        Situation { is_after_limit: true, .. } => {
            return format!(
                "You were stopped by a usage limit, which has been reset. Look at the current state, and finish the task:\n\n{task}"
            );
        }
        Situation { is_own_session: true, feedback: Some(_), .. } => {
            format!(
                "Your last attempt at this task did not succeed. Correct what is wrong, and finish the task:\n\n{task}"
            )
        }
        Situation { is_own_session: true, feedback: None, .. } => {
            format!(
                "Your last attempt at this task was interrupted. Look at the current state, and finish the task:\n\n{task}"
            )
        }
        _ => task.to_owned(),
    };
    if let Some(feedback) = situation.feedback {
        text.push_str("\n\nFeedback on the last attempt:\n\n");
        text.push_str(feedback.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_contains_the_task_and_the_feedback() {
        let agent: AgentSpec =
            serde_json::from_value(serde_json::json!({"use": "fake", "prompt": "Do it.\n", "stall_ms": 1}))
                .expect("a spec");
        for is_own_session in [false, true] {
            for feedback in [None, Some("exit code 1")] {
                let text = prompt(
                    &agent,
                    &Situation { is_own_session, is_after_limit: false, after: None, feedback },
                );
                assert!(text.contains("Do it."), "{text}");
                assert_eq!(text.contains("exit code 1"), feedback.is_some(), "{text}");
                assert_eq!(text == "Do it.", !is_own_session && feedback.is_none());
            }
        }
        let limited =
            Situation { is_own_session: true, is_after_limit: true, after: None, feedback: Some("old") };
        assert!(!prompt(&agent, &limited).contains("old"), "the session has it already");
        let taken_over = Situation {
            is_own_session: false,
            is_after_limit: false,
            after: Some("codex"),
            feedback: Some("old"),
        };
        let text = prompt(&agent, &taken_over);
        assert!(text.contains("codex") && text.contains("Do it.") && text.contains("old"), "{text}");
    }
}
