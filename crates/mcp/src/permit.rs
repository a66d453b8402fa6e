//! The tools that a caller may use, and the objects that it may use them on.

use serde_json::Value;
use sprag_app::tokens::Scope;
use sprag_app::{App, ErrorKind, Reach, Subject, find_run_within};

use crate::tool_error::ToolError;

/// The scopes and the reach of a caller.
#[derive(Debug, Clone)]
pub struct Permit {
    /// The scopes of the caller's token.
    pub scopes: Vec<Scope>,
    /// The objects on which the caller may use its scopes.
    pub reach: Reach,
}

/// The object of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concern {
    /// The run that the argument `run` names.
    Run,
    /// The run of the thread that the argument `thread` names.
    Thread,
    /// The board that the argument `board` names.
    Board,
    /// The rule that the argument `rule` names.
    Rule,
    /// The event of a rule that the argument `event` names.
    Delivery,
    /// Several objects, of which the tool shows those in reach.
    Listed,
    /// An object that the tool itself checks.
    InBody,
    /// A task that the caller holds: its token proves it.
    Own,
    /// The whole store.
    Everything,
}

impl Permit {
    /// Returns the permit of the store's own user.
    pub fn everything() -> Permit {
        Permit { scopes: Scope::ALL.to_vec(), reach: Reach::default() }
    }

    /// Returns the permit of the agent of a step, whose tools are its own.
    pub fn nothing() -> Permit {
        Permit { scopes: Vec::new(), reach: Reach::default() }
    }

    /// Whether the caller may use a tool at all.
    pub(crate) fn offers(&self, scope: Scope, concern: Concern) -> bool {
        let may = self.scopes.iter().any(|has| has.covers(scope));
        may && (concern != Concern::Everything || self.reach.is_everything())
    }

    /// Refuses a call that the caller may not make.
    pub(crate) fn check(
        &self,
        app: &App,
        tool: &str,
        (scope, concern): (Scope, Concern),
        arguments: &Value,
    ) -> Result<(), ToolError> {
        if !self.scopes.iter().any(|has| has.covers(scope)) {
            let message = format!("{tool}: the token does not have the scope `{scope}`");
            let next = "use the tools that are listed, or ask the person who gave you the token";
            return Err(ToolError::new("forbidden", message, next));
        }
        if self.reach.is_everything() {
            return Ok(());
        }
        let text = |name: &str| arguments[name].as_str().unwrap_or_default();
        let subject = match concern {
            Concern::Listed | Concern::InBody | Concern::Own => return Ok(()),
            Concern::Run | Concern::Thread => {
                let thread = text("thread").split('/').next().unwrap_or_default();
                let run = if concern == Concern::Run { text("run") } else { thread };
                return match find_run_within(app, Some(run), &self.reach) {
                    Err(error) if error.kind == ErrorKind::Forbidden => Err(error.into()),
                    // The tool itself says that there is no such run.
                    _ => Ok(()),
                };
            }
            Concern::Board => Subject::Board(text("board")),
            Concern::Rule => Subject::Rule(text("rule")),
            Concern::Delivery => match text("event").parse() {
                Ok(event) => Subject::Delivery(event),
                Err(_) => return Ok(()),
            },
            Concern::Everything => Subject::Everything,
        };
        Ok(app.require_reach(&self.reach, subject)?)
    }
}
