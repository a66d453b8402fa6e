//! The hold on an account: a login of coding agents that many runs share.
//!
//! ```text
//!   free ──limit.hit, hold.set──▶ held ──hold.lapsed──▶ probing ──probe.passed──▶ free
//!    ▲                             │                       │
//!    └─────────hold.lifted─────────┴───────────────────────┘
//! ```
//!
//! Every event that ends a hold raises the generation. An execution carries the generation with which it was handed
//! over, so the report of one that started before the end of a hold cannot hold the account again.

use crate::mutant;
use crate::table::{Actor, Lifecycle, Rule, rule, words};

words! {
    /// The status of an account.
    AccountStatus {
        /// Executions are handed over, up to the account's limit.
        Free = "free",
        /// No execution is handed over until its time has passed, or a person releases it.
        Held = "held",
        /// The hold's time has passed: one execution tries the account, and the others wait for it.
        Probing = "probing",
    }
}

words! {
    /// An event of an account.
    AccountEvent {
        /// An agent reported that the account has reached its usage limit.
        LimitHit = "limit.hit",
        /// A person held the account.
        HoldSet = "hold.set",
        /// The hold's time has passed.
        HoldLapsed = "hold.lapsed",
        /// A person ended the hold.
        HoldLifted = "hold.lifted",
        /// An agent of the account answered after a hold.
        ProbePassed = "probe.passed",
    }
}

words! {
    /// A condition of an account's events.
    AccountPredicate {
        /// The report carries the present fence of its execution.
        MatchingFence = "matching fence",
        /// The execution was handed over in the present generation.
        MatchingGeneration = "matching generation",
        /// The reported end of the limit is in the future.
        UntilNotPassed = "until not passed",
        /// The hold's time has passed, by the wall clock or by the store's steady clock.
        UntilPassed = "until passed",
    }
}

/// The facts that the account's predicates test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountFacts {
    /// Whether the report carries its execution's present fence.
    pub fence_matches: bool,
    /// Whether the execution was handed over in the present generation.
    pub generation_matches: bool,
    /// Whether the end of the hold (of a report: the reported end) has passed.
    pub until_passed: bool,
}

/// The lifecycle of the hold on an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account;

use AccountEvent as E;
use AccountPredicate as P;
use AccountStatus::{Free, Held, Probing};
use Actor::{Executor, Person, Worker};

impl Lifecycle for Account {
    const NAME: &'static str = "account";
    type Status = AccountStatus;
    type Event = AccountEvent;
    type Predicate = AccountPredicate;
    type Facts = AccountFacts;

    #[rustfmt::skip]
    const RULES: &'static [Rule<Self>] = &[
        //   event           who          from              to       superseded unless
        rule(E::LimitHit,    &[Worker],   &[Free, Probing], Held,    &[P::MatchingFence, P::MatchingGeneration, P::UntilNotPassed]),
        rule(E::HoldSet,     &[Person],   &[Free, Probing], Held,    &[]),
        rule(E::HoldLapsed,  &[Executor], &[Held],          Probing, &[P::UntilPassed]),
        rule(E::HoldLifted,  &[Person],   &[Held, Probing], Free,    &[]),
        rule(E::ProbePassed, &[Worker],   &[Probing],       Free,    &[P::MatchingFence, P::MatchingGeneration]),
    ];

    // An account is never finished with.
    const TERMINAL: &'static [AccountStatus] = &[];

    fn holds(predicate: AccountPredicate, facts: &AccountFacts) -> bool {
        match predicate {
            P::MatchingFence => facts.fence_matches,
            P::MatchingGeneration => facts.generation_matches || mutant!(LateLimitHolds),
            P::UntilNotPassed => !facts.until_passed,
            P::UntilPassed => facts.until_passed,
        }
    }
}

impl AccountEvent {
    /// Returns whether this event ends a hold, so that reports from before it no longer count.
    pub fn raises_generation(self) -> bool {
        matches!(self, E::HoldLapsed | E::HoldLifted)
    }
}
