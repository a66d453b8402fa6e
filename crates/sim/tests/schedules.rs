//! The line before a repository's lock, in very many orders in which its threads can run: it serves one at a time, in the
//! order of coming, and nobody waits for ever, whoever gives up meanwhile. And checkouts that are wanted at once: what one
//! offers is taken by others, held no longer than anybody wants it, and nobody waits for ever for it.
//!
//! The files are those that ship; only their mutexes and condition variables are those of a scheduler that chooses
//! which thread runs next.

/// The scheduler's primitives, by the names that they ask for.
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
#[path = "../../worktree/src/wish.rs"]
mod wish;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use line::{Line, NotServed};
use shuttle::sync::Mutex;
use shuttle::thread;
use wish::Wishes;

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

/// Two threads for each of two things, each wanted twice. The second thing cannot be made for others.
fn wish_and_take() {
    let wishes = Arc::new(Wishes::<usize, usize>::default());
    let offers: Arc<[AtomicUsize; 2]> = Arc::default();
    let threads: Vec<_> = (0..4)
        .map(|who| {
            let (wishes, offers) = (Arc::clone(&wishes), Arc::clone(&offers));
            thread::spawn(move || {
                let thing = who % 2;
                for _ in 0..2 {
                    let mut wish = wishes.wish(thing);
                    thread::yield_now();
                    match wish.begin(|| Ok::<_, ()>(())).unwrap() {
                        Some(made) => assert_eq!((thing, *made), (0, 7), "what was offered for it"),
                        None => wish.offer(|| {
                            assert_eq!(offers[thing].fetch_add(1, Ordering::SeqCst), 0, "one is enough");
                            thread::yield_now();
                            assert_eq!(offers[thing].fetch_sub(1, Ordering::SeqCst), 1, "one is enough");
                            (thing == 0).then_some(7)
                        }),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(wishes.len(), 0, "nothing is held that nobody wants");
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

#[test]
fn what_is_wanted_at_once_is_offered_once_and_not_held_for_ever() {
    const CHANGES: usize = 3;
    shuttle::check_random(wish_and_take, schedules() / 2);
    shuttle::check_pct(wish_and_take, schedules() / 2, CHANGES);
    println!("figure: schedules of wishes: {}", schedules());
}
