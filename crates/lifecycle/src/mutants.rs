//! Faults that a test build can switch on, one at a time, to see whether the proof sees them.
//!
//! Only with the feature `mutants` is anything switched on, by its number in the variable `SPRAG_MUTANT`. Without
//! it [`is_on`] is the constant `false`, and nothing of this is left in a program.

/// Whether this fault is switched on: `mutant!(FenceIgnored)`.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}

macro_rules! mutants {
    ($($number:ident $name:ident $fault:literal)+) => {
        /// A fault. What it does is in [`LIST`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the list says what each is")]
        pub enum Mutant {
            $($name,)+
        }

        /// Every fault: its number, its name, and what is wrong with it on.
        pub const LIST: &[(&str, Mutant, &str)] = &[
            $((stringify!($number), Mutant::$name, $fault),)+
        ];
    };
}

mutants! {
    M01 FenceIgnored "a report is taken whatever fence it shows"
    M02 EpochIgnored "a report from before a resume is taken"
    M03 LeaseNotLookedAt "the reaper takes what is held by a live lease"
    M04 TerminalStatesMove "an execution that has ended takes a second report"
    M05 AnybodyReports "the table does not look at who reports"
    M06 NeedsOffByOne "a step starts with one of its needs open"
    M07 BrokenNeedsForgotten "a broken step counts as met for those that need it"
    M08 TriesUnbounded "a failure is tried again for ever"
    M09 LostIsTriedAgain "what must run at most once runs again after its worker was lost"
    M10 RunEndsEarly "a run completes with a step unsettled"
    M11 CancelLeavesWork "a cancelled run's work is not told to end"
    M12 ReworkDoesNotWait "a rework resets steps whose work still goes on"
    M13 FailFastGoesOn "a fan-out that fails fast goes on"
    M14 ItemNotCounted "an item that ends is not counted"
    M15 TaskNeedsForgotten "a task on a board starts before those that it needs"
    M16 FenceStaysAtReceipt "the fence does not grow at receipt"
    M17 FenceStaysWhenTaken "the fence does not grow when work is taken from the dead"
    M18 FenceStaysWhenGivenBack "the fence does not grow when work is given back"
    M19 FenceStaysWhenRevoked "the fence does not grow when a hand-off is taken back"
    M20 RenewedByName "a lease is renewed without its fence"
    M21 AdvanceForgotten "a completion does not decide what follows"
    M22 TimerForgotten "a backoff sets no timer"
    M23 BackoffForgotten "a failure is tried again at once"
    M24 KeyIgnored "a repeated request with the same key makes a second run"
    M25 GroupLimitIgnored "a run starts though its group is full"
    M26 PlaceKept "a run that ends keeps its group's place"
    M27 QueueLimitIgnored "work is handed over though its queue is full"
    M28 ChildEndNotTold "a parent is not told of its child's end"
    M29 EpochStays "a resume does not raise the epoch"
    M30 NonceIgnored "a repeated claim gets a second task"
    M31 WallClockLeases "leases are measured by the wall clock"
    M32 JournalSkips "a step that fails leaves no entry in the journal"
    M33 ConflictOverlooked "a compare-and-set that changed nothing is taken for done"
    M34 RefusalWrites "a refused event changes the row's version"
    M35 SavepointKept "what an operation wrote before it failed stays"
    M36 ReservationIgnored "SQLite looks for a worker's reserved work among everybody's"
    M37 CommitNotAsked "a commit that failed is taken for done"
    M38 NotSynced "a commit is answered before it is on disk"
    M39 CleanedUpUnderARun "an environment is removed while its run lives"
    M40 SignalLost "a signal that nobody waits for yet is dropped"
    M41 LateAnswerCounts "a question that has ended takes another answer"
    M42 OutboxForgotten "what is to be done after a commit is not kept"
}

/// Whether this fault is switched on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is_on(_: Mutant) -> bool {
    false
}

/// Whether this fault is switched on.
#[cfg(feature = "mutants")]
pub fn is_on(mutant: Mutant) -> bool {
    static ON: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
    let on = ON.get_or_init(|| {
        let wanted = std::env::var("SPRAG_MUTANT").ok()?;
        match LIST.iter().find(|(number, ..)| *number == wanted) {
            Some((_, mutant, _)) => Some(*mutant),
            None => panic!("SPRAG_MUTANT: there is no fault {wanted:?}"),
        }
    });
    *on == Some(mutant)
}
