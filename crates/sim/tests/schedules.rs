//! The line before a repository's lock, in very many orders in which its threads can run: it serves one at a time, in the
//! order of coming, and nobody waits for ever, whoever gives up meanwhile.
//!
//! The file is the one that ships; only its mutex and condition variable are those of a scheduler that chooses
//! which thread runs next.

/// The scheduler's primitives, by the names that the line asks for.
mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub use shuttle::thread::ThreadId;
    pub use std::sync::PoisonError;

    pub fn this_thread() -> ThreadId {
        shuttle::thread::current().id()
    }
}

#[path = "../../worktree/src/line.rs"]
mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use line::{Line, NotServed};
use shuttle::sync::Mutex;
use shuttle::thread;

fn schedules() -> usize {
    if std::env::var_os("SPRAG_NIGHTLY").is_some() { 10_000_000 } else { 50_000 }
}

/// Threads that are served twice each; one of them gives up at its first wait.
fn come_and_go() {
    let line = Arc::new(Line::default());
    let inside = Arc::new(AtomicUsize::new(0));
    let served = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..3)
        .map(|who| {
            let (line, inside, served) = (Arc::clone(&line), Arc::clone(&inside), Arc::clone(&served));
            thread::spawn(move || {
                for _ in 0..2 {
                    let go_on = || if who == 2 { Err(()) } else { Ok(Duration::from_secs(1)) };
                    match line.enter(go_on) {
                        Ok(ticket) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                            thread::yield_now();
                            assert_eq!(line.enter(|| Ok::<_, ()>(Duration::ZERO)), Err(NotServed::Already));
                            *served.lock().unwrap() += 1;
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "one at a time");
                            line.leave(ticket);
                        }
                        Err(not_served) => assert_eq!((who, not_served), (2, NotServed::GaveUp(()))),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let served = *served.lock().unwrap();
    assert!((4..=6).contains(&served), "{served} were served");
    assert_eq!(line.len(), 0, "nobody is left in the line");
}

/// Who stood in line before another is served before it.
fn first_come_first_served() {
    let line = Arc::new(Line::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = line.enter(|| Err::<Duration, ()>(())).expect("free");
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (line, order) = (Arc::clone(&line), Arc::clone(&order));
            thread::spawn(move || {
                let mut came = None;
                let ticket = line.enter(|| {
                    // Asked under the line's own mutex, so that the order of asking is that of standing in line.
                    came.get_or_insert_with(|| {
                        let mut order = order.lock().unwrap();
                        order.push(("came", thread::current().id()));
                    });
                    Ok::<_, ()>(Duration::from_secs(1))
                });
                if came.is_some() {
                    order.lock().unwrap().push(("served", thread::current().id()));
                }
                line.leave(ticket.expect("it does not give up"));
            })
        })
        .collect();
    thread::yield_now();
    line.leave(first);
    for thread in threads {
        thread.join().unwrap();
    }
    let order = order.lock().unwrap();
    let of =
        |what| order.iter().filter(move |(did, _)| *did == what).map(|(_, who)| *who).collect::<Vec<_>>();
    assert_eq!(of("came"), of("served"));
}

#[test]
fn wt36_the_line_serves_one_at_a_time_in_random_schedules() {
    shuttle::check_random(come_and_go, schedules());
    shuttle::check_random(first_come_first_served, schedules() / 2);
    println!("figure: schedules: {} random", schedules() + schedules() / 2);
}

#[test]
fn wt36_the_line_serves_one_at_a_time_in_schedules_with_few_changes() {
    /// How often the scheduler may go on with another thread.
    const CHANGES: usize = 3;
    shuttle::check_pct(come_and_go, schedules(), CHANGES);
    shuttle::check_pct(first_come_first_served, schedules() / 2, CHANGES);
    println!("figure: schedules: {} with at most {CHANGES} changes", schedules() + schedules() / 2);
}
