//! The author of a change: the user, token, agent, rule or worker that the journal names beside the actor's class.
//!
//! A request has one author, and everything that it writes carries its name. The author is bound to the task that serves
//! the request, because a request passes through many functions that have no other reason to know it. Tasks that a
//! request spawns are not part of it, unless they are started with [`in_this_request`].
//!
//! A request of a step's own agent is also bound to the step: each of its writes checks, in its own transaction, that the
//! step's execution is still held under the same fence.

use std::fmt;
use std::sync::Arc;

use crate::ops::Lease;

tokio::task_local! {
    static AUTHOR: Author;
    static STEP: Lease;
}

/// The longest name of an author, in characters.
const LONGEST_NAME: usize = 100;

/// The author of a change, as `KIND:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author(Arc<str>);

impl Author {
    /// Returns the author who is a user of this machine.
    pub fn user(name: &str) -> Author {
        Author::new("user", name)
    }

    /// Returns the author who showed the access token of this name.
    pub fn token(name: &str) -> Author {
        Author::new("token", name)
    }

    /// Returns the author who is an agent or a person that claims tasks under this name.
    pub fn agent(name: &str) -> Author {
        Author::new("agent", name)
    }

    /// Returns the rule that starts runs from events.
    pub fn rule(name: &str) -> Author {
        Author::new("rule", name)
    }

    /// Returns the author of requests to a server that asks for no token.
    pub fn anyone() -> Author {
        Author::new("anyone", "here")
    }

    fn new(kind: &str, name: &str) -> Author {
        let name: String = name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
        Author(format!("{kind}:{name}").into())
    }

    /// Returns the author as the journal stores it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Does `work` on behalf of an author: the journal names the author in every entry that it causes.
pub async fn acting_as<T>(author: Author, work: impl Future<Output = T>) -> T {
    AUTHOR.scope(author, work).await
}

/// Does `work` on behalf of the agent of a step. Every write fails as soon as the step's execution has ended, was
/// cancelled, or belongs to another fence.
pub async fn acting_for_step<T>(author: Author, lease: Lease, work: impl Future<Output = T>) -> T {
    AUTHOR.scope(author, STEP.scope(lease, work)).await
}

/// Returns `work` as a part of the present request: with its author and its step. For tasks that a request spawns.
pub fn in_this_request<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let (author, step) = (current_author(), current_step());
    async move {
        match (author, step) {
            (Some(author), Some(step)) => acting_for_step(author, step, work).await,
            (Some(author), None) => acting_as(author, work).await,
            _ => work.await,
        }
    }
}

/// Returns the step whose agent sent the request that the present task serves, if one did.
pub(crate) fn current_step() -> Option<Lease> {
    STEP.try_with(Lease::clone).ok()
}

/// Returns the author of the request that the present task serves, if it serves one.
pub fn current_author() -> Option<Author> {
    AUTHOR.try_with(Author::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_bounded_and_has_no_control_characters() {
        assert_eq!(Author::token("ci\n\u{1b}[31m").as_str(), "token:ci[31m");
        assert_eq!(Author::user(&"a".repeat(1_000)).as_str().len(), "user:".len() + LONGEST_NAME);
    }

    #[tokio::test]
    async fn an_author_is_bound_to_its_request() {
        assert_eq!(current_author(), None);
        let seen = acting_as(Author::user("ada"), async { current_author() }).await;
        assert_eq!(seen, Some(Author::user("ada")));
        let spawned =
            acting_as(Author::user("ada"), async { tokio::spawn(async { current_author() }).await });
        assert_eq!(spawned.await.expect("it ends"), None);
        assert_eq!(current_author(), None);
    }
}
