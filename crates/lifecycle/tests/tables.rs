//! Compares the tables with a second, independently written copy of them, for every (status, event, actor).

use sprag_lifecycle::*;

/// One line per event: the actors that may report it, and its target for each status in order (`-` = none).
struct Grid(&'static str);

#[rustfmt::skip]
const RUN: Grid = Grid("
    run.started      | executor | running   -         -          -          -       -       -
    run.succeeded    | advance  | -         completed -          -          -       -       -
    queue.expired    | executor | failed    -         -          -          -       -       -
    failure.observed | advance  | -         failing   -          -          -       -       -
    failure.settled  | advance  | -         -         failed     -          -       -       -
    cancel.requested | person   | cancelled cancelling cancelling -         -       -       -
    cancel.settled   | advance  | -         -         -          cancelled  -       -       -
    run.resumed      | person   | -         -         -          -          -       running running
    run.rewound      | person   | -         -         -          -          running running running
");

#[rustfmt::skip]
const STEP: Grid = Grid("
    step.ready     | advance | pending   -         -         -       -       -       -
    step.started   | advance | -         running   -         -       -       -       -
    step.succeeded | advance | -         -         done      -       -       -       -
    step.retried   | advance | -         -         pending   -       -       -       -
    step.repeated  | advance | -         -         pending   -       -       -       -
    step.failed    | advance | -         failed    failed    -       -       -       -
    step.skipped   | advance | skipped   skipped   skipped   -       -       -       -
    step.cancelled | advance | cancelled cancelled cancelled -       -       -       -
    step.reworked  | advance | -         -         -         waiting waiting waiting waiting
    step.reset     | advance | -         -         -         waiting waiting waiting waiting
    step.reopened  | advance | -         -         -         -       waiting waiting waiting
");

#[rustfmt::skip]
const EXECUTION: Grid = Grid("
    scheduling.started   | executor | scheduling -          -         -         - - - - -
    scheduling.deferred  | executor | -          requested  -         -         - - - - -
    scheduling.failed    | executor | failed     failed     -         -         - - - - -
    handoff.published    | executor | -          scheduled  -         -         - - - - -
    handoff.received     | worker   | -          -          running   -         - - - - -
    handoff.revoked      | executor | -          -          requested -         - - - - -
    execution.completed  | worker   | -          -          -         completed - - - - -
    execution.failed     | worker   | -          -          -         failed    - - - - -
    execution.timed_out  | worker   | -          -          -         timed_out - - - - -
    execution.cancelled  | executor | cancelled  cancelled  -         -         - - - - -
    execution.cancelled  | worker   | -          -          -         cancelled - - - - -
    execution.released   | worker   | -          -          -         requested - - - - -
    lease.expired        | reaper   | -          -          -         abandoned - - - - -
    owner.died           | reaper   | -          -          -         abandoned - - - - -
");

#[rustfmt::skip]
const ENVIRONMENT: Grid = Grid("
    provision.requested | executor      | -     provisioning provisioning - provisioning
    provision.succeeded | worker        | ready -            -            -     -
    provision.failed    | worker reaper | error -            -            -     -
    provision.cancelled | worker        | error -            -            -     -
    host.lost           | reaper        | error error        -            error -
    destroy.dispatched  | worker        | -     destroying   destroying   -     -
    destroy.succeeded   | worker        | -     -            -            destroyed -
    destroy.failed      | worker        | -     -            -            error -
    destroy.lost        | reaper        | -     -            -            error -
    cleanup.completed   | worker reaper | -     destroyed    destroyed    -     -
");

#[rustfmt::skip]
const THREAD: Grid = Grid("
    reprovision.started     | worker        | provisioning -      provisioning -     provisioning
    turn.dispatched         | worker        | -            -      active       -     -
    start.succeeded         | worker        | -            active -            -     -
    turn.started            | worker        | -            active -            -     -
    runtime.observed-active | worker        | -            active -            -     -
    turn.completed          | worker        | -            -      -            idle  -
    turn.failed             | worker        | -            error  -            error -
    turn.interrupted        | worker        | -            idle   -            idle  -
    runtime.exited          | worker        | -            error  -            error -
    command.failed          | worker        | -            error  -            error -
    provision.failed        | worker reaper | -            error  -            -     -
    workspace.lost          | worker reaper | error        error  error        error -
    stop.completed          | worker reaper | -            idle   -            idle  -
    session.lost            | reaper        | -            error  -            error -
");

#[rustfmt::skip]
const ACCOUNT: Grid = Grid("
    limit.hit    | worker   | held -       held
    hold.set     | person   | held -       held
    hold.lapsed  | executor | -    probing -
    hold.lifted  | person   | -    free    free
    probe.passed | worker   | -    -       free
");

#[rustfmt::skip]
const GATE: Grid = Grid("
    gate.answered  | person         | answered  - - -
    gate.expired   | executor       | expired   - - -
    gate.cancelled | advance worker | cancelled - - -
");

#[rustfmt::skip]
const WORKER: Grid = Grid("
    worker.registered       | worker        | -        -       online
    worker.drain_requested  | worker person | draining -       -
    worker.left             | worker        | offline  offline -
    worker.heartbeat_lapsed | reaper        | offline  offline -
    worker.died             | reaper        | offline  offline -
");

#[rustfmt::skip]
const RULE: Grid = Grid("
    rule.paused  | person          | paused  -       paused  -
    rule.resumed | person          | -       active  -       -
    rule.broke   | executor        | broken  -       -       -
    rule.mended  | executor person | -       -       active  -
    rule.retired | person          | retired retired retired -
    rule.applied | person          | -       -       active  active
");

#[rustfmt::skip]
const ENFORCEMENT: Grid = Grid("
    enforcement.held      | executor | held      -         - - -
    enforcement.requested | executor | requested requested - - -
    enforcement.skipped   | executor | skipped   skipped   - - -
    enforcement.failed    | executor | failed    failed    - - -
");

impl Grid {
    /// Returns the target of the event; `Err(true)` if only another actor may report it.
    fn cell<L: Lifecycle>(&self, status: L::Status, event: L::Event, who: Actor) -> Result<L::Status, bool> {
        let column = L::Status::ALL.iter().position(|s| *s == status).unwrap();
        let mut other = false;
        for line in self.0.lines().filter(|line| !line.trim().is_empty()) {
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            let cells: Vec<&str> = parts[2].split_whitespace().collect();
            assert_eq!(cells.len(), L::Status::ALL.len(), "{line}");
            if parts[0] != event.as_str() || cells[column] == "-" {
                continue;
            }
            if parts[1].split_whitespace().any(|actor| actor == who.as_str()) {
                return Ok(L::Status::parse(cells[column]).unwrap_or_else(|| panic!("{line}")));
            }
            other = true;
        }
        Err(other)
    }
}

/// Checks L01 and L02 for one lifecycle: every cell applies to a clean row, and every empty cell is illegal.
fn check<L: Lifecycle>(grid: &Grid, clean: impl Fn(L::Event) -> L::Facts) {
    for event in L::Event::ALL {
        assert!(L::RULES.iter().any(|rule| rule.event == *event), "{event} has no rule");
        for status in L::Status::ALL {
            for who in Actor::ALL {
                let expected = match grid.cell::<L>(*status, *event, *who) {
                    Ok(to) => Verdict::<L>::Apply(to),
                    Err(true) => Verdict::WrongActor,
                    Err(false) => Verdict::NoCell,
                };
                let got = evaluate::<L>(*status, *event, *who, &clean(*event));
                assert!(same(&expected, &got), "{event} in {status} by {who}: {got:?}, not {expected:?}");
            }
        }
    }
    for rule in L::RULES {
        for to in rule.to.targets() {
            assert!(!rule.from.contains(&to), "{} maps {to} to itself", rule.event);
        }
    }
    for predicate in L::Predicate::ALL.iter().filter(|p| p.as_str() != "always") {
        assert!(
            L::RULES.iter().any(|rule| rule.unless_superseded.contains(predicate)),
            "{predicate} is unused"
        );
    }
}

fn same<L: Lifecycle>(a: &Verdict<L>, b: &Verdict<L>) -> bool {
    match (a, b) {
        (Verdict::Apply(a), Verdict::Apply(b)) => a == b,
        (Verdict::Superseded(a), Verdict::Superseded(b)) => a == b,
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

fn run_facts() -> RunFacts {
    RunFacts { epoch_matches: true, open: false, unsettled: 0, broken: 0, queue_wait_over: true }
}

fn step_facts() -> StepFacts {
    StepFacts {
        needs_met: true,
        run_live: true,
        run_running: true,
        attempt_matches: true,
        attempts_left: true,
        not_wanted: true,
        work_ended: true,
        rounds_left: true,
        epoch_raised: true,
    }
}

fn execution_facts() -> ExecutionFacts {
    ExecutionFacts {
        cancel_requested: false,
        run_live: true,
        due: true,
        fence_matches: true,
        epoch_matches: true,
        lease_lapsed: true,
        owner_dead: true,
    }
}

fn environment_facts(event: EnvironmentEvent) -> EnvironmentFacts {
    EnvironmentFacts {
        provision_attempt_matches: true,
        destroy_attempt_matches: true,
        host_lease_lapsed: true,
        managed: true,
        cleanup_requested: true,
        path_present: event != EnvironmentEvent::CleanupCompleted,
        host_gone: false,
        live_users: 0,
        destroyer_gone: true,
    }
}

fn thread_facts(event: ThreadEvent) -> ThreadFacts {
    ThreadFacts {
        stop_requested: event == ThreadEvent::StopCompleted,
        archived: false,
        deleted: false,
        has_holder: false,
        holder_runs: true,
        holder_matches: true,
        turn_matches: true,
        runtime_matches: true,
        provision_attempt_matches: true,
    }
}

fn account_facts(event: AccountEvent) -> AccountFacts {
    AccountFacts {
        fence_matches: true,
        generation_matches: true,
        until_passed: event == AccountEvent::HoldLapsed,
    }
}

fn enforcement_facts() -> EnforcementFacts {
    EnforcementFacts { rule_active: true, rule_unchanged: true, due: true }
}

#[test]
fn l01_l02_every_pair_of_every_table() {
    check::<Run>(&RUN, |_| run_facts());
    check::<Step>(&STEP, |_| step_facts());
    check::<Execution>(&EXECUTION, |_| execution_facts());
    check::<Environment>(&ENVIRONMENT, environment_facts);
    check::<Thread>(&THREAD, thread_facts);
    check::<Account>(&ACCOUNT, account_facts);
    check::<Gate>(&GATE, |_| GateFacts { timeout_passed: true });
    check::<WorkerPresence>(&WORKER, |_| WorkerFacts { heartbeat_overdue: true, process_gone: true });
    check::<TriggerRule>(&RULE, |_| RuleFacts { version_matches: true });
    check::<Enforcement>(&ENFORCEMENT, |_| enforcement_facts());
}

/// Checks L03 for one lifecycle: `spoil` makes exactly one predicate fail. Then that predicate supersedes every
/// event that declares it, in any status and from any actor, and no other event.
fn check_superseded<L: Lifecycle>(
    predicate: L::Predicate,
    clean: impl Fn(L::Event) -> L::Facts,
    spoil: impl Fn(&mut L::Facts),
) {
    for event in L::Event::ALL {
        for who in Actor::ALL {
            let mut facts = clean(*event);
            spoil(&mut facts);
            let of_event = || L::RULES.iter().filter(|rule| rule.event == *event);
            let declared =
                of_event().find(|rule| rule.who.contains(who)).or_else(|| of_event().next()).unwrap();
            for status in L::Status::ALL {
                let got = evaluate::<L>(*status, *event, *who, &facts);
                let superseded = matches!(got, Verdict::Superseded(p) if p == predicate);
                let declares = declared.unless_superseded.contains(&predicate);
                assert_eq!(superseded, declares, "{event} in {status} by {who} without {predicate}: {got:?}");
            }
        }
    }
}

#[test]
fn l03_each_declared_predicate_supersedes_and_undeclared_facts_do_not() {
    use ExecutionPredicate as X;
    use RunPredicate as R;
    use StepPredicate as S;
    let run = |p, spoil: fn(&mut RunFacts)| check_superseded::<Run>(p, |_| run_facts(), spoil);
    run(R::MatchingEpoch, |f| f.epoch_matches = false);
    run(R::NotOpen, |f| f.open = true);
    run(R::EveryStepMet, |f| f.broken = 1);
    run(R::EveryStepSettled, |f| f.unsettled = 1);
    run(R::QueueWaitOver, |f| f.queue_wait_over = false);

    let step = |p, spoil: fn(&mut StepFacts)| check_superseded::<Step>(p, |_| step_facts(), spoil);
    step(S::NeedsMet, |f| f.needs_met = false);
    step(S::RunLive, |f| f.run_live = false);
    step(S::CurrentAttempt, |f| f.attempt_matches = false);
    step(S::AttemptsLeft, |f| f.attempts_left = false);
    step(S::NotWanted, |f| f.not_wanted = false);
    step(S::WorkEnded, |f| f.work_ended = false);
    step(S::RoundsLeft, |f| f.rounds_left = false);
    step(S::RunRunning, |f| f.run_running = false);
    step(S::EpochRaised, |f| f.epoch_raised = false);

    let exec =
        |p, spoil: fn(&mut ExecutionFacts)| check_superseded::<Execution>(p, |_| execution_facts(), spoil);
    exec(X::NotCancelRequested, |f| f.cancel_requested = true);
    exec(X::RunLive, |f| f.run_live = false);
    exec(X::NotBeforeItsTime, |f| f.due = false);
    exec(X::MatchingFence, |f| f.fence_matches = false);
    exec(X::MatchingEpoch, |f| f.epoch_matches = false);
    exec(X::LeaseLapsed, |f| f.lease_lapsed = false);
    exec(X::OwnerDead, |f| f.owner_dead = false);

    use EnvironmentPredicate as V;
    let env =
        |p, spoil: fn(&mut EnvironmentFacts)| check_superseded::<Environment>(p, environment_facts, spoil);
    env(V::MatchingProvisionAttempt, |f| f.provision_attempt_matches = false);
    env(V::MatchingDestroyAttempt, |f| f.destroy_attempt_matches = false);
    env(V::HostLeaseLapsed, |f| f.host_lease_lapsed = false);
    env(V::Managed, |f| f.managed = false);
    env(V::CleanupRequested, |f| f.cleanup_requested = false);
    env(V::PathPresent, |f| f.path_present = false);
    env(V::PathAbsent, |f| f.path_present = true);
    env(V::NoLiveUser, |f| f.live_users = 1);
    env(V::DestroyerGone, |f| f.destroyer_gone = false);

    use ThreadPredicate as T;
    let thread = |p, spoil: fn(&mut ThreadFacts)| check_superseded::<Thread>(p, thread_facts, spoil);
    thread(T::NotStopRequested, |f| f.stop_requested = true);
    thread(T::StopRequested, |f| f.stop_requested = false);
    thread(T::NotArchived, |f| f.archived = true);
    thread(T::NotDeleted, |f| f.deleted = true);
    thread(T::NoHolder, |f| f.has_holder = true);
    thread(T::HolderRuns, |f| f.holder_runs = false);
    thread(T::MatchingHolder, |f| f.holder_matches = false);
    thread(T::MatchingProvisionAttempt, |f| f.provision_attempt_matches = false);
    thread(T::MatchingTurn, |f| f.turn_matches = false);
    thread(T::MatchingRuntime, |f| f.runtime_matches = false);

    use AccountPredicate as A;
    let account = |p, spoil: fn(&mut AccountFacts)| check_superseded::<Account>(p, account_facts, spoil);
    account(A::MatchingFence, |f| f.fence_matches = false);
    account(A::MatchingGeneration, |f| f.generation_matches = false);
    account(A::UntilNotPassed, |f| f.until_passed = true);
    account(A::UntilPassed, |f| f.until_passed = false);

    check_superseded::<Gate>(
        GatePredicate::TimeoutPassed,
        |_| GateFacts { timeout_passed: true },
        |f| f.timeout_passed = false,
    );
    let worker = |p, spoil: fn(&mut WorkerFacts)| {
        check_superseded::<WorkerPresence>(
            p,
            |_| WorkerFacts { heartbeat_overdue: true, process_gone: true },
            spoil,
        );
    };
    worker(WorkerPredicate::HeartbeatOverdue, |f| f.heartbeat_overdue = false);
    worker(WorkerPredicate::ProcessGone, |f| f.process_gone = false);

    check_superseded::<TriggerRule>(
        RulePredicate::MatchingVersion,
        |_| RuleFacts { version_matches: true },
        |f| f.version_matches = false,
    );
    let enforcement = |p, spoil: fn(&mut EnforcementFacts)| {
        check_superseded::<Enforcement>(p, |_| enforcement_facts(), spoil);
    };
    enforcement(EnforcementPredicate::RuleActive, |f| f.rule_active = false);
    enforcement(EnforcementPredicate::RuleUnchanged, |f| f.rule_unchanged = false);
    enforcement(EnforcementPredicate::Due, |f| f.due = false);
}

#[test]
fn o02_the_executor_cannot_write_after_hand_off() {
    for event in ExecutionEvent::ALL {
        for status in [ExecutionStatus::Running, ExecutionStatus::Completed, ExecutionStatus::Abandoned] {
            let verdict = evaluate::<Execution>(status, *event, Actor::Executor, &execution_facts());
            assert!(!matches!(verdict, Verdict::Apply(_)), "{event} in {status}");
        }
        let verdict =
            evaluate::<Execution>(ExecutionStatus::Scheduled, *event, Actor::Executor, &execution_facts());
        assert_eq!(matches!(verdict, Verdict::Apply(_)), *event == ExecutionEvent::HandoffRevoked, "{event}");
    }
}

#[test]
fn l17_the_reference_page_equals_the_tables() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lifecycles.md"))
        .expect("docs/lifecycles.md is there: `cargo xtask gen` writes it");
    assert!(page == reference(), "docs/lifecycles.md is out of date: run `cargo xtask gen`");
}
