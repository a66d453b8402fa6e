//! Deliberate faults that a test build can enable, one at a time, to check that the tests detect them.
//!
//! The feature `mutants` enables the fault whose number is in the variable `SPRAG_MUTANT`. Without the feature
//! [`is_on`] is the constant `false`, and the compiler removes all of this.

/// Returns whether this fault is enabled: `mutant!(FenceIgnored)`.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}

macro_rules! mutants {
    ($($number:ident $name:ident $fault:literal)+) => {
        /// A fault; [`LIST`] describes each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the list says what each is")]
        pub enum Mutant {
            $($name,)+
        }

        /// All faults: number, variant, and the behaviour while it is enabled.
        pub const LIST: &[(&str, Mutant, &str)] = &[
            $((stringify!($number), Mutant::$name, $fault),)+
        ];
    };
}

mutants! {
    M01 FenceIgnored "a report is accepted with any fence"
    M02 EpochIgnored "a report from before a resume is accepted"
    M03 LeaseNotLookedAt "the reaper abandons executions whose lease is valid"
    M04 TerminalStatesMove "a finished execution accepts a second report"
    M05 ActorIgnored "the table accepts an event from any actor"
    M06 NeedsOffByOne "a step starts while one of its needs is unsettled"
    M07 BrokenNeedsForgotten "a broken step counts as met for its dependents"
    M08 TriesUnbounded "a failure is retried without limit"
    M09 LostIsTriedAgain "an at-most-once step runs again after its worker was lost"
    M10 RunEndsEarly "a run completes with a step unsettled"
    M11 CancelLeavesWork "cancelling a run does not stop its live work"
    M12 ReworkDoesNotWait "a rework resets steps whose work is still live"
    M13 FailFastGoesOn "a fail-fast fan-out continues after a failure"
    M14 ItemNotCounted "a settled item is not counted"
    M15 TaskNeedsForgotten "a board's task starts before the tasks it needs"
    M16 FenceStaysAtReceipt "the fence does not grow when a worker receives an execution"
    M17 FenceStaysWhenTaken "the fence does not grow when an execution is abandoned"
    M18 FenceStaysWhenGivenBack "the fence does not grow when a worker releases an execution"
    M19 FenceStaysWhenRevoked "the fence does not grow when a hand-off is revoked"
    M20 RenewedByName "a lease is renewed without its fence"
    M21 AdvanceForgotten "a completion does not advance the run"
    M22 TimerForgotten "a backoff sets no timer"
    M23 BackoffForgotten "a failure is retried without its backoff"
    M24 KeyIgnored "a repeated request with the same key makes a second run"
    M25 GroupLimitIgnored "a run starts although its group is full"
    M26 PlaceKept "a finished run keeps its slot in the group"
    M27 QueueLimitIgnored "an execution is handed off although its queue is full"
    M28 ChildEndNotTold "a parent is not notified when its child run ends"
    M29 EpochStays "a resume does not raise the epoch"
    M30 NonceIgnored "a repeated claim gets a second task"
    M31 WallClockLeases "leases are measured by the wall clock"
    M32 JournalSkips "a step that fails leaves no entry in the journal"
    M33 ConflictOverlooked "a compare-and-set that changed nothing counts as done"
    M34 RefusalWrites "a refused event changes the row's version"
    M35 SavepointKept "the writes of a failed operation are kept"
    M36 ReservationIgnored "SQLite looks for a worker's reserved work among all work"
    M37 CommitNotAsked "a failed commit counts as done"
    M38 NotSynced "a commit is acknowledged before it is on disk"
    M39 CleanedUpUnderARun "an environment is removed while its run is live"
    M40 SignalLost "a signal that no step waits for yet is dropped"
    M41 LateAnswerCounts "a settled gate accepts another answer"
    M42 OutboxForgotten "the actions to do after a commit are not stored"
    M43 OrphansNotLookedAt "a run stays reserved to a worker that is gone"
    M44 RepeatedReportLost "a repeated report of a task is refused"
    M45 DeadHoldersKept "a cancelled run of a dead process keeps its slot in the group"
    M46 ForgetsWithoutLooking "a run is deleted although it was resumed"
    M47 PlansRemembered "a plan that another process removed counts as stored"
    M48 SchemaNotLookedAt "a process keeps writing after the schema was upgraded"
    M49 WallClockAnchors "after a reboot the store's time follows the wall clock alone"
    M50 DatabaseClockTrusted "a database clock that is set back stops the store's time"
    M51 BlockedIsReworked "a failure that only a person can fix triggers a rework"
    M52 StallsCount "a lease expires while no process can write"
    M53 StaleAnswerUsed "a cached evaluation of a step's spec is used after its input values changed"
    M54 StaleSightingCounts "an environment is created again because of a check from before it was ready"
    M55 ItemAttemptsReset "the items of a list that is created again count their attempts from 1"
    M56 KeyForgotten "a run is deleted while its starter may repeat its request"
    M57 PackDropsLast "a pack of the journal drops its last entry"
    M58 PackApart "a pack of the journal is committed apart from the rows that it describes"
    M60 HoldForgottenAtStart "an executor that starts hands over executions of a held account"
    M61 LateLimitHolds "a limit that was reported late holds an account again after it was released"
    M62 AccountLimitIgnored "an execution is handed over although its account has no free place"
    M63 ProbeIsNoOne "all waiting executions start when the hold of their account lapses"
    M64 RuntimeStays "the runtime's number does not grow when an agent is started again"
    M65 StartOvertakesStop "a late start revives a thread that a person has stopped"
    M66 SecondHolder "a second execution starts an agent in a session that another one holds"
    M67 HolderKept "an execution that ends leaves its thread's turn open"
    M68 AnswerUsedTwice "the answer to an agent's question counts for two requests"
    M69 QuestionDiesWithWorker "a lost worker takes the question of its agent with it"
    M70 TickNotClaimed "two servers fire one tick"
    M71 CursorWithoutRun "a rule's cursor passes a tick that started nothing"
    M72 RunWithoutCursor "a tick starts its run and the rule's cursor stays"
    M73 EventKeysForgotten "the key of an event is removed while the event may be repeated"
    M74 ConditionErrorIsFalse "a condition without an answer counts as false"
    M75 AnsweredBeforeStored "an event is acknowledged before it is stored"
    M76 SecondGroupIgnored "a run of a rule starts beside another one because its pipeline has a group of its own"
    M77 RateOvertaken "an event starts before one that waits for the rate of its rule"
    M78 SightWithoutRun "a rule's cursor passes the end of a run or the move of a ref that started nothing"
    M79 MoveNotClaimed "two servers fire one end of a run or one move of a ref"
    M80 RunStatusStale "a condition sees a failed run as running"
    M81 ThenIgnored "a failure after the last rework fails the run although it is tolerated"
    M82 SkipStays "a skip that takes the later steps along does not reach them"
    M83 EndGoesOn "steps start although the run has reached its end"
    M84 QuorumWaitsForAll "a step that needs some of its needs waits for all"
    M85 RoundTooMany "a step with `repeat` runs one round more than its `max`"
    M86 RoundsForgotten "a resume counts the rounds of a step with `repeat` from the start"
    M87 AnswerUnchecked "an answer is stored without a check of its fields"
    M88 HandlerAlways "a handler runs whatever the end of the run is"
    M90 ParkedIsHandedOver "an execution is handed over although its agent waits for an answer"
    M93 SandboxIsOptional "a step starts without its sandbox although the pipeline requires it"
    M94 SandboxOfPipelineForgotten "a step's own sandbox drops the bounds of its pipeline"
    M91 MessageTwice "a message to an agent is sent again after its worker was lost"
    M92 EndTurnIsSuccess "the end of a turn counts as success whatever contradicts it"
    M95 FallbackForgotten "a step waits for its held account although a fallback has a place"
    M100 LimitNotChecked "a token reaches what its limits exclude"
    M101 StarterMayAnswer "the starter of a run answers a question that others have to answer"
    M104 RunLimitIgnored "a step starts although its run has as many steps at work as it may"
    M105 FreePlaceForgotten "a place that a step frees is not given to a step that waits for one"
    M110 ServiceOutlivesRun "services are not stopped when all other steps have settled"
    M111 ServiceElsewhere "a worker receives a step although another worker has the services of its run"
    M112 ServicesUnbounded "a worker takes the services of more runs than it has slots"
    M113 GivenBackThoughRepeated "what a vanished claimer received returns to its queue although a repeated claim may have found it"
}

/// Returns whether this fault is enabled.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}

/// Returns whether this fault is enabled.
#[cfg(feature = "mutants")]
pub fn is_on(mutant: Mutant) -> bool {
    static ON: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
    let on = ON.get_or_init(|| {
        let wanted = std::env::var("SPRAG_MUTANT").ok()?;
        match LIST.iter().find(|(number, ..)| *number == wanted) {
            Some((_, mutant, _)) => Some(*mutant),
            None => panic!("SPRAG_MUTANT: unknown fault {wanted:?}"),
        }
    });
    *on == Some(mutant)
}
