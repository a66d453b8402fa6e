//! The fair queue in front of a repository's lock and the sharing of concurrent checkouts, under very many thread
//! schedules. The queue admits one thread at a time, in the order of arrival, and no thread waits forever, even if others
//! give up. A shared result is used by the other requests, is dropped with the last request, and no request waits forever.
//!
//! The tested files are the shipped ones; only their mutexes and condition variables come from a scheduler that chooses
//! the next thread.

/// The scheduler's primitives, under the names that the tested files import.
mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub use shuttle::thread::ThreadId;
    pub use std::sync::PoisonError;

    pub fn this_thread() -> ThreadId {
        shuttle::thread::current().id()
    }
}

#[path = "../../worktree/src/fair_queue.rs"]
mod fair_queue;
#[path = "../../worktree/src/single_flight.rs"]
mod single_flight;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fair_queue::{FairQueue, WaitError};
use shuttle::sync::Mutex;
use shuttle::thread;
use single_flight::SingleFlight;

fn schedules() -> usize {
    if std::env::var_os("SPRAG_NIGHTLY").is_some() { 10_000_000 } else { 50_000 }
}

/// Threads that enter twice each; one of them gives up at its first wait.
fn enter_and_leave() {
    let queue = Arc::new(FairQueue::default());
    let inside = Arc::new(AtomicUsize::new(0));
    let served = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..3)
        .map(|who| {
            let (queue, inside, served) = (Arc::clone(&queue), Arc::clone(&inside), Arc::clone(&served));
            thread::spawn(move || {
                for _ in 0..2 {
                    let check = || if who == 2 { Err(()) } else { Ok(Duration::from_secs(1)) };
                    match queue.enter(check) {
                        Ok(ticket) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                            thread::yield_now();
                            assert_eq!(
                                queue.enter(|| Ok::<_, ()>(Duration::ZERO)),
                                Err(WaitError::Reentered)
                            );
                            *served.lock().unwrap() += 1;
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "one at a time");
                            queue.leave(ticket);
                        }
                        Err(error) => assert_eq!((who, error), (2, WaitError::GaveUp(()))),
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
    assert_eq!(queue.len(), 0, "the queue is empty");
}

/// Runs two threads for each of two keys, with two requests each. The result of the second key cannot be shared.
fn request_and_share() {
    let group = Arc::new(SingleFlight::<usize, usize>::default());
    let publications: Arc<[AtomicUsize; 2]> = Arc::default();
    let threads: Vec<_> = (0..4)
        .map(|who| {
            let (group, publications) = (Arc::clone(&group), Arc::clone(&publications));
            thread::spawn(move || {
                let key = who % 2;
                for _ in 0..2 {
                    let mut request = group.request(key);
                    thread::yield_now();
                    match request.start(|| Ok::<_, ()>(())).unwrap() {
                        Some(made) => assert_eq!((key, *made), (0, 7), "the published result"),
                        None => request.publish(|| {
                            assert_eq!(publications[key].fetch_add(1, Ordering::SeqCst), 0, "one is enough");
                            thread::yield_now();
                            assert_eq!(publications[key].fetch_sub(1, Ordering::SeqCst), 1, "one is enough");
                            (key == 0).then_some(7)
                        }),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(group.len(), 0, "no result is held without a request");
}

/// Threads become current in the order of their arrival.
fn first_come_first_served() {
    let queue = Arc::new(FairQueue::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = queue.enter(|| Err::<Duration, ()>(())).expect("free");
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            thread::spawn(move || {
                let mut came = None;
                let ticket = queue.enter(|| {
                    // Called under the queue's own mutex, so that the order of calls is the order of arrival.
                    came.get_or_insert_with(|| {
                        let mut order = order.lock().unwrap();
                        order.push(("came", thread::current().id()));
                    });
                    Ok::<_, ()>(Duration::from_secs(1))
                });
                if came.is_some() {
                    order.lock().unwrap().push(("served", thread::current().id()));
                }
                queue.leave(ticket.expect("it does not give up"));
            })
        })
        .collect();
    thread::yield_now();
    queue.leave(first);
    for thread in threads {
        thread.join().unwrap();
    }
    let order = order.lock().unwrap();
    let of =
        |what| order.iter().filter(move |(did, _)| *did == what).map(|(_, who)| *who).collect::<Vec<_>>();
    assert_eq!(of("came"), of("served"));
}

#[test]
fn wt36_the_queue_admits_one_at_a_time_in_random_schedules() {
    shuttle::check_random(enter_and_leave, schedules());
    shuttle::check_random(first_come_first_served, schedules() / 2);
    println!("figure: schedules: {} random", schedules() + schedules() / 2);
}

#[test]
fn wt36_the_queue_admits_one_at_a_time_in_schedules_with_few_changes() {
    /// The most preemptions in a schedule.
    const CHANGES: usize = 3;
    shuttle::check_pct(enter_and_leave, schedules(), CHANGES);
    shuttle::check_pct(first_come_first_served, schedules() / 2, CHANGES);
    println!("figure: schedules: {} with at most {CHANGES} changes", schedules() + schedules() / 2);
}

#[test]
fn a_shared_result_is_published_once_and_not_held_forever() {
    const CHANGES: usize = 3;
    shuttle::check_random(request_and_share, schedules() / 2);
    shuttle::check_pct(request_and_share, schedules() / 2, CHANGES);
    println!("figure: schedules of shared results: {}", schedules());
}
